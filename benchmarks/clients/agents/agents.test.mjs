// Coding agents as they are installed, one for each API: a task without tools, and one whose tool they run.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

const url = process.env.QLM_URL;
const model = process.env.QLM_OTHER_MODEL;
const programs = fileURLToPath(new URL("node_modules/.bin/", import.meta.url));
const TOKENS_MIN = 100_000; // of its context: the prompts of agents have tens of thousands
let folder, env, skip;

before(async () => {
  const answer = await (await fetch(`${url}/v1/models`)).json();
  const { max_model_len } = answer.data.find((each) => each.id === model);
  skip = max_model_len < TOKENS_MIN && `a context of ${max_model_len} tokens is too small for agents`;
  folder = await mkdtemp(join(tmpdir(), "qlm-agents-"));
  const work = join(folder, "work");
  await mkdir(work);
  env = { PATH: process.env.PATH, HOME: folder, TMPDIR: process.env.TMPDIR ?? "/tmp", QLM_KEY: "none" };
});

after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }));

// Run an agent to its end; return its output.
function run(program, args, more = {}) {
  return new Promise((resolve, reject) => {
    const options = { cwd: join(folder, "work"), env: { ...env, ...more }, timeout: 120_000 };
    const child = spawn(join(programs, program), args, { ...options, stdio: ["ignore", "pipe", "pipe"] });
    const [out, err] = [child.stdout, child.stderr].map((stream) => {
      const parts = [];
      stream.on("data", (part) => parts.push(part));
      return () => Buffer.concat(parts).toString();
    });
    child.on("error", reject);
    child.on("close", (code) => {
      if (code === 0) resolve(out());
      else reject(new Error(`${program} ended with ${code}: ${out().slice(-2000)} ${err().slice(-2000)}`));
    });
  });
}

const lines = (text) => text.split("\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));

// Codex, over responses.

async function codex(task) {
  const home = join(folder, ".codex");
  const provider = `[model_providers.qlm]\nname = "qlm"\nbase_url = "${url}/v1"\nenv_key = "QLM_KEY"\n`;
  await mkdir(home, { recursive: true });
  await writeFile(join(home, "config.toml"), `model = "${model}"\nmodel_provider = "qlm"\n${provider}`);
  const options = ["--json", "--skip-git-repo-check", "--sandbox", "read-only"];
  const events = lines(await run("codex", ["exec", ...options, task]));
  return events.filter((each) => each.type === "item.completed").map((each) => each.item);
}

test("codex answers", async (t) => {
  if (skip) return t.skip(skip);
  const last = (await codex("Say hello.")).at(-1);
  assert.equal(last.type, "agent_message");
  assert.ok(last.text);
});

test("codex runs a command and goes on with its output", async (t) => {
  if (skip) return t.skip(skip);
  const kinds = (await codex("Please call the tool exec_command.")).map((item) => item.type);
  assert.deepEqual(kinds.filter((kind) => kind !== "error"), ["command_execution", "agent_message"]);
});

// Claude Code, over messages.

async function claude(task) {
  const of_qlm = { ANTHROPIC_BASE_URL: url, ANTHROPIC_AUTH_TOKEN: "none", ANTHROPIC_MODEL: model };
  const quiet = { CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", DISABLE_AUTOUPDATER: "1" };
  const more = { ...of_qlm, ANTHROPIC_SMALL_FAST_MODEL: model, ...quiet };
  return JSON.parse(await run("claude", ["-p", task, "--output-format", "json"], more));
}

test("claude answers", async (t) => {
  if (skip) return t.skip(skip);
  const { is_error, num_turns, result } = await claude("Say hello.");
  assert.deepEqual([is_error, num_turns], [false, 1], result);
  assert.ok(result);
});

test("claude reads a file and goes on with what it found", async (t) => {
  if (skip) return t.skip(skip);
  const { is_error, num_turns, result } = await claude("Please call the tool Read.");
  assert.deepEqual([is_error, num_turns], [false, 2], result);
});
