#!/usr/bin/env node
// Which clients take a cut stream for a whole one: OpenAI JS, eventsource-parser, fetch (undici).
//
// Environment: BASE_URL (ends in /v1; the server cuts the stream), MODEL, API_KEY, EXPECT (`error`,
// the default, or `complete`). A client says `complete` when its user sees a normal end: the SDK's
// loop ends, and with the other two the transport raised nothing and `[DONE]` came.
// Prints one line of JSON; exit 1 when a client says other than EXPECT.

import { createParser } from "eventsource-parser";
import OpenAI from "openai";

const { BASE_URL, MODEL, API_KEY = "none", EXPECT = "error" } = process.env;
const messages = [{ role: "user", content: "Count to twenty." }];
const ask = { model: MODEL, messages, max_tokens: 64, stream: true };

async function post() {
  const response = await fetch(`${BASE_URL}/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${API_KEY}`, "content-type": "application/json" },
    body: JSON.stringify(ask),
  });
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response;
}

const clients = {
  "openai-js": async () => {
    const ai = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY, maxRetries: 0 });
    for await (const _ of await ai.chat.completions.create(ask));
    return true;
  },
  "eventsource-parser": async () => {
    let done = false;
    const parser = createParser({ onEvent: (event) => (done ||= event.data === "[DONE]") });
    const text = (await post()).body.pipeThrough(new TextDecoderStream());
    for await (const piece of text) parser.feed(piece);
    return done;
  },
  fetch: async () => (await (await post()).text()).includes("data: [DONE]"),
};

const verdicts = {};
const why = {};
for (const [name, client] of Object.entries(clients)) {
  try {
    verdicts[name] = (await client()) ? "complete" : "error";
    if (verdicts[name] === "error") why[name] = "no [DONE]";
  } catch (error) {
    verdicts[name] = "error";
    why[name] = `${error?.constructor?.name}: ${error?.message}`.slice(0, 120);
  }
}
const ok = Object.values(verdicts).every((verdict) => verdict === EXPECT);
console.log(JSON.stringify({ ok, verdicts, why }));
process.exit(ok ? 0 : 1);
