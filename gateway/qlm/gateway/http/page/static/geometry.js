// Where things are on the chart: pure functions of the plan, the time and the size.

/** Colours that stay apart with any colour blindness (Okabe and Ito, 2008), but for the one that means late. */
const COLOURS = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#0072b2", "#f0e442", "#b5bcc2"];

/** Share of a group's requests in time below which it is drawn as late; as in `qlm plan show`. */
export const MOSTLY = 0.5;

export const LANE = 54;
export const AXIS = 24;
export const BAR_TOP = 11;
export const BAR_HEIGHT = 22;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
const TICK_MIN_PX = 80;

/** Colour, number of stripes, and colour of text on it, of each model in order of names. */
export function styles(models) {
  const sorted = [...new Set(models)].sort();
  return new Map(sorted.map((model, at) => {
    const fill = COLOURS[at % COLOURS.length];
    return [model, { fill, stripes: Math.floor(at / COLOURS.length), ink: isDark(fill) ? "#ffffff" : "#101418" }];
  }));
}

function isDark(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.18;
}

/** The least round time that is not below: the width of the chart changes seldom. */
export function roundTime(seconds) {
  let unit = 10;
  while (unit * 6 < seconds) unit *= 6;
  return [1, 1.5, 2, 3, 4, 6].map((factor) => factor * unit).find((each) => each >= seconds);
}

/**
 * Bars of the waiting groups of a lane, in seconds after the plan. They have the times of the plan as long as the
 * queue keeps them; what still waits after its time begins now, and delays what is behind it.
 */
export function bars(groups, remaining, elapsed_s) {
  let free_s = elapsed_s;
  return groups.map((group) => {
    const number = left(group, remaining);
    const start_s = Math.max(group.start_s, free_s);
    const begun = group.start_s < elapsed_s ? number / group.requests : 1;
    const leaves_s = start_s + (group.leaves_s - group.start_s) * Math.min(1, begun);
    free_s = leaves_s;
    const delay_s = Math.max(0, leaves_s - group.leaves_s);
    return { group, number, start_s, leaves_s, delay_s, end_s: group.end_s + delay_s, early_s: group.end_early_s + delay_s, late_s: group.end_late_s + delay_s };
  });
}

/** Time within which the last answer is expected, seconds from `elapsed_s` after the plan. */
export function horizon(busy_s, ends_s, elapsed_s) {
  return roundTime(Math.max(5, ...busy_s.map((each) => each - elapsed_s), ...ends_s.map((each) => each - elapsed_s)));
}

/** Times of the ticks between two times, a round step apart. */
export function ticks(from_s, to_s, perSecond) {
  const step = STEPS_S.find((each) => each * perSecond >= TICK_MIN_PX) ?? STEPS_S.at(-1);
  const found = [];
  for (let at = Math.ceil(from_s / step) * step; at <= to_s; at += step) found.push(at);
  return found;
}

/** Requests of a planned group that still wait. */
export function left(group, remaining) {
  return remaining[group.id] ?? group.requests;
}

/** The groups that are on the chart, by lane: those with waiting requests. */
export function open(lanes, remaining) {
  return lanes.map((lane) => lane.groups.filter((each) => left(each, remaining) > 0));
}

/** Move a selection by arrow keys; `open` has the groups of each lane. Returns lane and index, or null. */
export function moved(open, lane, index, key) {
  const clamp = (value, length) => Math.max(0, Math.min(length - 1, value));
  const filled = open.map((each, at) => [at, each.length]).filter(([, length]) => length);
  if (!filled.length) return null;
  const row = Math.max(0, filled.findIndex(([at]) => at >= lane));
  const to = (position) => {
    const [at, length] = filled[clamp(position, filled.length)];
    return [at, clamp(index, length)];
  };
  const length = open[lane]?.length ?? 0;
  switch (key) {
    case "ArrowLeft": return length ? [lane, clamp(index - 1, length)] : to(row);
    case "ArrowRight": return length ? [lane, clamp(index + 1, length)] : to(row);
    case "ArrowUp": return to(row - 1);
    case "ArrowDown": return to(length ? row + 1 : row);
    case "PageUp": return to(row - 5);
    case "PageDown": return to(row + 5);
    case "Home": return length ? [lane, 0] : to(row);
    case "End": return length ? [lane, length - 1] : to(row);
    default: return to(row);
  }
}
