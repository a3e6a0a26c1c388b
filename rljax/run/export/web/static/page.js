// The page: read policy.json, draw the environment, load the policy, and hand over to watch.js (one agent), versus.js (a game in
// turns) or battle.js (a game in which both act at once).
//
// An environment is a module with `makeEnvironment(description)`, which returns pure functions of a state and what to draw:
//   reset() -> state, observe(state, seat) -> numbers, step(state, action) -> { state, reward, terminated }; of games also
//   mask(state, seat) -> 0 or 1 for each action. A state counts its steps in `time`.
//   draw(context, colors, state, shown): in units of its own, from (0, 0) in the upper left corner to (width, height).

import { fetchExported, loadPolicy } from "./policy.js";

const COLORS = ["paper", "surface", "ink", "faint", "grey", "board", "blue", "red", "green", "gold"];

const element = (id) => document.getElementById(id);

/** Return an element with its contents. */
export function make(tag, properties = {}, ...contents) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...contents);
  return made;
}

export const button = (text, onclick, className = "") => make("button", { type: "button", onclick, className }, text);

/** Return a labelled select; `options` are its values with their texts. */
export function choice(text, options, onchange = () => {}) {
  const select = make("select", { onchange }, ...options.map(([value, shown]) => make("option", { value }, shown)));
  return { label: make("label", {}, text, select), select };
}

export const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/** Draw the environment whenever it changes, the canvas changes its size, or the colours of the system change. */
function makeView(canvas, environment) {
  const context = canvas.getContext("2d");
  let last = null;
  const view = {
    draw(state, shown = {}) {
      last = [state, shown];
      const style = getComputedStyle(document.documentElement);
      const colors = Object.fromEntries(COLORS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
      const scale = canvas.width / environment.width;
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.clearRect(0, 0, canvas.width, canvas.height);
      context.setTransform(scale, 0, 0, scale, 0, 0);
      environment.draw(context, colors, state, shown);
    },
    /** Return the place of a pointer in the environment's units. */
    place(event) {
      const box = canvas.getBoundingClientRect();
      const scale = environment.width / box.width;
      return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    },
  };
  canvas.style.setProperty("--ratio", environment.width / environment.height);
  const again = () => last && view.draw(...last);
  new ResizeObserver(() => {
    canvas.width = Math.round(canvas.clientWidth * devicePixelRatio);
    canvas.height = Math.round((canvas.width * environment.height) / environment.width);
    again();
  }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  return view;
}

async function main() {
  const description = await (await fetchExported("policy.json")).json();
  const { makeEnvironment } = await import(`./${description.modules.environment}`);
  const { play } = await import(`./${description.modules.play}`);
  const environment = makeEnvironment(description);
  document.title = element("title").textContent = environment.title;
  const steps = description.step === null ? "" : ` for ${description.step.toLocaleString("en")} steps`;
  const note = description.note === null ? "" : `; ${description.note}`;
  element("about").textContent = `${environment.task} Trained by ${description.algorithm}${steps}${note}.`;
  const canvas = element("board");
  const view = makeView(canvas, environment);
  view.draw(environment.reset());
  const policy = await loadPolicy(description.inputs, description.sha256);
  const page = { canvas, view, status: element("status"), controls: element("controls"), details: element("details") };
  play({ ...page, help: element("help"), environment, policy, maxSteps: description.max_steps });
}

function fail(error) {
  element("status").textContent = `The page cannot go on: ${error?.message ?? error}`;
}

addEventListener("unhandledrejection", ({ reason }) => fail(reason));
main().catch(fail);
