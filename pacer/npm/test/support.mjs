/** What the tests in Node and in the browser share; no imports, so that both can load it. */

/** Runs a case of the vectors; returns what differs, as text. */
export function differences(Pacer, each) {
  return differing(new Pacer(each.options), each);
}

/** Shape of the items of `items.json`. */
export const ITEMS = {
  textOf: (item) => item.text ?? undefined,
  withText: (item, text) => ({ ...item, text }),
  keyOf: (item) => item.key ?? "",
};

/** The same for a stream of items. */
export function itemDifferences({ ItemPacer, Pacer }, each) {
  return differing(new ItemPacer(new Pacer(each.options), ITEMS), each);
}

function differing(pacer, { name, steps, report }) {
  const found = [];
  const same = (what, got, expected) => {
    const close = typeof expected === "number" && Math.abs(got - expected) <= 1e-12 * Math.abs(expected);
    const equal = JSON.stringify(got) === JSON.stringify(expected);
    if (!equal && !close) found.push(`${name}, ${what}: ${JSON.stringify(got)}, not ${JSON.stringify(expected)}`);
  };
  steps.forEach((step, number) => {
    if ("push" in step) pacer.push(step.push, step.at);
    if ("close" in step) pacer.close(step.at);
    if ("end" in step) pacer.end(step.at);
    if ("flush" in step) pacer.flush(step.at);
    if ("passThrough" in step) pacer.passThrough(step.passThrough, step.at);
    if ("release" in step) same(`step ${number}`, pacer.release(step.at), step.release);
    if ("wakeAt" in step) same(`step ${number}, wakeAt`, pacer.wakeAt ?? null, step.wakeAt);
    if ("done" in step) same(`step ${number}, done`, pacer.done, step.done);
  });
  if (report !== undefined) {
    const got = pacer.report();
    for (const key of Object.keys(report)) same(key, got[key], report[key]);
  }
  return found;
}

/** Returns a generator of numbers from 0 to 1 with a seed (mulberry32). */
export function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

const PIECES = [
  " the", " model", " an", "swer", "ing", ".", "\n\n", " ", " 3.14", " caf", "e\u0301", " 你好", "。", " 👩", "\u200d",
  "💻", " \ud83d", "\ude00", " 🇩", "🇪", " 한", " internationalization", "\r\n", " น้ำ", "x".repeat(70),
];

/** Returns a bursty stream: times of arrival, milliseconds, and texts. */
export function bursty(random) {
  const pick = (from) => from[Math.floor(random() * from.length)];
  const pushes = [];
  let at = 0;
  const count = 1 + Math.floor(random() * 20);
  for (let number = 0; number < count; number++) {
    at += pick([0, 0, 3.7, 16, 33, 80, 210, 290, 700, 5000]) * (0.5 + random());
    const text = Array.from({ length: pick([1, 1, 2, 5, 60]) }, () => pick(PIECES)).join("");
    pushes.push({ at, text });
  }
  return pushes;
}

/** A clock and timers that go as fast as they are served: `await settle(ms)`. */
export async function until(condition, waitMs = 60_000) {
  const giveUp = performance.now() + waitMs;
  while (!condition()) {
    if (performance.now() > giveUp) throw new Error("the condition did not come true");
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
