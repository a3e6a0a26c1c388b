// The picture of MicroRTS, in the manner of envs/microrts/picture.py, and its units and orders in words.

import { box, disc, line, text } from "./drawing.js";
import { ATTACK, BARRACKS, BASE, EMPTY, HARVEST, MOVE, NONE, PRODUCE, RESOURCE, RETURN } from "./microrts_rules.js";

// Of resource, base, barracks, worker, light, heavy, ranged.
const FILL = ["#3f9a58", "#e6e6e6", "#a8a8a8", "#b4b4b4", "#ffa03c", "#fae646", "#46dce6"];
const INK = "#22262e";
// Shares of a cell. On large maps, whose cells are small, what is in them is large.
const USUAL = {
  radius: [0.42, 0.42, 0.42, 0.25, 0.29, 0.39, 0.29],
  label: ["", "Base", "Barracks", "W", "L", "H", "R"],
  labelSize: [0, 0.2, 0.16, 0.22, 0.26, 0.32, 0.26],
  load: { at: 0.22, radius: 0.14, size: 0.2 },
  left: 0.38, // the height of what is left of a resource
  bar: 0.1,
  rest: 0.24,
};
const LARGE = {
  radius: [0.46, 0.46, 0.46, 0.38, 0.4, 0.46, 0.4],
  label: ["", "B", "K", "W", "L", "H", "R"],
  labelSize: [0, 0.64, 0.64, 0.5, 0.54, 0.6, 0.54],
  load: { at: 0.3, radius: 0.2, size: 0.34 },
  left: 0.5,
  bar: 0.16,
  rest: 0.4,
};
const LARGE_FROM = 12; // columns
const VERBS = ["wait", "move to", "harvest", "return to", "make", "attack"];

export const SIDES = ["Blue", "Red"];

export function makePicture(rules, params) {
  const { height, width, walls, cells, units } = rules;
  // Sizes beside the map grow with it, so that they look the same on all maps.
  const unit = Math.max(1, width / 8);
  const edge = 0.5 * unit;
  const size = width >= LARGE_FROM ? LARGE : USUAL;
  const middle = (cell) => [edge + (cell % width) + 0.5, edge + Math.floor(cell / width) + 0.5];
  const colorOf = (action) =>
    ({ [MOVE]: "faint", [HARVEST]: "green", [RETURN]: "green", [PRODUCE]: "blue", [ATTACK]: "red" })[action];

  // "a" to "z", then "aa", "ab", ...
  const columnName = (column) =>
    (column < 26 ? "" : columnName(Math.floor(column / 26) - 1)) + String.fromCharCode(97 + (column % 26));
  const cellName = (cell) => `${columnName(cell % width)}${Math.floor(cell / width) + 1}`;
  const unitName = (kind) => units.names[kind].toLowerCase();

  /** An order in words, such as "worker b2: harvest a2". */
  function orderText(state, cell, order) {
    const who = `${unitName(state.unit[cell])} ${cellName(cell)}`;
    if (order.action === NONE) return `${who}: wait`;
    const aim = cellName(rules.target(cell, order));
    return order.action === PRODUCE
      ? `${who}: make ${unitName(order.product)} in ${aim}`
      : `${who}: ${VERBS[order.action]} ${aim}`;
  }

  /** The units of a player in words. */
  function unitsText(state, player, named = false) {
    const kinds = units.names
      .map((_, kind) => [kind, cells.filter((cell) => state.unit[cell] === kind && state.owner[cell] === player)])
      .filter(([, those]) => those.length > 0);
    const texts = kinds.map(([kind, those]) => `${unitName(kind)} ${named ? those.map(cellName).join(" ") : those.length}`);
    return texts.join(", ") || "no units";
  }

  function drawUnit(context, colors, kind, owner, [x, y]) {
    const radius = size.radius[kind];
    const ring = [colors.green, colors.blue, colors.red][owner + 1];
    const shape = [RESOURCE, BASE, BARRACKS].includes(kind)
      ? (half, color) => box(context, x - half, y - half, 2 * half, 2 * half, 0.08, color)
      : (half, color) => disc(context, x, y, half, color);
    shape(radius + 0.02, ring);
    shape(radius - 0.06, FILL[kind]);
    text(context, size.label[kind], x, y, size.labelSize[kind], INK);
  }

  /** The order under way or given: a line to what it aims at, thick as far as it is done, and what is made, pale. */
  function drawOrder(context, colors, state, cell, order, done) {
    if (order.action === NONE) return;
    const [from, to] = [middle(cell), middle(rules.target(cell, order))];
    const color = colors[colorOf(order.action)];
    if (order.action === PRODUCE) {
      context.globalAlpha = 0.4;
      drawUnit(context, colors, order.product, state.owner[cell], to);
      context.globalAlpha = 1;
    }
    const at = (part) => from.map((x, axis) => x + part * (to[axis] - x));
    // From the edge of the unit, whose letter it would hide.
    const [first, last] = [size.radius[state.unit[cell]] / Math.hypot(to[0] - from[0], to[1] - from[1]), 0.9];
    line(context, [at(first), at(last)], 0.04, color);
    line(context, [at(first), at(first + (last - first) * done)], 0.12, color);
  }

  function drawMarks(context, state, cell) {
    const [x, y] = middle(cell);
    const [kind, carried] = [state.unit[cell], state.carried[cell]];
    if (kind === RESOURCE) text(context, String(carried), x, y, size.left, "#ffffff");
    else if (carried > 0) {
      const { at, radius, size: height } = size.load;
      disc(context, x + at, y - at, radius, FILL[RESOURCE]);
      text(context, String(carried), x + at, y - at + 0.01, height, "#ffffff");
    }
    if (state.hp[cell] >= units.hp[kind]) return;
    box(context, x - 0.4, y + 0.43 - size.bar, 0.8, size.bar, 0.03, "#c80000");
    box(context, x - 0.4, y + 0.43 - size.bar, (0.8 * state.hp[cell]) / units.hp[kind], size.bar, 0.03, "#00c000");
  }

  function frame(context, cell, half, thick, color) {
    const [x, y] = middle(cell);
    context.beginPath();
    context.roundRect(x - half, y - half, 2 * half, 2 * half, 0.1);
    Object.assign(context, { lineWidth: thick, strokeStyle: color });
    context.stroke();
  }

  function drawGround(context, colors) {
    box(context, edge, edge, width, height, 0.05, colors.paper);
    for (const cell of cells)
      if (walls[cell]) box(context, middle(cell)[0] - 0.5, middle(cell)[1] - 0.5, 1, 1, 0, colors.faint);
    for (let i = 0; i <= width; i++) line(context, [[edge + i, edge], [edge + i, edge + height]], 0.02, colors.grey);
    for (let i = 0; i <= height; i++) line(context, [[edge, edge + i], [edge + width, edge + i]], 0.02, colors.grey);
    // Names of two letters are narrower than a column, in common fonts, so that they stand apart.
    const columnSize = Math.min(0.26 * unit, 1.2 / columnName(width - 1).length);
    for (let i = 0; i < width; i++) text(context, columnName(i), middle(i)[0], edge / 2, columnSize, colors.faint);
    for (let i = 0; i < height; i++) text(context, String(i + 1), edge / 2, middle(i * width)[1], 0.26 * unit, colors.faint);
  }

  /** Below the map: the resources of both players in their colours, and the time between them. */
  function drawFooter(context, colors, state) {
    const y = edge + height + 0.55 * unit;
    [colors.blue, colors.red].forEach((color, player) => {
      const x = player === 0 ? edge : edge + width - 1.1 * unit;
      box(context, x, y - 0.33 * unit, 1.1 * unit, 0.66 * unit, 0.1 * unit, color);
      text(context, String(state.resources[player]), x + 0.55 * unit, y + 0.02 * unit, 0.42 * unit, "#ffffff");
    });
    text(context, `${state.time} of ${params.max_cycles} cycles`, edge + width / 2, y, 0.34 * unit, colors.ink);
  }

  return {
    width: width + 2 * edge,
    height: height + edge + 1.1 * unit,
    legend: `${size === LARGE ? "B is a base, K are barracks, " : ""}W is a worker, L a light, H a heavy, R a ranged unit.`,
    cellName,
    orderText,
    unitsText,

    cellAt(x, y) {
      const [column, row] = [Math.floor(x - edge), Math.floor(y - edge)];
      return column >= 0 && column < width && row >= 0 && row < height ? row * width + column : null;
    },

    text(state) {
      const has = (player) => `${state.resources[player]} resources, ${unitsText(state, player, true)}`;
      const sides = SIDES.map((name, player) => `${name} has ${has(player)}`);
      const places = cells.filter((cell) => state.unit[cell] === RESOURCE);
      const left = places.map((cell) => `${state.carried[cell]} in ${cellName(cell)}`);
      return `cycle ${state.time}. ${sides.join(". ")}. Resources on the map: ${left.join(", ") || "none"}`;
    },

    /** `shown` is what a person who orders sees: units that are asked or rest, the plan (orders by cell), what is selected. */
    draw(context, colors, state, { asked = [], held = [], plan = new Map(), selected = null, targets = [], cursor = null }) {
      drawGround(context, colors);
      const there = cells.filter((cell) => state.unit[cell] !== EMPTY);
      for (const cell of there) drawUnit(context, colors, state.unit[cell], state.owner[cell], middle(cell));
      for (const cell of there.filter((cell) => state.action[cell] !== NONE)) {
        const order = rules.underWay(state, cell);
        drawOrder(context, colors, state, cell, order, 1 - state.remaining[cell] / rules.duration(state, cell, order));
      }
      for (const cell of there) drawMarks(context, state, cell);
      for (const [cell, order] of plan) drawOrder(context, colors, state, cell, order, 1);
      for (const cell of held) text(context, "zz", middle(cell)[0] + 0.3, middle(cell)[1] - 0.36, size.rest, colors.ink);
      for (const cell of asked) frame(context, cell, 0.46, 0.05, colors.gold);
      for (const cell of targets) {
        context.globalAlpha = 0.25;
        box(context, middle(cell)[0] - 0.46, middle(cell)[1] - 0.46, 0.92, 0.92, 0.1, colors.green);
        context.globalAlpha = 1;
        frame(context, cell, 0.44, 0.05, colors.green);
      }
      if (selected !== null) frame(context, selected, 0.46, 0.1, colors.gold);
      if (cursor !== null) frame(context, cursor, 0.49, 0.04, colors.ink);
      drawFooter(context, colors, state);
    },
  };
}
