// Play games of MicroRTS with the environment of the page, and print every step: what players see and do, and what follows.
//
// Players are names of scripted ones, or "any", which takes any legal order; those that draw take the numbers from the input. The
// first game begins with the state `begin` if there is one.

import { readFileSync } from "node:fs";
import { makeEnvironment } from "./microrts.js";

const { description, pairs, uniform, views, begin } = JSON.parse(readFileSync(0, "utf8"));
const environment = makeEnvironment(description);
const size = environment.rules.orders.length;

function any(mask, numbers) {
  return numbers.map((number, cell) => {
    const legal = environment.rules.orders.map((_, i) => i).filter((i) => mask[cell * size + i]);
    return legal[Math.floor(number * legal.length)];
  });
}

// Nothing is drawn here: any method or property of a context will do.
const context = new Proxy({}, { get: () => () => {}, set: () => true });

let [state, games] = [begin ?? environment.reset(), 0];
const steps = uniform.map((numbers) => {
  const seats = [0, 1];
  const begins = state.time === 0;
  const obs = seats.map((seat) => environment.observe(state, seat));
  const mask = seats.map((seat) => environment.mask(state, seat));
  const ordered = (name, seat) => environment.bots[name](state, seat, (cell) => numbers[seat][cell]);
  const names = pairs[games % pairs.length];
  const action = seats.map((seat) => (names[seat] === "any" ? any(mask[seat], numbers[seat]) : ordered(names[seat], seat)));
  const { state: next, reward, terminated } = environment.step(state, action);
  environment.draw(context, {}, next, { cursor: 0, asked: [1], held: [2], selected: 3, targets: [4] });
  environment.text(next);
  const step = { begins, state, action, next, reward, terminated };
  if (views) Object.assign(step, { obs, mask: mask.map((x) => x.join("")) });
  else {
    const bots = Object.keys(environment.bots).map((name) => [name, seats.map((seat) => ordered(name, seat))]);
    step.bots = Object.fromEntries(bots);
  }
  state = terminated ? environment.reset() : next;
  games += Number(terminated);
  return step;
});
console.log(JSON.stringify({ steps, first: environment.reset() }));
