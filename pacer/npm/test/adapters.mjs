/** Tests of the adapters, run in Node and in the browser with the functions of the package as `lib`. */

import { until } from "./support.mjs";

const TEXTS = ["One", " two", " three", " four", ". Five", " six", "."];
const ALL = TEXTS.join("");
const FAST = { rate: 2000 };
const NEVER = { rate: 0.001 };

function check(condition, message) {
  if (!condition) throw new Error(message);
}

async function* arriving(items, error) {
  for (const item of items) {
    await null;
    yield item;
  }
  if (error !== undefined) throw error;
}

async function collect(stream, into = []) {
  for await (const item of stream) into.push(item);
  return into;
}

/** Pipes items through a transform; returns what comes out. */
async function piped(items, transform) {
  const got = [];
  const writing = (async () => {
    const writer = transform.writable.getWriter();
    for (const item of items) await writer.write(item);
    await writer.close();
  })();
  const reader = transform.readable.getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) got.push(next.value);
  await writing;
  return got;
}

/** A page whose state a test sets. */
function fakePage() {
  const document = new EventTarget();
  document.visibilityState = "visible";
  const motion = new EventTarget();
  motion.matches = false;
  return { document, motion, matchMedia: () => motion };
}

export const adapterTests = (lib) => [
  {
    name: "an async iterable keeps its text, and reports",
    async run() {
      let report;
      const got = await collect(lib.pace(arriving(TEXTS), { ...FAST, onReport: (each) => (report = each) }));
      check(got.join("") === ALL, JSON.stringify(got));
      check(report.graphemes === ALL.length && report.qoeStar > 0, JSON.stringify(report));
    },
  },
  {
    name: "a text that comes at once is spread over the largest lag",
    async run() {
      const times = [];
      const started = performance.now();
      for await (const text of lib.pace(arriving([" a b c d"]), { rate: 0.1, graphemesPerToken: 1, maxLagMs: 120 })) {
        times.push([performance.now(), text]);
      }
      // A busy machine may be late, so that words come together, but never early.
      check(times.map(([, text]) => text).join("") === " a b c d", JSON.stringify(times));
      check(times[times.length - 1][0] - started > 100, JSON.stringify(times));
    },
  },
  {
    name: "an error comes after the text before it, and at once",
    async run() {
      const got = [];
      let caught;
      await collect(lib.pace(arriving(TEXTS, new Error("gone")), NEVER), got).catch((error) => (caught = error));
      check(caught?.message === "gone", `${caught}`);
      check(got.join("") === ALL, JSON.stringify(got));
    },
  },
  {
    name: "a consumer that stops early ends the source",
    async run() {
      let ended = false;
      const source = (async function* () {
        try {
          for (;;) {
            yield "One ";
            await new Promise((resolve) => setTimeout(resolve, 1));
          }
        } finally {
          ended = true;
        }
      })();
      for await (const _ of lib.pace(source)) break;
      await until(() => ended);
    },
  },
  {
    name: "an abort shows at once what had arrived, and ends",
    async run() {
      const stop = new AbortController();
      const source = (async function* () {
        yield ALL;
        await new Promise(() => {});
      })();
      const got = [];
      const reading = collect(lib.pace(source, { ...NEVER, signal: stop.signal }), got);
      await until(() => got.length > 0);
      check(got.join("") === "One", JSON.stringify(got));
      stop.abort();
      await reading;
      check(got.join("") === ALL, JSON.stringify(got));
    },
  },
  {
    name: "a hidden page and reduced motion show text as it arrives",
    async run() {
      for (const hide of [
        (page) => {
          page.document.visibilityState = "hidden";
          page.document.dispatchEvent(new Event("visibilitychange"));
        },
        (page) => {
          page.motion.matches = true;
          page.motion.dispatchEvent(new Event("change"));
        },
      ]) {
        const page = fakePage();
        const got = [];
        const reading = collect(lib.pace(arriving(TEXTS), { ...NEVER, page }), got);
        await until(() => got.length > 0);
        check(got.join("") === "One", JSON.stringify(got));
        hide(page);
        await reading;
        check(got.join("") === ALL, JSON.stringify(got));
      }
    },
  },
  {
    name: "a pipe keeps its text",
    async run() {
      const got = await piped(TEXTS, lib.pacerStream(FAST));
      check(got.join("") === ALL, JSON.stringify(got));
    },
  },
  {
    name: "parts of the AI SDK keep their order; text and reasoning are not mixed",
    async run() {
      const delta = (type, id, text) => ({ type, id, text });
      const parts = [
        { type: "start" },
        { type: "reasoning-start", id: "r" },
        ...["Let", " me", " think"].map((text) => delta("reasoning-delta", "r", text)),
        { type: "reasoning-end", id: "r" },
        { type: "text-start", id: "t" },
        ...TEXTS.map((text) => delta("text-delta", "t", text)),
        { type: "text-delta", id: "t", text: "signed", providerMetadata: { p: { signature: "s" } } },
        { type: "text-end", id: "t" },
        { type: "tool-call", toolCallId: "c", toolName: "f", input: {} },
        { type: "finish" },
      ];
      const got = await piped(parts, lib.paced(FAST)({ tools: {}, stopStream() {} }));
      const merged = (list) => {
        const out = [];
        for (const part of list) {
          const last = out[out.length - 1];
          const joins = part.text !== undefined && !part.providerMetadata && !last?.providerMetadata;
          if (joins && last?.type === part.type && last.id === part.id) last.text += part.text;
          else out.push({ ...part });
        }
        return JSON.stringify(out);
      };
      check(merged(got) === merged(parts), JSON.stringify(got));
    },
  },
  {
    name: "an error part of the AI SDK comes at once, after the text before it",
    async run() {
      const parts = [{ type: "text-delta", id: "t", text: ALL }, { type: "error", error: "gone" }];
      const got = await piped(parts, lib.paced(NEVER)({ tools: {}, stopStream() {} }));
      check(got.slice(0, -1).map((part) => part.text).join("") === ALL, JSON.stringify(got));
      check(got[got.length - 1].type === "error", JSON.stringify(got));
    },
  },
];
