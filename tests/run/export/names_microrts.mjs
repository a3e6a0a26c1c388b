// Name the cells of an empty map of MicroRTS, and print the names and the texts beside a picture of it, with
// the sizes of their letters in cells.

import { readFileSync } from "node:fs";
import { makePicture } from "./microrts_picture.js";
import { EMPTY, NONE } from "./microrts_rules.js";

const { height, width } = JSON.parse(readFileSync(0, "utf8"));
const cells = Array.from({ length: height * width }, (_, i) => i);
const all = (value) => cells.map(() => value);
const picture = makePicture({ height, width, walls: all(0), cells, units: { names: [] } }, { max_cycles: 1 });
const texts = [];
const sizes = [];
const calls = { fillText: (string) => texts.push(string), scale: (size) => sizes.push(100 * size) };
const context = new Proxy({}, { get: (_, name) => calls[name] ?? (() => {}), set: () => true });
picture.draw(context, {}, { unit: all(EMPTY), action: all(NONE), resources: [0, 0], time: 0 }, {});
console.log(JSON.stringify({ names: cells.map(picture.cellName), texts, sizes }));
