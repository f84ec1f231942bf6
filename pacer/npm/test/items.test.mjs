import assert from "node:assert/strict";
import { test } from "node:test";

import { paced } from "../dist/ai-sdk.js";
import { ItemPacer, pace, Pacer } from "../dist/index.js";
import { bursty, ITEMS, seeded } from "./support.mjs";

const FACE = "\u{1f600}";
const [HIGH, LOW] = FACE.split("");

/** What comes out of a pacer of items that come together. */
function together(items) {
  const pacer = new ItemPacer(new Pacer(), ITEMS);
  for (const item of items) pacer.push(item, 0);
  pacer.end(0);
  const got = pacer.release(100_000);
  assert.equal(pacer.done, true);
  return got;
}

async function collect(stream) {
  const got = [];
  for await (const item of stream) got.push(item);
  return got;
}

const isCut = (text) => /[\ud800-\udbff]$|^[\udc00-\udfff]/.test(text);

test("empty text does not divide a character of two halves", async () => {
  const source = (async function* () {
    yield* [HIGH, "", `${LOW} ok`];
  })();
  const got = await collect(pace(source));
  assert.equal(got.join(""), `${FACE} ok`);
  assert.equal(got.some(isCut), false, JSON.stringify(got));
});

test("half a character waits for its other half past an item without text, and past another text", () => {
  assert.deepEqual(together([{ text: `ok ${HIGH}` }, { text: null }, { text: `${LOW}!` }]), [
    { text: "ok " },
    { text: null },
    { text: `${FACE}!` },
  ]);
  assert.deepEqual(together([{ text: HIGH, key: "x" }, { text: HIGH, key: "y" }, { text: LOW, key: "x" }]), [
    { text: FACE, key: "x" },
    { text: HIGH, key: "y" },
  ]);
});

test("half a character without the other one comes out when the stream ends", () => {
  const got = together([{ text: `ok ${HIGH}`, name: "a" }, { text: null }]);
  assert.deepEqual(got, [{ text: "ok ", name: "a" }, { text: null }, { text: HIGH, name: "a" }]);
});

test("a part of the AI SDK that ends a text, and an error, come after half a character", async () => {
  const delta = { type: "text-delta", id: "t", text: `ok ${HIGH}` };
  for (const last of [{ type: "text-end", id: "t" }, { type: "error", error: "gone" }]) {
    const source = new ReadableStream({
      start(controller) {
        controller.enqueue(delta);
        controller.enqueue(last);
        controller.close();
      },
    });
    const got = await collect(source.pipeThrough(paced({ rate: 2000 })({ tools: {}, stopStream() {} })));
    assert.deepEqual(got.pop(), last);
    assert.equal(got.map((part) => part.text).join(""), delta.text);
  }
});

test("a text that is no string is one error, also after half a character, and loses nothing", () => {
  const pacer = new ItemPacer(new Pacer(), ITEMS);
  pacer.push({ text: HIGH }, 0);
  assert.throws(() => pacer.push({ text: new Uint8Array([104]) }, 0), /text is 104; expected a string/);
  pacer.push({ text: LOW }, 0);
  pacer.end(0);
  assert.deepEqual(pacer.release(1000), [{ text: FACE }]);
});

test("2000 streams with empty text and items without text keep their order and cut no character", () => {
  for (let seed = 0; seed < 2000; seed++) {
    const random = seeded(seed);
    const pacer = new ItemPacer(new Pacer(), ITEMS);
    const [out, passing] = [[], []];
    let all = "";
    let now = 0;
    for (const { at, text } of bursty(random)) {
      for (now = at; random() < 0.4; ) {
        passing.push({ text: random() < 0.5 ? "" : null, name: passing.length });
        pacer.push(passing[passing.length - 1], now);
      }
      pacer.push({ text }, now);
      all += text;
      if (random() < 0.5) out.push(...pacer.release(now + random() * 200));
    }
    pacer.end(now);
    out.push(...pacer.release(now + 100_000));
    assert.equal(pacer.done, true, `seed ${seed}`);
    assert.deepEqual(out.filter((item) => "name" in item), passing, `seed ${seed}`);
    const texts = out.map((item) => item.text ?? "");
    assert.equal(texts.join(""), all, `seed ${seed}`);
    let place = 0;
    for (const text of texts) {
      place += text.length;
      const around = all.slice(Math.max(0, place - 1), place + 1);
      assert.doesNotMatch(around, /^[\ud800-\udbff][\udc00-\udfff]$/, `seed ${seed}: cut at ${place}`);
    }
  }
});
