// A line chart as SVG: one line a run, a crosshair that follows the pointer or the arrow keys, and its values in words.

import { seriesColour, seriesDash } from "./colours.js";
import { el, fill, svg } from "./dom.js";
import { num } from "./format.js";
import { linear, logTicks, smoothed, ticks } from "./scale.js";

const WIDTH = 420;
const HEIGHT = 210;
const LEFT = 52;
const RIGHT = 18;
const TOP = 10;
const BOTTOM = 24;

/**
 * @param title what the chart shows
 * @param series [{ name, number, points: [[step, value or null], …] }], those of the runs that are shown
 * @param options { smoothing: 0 to 0.99, log: logarithmic values }
 */
export function lineChart(title, series, { smoothing, log }) {
  const lines = series.map((one) => ({ ...one, drawn: onAxis(smoothed(one.points, smoothing), log), raw: onAxis(one.points, log) }));
  const all = lines.flatMap((line) => (smoothing ? [...line.raw, ...line.drawn] : line.raw)).filter((point) => point[1] !== null);
  const readout = el("p", { class: "readout", "aria-live": "polite" }, summary(series));
  const figure = el("figure", { class: "chart" }, el("h3", {}, title));
  if (!all.length) return fillFigure(figure, el("p", { class: "faint" }, "no values yet"));
  const frame = frameOf(all, log);
  const cross = svg("g", { class: "cross" });
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: 0, "aria-label": `${title}. ${summary(series)}. Arrow keys read values.` },
    axes(frame, log),
    lines.map((line) => drawLine(line, frame, smoothing)),
    cross,
  );
  followPointer(picture, frame, series, (step) => showStep(step, { cross, readout, frame, lines, series }));
  return fillFigure(figure, picture, readout);
}

function fillFigure(figure, ...parts) {
  figure.append(...parts);
  return figure;
}

/** Values on the axis: themselves or their logarithm; null for what has no place there. */
function onAxis(points, log) {
  return points.map(([x, y]) => [x, y === null || (log && y <= 0) ? null : log ? Math.log10(y) : y]);
}

function frameOf(points, log) {
  const xs = points.map((point) => point[0]);
  const ys = points.map((point) => point[1]);
  const [left, right, low, high] = [least(xs), most(xs), least(ys), most(ys)];
  const marks = log ? logTicks(low, high) : ticks(low, high);
  return {
    x: linear(left, right, LEFT, WIDTH - RIGHT),
    y: linear(Math.min(low, marks[0]), Math.max(high, marks.at(-1)), HEIGHT - BOTTOM, TOP),
    marks,
    steps: ticks(left, right).filter((step) => step >= left && step <= right),
    left,
    right,
  };
}

function least(values) {
  return values.reduce((a, b) => Math.min(a, b));
}

function most(values) {
  return values.reduce((a, b) => Math.max(a, b));
}

function axes(frame, log) {
  const rows = frame.marks.map((mark) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: frame.y(mark), y2: frame.y(mark) }),
    svg("text", { x: LEFT - 6, y: frame.y(mark) + 4, "text-anchor": "end" }, log ? `1e${mark}` : num(mark)),
  ]);
  const columns = frame.steps.map((step) => svg("text", { x: frame.x(step), y: HEIGHT - 7, "text-anchor": "middle" }, num(step)));
  return svg("g", { "aria-hidden": "true" }, rows, columns);
}

function drawLine(line, frame, smoothing) {
  const stroke = { stroke: seriesColour(line.number), "stroke-dasharray": seriesDash(line.number) };
  const single = line.drawn.filter((point) => point[1] !== null).length === 1;
  return [
    smoothing ? svg("path", { ...stroke, class: "line raw", d: path(line.raw, frame) }) : null,
    svg("path", { ...stroke, class: single ? "line dot" : "line", d: path(line.drawn, frame) }),
  ];
}

/** Stretches between gaps; a point alone is a stretch of no length, which round caps show. */
function path(points, frame) {
  let pen = "M";
  const parts = [];
  for (const [x, y] of points) {
    if (y === null) {
      pen = "M";
      continue;
    }
    const place = `${frame.x(x).toFixed(1)} ${frame.y(y).toFixed(1)}`;
    parts.push(pen === "M" ? `M${place}L${place}` : `L${place}`);
    pen = "L";
  }
  return parts.join("");
}

/** Calls `show` with the step under the pointer or the one that arrow keys went to; null when neither is there. */
function followPointer(picture, frame, series, show) {
  const steps = [...new Set(series.flatMap((one) => one.points.map((point) => point[0])))].sort((a, b) => a - b);
  let index = steps.length;
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    index = nearest(steps, (step) => Math.abs(frame.x(step) - x));
    show(steps[index]);
  });
  picture.addEventListener("pointerleave", () => show(null));
  picture.addEventListener("blur", () => show(null));
  picture.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: steps.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    index = Math.max(0, Math.min(steps.length - 1, moves[event.key]));
    show(steps[index]);
  });
}

function nearest(steps, distance) {
  return steps.reduce((best, step, index) => (distance(step) < distance(steps[best]) ? index : best), 0);
}

function showStep(step, { cross, readout, frame, lines, series }) {
  if (step === null) {
    cross.replaceChildren();
    readout.textContent = summary(series);
    return;
  }
  const x = frame.x(step);
  const dots = lines.map((line) => {
    const point = line.drawn.find((each) => each[0] === step && each[1] !== null);
    return point ? svg("circle", { cx: x, cy: frame.y(point[1]), r: 3.5, fill: seriesColour(line.number) }) : null;
  });
  fill(cross, svg("line", { class: "hair", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }), dots);
  const values = series.map((one) => [one.name, one.points.find((point) => point[0] === step)]).filter(([, point]) => point);
  const told = values.map(([name, point]) => (series.length > 1 ? `${name} ${num(point[1])}` : num(point[1])));
  readout.textContent = `step ${step}: ${told.join(", ")}`;
}

/** "from 0.41 to 0.58" of one run, of each when there are several. */
function summary(series) {
  const parts = series.map(({ name, points }) => {
    const known = points.filter((point) => point[1] !== null);
    if (!known.length) return null;
    const told = known.length > 1 ? `${num(known[0][1])} → ${num(known.at(-1)[1])}` : num(known[0][1]);
    return series.length > 1 ? `${name}: ${told}` : told;
  });
  return parts.filter(Boolean).join(", ");
}
