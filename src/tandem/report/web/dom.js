// Elements. Text from a run enters the page here and nowhere else, always as text.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. `props`: attributes, and `on…` listeners; null, undefined and false leave one out. Children: nodes or text. */
export function el(tag, props = {}, ...children) {
  return build(document.createElement(tag), props, children);
}

/** An SVG element. */
export function svg(tag, props = {}, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

function build(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined).map(asNode));
  return node;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}

/** Put children in the place of all that `node` has. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined).map(asNode));
}

/** A labelled control: `<label>text control</label>`. */
export function labelled(text, control) {
  return el("label", {}, el("span", {}, text), control);
}

/** A table with a header row. Cells that are numbers or nodes may stand in rows. `caption` is for screen readers. */
export function table(caption, columns, rows, numeric = []) {
  const classOf = (index) => (numeric.includes(index) ? "number" : null);
  return el(
    "div",
    { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, columns.map((name, index) => el("th", { scope: "col", class: classOf(index) }, name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, index) => tableCell(cell, index, classOf(index)))))),
    ),
  );
}

function tableCell(content, index, className) {
  return index === 0 ? el("th", { scope: "row", class: className }, content) : el("td", { class: className }, content);
}
