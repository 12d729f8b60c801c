// Where the time of a step goes: a stacked column for each step, and the means as a table.

import { seriesColour } from "./colours.js";
import { el, fill, svg, table } from "./dom.js";
import { num } from "./format.js";
import { ticks } from "./scale.js";

const AREA_WIDTH = 860;
const AREA_HEIGHT = 190;
const AREA_LEFT = 44;
const AREA_BOTTOM = 24;
const AREA_TOP = 8;
const MOST_COLUMNS = 120;

export function showTime(body, runs) {
  const parts = runs.flatMap((run) => {
    const phases = phasesOf(run.curves);
    return phases.length ? [runs.length > 1 ? el("h3", {}, run.name) : null, columns(run, phases), means(run, phases)] : [];
  });
  fill(body, parts.length ? parts : el("p", { class: "faint" }, "no step is done yet"));
}

/** [{ name, seconds: step → s }] of each `time/<phase>_s`, and what no phase accounts for. */
function phasesOf(curves) {
  const phases = Object.keys(curves)
    .filter((name) => name.startsWith("time/") && name !== "time/step_s")
    .map((name) => ({ name: name.slice("time/".length, -"_s".length).replaceAll("_", " "), seconds: new Map(curves[name]) }));
  const rest = new Map((curves["time/step_s"] ?? []).map(([step, total]) => [step, Math.max(0, total - sumAt(phases, step))]));
  return rest.size ? [...phases, { name: "other", seconds: rest }] : phases;
}

function phaseColour(phases, number) {
  return phases[number].name === "other" ? "var(--faint)" : seriesColour(number);
}

function sumAt(phases, step) {
  return phases.reduce((sum, phase) => sum + (phase.seconds.get(step) ?? 0), 0);
}

/** Columns of neighbouring steps' means when there are more steps than columns. */
function bins(phases) {
  const steps = [...new Set(phases.flatMap((phase) => [...phase.seconds.keys()]))].sort((a, b) => a - b);
  const size = Math.ceil(steps.length / MOST_COLUMNS);
  const grouped = Array.from({ length: Math.ceil(steps.length / size) }, (_, index) => steps.slice(index * size, (index + 1) * size));
  return grouped.map((several) => ({
    steps: several,
    heights: phases.map((phase) => several.reduce((sum, step) => sum + (phase.seconds.get(step) ?? 0), 0) / several.length),
  }));
}

function columns(run, phases) {
  const all = bins(phases);
  const most = Math.max(...all.map((bin) => bin.heights.reduce((a, b) => a + b, 0)));
  const marks = ticks(0, most, 3);
  const width = (AREA_WIDTH - AREA_LEFT) / all.length;
  const y = (seconds) => AREA_HEIGHT - AREA_BOTTOM - (seconds / marks.at(-1)) * (AREA_HEIGHT - AREA_BOTTOM - AREA_TOP);
  const grid = marks.map((mark) => [
    svg("line", { class: "grid", x1: AREA_LEFT, x2: AREA_WIDTH, y1: y(mark), y2: y(mark) }),
    svg("text", { x: AREA_LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, `${num(mark)} s`),
  ]);
  const bars = all.map((bin, index) => column(bin, index, { phases, width, y }));
  const label = `Seconds of each step of ${run.name} by phase; the table below has the means.`;
  const every = Math.ceil(all.length / 8);
  const names = all.map((bin, index) =>
    index % every ? null : svg("text", { x: AREA_LEFT + (index + 0.5) * width, y: AREA_HEIGHT - 7, "text-anchor": "middle" }, bin.steps[0]),
  );
  const picture = svg("svg", { class: "columns", viewBox: `0 0 ${AREA_WIDTH} ${AREA_HEIGHT}`, role: "img", "aria-label": label }, grid, bars, names);
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": `Columns of ${run.name}` }, picture);
}

function column(bin, index, { phases, width, y }) {
  let below = 0;
  const parts = bin.heights.map((seconds, phase) => {
    const top = y(below + seconds);
    const part = svg("rect", {
      x: AREA_LEFT + index * width + width * 0.08, width: width * 0.84, y: top, height: Math.max(0, y(below) - top),
      fill: phaseColour(phases, phase),
    });
    below += seconds;
    return part;
  });
  const told = phases.map((phase, number) => `${phase.name} ${num(bin.heights[number])} s`).join(", ");
  const steps = bin.steps.length > 1 ? `steps ${bin.steps[0]}–${bin.steps.at(-1)}` : `step ${bin.steps[0]}`;
  return svg("g", {}, svg("title", {}, `${steps}: ${told}`), parts);
}

function means(run, phases) {
  const rows = phases.map((phase, number) => {
    const values = [...phase.seconds.values()].filter((value) => value !== null);
    return { phase, number, mean: values.reduce((a, b) => a + b, 0) / Math.max(1, values.length) };
  });
  const total = rows.reduce((sum, row) => sum + row.mean, 0);
  const cells = rows.map(({ phase, number, mean }) => {
    const key = el("span", { class: "key" });
    key.style.background = phaseColour(phases, number);
    return [el("span", {}, key, phase.name), num(mean), `${((100 * mean) / total).toFixed(1)} %`];
  });
  return table(`Mean seconds of each phase, ${run.name}`, ["phase", "seconds", "share"], cells, [1, 2]);
}
