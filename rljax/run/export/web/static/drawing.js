// Shapes that several environments draw, in the units of their context.

export function disc(context, x, y, radius, color) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = color;
  context.fill();
}

/** Draw a line with round ends through points `[x, y]`. */
export function line(context, points, width, color) {
  context.beginPath();
  points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  Object.assign(context, { lineWidth: width, strokeStyle: color, lineCap: "round", lineJoin: "round" });
  context.stroke();
}

export function box(context, x, y, width, height, rounding, color) {
  context.beginPath();
  context.roundRect(x, y, width, height, rounding);
  context.fillStyle = color;
  context.fill();
}

/** Write a text of a height around a place. Browsers do not draw letters below a pixel, so the text itself is scaled. */
export function text(context, string, x, y, height, color) {
  context.save();
  context.translate(x, y);
  context.scale(height / 100, height / 100);
  Object.assign(context, { font: "600 100px system-ui, sans-serif", textAlign: "center", textBaseline: "middle" });
  context.fillStyle = color;
  context.fillText(string, 0, 0);
  context.restore();
}

export const percent = (probability) => `${Math.round(100 * probability)}`;
