// CartPole-v1: balance a pole on a cart by pushing left or right. The dynamics are those of envs/cartpole.py.

import { box, disc, line } from "./drawing.js";

const GROUND = 2.1;

export function makeEnvironment({ params }) {
  const width = 2.2 * params.x_limit;
  return {
    title: "CartPole",
    task: "Keep the pole upright by pushing the cart to the left or to the right.",
    actions: ["left", "right"],
    keys: { ArrowLeft: 0, ArrowRight: 1 },
    held: "the left or right arrow key",
    seconds: params.dt,
    digits: 0,
    width,
    height: 3,

    reset() {
      const [x, xDot, theta, thetaDot] = Array.from({ length: 4 }, () => 0.1 * Math.random() - 0.05);
      return { x, x_dot: xDot, theta, theta_dot: thetaDot, time: 0 };
    },

    observe: (state) => [state.x, state.x_dot, state.theta, state.theta_dot],

    step(state, action) {
      const force = action === 1 ? params.force : -params.force;
      const totalMass = params.mass_cart + params.mass_pole;
      const poleMoment = params.mass_pole * params.half_length;
      const [cos, sin] = [Math.cos(state.theta), Math.sin(state.theta)];
      const push = (force + poleMoment * state.theta_dot ** 2 * sin) / totalMass;
      const inertia = params.half_length * (4 / 3 - (params.mass_pole * cos ** 2) / totalMass);
      const thetaAcc = (params.gravity * sin - cos * push) / inertia;
      const xAcc = push - (poleMoment * thetaAcc * cos) / totalMass;
      const next = {
        x: state.x + params.dt * state.x_dot,
        x_dot: state.x_dot + params.dt * xAcc,
        theta: state.theta + params.dt * state.theta_dot,
        theta_dot: state.theta_dot + params.dt * thetaAcc,
        time: state.time + 1,
      };
      const terminated = Math.abs(next.x) > params.x_limit || Math.abs(next.theta) > params.theta_limit;
      return { state: next, reward: 1, terminated };
    },

    actionOf: ([action]) => action,
    steer: ([x]) => (x < width / 2 ? 0 : 1),

    draw(context, colors, state, { action = null }) {
      const middle = width / 2;
      const x = middle + state.x;
      line(context, [[middle - params.x_limit, GROUND], [middle + params.x_limit, GROUND]], 0.03, colors.grey);
      for (const side of [-1, 1]) {
        const end = middle + side * params.x_limit;
        line(context, [[end, GROUND - 0.1], [end, GROUND + 0.1]], 0.04, colors.red);
      }
      box(context, x - 0.35, GROUND - 0.18, 0.7, 0.36, 0.07, colors.ink);
      const [pivot, length] = [GROUND - 0.08, 2 * params.half_length];
      const tip = [x + length * Math.sin(state.theta), pivot - length * Math.cos(state.theta)];
      line(context, [[x, pivot], tip], 0.14, colors.gold);
      disc(context, x, pivot, 0.05, colors.blue);
      if (action === null) return;
      const [side, low] = [action === 1 ? 1 : -1, GROUND + 0.45];
      line(context, [[x - 0.25 * side, low], [x + 0.25 * side, low]], 0.06, colors.blue);
      line(context, [[x + 0.12 * side, low - 0.12], [x + 0.25 * side, low], [x + 0.12 * side, low + 0.12]], 0.06, colors.blue);
    },
  };
}
