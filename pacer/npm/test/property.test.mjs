import assert from "node:assert/strict";
import { test } from "node:test";

import { graphemes, isOpen } from "../dist/graphemes.js";
import { Pacer } from "../dist/index.js";
import { bursty, seeded } from "./support.mjs";

const STREAMS = 10_000;
const OPTIONS = [{}, { maxLagMs: 120 }, { rate: 3.3, maxLagMs: 300 }, { rate: 50, maxLagMs: 40 }];

/** Times and texts released: asked when the pacer wants to be, and at random times as well. */
function released(options, pushes, random) {
  const pacer = new Pacer(options);
  const out = [];
  const ask = (at) => {
    const text = pacer.release(at);
    if (text !== "") out.push({ at, text });
  };
  let now = 0;
  const askUntil = (until) => {
    for (let wake = pacer.wakeAt; wake !== undefined && wake < until; wake = pacer.wakeAt) {
      if (random() < 0.3) ask(now + (wake - now) * random());
      ask(wake);
      now = wake;
    }
    now = until;
  };
  for (const { at, text } of pushes) {
    askUntil(at);
    pacer.push(text, at);
  }
  pacer.end(now);
  askUntil(Infinity);
  assert.equal(pacer.done, true);
  return { out, report: pacer.report() };
}

/** Longest time that a character waited. */
function longestLag(pushes, out) {
  let longest = 0;
  let [number, used] = [0, 0];
  for (const { at, text } of out) {
    for (let left = text.length; left > 0; ) {
      longest = Math.max(longest, at - pushes[number].at);
      const step = Math.min(left, pushes[number].text.length - used);
      left -= step;
      used += step;
      while (number < pushes.length && used === pushes[number].text.length) [number, used] = [number + 1, 0];
    }
  }
  return longest;
}

test(`${STREAMS} bursty streams: nothing lost or reordered, no character waits longer than it may`, () => {
  for (let seed = 0; seed < STREAMS; seed++) {
    const random = seeded(seed);
    const pushes = bursty(random);
    const options = OPTIONS[seed % OPTIONS.length];
    const { out, report } = released(options, pushes, random);
    const all = pushes.map((each) => each.text).join("");
    assert.equal(out.map((each) => each.text).join(""), all, `seed ${seed}`);
    const largest = options.maxLagMs ?? 300;
    const lag = longestLag(pushes, out);
    // A half character waits for its other half, however long that takes.
    if (!pushes.some((each) => /[\ud800-\udbff]$/.test(each.text))) {
      assert.ok(lag <= largest + 1e-6, `seed ${seed}: ${lag} ms`);
      assert.ok(report.addedLagMs <= largest + 1e-6, `seed ${seed}: ${report.addedLagMs} ms in the report`);
    }
    // A single character that is known to go on, such as half a flag, waits.
    const first = graphemes(pushes[0].text);
    if (first.length > 1 || !isOpen(first[0])) assert.equal(out[0].at, pushes[0].at, `seed ${seed}`);
  }
});

test("what is out by a time does not depend on how often the pacer is asked", () => {
  for (let seed = 0; seed < 500; seed++) {
    const pushes = bursty(seeded(seed));
    const at = (frameMs, time) => {
      const pacer = new Pacer();
      let text = "";
      let frame = 0;
      const askUntil = (until) => {
        for (; frame * frameMs < until; frame++) text += pacer.release(frame * frameMs);
      };
      for (const each of pushes.filter((push) => push.at <= time)) {
        askUntil(each.at);
        pacer.push(each.text, each.at);
      }
      askUntil(time);
      return text + pacer.release(time);
    };
    const time = pushes[pushes.length - 1].at + 50;
    assert.equal(at(1000 / 144, time), at(1000 / 30, time), `seed ${seed}`);
    assert.equal(at(1000 / 144, time), at(Infinity, time), `seed ${seed}`);
  }
});
