// Numbers for people.

/** Three or four significant digits; "–" for none. */
export function num(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e7) return value.toExponential(1);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

/** With a sign, as advantages have one. */
export function signed(value) {
  return value > 0 ? `+${num(value)}` : num(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, scale] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= scale / 2) return `${(value / scale).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

/** A value of `unit`: bytes, share, s, tokens. */
export function measure(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "bytes") return bytes(value);
  if (unit === "share") return `${(100 * value).toFixed(1)} %`;
  return `${num(value)} ${unit}`;
}

export function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}
