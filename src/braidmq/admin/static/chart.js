// Live charts: SVG, redrawn with every point at the size of its element.
//
// The legend shows each line's value as text, now or at the pointer, and the picture's label
// sums it up in a sentence: no information is in colour or shape alone.

import { fill, h, svg } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 148;
const LEFT = 46;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
const SPAN_MS = 120_000;
const THICK = 2; // pixels, of a line and of the thinnest band
const GAP_MS = 4_000; // a longer gap between two points breaks the line

/**
 * Return `{element, draw(points)}`.
 *
 * A series is `{name, of, value(point)}`, where *of* is the class of its colour; *stacked* draws
 * bands on top of each other, and not lines; *format* formats a value; *floor* is the smallest maximum of the
 * axis; *binary* rounds that maximum to a round number of bytes.
 */
export function chart({ title, note = null, series, format, stacked = false, floor = 1, binary = false }) {
  const picture = svg("svg", { class: "plot", role: "img", height: HEIGHT });
  const readings = series.map(() => h("b", {}, "–"));
  const legend = h("ul", { class: "legend" }, series.map((one, index) =>
    h("li", {}, h("i", { class: `swatch ${one.of}`, "aria-hidden": "true" }), `${one.name} `, readings[index])));
  const time = h("span", { class: "muted chart-note" }, note);
  const element = h("figure", { class: "chart" },
    h("figcaption", {}, h("span", { class: "chart-title" }, title), time),
    picture, legend);
  const topOf = (values) => (binary ? binaryTop : niceTop)(Math.max(floor, ...values));
  let points = [];
  let pointed = null;

  function draw(newPoints = points) {
    points = newPoints;
    const width = picture.clientWidth;
    if (!width || document.hidden) return;
    const rows = points.map((point) => series.map((one) => one.value(point) ?? 0));
    const tops = stacked ? rows.map((values) => values.reduce((sum, value) => sum + value, 0)) : rows.flat();
    const frame = frameOf(points, tops, width, topOf);
    fill(picture, axes(frame, format), marks(points, rows, series, frame, stacked), pointer(frame));
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    read(rows);
  }

  function read(rows) {
    const at = pointed === null ? rows.length - 1 : pointed;
    const row = rows[at];
    series.forEach((one, index) => { readings[index].textContent = row ? format(row[index]) : "–"; });
    time.textContent = pointed !== null && row ? clock(new Date(points[at].time)) : note ?? "";
    const last = rows.at(-1);
    const said = last ? series.map((one, index) => `${one.name} ${format(last[index])}`).join(", ") : "no numbers yet";
    picture.setAttribute("aria-label", `${title}, last two minutes. Now: ${said}.`);
  }

  function pointer(frame) {
    if (pointed === null || !points[pointed]) return null;
    const x = frame.x(points[pointed]);
    return svg("line", { class: "pointer", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM });
  }

  picture.addEventListener("pointermove", (event) => {
    const x = event.clientX - picture.getBoundingClientRect().left;
    const frame = frameOf(points, [], picture.clientWidth, topOf);
    const distances = points.map((point) => Math.abs(frame.x(point) - x));
    pointed = points.length ? distances.indexOf(Math.min(...distances)) : null;
    draw();
  });
  picture.addEventListener("pointerleave", () => { pointed = null; draw(); });
  new ResizeObserver(() => draw()).observe(picture);
  return { element, draw };
}

function frameOf(points, tops, width, topOf) {
  const end = points.length ? Date.parse(points.at(-1).time) : 0;
  const highest = topOf(tops);
  return {
    width,
    highest,
    x: (point) => LEFT + (width - LEFT - RIGHT) * (1 - Math.min((end - Date.parse(point.time)) / SPAN_MS, 1)),
    y: (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / highest),
  };
}

/** Return the next of 1, 2, 4, 5, 8, 10 times a power of ten: its half is a round number too. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].find((step) => step * power >= value * 0.999) * power;
}

/** Return the next power of two, or one and a half of the one before. */
function binaryTop(value) {
  const power = 2 ** Math.ceil(Math.log2(value));
  return power * 0.75 >= value ? power * 0.75 : power;
}

function axes(frame, format) {
  const lines = [0, frame.highest / 2, frame.highest].map((value) => {
    const y = frame.y(value);
    return [
      svg("line", { class: value ? "grid" : "axis", x1: LEFT, x2: frame.width - RIGHT, y1: y, y2: y }),
      svg("text", { class: "tick", x: LEFT - 6, y: y + 3.5, "text-anchor": "end" }, format(value)),
    ];
  });
  const times = [[0, "−2 min", "start"], [0.5, "−1 min", "middle"], [1, "now", "end"]].map(([at, text, anchor]) =>
    svg("text", {
      class: "tick", y: HEIGHT - 5, x: LEFT + (frame.width - LEFT - RIGHT) * at, "text-anchor": anchor,
    }, text));
  return [lines, times];
}

function marks(points, rows, series, frame, stacked) {
  const heights = rows.map((values) => (stacked ? bands : beside)(values, frame));
  const at = (index, y) => `${frame.x(points[index]).toFixed(1)},${y.toFixed(1)}`;
  return series.map((one, which) => unbroken(points).map((run) => {
    if (!stacked) return svg("polyline", { class: `line ${one.of}`, points: run.map((index) => at(index, heights[index][which])).join(" ") });
    const below = (index) => (which ? heights[index][which - 1] : frame.y(0));
    return spoken(run, (index) => rows[index][which] > 0).map((part) => {
      const top = part.map((index) => at(index, heights[index][which]));
      const base = part.map((index) => at(index, below(index))).reverse();
      return svg("polygon", { class: `area ${one.of}`, points: [...top, ...base].join(" ") });
    });
  }));
}

/** Return the upper edges of *values* on top of each other; what is not zero is thick enough to be seen. */
function bands(values, frame) {
  let sum = 0;
  let edge = frame.y(0);
  return values.map((value) => {
    sum += value;
    if (value > 0) edge = Math.min(frame.y(sum), edge - THICK);
    return edge;
  });
}

/** Return the heights of lines; equal values are beside each other, so that no line hides another. */
function beside(values, frame) {
  const taken = [];
  for (const value of values) {
    let y = frame.y(value);
    for (let near = y; near !== undefined;) {
      near = taken.find((other) => Math.abs(other - y) < THICK - 0.01);
      if (near !== undefined) y = near - THICK;
    }
    taken.push(y);
  }
  return taken;
}

/** Return the parts of *run* where *speaks* holds, each with its neighbours on either side. */
function spoken(run, speaks) {
  const parts = [];
  run.forEach((index, place) => {
    const near = [run[place - 1], index, run[place + 1]].filter((i) => i !== undefined);
    if (!near.some(speaks)) return;
    if (parts.at(-1)?.at(-1) === index - 1) parts.at(-1).push(index);
    else parts.push([index]);
  });
  return parts;
}

/** Return the indexes of *points* in runs without a gap. */
function unbroken(points) {
  const runs = [];
  points.forEach((point, index) => {
    const gap = index ? Date.parse(point.time) - Date.parse(points[index - 1].time) : Infinity;
    if (gap > GAP_MS) runs.push([]);
    runs.at(-1).push(index);
  });
  return runs;
}
