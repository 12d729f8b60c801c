// The page of `tandem inspect data`: rows with their pictures, searched and ordered.

import { el, fill, labelled } from "./dom.js";
import { bytes, plural } from "./format.js";

const AT_ONCE = 30;
const ORDERS = [
  ["file", "as in the file"],
  ["longest", "longest first"],
  ["shortest", "shortest first"],
];
const asked = { text: "", order: "file", overlong: false, shown: AT_ONCE };

function showRows({ rows, summary, bad }) {
  fill(
    document.getElementById("summary"),
    el("ul", {}, summary.map((line) => el("li", {}, line))),
    bad.length ? el("details", {}, el("summary", {}, plural(bad.length, "bad row")), el("ul", {}, bad.map((line) => el("li", {}, line)))) : null,
  );
  const list = el("ol", { class: "rows" });
  const count = el("p", { class: "faint", role: "status" });
  const more = el("button", { type: "button", onclick: () => ((asked.shown += AT_ONCE), draw()) }, "More");
  const draw = () => {
    const found = foundRows(rows);
    count.textContent = plural(found.length, "row");
    fill(list, found.slice(0, asked.shown).map(rowItem));
    more.hidden = found.length <= asked.shown;
  };
  fill(document.getElementById("rows"), rowTools(draw), count, list, more);
  draw();
}

function rowTools(draw) {
  const change = (name, read) => (event) => {
    asked[name] = read(event.target);
    asked.shown = AT_ONCE;
    draw();
  };
  const value = (target) => target.value;
  return el(
    "div",
    { class: "toolbar", role: "search", "aria-label": "Rows" },
    labelled("Text", el("input", { type: "search", id: "search", oninput: change("text", value) })),
    labelled("Order", el("select", { id: "order", onchange: change("order", value) }, ORDERS.map(([key, text]) => el("option", { value: key }, text)))),
    el("label", { class: "run" }, el("input", { type: "checkbox", id: "overlong", onchange: change("overlong", (target) => target.checked) }), el("span", {}, "too long only")),
  );
}

function foundRows(rows) {
  const words = asked.text.toLowerCase();
  const kept = rows.filter((row) => (!asked.overlong || row.overlong) && (!words || `${row.id}\n${row.prompt}\n${row.answer}`.toLowerCase().includes(words)));
  if (asked.order === "file") return kept;
  const sign = asked.order === "longest" ? -1 : 1;
  return kept.sort((a, b) => sign * ((a.tokens ?? 0) - (b.tokens ?? 0)));
}

function rowItem(row) {
  const told = [row.source, row.tokens === null ? null : plural(row.tokens, "token")].filter(Boolean).join(", ");
  return el(
    "li",
    {},
    el("h2", {}, row.id),
    el("p", { class: "faint" }, told, row.overlong ? el("strong", { class: "wrong" }, " longer than data.max_prompt_length") : null),
    el("div", { class: "prompt" }, el("div", { class: "pictures" }, row.pictures.map(rowPicture)), rowWords(row)),
  );
}

function rowPicture(picture, index) {
  const told = `${picture.width} × ${picture.height} ${picture.type}, ${bytes(picture.bytes)}`;
  const image = picture.url ? el("img", { src: picture.url, alt: `Picture ${index + 1}` }) : el("p", { class: "faint" }, "not kept on this page");
  return el("figure", {}, image, el("figcaption", { class: "faint" }, told));
}

function rowWords(row) {
  const rendered = row.rendered ? el("details", {}, el("summary", {}, "As rendered"), el("pre", { tabindex: 0 }, row.rendered)) : null;
  return el("div", { class: "words" }, el("pre", {}, row.prompt), el("p", {}, "Answer: ", el("strong", {}, row.answer)), rendered);
}

showRows(JSON.parse(document.getElementById("data").textContent));
