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
  writing.catch(() => {}); // an error that the reader throws as well
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

/** A pipe whose text is due in minutes, after its first word was read; `reports` counts the ends of its pacer. */
async function slowPipe(lib, options = {}) {
  const seen = { reports: 0, clocks: 0 };
  const clock = () => ((seen.clocks += 1), performance.now());
  const pair = lib.pacerStream({ ...NEVER, onReport: () => (seen.reports += 1), clock, ...options });
  const [writer, reader] = [pair.writable.getWriter(), pair.readable.getReader()];
  await writer.write(ALL);
  check((await reader.read()).value === "One", "the first word");
  /** Closes the writer; returns when the pacer knows of it, with a promise for the end of the close. */
  const close = async () => {
    const before = seen.clocks; // no timer of the pacer is due: only its end reads the clock
    const closed = writer.close();
    await until(() => seen.clocks > before);
    return { closed };
  };
  return { writer, reader, seen, close };
}

const failing = () => {
  throw new Error("no report");
};

const rejection = (promise) => promise.then(() => undefined, (error) => error);

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
    name: "a pipe that is cancelled stops",
    async run() {
      const { writer, reader, seen } = await slowPipe(lib);
      await reader.cancel("gone");
      check(seen.reports === 1, `${seen.reports} reports`);
      check((await rejection(writer.write("more"))) === "gone", "the writer is not told");
    },
  },
  {
    name: "a pipe that is cancelled after the end of its source stops, and its close settles",
    async run() {
      const { reader, seen, close } = await slowPipe(lib);
      const { closed } = await close();
      await reader.cancel("gone");
      await closed;
      check(seen.reports === 1, `${seen.reports} reports`);
    },
  },
  {
    name: "a pipe that is aborted drops what is pending",
    async run() {
      const { writer, reader, seen } = await slowPipe(lib);
      await writer.abort("stop");
      check((await rejection(reader.read())) === "stop", "the reader is not told");
      check(seen.reports === 1, `${seen.reports} reports`);
    },
  },
  {
    name: "a pipe that is aborted after the end of its source drops what is pending, and its close settles",
    async run() {
      const { writer, reader, seen, close } = await slowPipe(lib);
      const { closed } = await close();
      await writer.abort("stop");
      await closed;
      check((await rejection(reader.read())) === "stop", "the reader is not told");
      check(seen.reports === 1, `${seen.reports} reports`);
    },
  },
  {
    name: "a chunk that is no string is one error of a pipe, and stops it",
    async run() {
      const { writer, reader, seen } = await slowPipe(lib);
      for (const error of [await rejection(writer.write(new Uint8Array([104]))), await rejection(reader.read())]) {
        check(error instanceof TypeError && /expected a string/.test(error.message), `${error}`);
      }
      check(seen.reports === 1, `${seen.reports} reports`);
    },
  },
  {
    name: "an aborted signal ends a pipe after what had arrived",
    async run() {
      const stop = new AbortController();
      const { writer, reader, seen } = await slowPipe(lib, { signal: stop.signal });
      stop.abort();
      check((await reader.read()).value === ALL.slice("One".length), "the rest");
      check((await reader.read()).done, "the end");
      check(seen.reports === 1, `${seen.reports} reports`);
    },
  },
  {
    name: "an aborted signal tells the writer of a pipe",
    async run() {
      const stop = new AbortController();
      const { writer } = await slowPipe(lib, { signal: stop.signal });
      stop.abort("stop");
      check((await rejection(writer.write("more"))) === "stop", "write");
      check((await rejection(writer.closed)) === "stop", "closed");
      const late = lib.pacerStream({ signal: stop.signal });
      check((await rejection(late.writable.getWriter().write("more"))) === "stop", "a pipe made after the abort");
      check((await late.readable.getReader().read()).done, "the end of a pipe made after the abort");
    },
  },
  {
    name: "an aborted signal cancels the source of a pipe, and what had arrived is read",
    async run() {
      const stop = new AbortController();
      let pulls = 0;
      let reason;
      const source = new ReadableStream({
        pull(controller) {
          pulls += 1;
          if (pulls === 1) controller.enqueue(ALL);
          else if (pulls === 2) return new Promise(() => {}); // a server that sends nothing more
        },
        cancel: (why) => void (reason = why),
      });
      const reader = source.pipeThrough(lib.pacerStream({ ...NEVER, signal: stop.signal })).getReader();
      check((await reader.read()).value === "One", "the first word");
      stop.abort("stop");
      check((await reader.read()).value === ALL.slice("One".length), "the rest");
      check((await reader.read()).done, "the end");
      await until(() => reason !== undefined);
      check(reason === "stop" && pulls <= 2, `${reason}, ${pulls} pulls`);
    },
  },
  {
    name: "a signal that is aborted after the end of the source ends a pipe, and its close settles",
    async run() {
      const stop = new AbortController();
      const { writer, reader, close } = await slowPipe(lib, { signal: stop.signal });
      const { closed } = await close();
      stop.abort("stop");
      await closed;
      await writer.closed;
      check((await reader.read()).value === ALL.slice("One".length), "the rest");
      check((await reader.read()).done, "the end");
    },
  },
  {
    name: "a report may cancel or abort its pipe, in a close and in a timer",
    async run() {
      for (const paced of [{ maxLagMs: 0 }, FAST]) {
        for (const aborts of [false, true]) {
          let left;
          const onReport = () => (left = aborts ? writer.abort("gone") : reader.cancel("gone"));
          const pair = lib.pacerStream({ ...paced, onReport });
          const [writer, reader] = [pair.writable.getWriter(), pair.readable.getReader()];
          await writer.write(ALL);
          await writer.close(); // an error in a timer is uncaught and fails the test
          await left;
          const next = await reader.read().catch((error) => error);
          check(aborts ? next === "gone" : next.done, JSON.stringify(next));
        }
      }
    },
  },
  {
    name: "an error of the report comes after all text",
    async run() {
      const got = [];
      const paced = lib.pace(arriving(TEXTS), { ...FAST, onReport: failing });
      check((await rejection(collect(paced, got)))?.message === "no report", "pace");
      check(got.join("") === ALL, JSON.stringify(got));
    },
  },
  {
    name: "an error of the report reaches a consumer that stops early, and the source ends",
    async run() {
      let ended = false;
      const source = (async function* () {
        try {
          for (;;) yield ALL;
        } finally {
          ended = true;
        }
      })();
      const stopping = async () => {
        for await (const _ of lib.pace(source, { ...NEVER, onReport: failing })) break;
      };
      check((await rejection(stopping()))?.message === "no report", "pace");
      await until(() => ended);
    },
  },
  {
    name: "an error of the source comes before one of the report",
    async run() {
      const paced = lib.pace(arriving(TEXTS, new Error("gone")), { ...NEVER, onReport: failing });
      check((await rejection(collect(paced)))?.message === "gone", "pace");
    },
  },
  {
    name: "an error of the report of a pipe comes after all that was not read yet, and its close tells of it",
    async run() {
      const pair = lib.pacerStream({ maxLagMs: 0, onReport: failing });
      const [writer, reader] = [pair.writable.getWriter(), pair.readable.getReader()];
      await writer.write("One");
      await writer.write(" two");
      check((await rejection(writer.close()))?.message === "no report", "close");
      const got = [(await reader.read()).value, (await reader.read()).value];
      check(got.join("") === "One two", JSON.stringify(got));
      check((await rejection(reader.read()))?.message === "no report", "read");
    },
  },
  {
    name: "an error of the report reaches who cancels or aborts a pipe",
    async run() {
      const cancelled = await slowPipe(lib, { onReport: failing });
      check((await rejection(cancelled.reader.cancel()))?.message === "no report", "cancel");
      const aborted = await slowPipe(lib, { onReport: failing });
      check((await rejection(aborted.writer.abort()))?.message === "no report", "abort");
    },
  },
  {
    name: "text that is due after more than a timer can wait does not wake the pacer before",
    async run() {
      const set = globalThis.setTimeout;
      const timers = [];
      let now = 0;
      try {
        globalThis.setTimeout = (run, waitMs) => timers.push({ run, waitMs });
        const source = new ReadableStream({ start: (controller) => controller.enqueue("One two ") });
        const pipe = lib.pacerStream({ rate: 1e-7, clock: () => now });
        const reader = source.pipeThrough(pipe).getReader();
        check((await reader.read()).value === "One", "the first word");
        check(timers.at(-1).waitMs === 2 ** 31 - 1, `the timer waits ${timers.at(-1)?.waitMs} ms`);
        now = 2 ** 31 - 1;
        timers.at(-1).run();
        check(timers.at(-1).waitMs === 2 ** 31 - 1, "it waits on");
        now = 3 / ((1e-7 * 4) / 1000); // three characters later
        timers.at(-1).run();
        check((await reader.read()).value === " two", "the second word");
        await reader.cancel();
      } finally {
        globalThis.setTimeout = set;
      }
    },
  },
  {
    name: "an error of a shape at a time when an item is due ends the stream",
    async run() {
      let cut = 0;
      const shape = {
        textOf: (item) => item.text,
        withText(item, text) {
          cut += 1;
          if (cut > 1) throw new Error("no item");
          return { ...item, text };
        },
      };
      const source = arriving([{ text: ALL }]);
      check((await rejection(collect(lib.pace(source, FAST, shape))))?.message === "no item", "pace");
      cut = 0;
      const error = await rejection(piped([{ text: ALL }], lib.pacerStream(FAST, shape)));
      check(error?.message === "no item", "pipe");
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
