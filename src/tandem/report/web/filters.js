// Which groups of samples are listed, and in which order. Pure functions on the page's data; no elements.

export const ORDERS = [
  ["step", "by step, newest first"],
  ["fidelity", "worst fidelity"],
  ["highest", "highest reward"],
  ["lowest", "lowest reward"],
];

/** Each group with what filters look at, computed once. */
export function indexed({ groups, rows }) {
  const visits = new Map(); // row id → its groups in order of steps
  const entries = groups.map((group) => {
    const row = rows[group.row];
    const entry = {
      group,
      row,
      key: `${group.step}/${group.number ?? group.row}`,
      text: textOf(group, row).toLowerCase(),
      reward: mean(group.samples.map((sample) => sample.reward)),
      fidelity: Math.max(-1, ...group.samples.map((sample) => sample.fidelity ?? -1)),
      answer: typicalAnswer(group.samples),
    };
    if (!visits.has(group.row)) visits.set(group.row, []);
    visits.get(group.row).push(entry);
    return entry;
  });
  for (const entry of entries) entry.visits = visits.get(entry.group.row);
  return entries;
}

function textOf(group, row) {
  return [group.row, row.prompt, row.truth, ...group.samples.flatMap((sample) => [sample.text, sample.reason])].join("\n");
}

function mean(values) {
  return values.reduce((sum, value) => sum + (value ?? 0), 0) / Math.max(1, values.length);
}

/** The answer that most samples gave, the first of equals; null when none gave one. */
export function typicalAnswer(samples) {
  const counts = new Map();
  for (const { answer } of samples) if (answer !== null) counts.set(answer, (counts.get(answer) ?? 0) + 1);
  let best = null;
  for (const [answer, count] of counts) if (best === null || count > counts.get(best)) best = answer;
  return best;
}

/**
 * @param entries of `indexed`
 * @param wanted { text, order, source, changedSince: step or null }
 */
export function selected(entries, { text, order, source, changedSince }) {
  const words = text.toLowerCase();
  const kept = entries.filter(
    (entry) =>
      (!words || entry.text.includes(words)) &&
      (!source || entry.row.source === source) &&
      (changedSince === null || hasChanged(entry, changedSince)) &&
      (order !== "fidelity" || entry.fidelity >= 0),
  );
  return kept.sort(COMPARE[order]);
}

const COMPARE = {
  step: (a, b) => b.group.step - a.group.step || (a.group.number ?? 0) - (b.group.number ?? 0),
  fidelity: (a, b) => b.fidelity - a.fidelity,
  highest: (a, b) => b.reward - a.reward || b.group.step - a.group.step,
  lowest: (a, b) => a.reward - b.reward || b.group.step - a.group.step,
};

/** Whether the row was sampled up to step `step` and after it gives another answer, most of the time, than last before. */
export function hasChanged(entry, step) {
  if (entry.group.step <= step) return false;
  const before = entry.visits.filter((visit) => visit.group.step <= step).at(-1);
  return before !== undefined && before.answer !== entry.answer;
}
