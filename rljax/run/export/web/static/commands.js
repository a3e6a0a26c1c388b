// A person's orders in MicroRTS: choose a unit, then a cell or a button. The game waits until the turn is ended.

import { button, make } from "./page.js";
import { NONE, PRODUCE } from "./microrts_rules.js";

const CAN = ["", "move", "harvest", "return", "make", "attack"];

/** Return what asks a person; `changed` is called when what is shown has changed, `say` with what is asked. */
export function makeCommands({ environment, changed, say }) {
  const { rules } = environment;
  const { cells, orders } = rules;
  const resting = new Map(); // cells of units that are not asked until they are chosen, and when these appeared
  let turn = null; // of the person who is asked: { state, seat, legal, plan, asked, selected, mode, answer }
  let cursor = null;

  /** Whether a person's unit rests: it is still the one that was told to. */
  const rests = (state, cell) => resting.get(cell) === state.born[cell];
  const isOwn = (cell) => turn !== null && turn.state.owner[cell] === turn.seat && turn.legal[cell] !== null;
  const canAct = (cell) => isOwn(cell) && turn.legal[cell].some((legal, number) => legal && number > 0);
  const ordered = (plan) => cells.map((cell) => plan.get(cell) ?? 0);

  /** Ask for the orders of a player's idle units; the answer is an action. */
  function ask(state, seat) {
    turn = { state, seat, legal: rules.legalOrders(state), plan: new Map() };
    turn.asked = cells.filter((cell) => canAct(cell) && !rests(state, cell));
    if (turn.asked.length === 0) return end();
    const answer = new Promise((resolve) => (turn.answer = resolve));
    next();
    return answer;
  }

  function end() {
    const { plan, seat, answer } = turn;
    turn = null;
    show();
    const action = environment.fromSide(seat, ordered(plan));
    answer?.(action);
    return action;
  }

  /** Forget what was asked and who rests, for a new game. */
  function reset() {
    turn = null;
    cursor = null;
    resting.clear();
    show();
  }

  function select(cell) {
    resting.delete(cell);
    if (!turn.asked.includes(cell)) turn.asked.push(cell);
    turn.selected = cell;
    turn.mode = choices()[0]?.mode ?? null;
    if (cursor !== null) cursor = cell;
    show();
  }

  /** Go on to a unit that has no order yet; if there is none, the turn is over. */
  function next() {
    const after = turn.asked.indexOf(turn.selected) + 1;
    const open = [...turn.asked.slice(after), ...turn.asked.slice(0, after)].filter((cell) => !turn.plan.has(cell));
    if (open.length === 0) end();
    else select(open[0]);
  }

  /** The legal orders of the selected unit that leave all others given: kinds with their cells, `{ mode, label, aims }`. */
  function choices() {
    const { state, legal, plan, selected } = turn;
    const found = new Map();
    orders.forEach((order, number) => {
      if (order.action === NONE || !legal[selected][number]) return;
      const wanted = ordered(new Map(plan).set(selected, number));
      if (String(rules.dropConflicts(state, wanted)) !== String(wanted)) return;
      const mode = order.action === PRODUCE ? `make ${rules.units.names[order.product].toLowerCase()}` : "act";
      if (!found.has(mode)) found.set(mode, { mode, can: new Set(), aims: new Map(), product: order.product });
      found.get(mode).can.add(CAN[order.action]);
      found.get(mode).aims.set(rules.target(selected, order), number);
    });
    return [...found.values()].map(({ mode, can, aims, product }) => {
      const label = mode === "act" ? [...can].join(" or ") : `${mode} (${rules.units.cost[product]})`;
      return { mode, label, aims };
    });
  }

  const selectedChoices = () => (turn === null || turn.selected === null ? [] : choices());

  function give(number) {
    turn.plan.set(turn.selected, number);
    next();
  }

  function rest() {
    resting.set(turn.selected, turn.state.born[turn.selected]);
    turn.asked = turn.asked.filter((cell) => cell !== turn.selected);
    turn.plan.delete(turn.selected);
    next();
  }

  /** Choose a cell: what the selected unit can aim at, or another unit; a unit that rests is asked again. */
  function choose(cell) {
    if (cell === null) return;
    const number = selectedChoices().find(({ mode }) => mode === turn.mode)?.aims.get(cell);
    if (number !== undefined) give(number);
    else if (turn === null) resting.delete(cell);
    else if (cell === turn.selected) turn.selected = null;
    else if (canAct(cell)) select(cell);
    show();
  }

  function setMode(mode) {
    turn.mode = mode;
    show();
  }

  function show() {
    const buttons = [];
    const add = (text, act, main = false) => buttons.push(button(text, act, main ? "main" : ""));
    selectedChoices().forEach(({ mode, label }, i) => add(`${i + 1}: ${label}`, () => setMode(mode), mode === turn.mode));
    if (turn !== null && turn.selected !== null) {
      add("Wait", () => give(0));
      add("Rest until chosen", rest);
      const { state, selected, asked, plan } = turn;
      const left = asked.filter((cell) => !plan.has(cell)).length;
      const unit = `${rules.units.names[state.unit[selected]].toLowerCase()} ${environment.cellName(selected)}`;
      say(turn.seat, `order your ${unit}${left > 1 ? `, one of ${left} units` : ""}.`);
    } else if (turn !== null) say(turn.seat, "choose a unit.");
    if (turn !== null) add("End turn", end);
    panel.replaceChildren(...buttons);
    changed();
  }

  /** Take a key; return whether it means something here. */
  function press(key) {
    const steps = { ArrowUp: 0, ArrowRight: 1, ArrowDown: 2, ArrowLeft: 3 };
    if (key in steps) {
      const from = cursor ?? turn?.selected ?? cells[Math.floor(cells.length / 2)];
      cursor = rules.at(from, rules.directions[steps[key]]) ?? from;
    } else if (key === "Enter") choose(cursor);
    else if (turn === null) return false;
    else if (key === "e") end();
    else if (key === "u") next();
    else if (key === "w" && turn.selected !== null) give(0);
    else if (key === "r" && turn.selected !== null) rest();
    else if (selectedChoices()[Number(key) - 1]) setMode(selectedChoices()[Number(key) - 1].mode);
    else return false;
    changed();
    return true;
  }

  const panel = make("div", { id: "orders" });

  return {
    panel,
    ask,
    reset,
    choose,
    press,
    hover(cell) {
      cursor = cell;
      changed();
    },

    /** What the picture shows of the person's turn in a state. */
    shown(state) {
      const held = cells.filter((cell) => state.owner[cell] >= 0 && rests(state, cell));
      if (turn === null) return { held, cursor };
      const { asked, plan, selected, mode } = turn;
      return {
        asked: asked.filter((cell) => !plan.has(cell)),
        held,
        plan: new Map([...plan].map(([cell, number]) => [cell, orders[number]])),
        selected,
        targets: [...(selectedChoices().find((choice) => choice.mode === mode)?.aims.keys() ?? [])],
        cursor,
      };
    },
  };
}
