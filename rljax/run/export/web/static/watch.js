// One agent in its environment: watch it, stop it, or act in its place while a key or the pointer is held.

import { button, choice, make, pause } from "./page.js";

export async function play({ canvas, view, status, controls, details, help, environment, policy, maxSteps }) {
  let running = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  let state, carry, shown, total;
  const returns = [];
  let held = null; // the key or the pointer of a person who acts: { key } or { point }

  function begin() {
    [state, carry, total, shown] = [environment.reset(), null, 0, { action: null, probs: null, own: false }];
    look();
  }

  /** The action of the person who holds a key or the pointer, else null. */
  function steered() {
    if (held === null) return null;
    const action = held.key === undefined ? environment.steer(held.point, state) : environment.keys[held.key];
    held = held.released ? null : { ...held, used: true };
    return action;
  }

  /** Let go; a press that is shorter than a step still acts once. */
  function release() {
    if (held !== null) held = held.used ? null : { ...held, released: true };
  }

  async function step() {
    if (ended()) return begin();
    const before = state;
    const decision = await policy({ obs: environment.observe(state), carry });
    if (state !== before) return; // an episode was begun meanwhile
    const own = steered();
    const action = own ?? environment.actionOf(decision.action);
    const result = environment.step(state, action);
    carry = decision.carry;
    shown = { action, probs: decision.probs, own: own !== null, terminated: result.terminated };
    state = result.state;
    total += result.reward;
    if (ended()) returns.push(total);
    look();
  }

  const ended = () => shown.terminated || (maxSteps !== null && state.time >= maxSteps);

  const figures = { step: make("dd"), return: make("dd"), mean: make("dd") };
  const bars = environment.actions.map((name) => {
    const [meter, output] = [make("meter", { max: 1 }), make("output")];
    return { meter, output, row: make("div", { className: "bar" }, make("span", {}, name), meter, output) };
  });
  const probabilities = make("div", { hidden: true }, ...bars.map((bar) => bar.row));

  function look() {
    view.draw(state, shown);
    figures.step.textContent = state.time;
    figures.return.textContent = total.toFixed(environment.digits);
    const mean = returns.reduce((a, b) => a + b, 0) / returns.length;
    const count = `${returns.length} episode${returns.length === 1 ? "" : "s"}`;
    figures.mean.textContent = returns.length ? `${mean.toFixed(environment.digits)} over ${count}` : "none yet";
    if (shown.probs !== null) probabilities.hidden = false;
    bars.forEach(({ meter, output }, i) => {
      meter.value = shown.probs?.[i] ?? 0;
      output.textContent = shown.probs === null ? "–" : `${Math.round(100 * meter.value)} %`;
    });
    say();
  }

  function say() {
    const who = shown.own ? "You act." : "The agent acts.";
    const text = ended() ? "The episode has ended." : running ? who : "Paused.";
    if (status.textContent !== text) status.textContent = text; // a screen reader speaks of changes
  }

  function toggle() {
    running = !running;
    stop.textContent = running ? "Pause" : "Play";
    say();
  }

  /** Take one step, and stay there. */
  function single() {
    if (running) toggle();
    step();
  }

  const stop = button(running ? "Pause" : "Play", toggle, "main");
  const speed = choice("Speed", [["0.25", "slow"], ["1", "normal"], ["4", "fast"]]);
  speed.select.value = "1";
  controls.append(stop, button("One step", single), button("New episode", begin), speed.label);
  const rows = [["Step", figures.step], ["Return", figures.return], ["Mean return", figures.mean]];
  details.append(make("dl", {}, ...rows.flatMap(([name, figure]) => [make("dt", {}, name), figure])), probabilities);
  help.textContent =
    `Take over: hold ${environment.held}, or press on the picture. ` +
    "Space pauses, S pauses and takes one step, N begins an episode.";

  document.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLSelectElement || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in environment.keys) held = event.repeat ? held : { key: event.key };
    else if (event.key === " " && !(event.target instanceof HTMLButtonElement)) toggle();
    else if (event.key.toLowerCase() === "s") single();
    else if (event.key.toLowerCase() === "n") begin();
    else return;
    event.preventDefault();
  });
  document.addEventListener("keyup", (event) => event.key === held?.key && release());
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    held = { point: view.place(event) };
  });
  canvas.addEventListener("pointermove", (event) => held?.point && (held = { ...held, point: view.place(event) }));
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, release);
  addEventListener("blur", release);
  canvas.style.touchAction = "none"; // a finger that is held acts, and does not scroll

  begin();
  for (;;) {
    const started = performance.now();
    if (running && !document.hidden) await step();
    const wait = ended() ? 1 : environment.seconds / speed.select.value;
    await pause(Math.max(0, wait - (performance.now() - started) / 1000));
  }
}
