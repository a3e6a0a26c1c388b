// The rules of MicroRTS, those of envs/microrts/rules/engine.py: legal orders, and what becomes of the orders of both players.
//
// The tables of units and orders come from Python, in policy.json. A state has a list over the cells, row by row, for each field
// of Python's. An order is a number in `orders`, the same for every cell; 0 is to wait.

export const EMPTY = -1;
export const [RESOURCE, BASE, BARRACKS, WORKER, LIGHT, HEAVY, RANGED] = Array(7).keys();
export const [NONE, MOVE, HARVEST, RETURN, PRODUCE, ATTACK] = Array(6).keys();
export const NOT_OVER = -2;

const FIELDS = ["unit", "owner", "hp", "carried", "action", "parameter", "product", "remaining", "born"];
const CLEARED = { unit: EMPTY, owner: -1, hp: 0, carried: 0, action: NONE, parameter: 0, product: EMPTY, remaining: 0, born: 0 };

export function makeRules({ params, microrts }) {
  const { map, units, times, directions, offsets, waits } = microrts;
  const { height, width, walls } = map;
  const cells = Array.from({ length: height * width }, (_, cell) => cell);
  const toward = (action, parameter) => (action === ATTACK ? offsets : directions)[parameter];
  const orders = microrts.orders.map(([action, parameter, product]) => ({ action, parameter, product }));

  /** The cell some rows and columns away; null beyond the edge of the map. */
  function at(cell, [down, right]) {
    const [row, column] = [Math.floor(cell / width) + down, (cell % width) + right];
    return row >= 0 && row < height && column >= 0 && column < width ? row * width + column : null;
  }
  /** The cell that an order, or the action under way of a unit, aims at. */
  const target = (cell, { action, parameter }) => at(cell, toward(action, parameter));
  function underWay({ action, parameter, product }, cell) {
    return { action: action[cell], parameter: parameter[cell], product: product[cell] };
  }
  const enters = (action) => action === MOVE || action === PRODUCE;
  const isIdle = (state, cell) => state.owner[cell] >= 0 && state.remaining[cell] === 0;
  const copy = (state) => ({
    ...Object.fromEntries(FIELDS.map((field) => [field, [...state[field]]])),
    resources: [...state.resources],
    time: state.time,
  });

  function clear(state, cell) {
    for (const field of FIELDS) state[field][cell] = CLEARED[field];
  }

  /** The resources of both players that no production under way has reserved. */
  function resourcesLeft(state) {
    const left = [...state.resources];
    for (const cell of cells) if (state.action[cell] === PRODUCE) left[state.owner[cell]] -= units.cost[state.product[cell]];
    return left;
  }

  /** Which cells are empty, no wall, and not entered by a move or production under way. */
  function freeCells(state) {
    const free = cells.map((cell) => state.unit[cell] === EMPTY && !walls[cell]);
    for (const cell of cells) if (enters(state.action[cell])) free[target(cell, underWay(state, cell))] = false;
    return free;
  }

  /** For each cell 0 or 1 for every order; null for cells without an idle unit. */
  function legalOrders(state) {
    const [left, free] = [resourcesLeft(state), freeCells(state)];

    function isLegal(cell, order) {
      const [kind, owner, aim] = [state.unit[cell], state.owner[cell], order.action === NONE ? null : target(cell, order)];
      if (aim === null) return order.action === NONE;
      if (order.action === MOVE) return units.move_time[kind] > 0 && free[aim];
      if (order.action === HARVEST) return kind === WORKER && state.carried[cell] === 0 && state.unit[aim] === RESOURCE;
      if (order.action === RETURN)
        return kind === WORKER && state.carried[cell] > 0 && state.unit[aim] === BASE && state.owner[aim] === owner;
      if (order.action === PRODUCE)
        return units.produces[kind][order.product] && left[owner] >= units.cost[order.product] && free[aim];
      const far = Math.ceil(Math.hypot(...offsets[order.parameter]));
      return units.move_time[kind] > 0 && units.range[kind] >= far && state.owner[aim] === 1 - owner;
    }

    return cells.map((cell) => (isIdle(state, cell) ? orders.map((order) => Number(isLegal(cell, order))) : null));
  }

  /**
   * The orders, one for each cell, without those that are not legal and those that need a cell or resources of an earlier order
   * of the same player, row by row: these units wait.
   */
  function dropConflicts(state, chosen) {
    const [left, legal] = [resourcesLeft(state), legalOrders(state)];
    const taken = [new Set(), new Set()];
    return chosen.map((number, cell) => {
      const [order, owner] = [orders[number], state.owner[cell]];
      if (number === 0 || !legal[cell]?.[number]) return 0;
      if (order.action === PRODUCE && units.cost[order.product] > left[owner]) return 0;
      if (order.action === PRODUCE) left[owner] -= units.cost[order.product];
      if (!enters(order.action)) return number;
      const aim = target(cell, order);
      if (taken[owner].has(aim)) return 0;
      taken[owner].add(aim);
      return number;
    });
  }

  /** How long units wait that are given no order. If they wait only until something changes, an order is a change, too. */
  function waiting(state, chosen) {
    const given = cells.some((cell) => isIdle(state, cell) && orders[chosen[cell]].action !== NONE);
    const ends = cells.filter((cell) => state.remaining[cell] > 0).map((cell) => state.remaining[cell]);
    const wait = !waits.until_change ? waits.cycles : given ? 1 : Math.min(waits.cycles, ...ends);
    return wait > 1 ? wait : 0;
  }

  function duration(state, cell, { action, product }, wait) {
    if (action === NONE) return wait;
    if (action === MOVE) return units.move_time[state.unit[cell]];
    return action === PRODUCE ? units.produce_time[product] : times[action];
  }

  /** Give orders, of which no two of one player are in conflict. Units of both that would enter one cell wait for the shorter. */
  function issue(state, chosen) {
    const next = copy(state);
    const [rivals, wait] = [new Map(), waiting(state, chosen)];
    for (const cell of cells)
      if (enters(orders[chosen[cell]].action)) {
        const aim = target(cell, orders[chosen[cell]]);
        rivals.set(aim, [...(rivals.get(aim) ?? []), duration(state, cell, orders[chosen[cell]], wait)]);
      }
    for (const cell of cells.filter((cell) => isIdle(state, cell))) {
      const order = orders[chosen[cell]];
      const contest = enters(order.action) ? rivals.get(target(cell, order)) : [];
      const acts = contest.length > 1 ? { action: NONE, parameter: 0, product: EMPTY } : order;
      for (const field of ["action", "parameter", "product"]) next[field][cell] = acts[field];
      next.remaining[cell] = contest.length > 1 ? Math.min(...contest) : duration(state, cell, order, wait);
    }
    return next;
  }

  /** Let the cycles pass in which nothing happens and nobody can order; at least one before `max_cycles` is left. */
  function skip(state) {
    const own = cells.filter((cell) => state.owner[cell] >= 0);
    const soonest = Math.min(...own.map((cell) => state.remaining[cell]));
    const cycles = Math.min(Math.max(soonest - 1, 0), Math.max(params.max_cycles - 1 - state.time, 0));
    return { ...state, remaining: state.remaining.map((left) => Math.max(left - cycles, 0)), time: state.time + cycles };
  }

  /** Play one cycle: all actions that are due happen, productions and harvests before moves, then attacks. */
  function advance(state) {
    const next = copy(state);
    next.time += 1;
    next.remaining = state.remaining.map((left) => Math.max(left - 1, 0));
    const due = cells.filter((cell) => state.remaining[cell] === 1);
    const acting = (action) => due.filter((cell) => state.action[cell] === action);
    const aim = (cell) => target(cell, underWay(state, cell));
    for (const cell of due) [next.action[cell], next.parameter[cell], next.product[cell]] = [NONE, 0, EMPTY];
    for (const cell of acting(RETURN))
      if (state.unit[aim(cell)] === BASE) {
        next.resources[state.owner[cell]] += state.carried[cell];
        next.carried[cell] = 0;
      }
    harvest(next, acting(HARVEST), aim);
    const come = [...acting(MOVE), ...acting(PRODUCE)].map((cell) => {
      const [owner, kind] = [state.owner[cell], state.product[cell]];
      if (state.action[cell] === PRODUCE) next.resources[owner] -= units.cost[kind];
      const { unit, hp, carried, born } = next;
      return state.action[cell] === MOVE
        ? [aim(cell), { unit: unit[cell], owner, hp: hp[cell], carried: carried[cell], born: born[cell] }]
        : [aim(cell), { unit: kind, owner, hp: units.hp[kind], carried: 0, born: Math.min(next.time, 32767) }];
    });
    for (const cell of acting(MOVE)) clear(next, cell);
    for (const [cell, unit] of come) for (const field in unit) next[field][cell] = unit[field];
    // Attacks hit whatever is in the cell now.
    for (const cell of acting(ATTACK)) if (next.unit[aim(cell)] !== EMPTY) next.hp[aim(cell)] -= units.damage[state.unit[cell]];
    for (const cell of cells) if (next.unit[cell] !== EMPTY && next.hp[cell] <= 0) clear(next, cell);
    return next;
  }

  /**
   * Workers take one resource each; if too few are left, the first player's come first, then those in the upper rows. A unit that
   * has come to where a resource was dies, as in Java, and the worker has its resource.
   */
  function harvest(next, workers, aim) {
    for (const cell of workers.toSorted((a, b) => next.owner[a] - next.owner[b] || a - b)) {
      const from = aim(cell);
      const left = next.unit[from] === RESOURCE ? next.carried[from] : next.hp[from];
      if (next.unit[from] === EMPTY || left <= 0) continue;
      if (next.unit[from] === RESOURCE) next.carried[from] -= 1;
      else next.hp[from] = 0;
      next.carried[cell] += 1;
    }
    // What is gone is removed with all units without hit points, after moves and attacks.
    for (const cell of cells) if (next.unit[cell] === RESOURCE && next.carried[cell] <= 0) next.hp[cell] = 0;
  }

  /** The player whose opponent has no units, -1 if neither has any, `NOT_OVER` if both have. */
  function winner(state) {
    const [first, second] = [0, 1].map((player) => state.owner.includes(player));
    return first ? (second ? NOT_OVER : 0) : second ? 1 : -1;
  }

  /** The numbers of actions of each kind that both players' units began, beside who has won: the components of the reward. */
  function components(before, ordered, won) {
    const begun = [0, 1].map((player) => cells.filter((cell) => isIdle(before, cell) && before.owner[cell] === player));
    const count = (test) => begun.map((own) => own.filter((cell) => test(underWay(ordered, cell))).length);
    const makes = (...kinds) => count(({ action, product }) => action === PRODUCE && kinds.includes(product));
    return {
      win: [0, 1].map((player) => (won < 0 ? 0 : won === player ? 1 : -1)),
      resource: count(({ action }) => action === HARVEST || action === RETURN),
      worker: makes(WORKER),
      building: makes(BASE, BARRACKS),
      combat: makes(LIGHT, HEAVY, RANGED),
      attack: count(({ action }) => action === ATTACK),
    };
  }

  /** Play the cycles until a unit is idle again; `chosen` has an order for each cell. */
  function play(state, chosen) {
    const ordered = issue(state, dropConflicts(state, chosen));
    const next = advance(skip(ordered));
    const won = winner(next);
    const parts = Object.entries(components(state, ordered, won));
    const reward = [0, 1].map((player) => parts.reduce((sum, [name, x]) => sum + params[`${name}_weight`] * x[player], 0));
    return { state: next, ordered, reward, winner: won, terminated: won !== NOT_OVER || next.time >= params.max_cycles };
  }

  return {
    height, width, walls, cells, orders, units, directions, offsets, at, target, underWay, duration, isIdle, resourcesLeft,
    freeCells, legalOrders, dropConflicts, play, reset: () => copy(map.start),
  };
}
