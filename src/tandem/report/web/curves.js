// The panel of curves: which metrics, how smooth, which runs.

import { lineChart } from "./chart.js";
import { seriesColour } from "./colours.js";
import { el, fill, labelled } from "./dom.js";

// title, metrics in order of preference, logarithmic
const CHARTS = [
  ["Reward", ["reward/mean"], false],
  ["Accuracy of samples", ["accuracy/mean"], false],
  ["Held-out accuracy", ["val/accuracy"], false],
  ["KL to the reference", ["kl/ref"], false],
  ["|Δ log-prob| trainer, generator: mean", ["fidelity/logprob_abs_diff_mean"], true],
  ["|Δ log-prob| trainer, generator: largest", ["fidelity/logprob_abs_diff_max"], true],
  ["Entropy", ["entropy"], false],
  ["Response length, tokens", ["response_length/mean"], false],
  ["Gradient norm", ["grad_norm"], false],
  ["Clipped share of tokens", ["clip_share"], false],
  ["Policy loss", ["loss/policy"], false],
  ["Tokens a second", ["tokens_per_s"], false],
  ["Use of the devices' peak (MFU)", ["mfu"], false],
];

const chosen = { smoothing: 0, hidden: new Set(), added: [] };

/** @param body where to; @param runs of the page's data */
export function showCurves(body, runs) {
  const grid = el("div", { class: "charts" });
  const draw = () => fill(grid, charts(runs));
  fill(body, curveTools(runs, draw), grid);
  draw();
}

function curveTools(runs, draw) {
  const smoothing = el("input", {
    type: "range", min: 0, max: 0.95, step: 0.05, value: chosen.smoothing, id: "smoothing",
    oninput: (event) => {
      chosen.smoothing = Number(event.target.value);
      draw();
    },
  });
  const further = el(
    "select",
    {
      id: "further",
      onchange: (event) => {
        if (event.target.value) chosen.added = [event.target.value, ...chosen.added.filter((name) => name !== event.target.value)];
        event.target.value = "";
        draw();
      },
    },
    el("option", { value: "" }, "choose …"),
    furtherMetrics(runs).map((name) => el("option", { value: name }, name)),
  );
  return el("div", { class: "toolbar" }, labelled("Smoothing", smoothing), labelled("Another metric", further), runs.length > 1 ? runChoice(runs, draw) : null);
}

function runChoice(runs, draw) {
  const boxes = runs.map((run, number) => {
    const box = el("input", {
      type: "checkbox", checked: !chosen.hidden.has(run.name),
      onchange: (event) => {
        event.target.checked ? chosen.hidden.delete(run.name) : chosen.hidden.add(run.name);
        draw();
      },
    });
    const key = el("span", { class: "key" });
    key.style.background = seriesColour(number);
    return el("label", { class: "run" }, box, key, el("span", {}, run.name));
  });
  return el("fieldset", { class: "runs" }, el("legend", { class: "hidden" }, "Runs"), boxes);
}

function furtherMetrics(runs) {
  const shown = new Set(CHARTS.flatMap((chart) => chart[1]));
  return [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].filter((name) => !shown.has(name)).sort();
}

function charts(runs) {
  const added = chosen.added.map((name) => [name, [name], false]);
  return [...added, ...CHARTS]
    .map(([title, metrics, log]) => ({ title, log, series: seriesOf(runs, metrics) }))
    .filter((chart) => chart.series.length)
    .map(({ title, log, series }) => lineChart(title, series, { smoothing: chosen.smoothing, log }));
}

function seriesOf(runs, metrics) {
  return runs.flatMap((run, number) => {
    const metric = metrics.find((name) => name in run.curves);
    return metric && !chosen.hidden.has(run.name) ? [{ name: run.name, number, points: run.curves[metric] }] : [];
  });
}
