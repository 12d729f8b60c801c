// The tokens of a sample, coloured by |Δ log-prob| between trainer and generator.

import { el, svg } from "./dom.js";

const SHADES = 8;
const MOST_TOKENS = 3000; // that are written out at once

/** Bytes of a base64 text. */
export function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** |Δ log-prob| that a level stands for: 25.5 levels a decade from 1e-8. */
export function difference(level) {
  return 10 ** (level / 25.5 - 8);
}

/** 0 … 7: 1e-7 and less, then one shade a decade. */
export function shade(level) {
  return Math.max(0, Math.min(SHADES - 1, Math.floor(level / 25.5)));
}

/** A strip with a cell a token; neighbours of one shade are one rectangle. */
export function heatStrip(levels, label) {
  const cells = [];
  for (let start = 0, end; start < levels.length; start = end) {
    const of = shade(levels[start]);
    for (end = start + 1; end < levels.length && shade(levels[end]) === of; end += 1);
    cells.push(svg("rect", { class: `shade-${of}`, x: start, y: 0, width: end - start, height: 1 }));
  }
  return svg("svg", { class: "strip", viewBox: `0 0 ${levels.length} 1`, preserveAspectRatio: "none", role: "img", "aria-label": label }, cells);
}

/** The text of a sample, token by token; plain text where the run wrote no tokens or computed no differences. */
export function tokenText(sample) {
  if (!sample.tokens || !sample.levels) return el("pre", { class: "response" }, sample.text);
  const lengths = bytesOf(sample.lengths);
  const levels = bytesOf(sample.levels);
  const box = el("pre", { class: "response" });
  let place = 0;
  let number = 0;
  const more = (count) => {
    const spans = document.createDocumentFragment();
    for (const stop = Math.min(lengths.length, number + count); number < stop; number += 1) {
      const text = sample.tokens.slice(place, place + lengths[number]);
      place += lengths[number];
      spans.append(el("span", { class: `shade-${shade(levels[number])}`, title: `token ${number + 1}: |Δ| ${difference(levels[number]).toExponential(0)}` }, text));
    }
    box.append(spans);
  };
  more(MOST_TOKENS);
  if (number === lengths.length) return box;
  const rest = el("button", { type: "button", onclick: () => (more(Infinity), rest.remove()) }, `${lengths.length - number} further tokens`);
  return el("div", {}, box, rest);
}

/** What the shades mean. */
export function legend() {
  const marks = Array.from({ length: SHADES }, (_, number) => el("span", { class: `shade-${number}` }, number === 0 ? "≤1e-7" : `1e${number - 8}+`));
  return el("p", { class: "legend" }, "|Δ log-prob| of a token: ", marks);
}
