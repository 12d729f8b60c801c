// From values to places on a chart.

/** A straight map of [low, high] to [start, end]; an empty interval goes to the middle. */
export function linear(low, high, start, end) {
  return (value) => start + (high > low ? (value - low) / (high - low) : 0.5) * (end - start);
}

/** Round numbers around [low, high]: the first at or below `low`, the last at or above `high`. */
export function ticks(low, high, about = 4) {
  if (!(high > low)) return [low];
  const rough = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((unit) => power * unit >= rough * 0.999);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

/** Whole powers of ten, as exponents, about five of them. */
export function logTicks(low, high) {
  const first = Math.floor(low);
  const last = Math.ceil(high);
  const every = Math.max(1, Math.ceil((last - first) / 5));
  return Array.from({ length: Math.floor((last - first + every - 1) / every) + 1 }, (_, index) => first + index * every);
}

/** Exponential moving average, corrected at its start; gaps stay gaps. `weight`: of the past, 0 for none. */
export function smoothed(points, weight) {
  let sum = 0;
  let total = 0;
  return points.map(([x, y]) => {
    if (y === null) return [x, null];
    sum = weight * sum + (1 - weight) * y;
    total = weight * total + (1 - weight);
    return [x, sum / total];
  });
}
