// A game of a person against the agent, with the probabilities of the policy on the board.

import { button, choice, make, pause } from "./page.js";
import { drawn } from "./policy.js";

export function play({ canvas, view, status, controls, details, help, environment, policy }) {
  const scores = { you: 0, agent: 0, draws: 0 };
  let number = 0; // of the game: what an earlier one still waits for is dropped
  let person, state, looks, cursor, last, answer;

  async function begin(seat) {
    const game = ++number;
    [person, state, looks, cursor, last, answer] = [seat, environment.reset(), [null, null], null, null, null];
    moves.replaceChildren();
    const carries = [null, null];
    for (let over = false; !over; ) {
      const mover = state.time % 2;
      say(mover === person ? environment.ask : "The agent is thinking.");
      const mask = environment.mask(state, mover);
      // Also for the person, whose view the memory of a policy follows, too.
      const look = await policy({ obs: environment.observe(state, mover), mask, seat: mover, carry: carries[mover] });
      if (game !== number) return;
      carries[mover] = look.carry;
      looks[mover] = look;
      redraw();
      const action = mover === person ? await new Promise((resolve) => (answer = resolve)) : await answered(look);
      if (game !== number) return;
      answer = null;
      const result = environment.step(state, action);
      [state, last, over] = [result.state, action, result.terminated];
      const sure = look.probs === null || mover === person ? "" : ` (${Math.round(100 * look.probs[action])} %)`;
      moves.append(make("li", {}, `${mover === person ? "You" : "Agent"}: ${action + 1}${sure}`));
      moves.scrollTop = moves.scrollHeight;
      if (over) finish(result.reward[person]);
      redraw();
    }
  }

  async function answered(look) {
    await pause(0.4); // or the person would not see whose move it was
    return style.select.value === "drawn" && look.probs !== null ? drawn(look.probs) : look.action[0];
  }

  function finish(reward) {
    scores[reward > 0 ? "you" : reward < 0 ? "agent" : "draws"] += 1;
    const text = reward > 0 ? "You win." : reward < 0 ? "The agent wins." : "A draw.";
    say(text);
    tally.textContent = `You ${scores.you}, agent ${scores.agent}, draws ${scores.draws}`;
  }

  function redraw() {
    const whose = { agent: 1 - person, you: person, nobody: null }[shows.select.value];
    view.draw(state, { probs: whose === null ? null : (looks[whose]?.probs ?? null), cursor, last, person });
    canvas.setAttribute("aria-label", environment.text(state, person));
  }

  function say(text) {
    status.textContent = text;
  }

  /** Play an action of the person, if it is their turn and it is legal. */
  function choose(action) {
    if (answer !== null && action !== null && environment.mask(state, person)[action]) answer(action);
  }

  const tally = make("dd", { id: "tally" }, "none yet");
  const moves = make("ol", { id: "moves" });
  const style = choice("The agent plays", [["likeliest", "its likeliest move"], ["drawn", "a move drawn at random"]]);
  const shown = [["agent", "of its last move"], ["you", "for your move"], ["nobody", "not shown"]];
  const shows = choice("Its probabilities", shown, redraw);
  const begins = [button("You begin", () => begin(0), "main"), button("Agent begins", () => begin(1), "main")];
  controls.append(...begins, shows.label, style.label);
  details.append(make("dl", {}, make("dt", {}, "Games"), tally), moves);
  help.textContent = `${environment.held} Arrow keys and Enter play as well; N begins a new game.`;

  canvas.style.touchAction = "manipulation"; // no zoom by two taps, which are two moves
  canvas.addEventListener("pointerup", (event) => event.button === 0 && choose(environment.actionAt(...view.place(event))));
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "mouse") return;
    cursor = environment.actionAt(...view.place(event));
    redraw();
  });
  canvas.addEventListener("pointerleave", () => {
    cursor = null;
    redraw();
  });
  const ARROWS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -environment.columns, ArrowDown: environment.columns };
  document.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLSelectElement || event.ctrlKey || event.metaKey || event.altKey) return;
    const pressed = event.target instanceof HTMLButtonElement ? "" : event.key;
    if (event.key in ARROWS) {
      const next = cursor === null ? Math.floor(environment.actions / 2) : cursor + ARROWS[event.key];
      if (next >= 0 && next < environment.actions) cursor = next;
      redraw();
    } else if (pressed === "Enter" || pressed === " ") choose(cursor);
    else if (event.key >= "1" && event.key <= String(environment.actions)) choose(Number(event.key) - 1);
    else if (event.key.toLowerCase() === "n") begin(person);
    else return;
    event.preventDefault();
  });

  begin(0);
}
