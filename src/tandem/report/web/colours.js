// Which colour stands for what; the colours themselves are in style.css, for light and dark.

const SERIES = 6;

/** Of a run or a phase, by its number. */
export function seriesColour(number) {
  return `var(--series-${number % SERIES})`;
}

/** Dashes tell runs apart where colours repeat. */
export function seriesDash(number) {
  return ["", "6 3", "2 3"][Math.floor(number / SERIES) % 3];
}
