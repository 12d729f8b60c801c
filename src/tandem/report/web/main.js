// Puts the data on the page, and in a live page again whenever there is more.

import { showBrowser } from "./browser.js";
import { showCurves } from "./curves.js";
import { el, fill } from "./dom.js";
import { showOverview, showPlan, showSettings, showWarnings } from "./tables.js";
import { showTime } from "./time.js";

const POLL_MS = 3000;

function bodyOf(id) {
  return document.querySelector(`#${id} .body`);
}

function show(data) {
  const { runs } = data;
  document.title = `Tandem: ${runs.map((run) => run.name).join(", ")}`;
  fill(document.getElementById("title"), runs.length > 1 ? plainTitle(runs) : runs[0].name);
  about(data, data.live ? "live" : null);
  keepingFocus(() => {
    showOverview(document.getElementById("overview"), runs);
    showCurves(bodyOf("curves"), runs);
    showTime(bodyOf("time"), runs);
    showBrowser(bodyOf("samples"), runs);
    showPlan(bodyOf("plan"), runs);
    showSettings(bodyOf("settings"), data);
    showWarnings(bodyOf("warnings"), runs);
  });
}

function plainTitle(runs) {
  return `${runs.length} runs of Tandem`;
}

function about(data, state) {
  const made = `Tandem ${data.tandem}, ${data.made.replace("T", " ").replace("+00:00", " UTC")}`;
  fill(document.getElementById("about"), state ? el("span", { class: `state ${state}` }, state) : null, made);
}

/** Draw anew, and put the focus and its selection back where they were: the control has an id, or the open group a key. */
function keepingFocus(draw) {
  const active = document.activeElement;
  const { id, selectionStart } = active ?? {};
  const key = active?.dataset?.key;
  draw();
  const again = id ? document.getElementById(id) : key ? [...document.querySelectorAll("[data-key]")].find((button) => button.dataset.key === key) : null;
  if (!again || again === document.activeElement) return;
  again.focus({ preventScroll: true });
  if (typeof selectionStart === "number") again.setSelectionRange(selectionStart, selectionStart);
}

/** Asks for data that are newer than `tag`, for ever. A server that is gone is told on the page and asked again. */
async function follow(data) {
  for (let current = data; ; await new Promise((resolve) => setTimeout(resolve, POLL_MS))) {
    try {
      const answer = await fetch(`data.json?tag=${encodeURIComponent(current.tag)}`, { cache: "no-store" });
      if (answer.status === 200) {
        current = await answer.json();
        show(current);
      } else if (answer.status === 204) about(current, "live");
      else about(current, "error");
    } catch {
      about(current, "disconnected");
    }
  }
}

const first = JSON.parse(document.getElementById("data").textContent);
show(first);
if (first.live) follow(first);
