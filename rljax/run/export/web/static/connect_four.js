// ConnectFour-v0: four in a row on 6 x 7 cells, where discs fall. The rules are those of envs/connect_four.py.

import { box, disc, percent, text } from "./drawing.js";

const [ROWS, COLUMNS] = [6, 7];
const DIRECTIONS = [[0, 1], [1, 0], [1, 1], [1, -1]];
const [LEFT, TOP] = [0.2, 1.2]; // of the board; the probabilities are above it

/** All fours, as lists of cells; row 0 is at the bottom, as in the observation. */
const FOURS = DIRECTIONS.flatMap(([up, right]) => {
  const found = [];
  for (let row = 0; row + 3 * up < ROWS; row++)
    for (let column = 0; column < COLUMNS; column++)
      if (column + 3 * right >= 0 && column + 3 * right < COLUMNS)
        found.push([0, 1, 2, 3].map((i) => (row + i * up) * COLUMNS + column + i * right));
  return found;
});

const foursOf = (board, player) => FOURS.filter((cells) => cells.every((cell) => board[cell] === player + 1));

export function makeEnvironment() {
  return {
    title: "Connect Four",
    task: "Four in a row, against the agent.",
    ask: "Your move.",
    held: "Press a column, or its number from 1 to 7.",
    actions: COLUMNS,
    columns: COLUMNS,
    width: COLUMNS + 2 * LEFT,
    height: TOP + ROWS + 0.6,

    reset: () => ({ board: new Array(ROWS * COLUMNS).fill(0), time: 0 }),

    observe: (state, seat) => state.board.flatMap((x) => [Number(x === seat + 1), Number(x === 2 - seat)]),

    mask(state, seat) {
      const top = state.board.slice(-COLUMNS);
      return top.map((x) => Number(x === 0 || state.time % 2 !== seat));
    },

    step(state, action) {
      const mover = state.time % 2;
      const board = [...state.board];
      const cell = firstFree(board, action);
      if (cell !== null) board[cell] = mover + 1;
      const won = foursOf(board, mover).length > 0;
      const reward = won ? [mover === 0 ? 1 : -1, mover === 1 ? 1 : -1] : [0, 0];
      return { state: { board, time: state.time + 1 }, reward, terminated: won || state.time + 1 === ROWS * COLUMNS };
    },

    actionAt(x) {
      const column = Math.floor(x - LEFT);
      return column >= 0 && column < COLUMNS ? column : null;
    },

    text(state, person) {
      const rows = Array.from({ length: ROWS }, (_, row) => state.board.slice(row * COLUMNS, (row + 1) * COLUMNS));
      const words = ["free", ...(person === 0 ? ["yours", "agent"] : ["agent", "yours"])];
      const filled = rows.filter((row) => row.some((x) => x));
      const lines = filled.map((row, i) => `row ${i + 1}: ${row.map((x) => words[x]).join(", ")}`);
      return lines.length ? `board from the bottom: ${lines.join("; ")}` : "the board is empty";
    },

    draw(context, colors, state, { probs = null, cursor = null, last = null }) {
      probs?.forEach((p, column) => {
        const [x, height] = [LEFT + column, 0.55 * p];
        box(context, x + 0.15, 0.7 - height, 0.7, height, 0.05, colors.green);
        text(context, p > 0 ? `${percent(p)} %` : "", x + 0.5, 0.92, 0.26, colors.ink);
      });
      for (let i = 0; i < COLUMNS; i++) text(context, String(i + 1), LEFT + i + 0.5, TOP + ROWS + 0.36, 0.26, colors.faint);
      box(context, LEFT - 0.1, TOP - 0.1, COLUMNS + 0.2, ROWS + 0.2, 0.25, colors.board);
      const ending = new Set([...foursOf(state.board, 0), ...foursOf(state.board, 1)].flat());
      const next = cursor === null ? null : firstFree(state.board, cursor);
      // The newest disc is the highest one of the last column.
      const newest = last === null ? null : (firstFree(state.board, last) ?? ROWS * COLUMNS + last) - COLUMNS;
      state.board.forEach((mark, cell) => {
        const [x, y] = [LEFT + (cell % COLUMNS) + 0.5, TOP + ROWS - Math.floor(cell / COLUMNS) - 0.5];
        disc(context, x, y, 0.4, [colors.surface, colors.red, colors.gold][mark]);
        if (cell === next) disc(context, x, y, 0.16, [colors.red, colors.gold][state.time % 2]);
        if (ending.has(cell)) disc(context, x, y, 0.14, "#2d3440");
        else if (cell === newest) disc(context, x, y, 0.08, "#2d3440");
      });
    },
  };
}

/** The lowest empty cell of a column; null if it is full. */
function firstFree(board, column) {
  for (let row = 0; row < ROWS; row++) if (board[row * COLUMNS + column] === 0) return row * COLUMNS + column;
  return null;
}
