// A prompt and its samples side by side, and how the row's answers changed over training.

import { el, table } from "./dom.js";
import { num, plural } from "./format.js";
import { sampleCard } from "./sample.js";
import { legend } from "./tokens.js";

/**
 * @param entry of `indexed`
 * @param images name → data URL
 * @param open called with the entry of another visit that was asked for
 */
export function groupView(entry, images, open) {
  const { group, row } = entry;
  return [
    el("h3", { tabindex: -1 }, `Step ${group.step}, ${group.row}`),
    el("div", { class: "prompt" }, pictures(row, images), promptText(row)),
    history(entry, open),
    el("h4", {}, `${plural(group.samples.length, "sample")}, mean reward ${num(entry.reward)}`),
    legend(),
    el("div", { class: "cards" }, group.samples.map(sampleCard)),
  ];
}

function pictures(row, images) {
  if (!row.images.length) return null;
  return el(
    "div",
    { class: "pictures" },
    row.images.map((name, index) =>
      images[name]
        ? el("img", { src: images[name], alt: `Picture ${index + 1} of the prompt` })
        : el("p", { class: "faint" }, "picture not kept on this page"),
    ),
  );
}

function promptText(row) {
  const rendered = row.rendered
    ? el("details", {}, el("summary", {}, `As rendered${row.tokens ? `, ${plural(row.tokens, "token")}` : ""}`), el("pre", { tabindex: 0 }, row.rendered))
    : null;
  const truth = row.truth === null ? null : el("p", {}, "Reference answer: ", el("strong", {}, row.truth));
  return el("div", { class: "words" }, el("pre", {}, row.prompt), truth, row.source ? el("p", { class: "faint" }, `from ${row.source}`) : null, rendered);
}

function history(entry, open) {
  if (entry.visits.length < 2) return el("p", { class: "faint" }, "This row was sampled at no other step on this page.");
  const rows = entry.visits.map((visit) => [
    visit === entry ? `${visit.group.step} (this)` : el("button", { type: "button", onclick: () => open(visit) }, `step ${visit.group.step}`),
    num(visit.reward),
    visit.answer ?? "no answer",
    String(new Set(visit.group.samples.map((sample) => sample.answer)).size),
  ]);
  return el(
    "details",
    { open: true },
    el("summary", {}, `This row over training: ${plural(entry.visits.length, "visit")}`),
    table("This row over training", ["step", "mean reward", "most frequent answer", "different answers"], rows, [1, 3]),
  );
}
