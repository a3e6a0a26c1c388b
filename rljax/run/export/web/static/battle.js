// A game in which both players act at once, each of them a person, the agent or a scripted player. It waits for persons.

import { makeCommands } from "./commands.js";
import { SIDES } from "./microrts_picture.js";
import { button, choice, make, pause } from "./page.js";
import { drawn } from "./policy.js";

const NAMES = {
  you: "you", agent: "the agent", passive: "passive", randombiased: "random orders", workerrush: "rush with workers",
  lightrush: "rush with light units", heavyrush: "rush with heavy units", rangedrush: "rush with ranged units",
};
const SPEEDS = [["0.04", "normal"], ["0.15", "slow"], ["0.005", "fast"]]; // seconds of a cycle

export function play({ canvas, view, status, controls, details, help, environment, policy }) {
  const { rules } = environment;
  let number = 0; // of the game: what an earlier one still waits for is dropped
  let running = true;
  let steps = 0; // to take although the game is paused
  let state = environment.reset();
  let scores = { blue: 0, red: 0, draws: 0 };

  async function begin() {
    const game = ++number;
    const carries = [null, null];
    state = environment.reset();
    commands.reset();
    moves.replaceChildren();
    say("The game begins.");
    for (let over = false; !over; ) {
      await turnOf(game);
      if (game !== number) return;
      const actions = [];
      // Persons come last, when the others, who do not see their orders, have decided.
      for (const seat of [0, 1].toSorted((a, b) => Number(isPerson(a)) - Number(isPerson(b)))) {
        actions[seat] = await (isPerson(seat) ? commands.ask(state, seat) : decide(seat, carries));
        if (game !== number) return;
      }
      const before = state;
      const result = environment.step(state, actions);
      state = result.state;
      over = result.terminated;
      write(before, result.ordered);
      if (over) finish(result.winner);
      else say("The game is on."); // no order is wanted until a person is asked again
      redraw();
      await pause((state.time - before.time) * speed.select.value);
      if (game !== number) return;
    }
  }

  const isPerson = (seat) => players[seat].select.value === "you";

  /** Wait while the game is paused, or nobody looks. */
  async function turnOf(game) {
    while (game === number && steps === 0 && (!running || document.hidden)) {
      say("Paused.");
      await pause(0.05);
    }
    steps = 0;
  }

  async function decide(seat, carries) {
    const who = players[seat].select.value;
    if (who !== "agent") return environment.bots[who](state, seat);
    const look = await policy({
      obs: environment.observe(state, seat), mask: environment.mask(state, seat), seat, carry: carries[seat],
    });
    carries[seat] = look.carry;
    if (look.probs === null || style.select.value === "likeliest") return look.action;
    const size = rules.orders.length;
    return look.action.map((_, cell) => drawn(look.probs.slice(cell * size, (cell + 1) * size)));
  }

  /** Write down the orders that were begun. */
  function write(before, ordered) {
    const begun = rules.cells.filter((cell) => rules.isIdle(before, cell) && ordered.action[cell] > 0);
    const lines = begun.map((cell) => {
      const side = SIDES[before.owner[cell]];
      return make("li", {}, `${before.time} ${side} ${environment.orderText(before, cell, rules.underWay(ordered, cell))}`);
    });
    moves.append(...lines);
    moves.scrollTop = moves.scrollHeight;
  }

  function finish(winner) {
    scores[winner < 0 ? "draws" : SIDES[winner].toLowerCase()] += 1;
    const alone = [0, 1].filter(isPerson).length === 1;
    const name = winner < 0 ? null : NAMES[players[winner].select.value];
    if (winner >= 0) say(alone && isPerson(winner) ? "You win." : `${SIDES[winner]} wins (${name}).`);
    else say(state.owner.some((owner) => owner >= 0) ? "A draw: the time is over." : "A draw: nobody has units left.");
  }

  function say(text) {
    if (status.textContent !== text) status.textContent = text; // a screen reader speaks of changes
  }

  function redraw() {
    view.draw(state, commands.shown(state));
    canvas.setAttribute("aria-label", environment.text(state));
    units.forEach((figure, player) => (figure.textContent = environment.unitsText(state, player)));
    tally.textContent = `blue ${scores.blue}, red ${scores.red}, draws ${scores.draws}`;
  }

  function toggle() {
    running = !running;
    stop.textContent = running ? "Pause" : "Play";
  }

  function changePlayers() {
    scores = { blue: 0, red: 0, draws: 0 };
    begin();
  }

  const commands = makeCommands({ environment, changed: redraw, say: (seat, text) => say(`${SIDES[seat]}, ${text}`) });
  const options = ["you", "agent", ...environment.opponents].map((name) => [name, NAMES[name]]);
  const players = SIDES.map((side) => choice(side, options, changePlayers));
  players[1].select.value = "agent";
  const styles = [["drawn", "orders drawn at random"], ["likeliest", "its likeliest orders"]];
  const style = choice("The agent gives", environment.drawn ? styles : styles.toReversed());
  const speed = choice("Speed", SPEEDS);
  const stop = button("Pause", toggle);
  const [units, tally, moves] = [SIDES.map(() => make("dd")), make("dd", { id: "tally" }), make("ul", { id: "moves" })];
  const oneStep = () => {
    if (running) toggle();
    steps = 1;
  };
  controls.before(commands.panel);
  controls.append(button("New game", begin, "main"), stop, button("One step", oneStep));
  controls.append(...players.map((player) => player.label), style.label, speed.label);
  const figures = [...SIDES.map((side, player) => [side, units[player]]), ["Games won", tally]];
  details.append(make("dl", {}, ...figures.flatMap(([name, figure]) => [make("dt", {}, name), figure])), moves);
  help.textContent =
    "Press one of your units with a golden frame, then a green cell, or first what it should make. " +
    `${environment.legend} A unit that rests is asked again when you press it. Keys: arrows and Enter choose ` +
    "a cell, a number what to do, W waits, R rests, U takes the next unit, E ends the turn, Space pauses, S takes a step, " +
    "N begins a game.";

  canvas.style.touchAction = "manipulation"; // no zoom by two taps, which are two choices
  const cellOf = (event) => environment.cellAt(...view.place(event));
  canvas.addEventListener("pointerup", (event) => event.button === 0 && commands.choose(cellOf(event)));
  canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && commands.hover(cellOf(event)));
  canvas.addEventListener("pointerleave", () => commands.hover(null));
  document.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLSelectElement || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (event.target instanceof HTMLButtonElement && (key === "Enter" || key === " ")) return;
    if (key === " ") toggle();
    else if (key === "s") oneStep();
    else if (key === "n") begin();
    else if (!commands.press(key)) return;
    event.preventDefault();
  });

  begin();
}
