// GridWorld-v0: walk to the far corner of an empty grid. The rules are those of envs/gridworld.py.

import { box, disc } from "./drawing.js";

const MOVES = [[-1, 0], [0, 1], [1, 0], [0, -1]]; // row and column: up, right, down, left

export function makeEnvironment({ params, size }) {
  const clip = (x) => Math.min(Math.max(x, 0), size - 1);
  return {
    title: "Grid world",
    task: "Walk to the green corner by the shortest way.",
    actions: ["up", "right", "down", "left"],
    keys: { ArrowUp: 0, ArrowRight: 1, ArrowDown: 2, ArrowLeft: 3 },
    held: "an arrow key",
    seconds: 0.35,
    digits: 2,
    width: size + 0.2,
    height: size + 0.2,

    reset() {
      const cell = Math.floor(Math.random() * (size ** 2 - 1));
      return { row: Math.floor(cell / size), column: cell % size, time: 0 };
    },

    observe(state) {
      const obs = new Array(2 * size).fill(0);
      obs[state.row] = obs[size + state.column] = 1;
      return obs;
    },

    step(state, action) {
      const [down, right] = MOVES[action];
      const next = { row: clip(state.row + down), column: clip(state.column + right), time: state.time + 1 };
      const terminated = next.row === size - 1 && next.column === size - 1;
      return { state: next, reward: terminated ? params.goal_reward : params.step_reward, terminated };
    },

    actionOf: ([action]) => action,
    /** The move towards the pointer. */
    steer([x, y], state) {
      const [right, down] = [x - state.column - 0.6, y - state.row - 0.6];
      if (Math.abs(right) > Math.abs(down)) return right > 0 ? 1 : 3;
      return down > 0 ? 2 : 0;
    },

    draw(context, colors, state) {
      context.translate(0.1, 0.1);
      box(context, 0, 0, size, size, 0.08, colors.grey);
      for (let row = 0; row < size; row++)
        for (let column = 0; column < size; column++) {
          const goal = row === size - 1 && column === size - 1;
          box(context, column + 0.03, row + 0.03, 0.94, 0.94, 0.06, goal ? colors.green : colors.paper);
        }
      disc(context, state.column + 0.5, state.row + 0.5, 0.34, colors.ink);
      disc(context, state.column + 0.5, state.row + 0.5, 0.3, colors.gold);
    },
  };
}
