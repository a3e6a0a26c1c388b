// MicroRTS-v0: two players order all of their units at once. What they see and may do is that of envs/microrts/game.py; the rules
// are in microrts_rules.js, the picture is in microrts_picture.js, and battle.js plays.

import { makeBots } from "./microrts_bots.js";
import { makePicture } from "./microrts_picture.js";
import { ATTACK, EMPTY, makeRules, NONE } from "./microrts_rules.js";

export function makeEnvironment(description) {
  const { turned, turned_directions: turnedDirections, drawn, opponents } = description.microrts;
  const { params } = description;
  const rules = makeRules(description);
  const { cells, orders, units } = rules;
  const share = (value) => Math.min(Math.max(value, 0), 1);
  const oneHot = (value, size) => Array.from({ length: size }, (_, i) => Number(value === i));
  /** The second player sees and orders everything after half a turn: a list over the cells from its side, or back. */
  const ofSide = (seat, list) => (seat === 1 ? list.toReversed() : list);

  /** A player's orders of the cells of the map as its action, or an action as orders. */
  const fromSide = (seat, action) => ofSide(seat, action.map((number) => (seat === 1 ? turned[number] : number)));

  function look(state, seat, cell) {
    const { action, parameter } = rules.underWay(state, cell);
    const direction = seat === 1 ? turnedDirections[parameter] : parameter;
    const owner = state.owner[cell];
    return [
      ...oneHot(Math.min(Math.max(state.hp[cell], 0), 4), 5),
      ...oneHot(Math.min(state.carried[cell], 4), 5),
      ...oneHot(owner < 0 ? 0 : owner === seat ? 1 : 2, 3),
      ...oneHot(state.unit[cell] - EMPTY, units.names.length + 1),
      ...oneHot(action, 6),
      ...oneHot(action === NONE || action === ATTACK ? null : direction, 4),
      share(state.remaining[cell] / 200),
      rules.walls[cell],
      1, // no fog
      ...[state.resources[seat] / 20, state.resources[1 - seat] / 20, state.time / Math.max(params.max_cycles, 1)].map(share),
    ];
  }

  return {
    title: "MicroRTS",
    task: "Gather resources, train units and destroy all that the other player has.",
    rules,
    drawn,
    opponents,
    bots: makeBots(rules, fromSide),
    fromSide,
    ...makePicture(rules, params),

    reset: rules.reset,

    observe: (state, seat) => ofSide(seat, cells).flatMap((cell) => look(state, seat, cell)),

    mask(state, seat) {
      const legal = rules.legalOrders(state);
      const own = (cell) => state.owner[cell] === seat && legal[cell] !== null;
      return ofSide(seat, cells).flatMap((cell) =>
        orders.map((_, number) => (own(cell) ? legal[cell][seat === 1 ? turned[number] : number] : Number(number === 0))),
      );
    },

    step(state, actions) {
      const [first, second] = actions.map((action, seat) => fromSide(seat, action));
      return rules.play(state, cells.map((cell) => (state.owner[cell] === 1 ? second : first)[cell]));
    },
  };
}
