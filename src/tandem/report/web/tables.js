// The panels that are tables: overview, plan, settings, warnings.

import { seriesColour } from "./colours.js";
import { el, fill, table } from "./dom.js";
import { bytes, measure, plural } from "./format.js";

export function showOverview(body, runs) {
  fill(body, runs.map((run, number) => overviewOf(run, number, runs.length > 1)));
}

function overviewOf(run, number, several) {
  const name = el("h2", { class: several ? null : "hidden" }, run.name);
  if (several) {
    const key = el("span", { class: "key" });
    key.style.background = seriesColour(number);
    name.prepend(key);
  }
  const shown = run.summary.filter(([, value]) => value !== "None");
  const warned = run.warnings.length ? el("a", { href: "#warnings", class: "warned" }, plural(run.warnings.length, "warning")) : null;
  return el("div", { class: "tiles" }, name, shown.map(([label, value]) => el("div", { class: "tile" }, el("span", {}, label), el("strong", {}, value))), warned);
}

export function showPlan(body, runs) {
  const parts = runs.flatMap(({ name, plan }) => {
    if (!plan.rows.length) return [];
    const rows = plan.rows.map((row) => [row.what, measure(row.planned, row.unit), measure(row.measured, row.unit), row.about]);
    return [
      runs.length > 1 ? el("h3", {}, name) : null,
      table(`Plan and measurement, ${name}`, ["what", "planned", "measured", "remark"], rows, [1, 2]),
      el("h3", {}, "Planned memory by phase"),
      phaseBars(name, plan.phases),
    ];
  });
  fill(body, parts.length ? parts : el("p", { class: "faint" }, "this run has no plan.json"));
}

function phaseBars(name, phases) {
  const most = Math.max(1, ...phases.map((phase) => phase.bytes));
  const rows = phases.map((phase) => {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${(70 * phase.bytes) / most}%`;
    return [`${phase.place}: ${phase.phase}`, el("span", { class: "bars" }, bar, bytes(phase.bytes))];
  });
  return table(`Planned memory by phase, ${name}`, ["phase", "bytes"], rows);
}

export function showSettings(body, { runs, differences }) {
  const texts = runs.map((run) =>
    el("details", { open: runs.length === 1 }, el("summary", {}, `config.yaml of ${run.name}`), el("pre", { class: "config", tabindex: 0 }, run.config || "none")),
  );
  fill(body, runs.length > 1 ? differenceTable(runs, differences) : null, texts);
}

function differenceTable(runs, differences) {
  if (!differences.length) return el("p", { class: "faint" }, "The runs have the same settings.");
  return table("Settings that differ", ["setting", ...runs.map((run) => run.name)], differences.map(({ key, values }) => [key, ...values]));
}

export function showWarnings(body, runs) {
  fill(body, runs.map((run) => [runs.length > 1 ? el("h3", {}, run.name) : null, warningList(run), noteList(run)]));
}

function warningList({ warnings }) {
  if (!warnings.length) return el("p", {}, "No warnings.");
  return el("ul", { class: "warnings" }, warnings.map(({ text, steps, count, metric }) => el("li", {}, el("strong", {}, text), ` ${where(steps, count)}; see ${metric}.`)));
}

function where([first, last], count) {
  return count === 1 ? `At step ${first}` : `At ${plural(count, "step")} from ${first} to ${last}`;
}

function noteList({ notes }) {
  if (!notes.length) return null;
  return el("details", { open: notes.length < 12 }, el("summary", {}, plural(notes.length, "note")), el("ul", {}, notes.map((note) => el("li", {}, note))));
}
