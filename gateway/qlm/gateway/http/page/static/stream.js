// The one stream of events of the page, and its other calls. `fetch` instead of `EventSource`: it can send the token.

const WAITS_MS = [500, 1000, 2000, 4000, 8000];
const SILENCE_MS = 10000;
const KEY = "qlm-admin-token";

/** A refusal of the gateway: its status, code and message. */
export class Refusal extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function useToken(token) {
  sessionStorage.setItem(KEY, token);
}

/** GET a path; raises `Refusal`, or TypeError if no gateway answers. */
export async function get(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  const error = body?.error ?? { code: "", message: `the gateway answered ${answer.status}` };
  throw new Refusal(answer.status, error.code, error.message);
}

/** Split what has come into whole events and the beginning of the next one. */
export function parse(text) {
  const blocks = text.split("\n\n");
  const rest = blocks.pop();
  const events = [];
  for (const block of blocks) {
    const fields = Object.fromEntries(block.split("\n").map((line) => {
      const at = line.indexOf(":");
      return [line.slice(0, at), line.slice(at + 1).trimStart()];
    }));
    if (fields.data !== undefined) events.push([fields.event, JSON.parse(fields.data)]);
  }
  return [events, rest];
}

async function read(path, onEvent) {
  const stop = new AbortController();
  let timer = setTimeout(() => stop.abort(), SILENCE_MS);
  try {
    const answer = await get(path, { signal: stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => stop.abort(), SILENCE_MS);
      const [events, left] = parse(rest + value);
      rest = left;
      for (const [kind, data] of events) onEvent(kind, data);
    }
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

/** Follow the stream for ever. `onState` receives "live", or "away" with the reason and the time until the next try. */
export async function follow(path, onEvent, onState) {
  for (let tries = 0; ; tries += 1) {
    try {
      await read(path, (kind, data) => {
        tries = 0;
        onState("live");
        onEvent(kind, data);
      });
      onState("away", "the gateway ended the stream");
    } catch (error) {
      if (error instanceof Refusal && [401, 403].includes(error.status)) {
        onState("refused", error);
        return;
      }
      onState("away", error instanceof Refusal ? error.message : "the gateway does not answer");
    }
    await new Promise((done) => setTimeout(done, WAITS_MS[Math.min(tries, WAITS_MS.length - 1)]));
  }
}
