// TicTacToe-v0: three in a row on 3 x 3 cells. The rules are those of envs/tic_tac_toe.py.

import { box, line, percent, text } from "./drawing.js";

const LINES = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];
const SIZE = 3.3;

/** The lines that a player has filled. */
const filled = (board, player) => LINES.filter((cells) => cells.every((cell) => board[cell] === player + 1));

export function makeEnvironment() {
  return {
    title: "Tic-tac-toe",
    task: "Three in a row, against the agent.",
    ask: "Your move.",
    held: "Press a cell, or its number from 1 to 9.",
    actions: 9,
    columns: 3,
    width: SIZE,
    height: SIZE,

    reset: () => ({ board: new Array(9).fill(0), time: 0 }),

    observe: (state, seat) => [seat + 1, 2 - seat].flatMap((mark) => state.board.map((x) => Number(x === mark))),

    mask: (state, seat) => state.board.map((x) => Number(x === 0 || state.time % 2 !== seat)),

    step(state, action) {
      const mover = state.time % 2;
      const board = state.board.with(action, mover + 1);
      const won = filled(board, mover).length > 0;
      const reward = won ? [mover === 0 ? 1 : -1, mover === 1 ? 1 : -1] : [0, 0];
      return { state: { board, time: state.time + 1 }, reward, terminated: won || state.time + 1 === 9 };
    },

    actionAt(x, y) {
      const [column, row] = [Math.floor(x - 0.15), Math.floor(y - 0.15)];
      return column >= 0 && column < 3 && row >= 0 && row < 3 ? 3 * row + column : null;
    },

    text: (state) => `board, row by row: ${state.board.map((mark, i) => ["free " + (i + 1), "X", "O"][mark]).join(", ")}`,

    draw(context, colors, state, { probs = null, cursor = null, last = null }) {
      context.translate(0.15, 0.15);
      state.board.forEach((mark, cell) => {
        const [x, y] = [(cell % 3) + 0.5, Math.floor(cell / 3) + 0.5];
        box(context, x - 0.46, y - 0.46, 0.92, 0.92, 0.08, colors.paper);
        if (mark === 0) text(context, String(cell + 1), x - 0.37, y - 0.36, 0.12, colors.faint);
        if (probs !== null && probs[cell] > 0) {
          context.globalAlpha = 0.45 * probs[cell];
          box(context, x - 0.46, y - 0.46, 0.92, 0.92, 0.08, colors.green);
          context.globalAlpha = 1;
          text(context, `${percent(probs[cell])} %`, x, y + 0.38, 0.13, colors.ink);
        }
        if (cell === cursor && mark === 0) outline(context, x, y, colors.blue);
        if (cell === last) outline(context, x, y, colors.grey);
        if (mark === 1)
          for (const side of [-1, 1]) line(context, [[x - 0.2, y - 0.2 * side], [x + 0.2, y + 0.2 * side]], 0.1, colors.blue);
        if (mark === 2) {
          context.beginPath();
          context.arc(x, y, 0.22, 0, 2 * Math.PI);
          Object.assign(context, { lineWidth: 0.1, strokeStyle: colors.red });
          context.stroke();
        }
      });
      for (const [first, , end] of [...filled(state.board, 0), ...filled(state.board, 1)]) {
        const ends = [first, end].map((cell) => [(cell % 3) + 0.5, Math.floor(cell / 3) + 0.5]);
        line(context, ends, 0.06, colors.ink);
      }
    },
  };
}

function outline(context, x, y, color) {
  context.beginPath();
  context.roundRect(x - 0.46, y - 0.46, 0.92, 0.92, 0.08);
  Object.assign(context, { lineWidth: 0.03, strokeStyle: color });
  context.stroke();
}
