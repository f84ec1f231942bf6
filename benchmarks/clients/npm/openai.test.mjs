// OpenAI's SDK for JavaScript: chat, streams, tools, JSON by schema, responses, batches, errors.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { BadRequestError, NotFoundError, toFile } from "openai";

const model = process.env.QLM_MODEL;
const client = new OpenAI({ baseURL: `${process.env.QLM_URL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Will it rain in Ulm?" }];
const schema = {
  type: "object",
  properties: { town: { type: "string" } },
  required: ["town"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters: schema } }];

test("models", async () => {
  const names = [];
  for await (const each of client.models.list()) names.push(each.id);
  assert.ok(names.includes(model));
});

test("chat", async () => {
  const answer = await client.chat.completions.create({
    model, messages, max_completion_tokens: 9, seed: 1, stop: ["\n\n"], user: "ann", store: false,
  });
  assert.ok(answer.usage.completion_tokens <= 9);
  assert.equal(`chatcmpl-${answer._request_id}`, answer.id);
});

test("a stream with its usage", async () => {
  const stream = client.chat.completions.stream({
    model, messages, max_tokens: 9, stream_options: { include_usage: true },
  });
  const answer = await stream.finalChatCompletion();
  assert.equal(answer.usage.completion_tokens, 9);
  assert.ok((await stream.finalContent()).length > 0);
});

test("a stream that is left", async () => {
  const stream = await client.chat.completions.create({
    model, messages, max_tokens: 4000, stream: true, ignore_eos: true,
  });
  for await (const chunk of stream) {
    assert.equal(chunk.model, model);
    break;
  }
  assert.ok(stream.controller.signal.aborted);
});

for (const tool_choice of ["required", { type: "function", function: { name: "weather" } }]) {
  test(`a tool that is ${JSON.stringify(tool_choice)}, whole and streamed`, async () => {
    const options = { model, messages, tools, tool_choice };
    const whole = await client.chat.completions.create(options);
    const streamed = await client.chat.completions.stream(options).finalChatCompletion();
    for (const answer of [whole, streamed]) {
      const [call] = answer.choices[0].message.tool_calls;
      assert.equal(call.function.name, "weather");
      assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["town"]);
    }
  });
}

test("a runner of tools", async () => {
  const called = [];
  const run = client.chat.completions.runTools(
    {
      model,
      messages,
      tool_choice: { type: "function", function: { name: "weather" } },
      tools: [
        {
          type: "function",
          function: {
            name: "weather",
            parameters: schema,
            parse: JSON.parse,
            function: (given) => called.push(given.town) && "rain",
          },
        },
      ],
    },
    { maxChatCompletions: 2 },
  );
  await run.done();
  assert.ok(called.length > 0);
});

test("JSON by schema", async () => {
  const answer = await client.chat.completions.parse({
    model, messages, response_format: { type: "json_schema", json_schema: { name: "place", strict: true, schema } },
  });
  assert.deepEqual(Object.keys(JSON.parse(answer.choices[0].message.content)), ["town"]);
});

test("responses", async () => {
  const answer = await client.responses.create({ model, input: "Hi", max_output_tokens: 20 });
  assert.ok(answer.output_text.length > 0);
  const events = [];
  for await (const event of await client.responses.create({ model, input: "Hi", stream: true })) {
    events.push(event.type);
  }
  assert.equal(events[0], "response.created");
  assert.equal(events.at(-1), "response.completed");
});

test("a response in the background", async () => {
  const made = await client.responses.create({ model, input: "Hi", background: true });
  const events = [];
  for await (const event of await client.responses.retrieve(made.id, { stream: true })) events.push(event.type);
  assert.equal(events.at(-1), "response.completed");
});

test("a batch", async () => {
  const line = { custom_id: "a", method: "POST", url: "/v1/completions", body: { model, prompt: "Hi" } };
  const file = await client.files.create({
    file: await toFile(Buffer.from(JSON.stringify(line)), "lines.jsonl"), purpose: "batch",
  });
  let batch = await client.batches.create({
    input_file_id: file.id, endpoint: "/v1/completions", completion_window: "24h",
  });
  while (["validating", "in_progress", "finalizing"].includes(batch.status)) {
    batch = await client.batches.retrieve(batch.id);
  }
  const answers = await (await client.files.content(batch.output_file_id)).text();
  assert.equal(JSON.parse(answers).custom_id, "a");
});

test("errors have their classes", async () => {
  const chat = client.chat.completions;
  await assert.rejects(chat.create({ model: "none", messages }), NotFoundError);
  await assert.rejects(
    chat.create({ model, messages, temperature: 9 }),
    (error) => error instanceof BadRequestError && error.param === "temperature",
  );
});
