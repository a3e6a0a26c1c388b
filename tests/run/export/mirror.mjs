// Take the steps that it reads from standard input with an environment of a page, and print what they lead to.

import { readFileSync } from "node:fs";

const { module, description, seats, steps } = JSON.parse(readFileSync(0, "utf8"));
const { makeEnvironment } = await import(module);
const environment = makeEnvironment(description);
const each = (look) => Array.from({ length: seats }, (_, seat) => Array.from(look(seat)));

// Nothing is drawn here: any method or property of a context will do.
const context = new Proxy({}, { get: () => () => {}, set: () => true });

let own;
const results = steps.map(({ state, action, begins }) => {
  const { state: next, reward, terminated } = environment.step(state, action);
  const drift = environment.step(begins ? state : own, action).state;
  own = drift;
  const probs = new Array(9).fill(0.1);
  environment.draw(context, {}, next, { action, probs, cursor: action, last: action, person: 0 });
  const mask = environment.mask ? each((seat) => environment.mask(state, seat)) : null;
  return { obs: each((seat) => environment.observe(state, seat)), mask, next, drift, reward, terminated };
});
const first = environment.reset();
console.log(JSON.stringify({ results, first, obs: environment.observe(first, 0).length }));
