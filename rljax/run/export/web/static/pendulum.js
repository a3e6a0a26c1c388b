// Pendulum-v1: swing a pendulum up and hold it there. The dynamics are those of envs/pendulum.py.

import { disc, line } from "./drawing.js";

const SIZE = 2.9;

const clip = (x, limit) => Math.min(Math.max(x, -limit), limit);

export function makeEnvironment({ params }) {
  return {
    title: "Pendulum",
    task: "Swing the pendulum up with a motor that is too weak to lift it, and hold it there.",
    actions: [],
    keys: { ArrowLeft: params.max_torque, ArrowRight: -params.max_torque },
    held: "the left (counter-clockwise) or right arrow key",
    seconds: params.dt,
    digits: 1,
    width: SIZE,
    height: SIZE,

    reset: () => ({ theta: Math.PI * (2 * Math.random() - 1), theta_dot: 2 * Math.random() - 1, time: 0 }),

    observe: (state) => [Math.cos(state.theta), Math.sin(state.theta), state.theta_dot],

    step(state, action) {
      const torque = clip(action, params.max_torque);
      const wrapped = state.theta - 2 * Math.PI * Math.floor((state.theta + Math.PI) / (2 * Math.PI));
      const reward = -(wrapped ** 2 + 0.1 * state.theta_dot ** 2 + 0.001 * torque ** 2);
      const inertia = (params.mass * params.length ** 2) / 3;
      const acceleration = ((1.5 * params.gravity) / params.length) * Math.sin(state.theta) + torque / inertia;
      const thetaDot = clip(state.theta_dot + params.dt * acceleration, params.max_speed);
      const next = { theta: state.theta + params.dt * thetaDot, theta_dot: thetaDot, time: state.time + 1 };
      return { state: next, reward, terminated: false };
    },

    actionOf: ([action]) => action,
    steer: ([x]) => clip(((SIZE / 2 - x) / (SIZE / 4)) * params.max_torque, params.max_torque),

    draw(context, colors, state, { action = null }) {
      const middle = SIZE / 2;
      disc(context, middle, middle, 1.2, colors.paper);
      disc(context, middle, middle - 1, 0.17, colors.grey);
      disc(context, middle, middle - 1, 0.14, colors.paper);
      const tip = [middle - Math.sin(state.theta), middle - Math.cos(state.theta)];
      line(context, [[middle, middle], tip], 0.18, colors.red);
      disc(context, middle, middle, 0.045, colors.ink);
      if (action === null) return;
      // The torque as an arc that begins at the pendulum; angles of a canvas grow clockwise, from the right.
      const start = -Math.PI / 2 - state.theta;
      const turn = -clip(action, params.max_torque) / params.max_torque;
      context.beginPath();
      context.arc(middle, middle, 0.4, start, start + 1.5 * turn, turn < 0);
      Object.assign(context, { lineWidth: 0.06, strokeStyle: colors.blue, lineCap: "round" });
      context.stroke();
    },
  };
}
