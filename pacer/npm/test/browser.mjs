/** Runs the vectors and the tests of the adapters in a page, and posts what failed to the server. */

import { paced } from "../dist/ai-sdk.js";
import { graphemes } from "../dist/graphemes.js";
import * as index from "../dist/index.js";
import { adapterTests } from "./adapters.mjs";
import { differences, itemDifferences, until } from "./support.mjs";

const failed = [];
let passed = 0;

async function attempt(name, run) {
  try {
    await run();
    passed += 1;
  } catch (error) {
    failed.push(`${name}: ${error}`);
  }
}

const read = async (name) => (await (await fetch(`../../vectors/${name}.json`)).json()).cases;
const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;

for (const name of ["by_hand", "bursts", "items"]) {
  for (const each of await read(name)) {
    await attempt(`${name}: ${each.name}`, () => {
      const found = name === "items" ? itemDifferences(index, each) : differences(index.Pacer, each);
      if (found.length > 0) throw new Error(found.join("; "));
    });
  }
}
for (const [text, expected] of await read("graphemes")) {
  await attempt(`graphemes of ${text}`, () => {
    const got = JSON.stringify(graphemes(text));
    if (got !== JSON.stringify(expected)) throw new Error(got);
  });
}
if (!reduced) {
  for (const { name, run } of adapterTests({ ...index, paced })) await attempt(name, run);
}
await attempt("the real page: reduced motion passes text through, otherwise it is paced", async () => {
  const source = (async function* () {
    yield "One two three";
    await new Promise(() => {});
  })();
  const got = [];
  const stop = new AbortController();
  const reading = (async () => {
    for await (const text of index.pace(source, { rate: 0.001, signal: stop.signal })) got.push(text);
  })();
  await until(() => got.length > 0);
  const expected = reduced ? "One two three" : "One";
  if (got.join("") !== expected) throw new Error(JSON.stringify(got));
  stop.abort();
  await reading;
});

await fetch("/result", { method: "POST", body: JSON.stringify({ passed, failed, reduced }) });
