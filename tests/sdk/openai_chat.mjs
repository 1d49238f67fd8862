#!/usr/bin/env node
// The OpenAI JavaScript SDK against BASE_URL: the same calls, in the same words, as openai_chat.py.
//
// Environment: BASE_URL (ends in /v1), MODEL, API_KEY; BAD_KEY and LIMITED_KEY add their checks.
// Prints one line of JSON; exit 1 when a check failed.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { VERSION } from "openai/version";

const { BASE_URL, MODEL, API_KEY = "none", BAD_KEY, LIMITED_KEY } = process.env;
const client = (apiKey) =>
  new OpenAI({ baseURL: BASE_URL, apiKey, maxRetries: 0, timeout: 60_000 });
const ai = client(API_KEY);
const ask = { model: MODEL, max_tokens: 8 };
const messages = [{ role: "user", content: "Say hello." }];
const parameters = { type: "object", properties: { a: { type: "integer" } } };
const tools = [{ type: "function", function: { name: "add", parameters } }];
const withUsage = (usage) => (usage ? { stream_options: { include_usage: true } } : {});

function wholeUsage(usage) {
  assert.ok(usage.prompt_tokens > 0 && usage.completion_tokens > 0);
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
}

async function models() {
  const ids = [];
  for await (const model of ai.models.list()) ids.push(model.id);
  assert.ok(ids.includes(MODEL), "not in the list");
  assert.equal((await ai.models.retrieve(MODEL)).id, MODEL);
}

async function chat() {
  const answer = await ai.chat.completions.create({ messages, ...ask });
  assert.ok(answer.choices[0].message.content && answer.choices[0].finish_reason);
  wholeUsage(answer.usage);
}

async function chatN() {
  const answer = await ai.chat.completions.create({ messages, n: 2, ...ask });
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1]);
}

async function chatStream({ n = 1, usage = false } = {}) {
  const asked = { messages, n, stream: true, ...withUsage(usage), ...ask };
  const text = Array(n).fill("");
  const finished = new Set();
  const usages = [];
  let last;
  for await (last of await ai.chat.completions.create(asked)) {
    if (last.usage) usages.push(last.usage);
    for (const choice of last.choices) {
      text[choice.index] += choice.delta.content ?? "";
      if (choice.finish_reason) finished.add(choice.index);
    }
  }
  assert.ok(text.every(Boolean) && finished.size === n, "a choice did not finish");
  assert.equal(usages.length, usage ? 1 : 0, "usage events");
  if (usage) {
    assert.deepEqual(last.choices, [], "usage is not the last event");
    wholeUsage(usages[0]);
  }
}

async function chatTools() {
  const { message } = (await ai.chat.completions.create({ messages, tools, ...ask })).choices[0];
  assert.ok(message.tool_calls?.length || message.content);
  for (const call of message.tool_calls ?? []) JSON.parse(call.function.arguments);
}

async function completion() {
  const answer = await ai.completions.create({ prompt: "Hello", ...ask });
  assert.ok(answer.choices[0].text && answer.choices[0].finish_reason);
  wholeUsage(answer.usage);
}

async function completionStream(usage = false) {
  const asked = { prompt: "Hello", stream: true, ...withUsage(usage), ...ask };
  const chunks = [];
  for await (const chunk of await ai.completions.create(asked)) chunks.push(chunk);
  assert.ok(chunks.flatMap((chunk) => chunk.choices).some((choice) => choice.text), "no text");
  assert.equal(chunks.filter((chunk) => chunk.usage).length, usage ? 1 : 0, "usage events");
}

async function embeddings() {
  try {
    const answer = await ai.embeddings.create({ model: MODEL, input: "Hello" });
    assert.ok(answer.data[0].embedding.length);
  } catch (error) {
    if ([400, 404].includes(error?.status)) return "not_offered";
    throw error;
  }
}

// The error must be `kind`, so that an application's `catch` finds it.
async function refused(kind, status, code, change = {}, by = ai) {
  const error = await by.chat.completions.create({ messages, ...ask, ...change }).then(
    () => assert.fail("it was accepted"),
    (thrown) => thrown,
  );
  assert.ok(error instanceof kind, String(error));
  assert.equal(error.status, status);
  assert.ok(error.error?.message, "no message");
  if (code) assert.equal(error.code, code);
  if (status === 429) assert.match(error.headers.get("retry-after") ?? "", /^\d+$/);
}

const unknown = { model: "no-such-model" };
const checks = {
  models,
  chat,
  chat_n: chatN,
  chat_stream: chatStream,
  chat_stream_n: () => chatStream({ n: 2 }),
  chat_stream_usage: () => chatStream({ usage: true }),
  chat_tools: chatTools,
  completion,
  completion_stream: () => completionStream(),
  completion_stream_usage: () => completionStream(true),
  embeddings,
  bad_request: () => refused(OpenAI.BadRequestError, 400, null, { temperature: "hot" }),
  not_found: () => refused(OpenAI.NotFoundError, 404, "model_not_found", unknown),
};
if (BAD_KEY) {
  const by = client(BAD_KEY);
  checks.bad_key = () => refused(OpenAI.AuthenticationError, 401, "invalid_api_key", {}, by);
}
if (LIMITED_KEY) {
  const by = client(LIMITED_KEY);
  const code = "rate_limit_exceeded";
  checks.rate_limit = () => refused(OpenAI.RateLimitError, 429, code, {}, by);
}

const results = {};
for (const [name, check] of Object.entries(checks)) {
  try {
    results[name] = (await check()) ?? "ok";
  } catch (error) {
    results[name] = `failed: ${error?.constructor?.name}: ${error?.message}`;
  }
}
const ok = Object.values(results).every((result) => ["ok", "not_offered"].includes(result));
console.log(JSON.stringify({ client: `openai-js ${VERSION}`, ok, checks: results }));
process.exit(ok ? 0 : 1);
