import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { graphemes } from "../dist/graphemes.js";
import * as index from "../dist/index.js";
import { differences, itemDifferences } from "./support.mjs";

const { headers, Pacer } = index;

const read = (name) => JSON.parse(readFileSync(new URL(`../../vectors/${name}.json`, import.meta.url), "utf8")).cases;

for (const name of ["by_hand", "bursts"]) {
  for (const each of read(name)) {
    test(`${name}: ${each.name}`, () => assert.deepEqual(differences(Pacer, each), []));
  }
}

for (const each of read("items")) {
  test(`items: ${each.name}`, () => assert.deepEqual(itemDifferences(index, each), []));
}

test("graphemes", () => {
  for (const [text, expected] of read("graphemes")) assert.deepEqual(graphemes(text), expected);
});

test("half a character is never released", () => {
  const pacer = new Pacer();
  pacer.push("ok \ud83d", 0);
  assert.equal(pacer.release(100_000), "ok ");
  pacer.flush(100_000);
  assert.equal(pacer.release(100_000), "");
  pacer.push("\ude00", 100_001);
  pacer.end(100_001);
  assert.equal(pacer.release(200_000), "\u{1f600}");
  assert.equal(pacer.done, true);
});

test("a text cut off inside of a character still ends", () => {
  const pacer = new Pacer();
  pacer.push("ok \ud83d", 0);
  pacer.end(0);
  assert.equal(pacer.release(1000), "ok \ud83d");
  assert.equal(pacer.done, true);
});

test("bad input is one error that names it, and loses nothing", () => {
  assert.throws(() => new Pacer({ rate: 0 }), /rate is 0; expected a number above 0, or "auto"/);
  assert.throws(() => new Pacer({ rate: "fast" }), /rate is "fast"/);
  assert.throws(() => new Pacer({ maxLagMs: -1 }), /maxLagMs is -1; expected a number of 0 or more/);
  assert.throws(() => new Pacer({ graphemesPerToken: NaN }), /graphemesPerToken/);
  const pacer = new Pacer();
  pacer.push("kept", 0);
  assert.throws(() => pacer.push(undefined, 0), /text is undefined; expected a string/);
  assert.throws(() => pacer.push("late", NaN), /now is NaN/);
  pacer.end(1);
  assert.throws(() => pacer.push("late", 2), /after the end/);
  assert.equal(pacer.release(3), "kept");
});

test("headers ask for the pace", () => {
  assert.deepEqual(headers(4.8), { "x-slo-tokens-per-s": "4.8" });
  assert.deepEqual(headers(5), { "x-slo-tokens-per-s": "5" });
  for (const pace of [0, 0.009, 10001, Infinity, NaN]) assert.throws(() => headers(pace), RangeError);
});
