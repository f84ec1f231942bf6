// Numbers and times in words, as `qlm` writes them.

const UNITS = [[120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"], [Infinity, 86400, "d"]];

/** Format a duration with one fitting unit. */
export function span(seconds) {
  const [, divisor, unit] = UNITS.find(([limit]) => seconds < limit);
  const value = seconds / divisor;
  return (value < 10 ? value.toFixed(1) : value.toFixed(0)) + unit;
}

/** Format a time relative to now: `in 12s`, `3.0min ago`. */
export function relative(seconds) {
  return seconds >= 0 ? `in ${span(seconds)}` : `${span(-seconds)} ago`;
}

/** Say how and when the plan was made; `kept` is what the controller calls the plan before, if none is better. */
export function planned(method, age_s) {
  const past = `${span(Math.max(0, age_s))} ago`;
  return method === "kept" ? `earlier plan kept ${past}` : `plan by ${method} ${past}`;
}

export function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

export function count(number, what) {
  return `${number} ${what}${number === 1 ? "" : "s"}`;
}

/** Format a size in GiB, without the unit. */
export function gib(bytes) {
  const value = bytes / 2 ** 30;
  return value && value < 10 ? value.toFixed(1) : value.toFixed(0);
}

export function thousands(number) {
  return number < 10000 ? String(number) : `${Math.round(number / 1000)}k`;
}

/** Leave out the middle of a name until it fits: names of one cluster often differ only at their ends. */
export function cut(name, fits) {
  let shown = name;
  for (let kept = name.length - 1; kept > 1 && !fits(shown); kept -= 1) {
    const end = Math.floor(kept / 2);
    shown = `${name.slice(0, kept - end)}…${name.slice(name.length - end)}`;
  }
  return shown;
}
