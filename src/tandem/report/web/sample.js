// One sample as a card: reward and its parts, advantage, fidelity, version, length, text.

import { el } from "./dom.js";
import { num, plural, signed } from "./format.js";
import { bytesOf, heatStrip, tokenText } from "./tokens.js";

const FINISHED = { stop: "ended by itself", length: "cut off", abort: "aborted" };

export function sampleCard(sample) {
  const right = sample.parts.accuracy >= 1;
  return el(
    "article",
    { class: "sample", "aria-label": `Sample ${sample.number + 1}` },
    el(
      "header",
      {},
      el("h5", {}, `Sample ${sample.number + 1}`),
      el("span", { class: right ? "mark right" : "mark wrong" }, sample.reason || (right ? "correct" : "wrong")),
    ),
    facts(sample),
    strip(sample),
    tokenText(sample),
  );
}

function facts(sample) {
  const parts = Object.entries(sample.parts).map(([name, value]) => [name.replaceAll("_", " "), num(value)]);
  const all = [
    ["reward", num(sample.reward)],
    ...parts,
    ["advantage", signed(sample.advantage)],
    ["length", `${plural(sample.length, "token")}, ${FINISHED[sample.finish] ?? sample.finish}`],
    ["weights", `version ${sample.version}`],
  ];
  return el("dl", {}, all.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function strip(sample) {
  if (!sample.levels) return el("p", { class: "faint" }, "no log-probs of the trainer");
  const [place, size] = sample.worst;
  const told = `mean |Δ log-prob| ${num(sample.fidelity)}, largest ${num(size)} at token ${place + 1}`;
  return el("div", {}, heatStrip(bytesOf(sample.levels), told), el("p", { class: "faint" }, told));
}
