// Scripted players of MicroRTS, those of envs/microrts/scripted/bots.py: passive, random, and the rushes with one kind of fighter.

import { ATTACK, HARVEST, MOVE, PRODUCE, RETURN } from "./microrts_rules.js";
import { BARRACKS, BASE, EMPTY, HEAVY, LIGHT, RANGED, RESOURCE, WORKER } from "./microrts_rules.js";

const FAR = 1 << 14;
const MAX_ORDERS = 16; // moving units that a rush gives orders at once
const BIAS = 5; // the weight of attacks, harvests and returns of the random player, beside 1 of all else
const FIGHTERS = { workerrush: WORKER, lightrush: LIGHT, heavyrush: HEAVY, rangedrush: RANGED };

/** Return the players by name, `(state, seat) -> action`. */
export function makeBots(rules, fromSide) {
  const { cells, width, orders, units, directions, offsets, at, target } = rules;
  const numbers = new Map(orders.map(({ action, parameter, product }, number) => [`${action} ${parameter} ${product}`, number]));
  const numberOf = (action, parameter, product = EMPTY) => numbers.get(`${action} ${parameter} ${product}`) ?? 0;
  const place = (cell) => [Math.floor(cell / width), cell % width];
  const away = (a, b) => [0, 1].map((axis) => place(b)[axis] - place(a)[axis]);
  const steps = (a, b) => away(a, b).reduce((sum, x) => sum + Math.abs(x), 0);
  const sides = (cell) => directions.map((direction) => at(cell, direction));
  const waits = () => cells.map(() => 0);
  const owned = (state, seat) => cells.filter((cell) => state.owner[cell] === seat);
  const idleOf = (state, seat) => owned(state, seat).filter((cell) => rules.isIdle(state, cell));

  /** Place of the least value, the first of equals. */
  const least = (values) => values.indexOf(Math.min(...values));
  const distance = (cell, those) => Math.min(FAR, ...those.map((other) => steps(cell, other)));
  /** Of some cells the nearest one; of equally near ones that of the oldest unit. */
  const nearest = (state, cell, those) => those[least(those.map((other) => steps(cell, other) * 65536 + state.born[other]))] ?? 0;

  /** Each unit's order, drawn from the legal ones; `uniform(cell)` gives numbers in [0, 1). */
  function randomBiased(state, seat, uniform = Math.random) {
    const biased = (number) => [HARVEST, RETURN, ATTACK].includes(orders[number].action);
    const all = orders.map((_, number) => number);
    // In Python's order: those that are more likely come first.
    const table = [...all.filter(biased), ...all.filter((number) => !biased(number))];
    const weight = (number) => (biased(number) ? BIAS : 1);
    const [legal, chosen, taken] = [rules.legalOrders(state), waits(), new Set()];
    let left = rules.resourcesLeft(state)[seat];
    for (const cell of idleOf(state, seat)) {
      const options = table.filter((number) => legal[cell][number]);
      const total = options.reduce((sum, number) => sum + weight(number), 0);
      let draw = Math.floor(Math.fround(Math.fround(uniform(cell)) * total));
      const number = options.find((option) => (draw -= weight(option)) < 0) ?? 0;
      const { action, product } = orders[number];
      // Those that cannot be paid any more, or enter the cell of a unit before them, wait.
      if (action === PRODUCE && units.cost[product] > left) continue;
      if (action === PRODUCE) left -= units.cost[product];
      if (action === MOVE || action === PRODUCE) {
        if (taken.has(target(cell, orders[number]))) continue;
        taken.add(target(cell, orders[number]));
      }
      chosen[cell] = number;
    }
    return fromSide(seat, chosen);
  }

  /** Train fighters, and send each to the enemy's nearest unit; see the docstring in Python. */
  function rush(state, seat, fighter) {
    const [own, enemies] = [owned(state, seat), owned(state, 1 - seat)];
    const resources = cells.filter((cell) => state.unit[cell] === RESOURCE);
    const [free, chosen] = [rules.freeCells(state), waits()];
    const trained = train();
    const left = rules.resourcesLeft(state)[seat] - trained.spent;
    // Units that cannot act wait, and leave their places to others.
    const legal = rules.legalOrders(state);
    const canAct = (cell) => legal[cell].some((is, number) => is && number > 0);
    const waiting = idleOf(state, seat).filter((cell) => units.move_time[state.unit[cell]] > 0 && canAct(cell));
    const movers = waiting.slice(0, MAX_ORDERS).toSorted((a, b) => state.born[a] - state.born[b] || a - b);
    const busy = build();
    send(movers.filter((cell) => cell !== busy));
    return fromSide(seat, chosen);

    /** Let bases and barracks train; return which cells the new units enter, and what they cost. */
    function train() {
      const entered = new Set();
      const [hasWorker, budget] = [own.some((cell) => state.unit[cell] === WORKER), rules.resourcesLeft(state)[seat]];
      let [paid, spent] = [0, 0];
      for (const cell of idleOf(state, seat)) {
        const trains = state.unit[cell] === BASE && (fighter === WORKER || !hasWorker);
        const musters = state.unit[cell] === BARRACKS && fighter !== WORKER;
        if (!trains && !musters) continue;
        const product = musters ? fighter : WORKER;
        const goals = product === WORKER ? resources : enemies;
        const far = sides(cell).map((side) => (side !== null && free[side] ? distance(side, goals) : 2 * FAR));
        if (Math.min(...far) === 2 * FAR || paid + units.cost[product] > budget) continue;
        paid += units.cost[product];
        const side = least(far);
        if (entered.has(sides(cell)[side])) continue;
        entered.add(sides(cell)[side]);
        spent += units.cost[product];
        chosen[cell] = numberOf(PRODUCE, side, product);
      }
      return { entered, spent };
    }

    /** Let a worker build what is missing, or wait for the resources; return that worker's cell. */
    function build() {
      const begun = own.filter((cell) => state.action[cell] === PRODUCE);
      const reserved = begun.reduce((sum, cell) => sum + units.cost[state.product[cell]], 0);
      const missing = (kind) =>
        !own.some((cell) => state.unit[cell] === kind) && !begun.some((cell) => state.product[cell] === kind);
      const kinds = fighter === WORKER ? [BASE] : [BASE, BARRACKS];
      const kind = kinds.find((wanted) => missing(wanted) && left + reserved >= units.cost[wanted]);
      const open = (cell) => sides(cell).findIndex((side) => side !== null && free[side]);
      const builder = movers.find((cell) => state.unit[cell] === WORKER && open(cell) >= 0);
      if (kind === undefined || builder === undefined) return null;
      if (units.cost[kind] <= left) {
        const side = open(builder);
        chosen[builder] = numberOf(PRODUCE, side, kind);
        free[sides(builder)[side]] = false;
      }
      return builder;
    }

    /** Let the others fight, harvest, return resources, or go to where they can. */
    function send(those) {
      const workers = own.filter((cell) => state.unit[cell] === WORKER);
      const oldest = workers[least(workers.map((cell) => state.born[cell]))];
      const bases = own.filter((cell) => state.unit[cell] === BASE);
      const entered = new Set();
      for (const cell of those) {
        const [kind, loaded] = [state.unit[cell], state.carried[cell] > 0];
        const gathers = kind === WORKER && (fighter !== WORKER || cell === oldest);
        if (gathers && (resources.length === 0 || (bases.length === 0 && loaded))) continue;
        const goal = nearest(state, cell, gathers ? (loaded ? bases : resources) : enemies);
        const [down, right] = away(cell, goal);
        const reach = gathers ? 1 : units.range[kind];
        if (down ** 2 + right ** 2 <= reach ** 2) {
          const side = directions.findIndex(([a, b]) => a === down && b === right);
          chosen[cell] = gathers ? numberOf(loaded ? RETURN : HARVEST, side) : attackOn(down, right);
          continue;
        }
        // Units give way to those that are trained only if they have just appeared themselves.
        const closed = state.born[cell] === state.time ? trained.entered : new Set();
        const way = firstStep(cell, goal, reach, (next) => free[next] && !closed.has(next) && !entered.has(next));
        if (way < 0) continue;
        entered.add(sides(cell)[way]);
        chosen[cell] = numberOf(MOVE, way);
      }
      const trains = own.filter((cell) => cell !== busy && orders[chosen[cell]].action === PRODUCE);
      for (const cell of trains) if (entered.has(target(cell, orders[chosen[cell]]))) chosen[cell] = 0;
    }
  }

  const attackOn = (down, right) =>
    orders.findIndex((order) => order.action === ATTACK && String(offsets[order.parameter]) === String([down, right]));

  /** The first step, a direction, on the way from a cell to within reach of a goal, or -1: the A* of envs/microrts/scripted/paths.py. */
  function firstStep(start, goal, reach, open) {
    const queue = [{ cell: start, gone: 0, far: steps(start, goal), first: -1 }];
    const seen = new Set([start]);
    while (queue.length > 0) {
      // The one that promises the shortest way; of equals that found last.
      let best = 0;
      queue.forEach((entry, i) => entry.far <= queue[best].far && (best = i));
      const [{ cell, gone, first }] = queue.splice(best, 1);
      const [down, right] = away(cell, goal);
      if (down ** 2 + right ** 2 <= reach ** 2) return first;
      sides(cell).forEach((next, d) => {
        if (next === null || !open(next) || seen.has(next)) return;
        seen.add(next);
        queue.push({ cell: next, gone: gone + 1, far: gone + 1 + steps(next, goal), first: cell === start ? d : first });
      });
    }
    return -1;
  }

  return {
    passive: (state, seat) => fromSide(seat, waits()),
    randombiased: randomBiased,
    ...Object.fromEntries(Object.entries(FIGHTERS).map(([name, kind]) => [name, (state, seat) => rush(state, seat, kind)])),
  };
}
