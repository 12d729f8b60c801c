// The rollout browser: filters, the list of groups, the group that is open.

import { el, fill, labelled } from "./dom.js";
import { indexed, ORDERS, selected } from "./filters.js";
import { num, plural } from "./format.js";
import { groupView } from "./group.js";

const PAGE = 40; // groups that are listed at once
const wanted = { run: null, text: "", order: "step", source: "", changedSince: null };
let shown = PAGE;
let opened = null; // key of the open group

export function showBrowser(body, runs) {
  const withSamples = runs.filter((run) => run.rollouts.groups.length);
  if (!withSamples.length) return fill(body, el("p", { class: "faint" }, "no samples yet"));
  const run = withSamples.find((each) => each.name === wanted.run) ?? withSamples[0];
  const view = { run, entries: indexed(run.rollouts), list: el("ol", { class: "groups" }), detail: el("div", { class: "detail" }) };
  view.count = el("p", { class: "faint", role: "status" });
  view.more = el("button", { type: "button", onclick: () => ((shown += PAGE), drawList(view)) }, "More");
  fill(
    body,
    filterTools(view, withSamples, () => showBrowser(body, runs)),
    el("p", { class: "faint" }, budgetNote(run)),
    el("div", { class: "browser" }, el("div", { class: "side" }, view.count, view.list, view.more), view.detail),
  );
  drawList(view);
  const entry = view.entries.find((each) => each.key === opened) ?? selected(view.entries, wanted)[0];
  if (entry) openGroup(view, entry, false);
}

function budgetNote({ rollouts }) {
  const here = rollouts.groups.reduce((sum, group) => sum + group.samples.length, 0);
  if (here === rollouts.num_samples) return `All ${plural(here, "sample")} of ${plural(rollouts.num_steps, "step")}.`;
  const steps = new Set(rollouts.groups.map((group) => group.step)).size;
  return `${here.toLocaleString("en")} of ${plural(rollouts.num_samples, "sample")}, from ${steps} of ${plural(rollouts.num_steps, "step")}: of each step the worst fidelity, the highest and lowest reward, rows that came before, then others.`;
}

function filterTools(view, runs, restart) {
  const change = (name, read = (target) => target.value) => (event) => {
    wanted[name] = read(event.target);
    shown = PAGE;
    drawList(view);
  };
  const sources = [...new Set(view.entries.map((entry) => entry.row.source).filter(Boolean))].sort();
  const step = (target) => (target.value === "" ? null : Number(target.value));
  return el(
    "div",
    { class: "toolbar", role: "search", "aria-label": "Samples" },
    runs.length > 1 ? labelled("Run", select("run", runs.map((run) => [run.name, run.name]), view.run.name, (event) => ((wanted.run = event.target.value), (opened = null), restart()))) : null,
    labelled("Order", select("order", ORDERS, wanted.order, change("order"))),
    labelled("Text", el("input", { type: "search", id: "search", value: wanted.text, placeholder: "prompt, answer, reason …", oninput: change("text") })),
    labelled("Changed since step", el("input", { type: "number", id: "changed", min: 0, value: wanted.changedSince, placeholder: "any", oninput: change("changedSince", step) })),
    sources.length > 1 ? labelled("Source", select("source", [["", "all"], ...sources.map((name) => [name, name])], wanted.source, change("source"))) : null,
  );
}

function select(id, options, value, onchange) {
  return el("select", { id, onchange }, options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
}

function drawList(view) {
  const found = selected(view.entries, wanted);
  view.count.textContent = found.length ? plural(found.length, "group") : "no group like this";
  fill(view.list, found.slice(0, shown).map((entry) => el("li", {}, groupButton(view, entry))));
  view.more.hidden = found.length <= shown;
}

function groupButton(view, entry) {
  const { group } = entry;
  const right = group.samples.filter((sample) => sample.parts.accuracy >= 1).length;
  const told = [`${right}/${group.samples.length} right`, `reward ${num(entry.reward)}`];
  if (entry.fidelity >= 0 && wanted.order === "fidelity") told.push(`|Δ| ${num(entry.fidelity)}`);
  return el(
    "button",
    { type: "button", "data-key": entry.key, "aria-pressed": String(entry.key === opened), onclick: () => openGroup(view, entry, true) },
    el("span", { class: "top" }, el("strong", {}, `step ${group.step}`), el("span", {}, told.join(", "))),
    el("span", { class: "words" }, shortened(entry.row.prompt ?? "")),
  );
}

function shortened(text) {
  return text.length > 140 ? `${text.slice(0, 140)}…` : text;
}

/** @param move whether the reader asked for it: then it comes into view and has the focus. */
function openGroup(view, entry, move) {
  opened = entry.key;
  fill(view.detail, groupView(entry, view.run.rollouts.images, (other) => openGroup(view, other, true)));
  for (const button of view.list.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.key === opened));
  if (move) view.detail.querySelector("h3").focus();
}
