/* SPDX-License-Identifier: MIT
 *
 * The clients that people use, against a router: ADMIN=URL KEY=KEY clients.mjs URL MODEL, where ADMIN is its admin listener, KEY a key of it, and the engine never ends by itself. Prints TAP. What is asked for goes through the very packages, so that what they expect of a server is tested and
 * not what we believe that they expect.
 */
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const apiKey = process.env.KEY;
const headers = { authorization: `Bearer ${apiKey}` };
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const provider = createOpenAICompatible({ name: "berth", baseURL: `${url}/v1`, apiKey, includeUsage: true });
const messages = [{ role: "user", content: "What is a slot?" }];

const tests = [];
const test = (name, run) => tests.push({ name, run });

/* The router has nothing under way any more: a client that left has cancelled. */
async function quiet() {
  for (let i = 0; i < 500; i++) {
    const text = await (await fetch(`${process.env.ADMIN}/requests`)).json();
    if (text.active === 0) return text;
    await new Promise((r) => setTimeout(r, 20));
  }
  throw new Error("a request is still under way");
}

test("openai: models, one model, one that is not there", async () => {
  const ids = [];
  for await (const m of openai.models.list()) ids.push(m.id);
  assert(ids.includes(model) && ids.includes("gpt-4o"));
  assert.equal((await openai.models.retrieve(model)).id, model);
  await assert.rejects(openai.models.retrieve("nobody"), (e) => e instanceof OpenAI.NotFoundError);
});

test("openai, anthropic, ai: a key that is not known is an authentication error", async () => {
  const wrong = { apiKey: "berth_nobody", maxRetries: 0 };
  const chat = new OpenAI({ baseURL: `${url}/v1`, ...wrong }).chat.completions;
  await assert.rejects(chat.create({ model, messages }), (e) => e instanceof OpenAI.AuthenticationError && e.message.includes("a key is needed"));
  await assert.rejects(chat.create({ model, messages, stream: true }), (e) => e instanceof OpenAI.AuthenticationError);
  await assert.rejects(new Anthropic({ baseURL: url, ...wrong }).messages.create({ model, messages, max_tokens: 8 }), (e) => e instanceof Anthropic.AuthenticationError && e.error.error.type === "authentication_error");
  const nobody = createOpenAICompatible({ name: "berth", baseURL: `${url}/v1`, apiKey: wrong.apiKey });
  await assert.rejects(generateText({ model: nobody(model), messages, maxRetries: 0 }), (e) => e.statusCode === 401);
});

test("openai: chat, whole, by alias, with its fields", async () => {
  const { data, response } = await openai.chat.completions.create({ model: "gpt-4o", messages, max_tokens: 16, temperature: 0 }).withResponse();
  assert(data.choices[0].message.content.length > 0);
  assert.equal(data.usage.completion_tokens, 16);
  assert.match(response.headers.get("x-berth-replica"), /^(alpha|beta)$/);
  assert(Number(response.headers.get("x-berth-request-id")) > 0);
});

test("openai: chat, a stream with usage is the same text", async () => {
  const whole = await openai.chat.completions.create({ model, messages, max_tokens: 24, temperature: 0 });
  const stream = await openai.chat.completions.create({ model, messages, max_tokens: 24, temperature: 0, stream: true, stream_options: { include_usage: true } });
  let text = "", usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 24);
});

test("openai: completions, embeddings refused by an engine without them, responses", async () => {
  const done = await openai.completions.create({ model, prompt: "A slot is", max_tokens: 8 });
  assert(done.choices[0].text.length > 0);
  await assert.rejects(openai.embeddings.create({ model, input: "x" }), (e) => e instanceof OpenAI.APIError && e.status >= 400);
  const answer = await openai.responses.create({ model, input: "What is a slot?", max_output_tokens: 12 });
  assert(answer.output_text.length > 0);
  const types = new Set();
  for await (const event of await openai.responses.create({ model, input: "What is a slot?", max_output_tokens: 12, stream: true })) types.add(event.type);
  assert(types.has("response.output_text.delta") && types.has("response.completed"));
});

test("openai: an unknown model is told with those that are known", async () => {
  await assert.rejects(openai.chat.completions.create({ model: "nobody", messages }), (e) => e instanceof OpenAI.NotFoundError && e.message.includes("known models") && e.message.includes(model));
  await assert.rejects(openai.chat.completions.create({ model: "nobody", messages, stream: true }), (e) => e instanceof OpenAI.NotFoundError);
});

test("openai: tools reach the engine and its answer comes back", async () => {
  const tools = [{ type: "function", function: { name: "weather", description: "d", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } }];
  try {
    const r = await openai.chat.completions.create({ model, messages, tools, max_tokens: 16 });
    assert(r.choices[0].message);
  } catch (e) {
    /* the engine refuses tools that its template has no place for: in its own words, which pass */
    assert(e instanceof OpenAI.APIError && e.status < 500 || /template|jinja|tool/i.test(e.message), e.message);
  }
});

test("openai: a stream that is left is cancelled", async () => {
  const stream = await openai.chat.completions.create({ model, messages, max_tokens: 100000, stream: true });
  let n = 0;
  for await (const chunk of stream) {
    assert(chunk);
    if (++n === 3) stream.controller.abort();
  }
  const { recent } = await quiet();
  assert.equal(recent[0].outcome, "left");
});

test("anthropic: messages, whole, stream, count", async () => {
  const m = await anthropic.messages.create({ model, max_tokens: 16, messages });
  assert.equal(m.role, "assistant");
  assert(m.content[0].text.length > 0 && m.usage.output_tokens > 0);
  const stream = anthropic.messages.stream({ model, max_tokens: 16, messages });
  let text = "";
  stream.on("text", (t) => (text += t));
  const last = await stream.finalMessage();
  assert.equal(text, last.content[0].text);
  const count = await anthropic.messages.countTokens({ model, messages });
  assert(count.input_tokens > 0);
});

test("anthropic: an unknown model, in its own form", async () => {
  await assert.rejects(anthropic.messages.create({ model: "nobody", max_tokens: 8, messages }), (e) => e instanceof Anthropic.NotFoundError && e.error.type === "error" && e.error.error.type === "not_found_error");
});

test("anthropic: a stream that is left is cancelled", async () => {
  const stream = anthropic.messages.stream({ model, max_tokens: 100000, messages });
  await new Promise((resolve) => stream.on("text", resolve));
  stream.abort();
  await assert.rejects(stream.done(), (e) => e instanceof Anthropic.APIUserAbortError);
  const { recent } = await quiet();
  assert.equal(recent[0].outcome, "left");
});

test("ai with its OpenAI-compatible provider: text, stream, usage", async () => {
  const whole = await generateText({ model: provider(model), prompt: "What is a slot?", maxOutputTokens: 16, temperature: 0, maxRetries: 0 });
  assert(whole.text.length > 0);
  assert.equal(whole.usage.outputTokens, 16);
  const stream = streamText({ model: provider(model), prompt: "What is a slot?", maxOutputTokens: 16, temperature: 0, maxRetries: 0 });
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal((await stream.usage).outputTokens, 16);
});

test("ai: an unknown model", async () => {
  await assert.rejects(generateText({ model: provider("nobody"), prompt: "x", maxRetries: 0 }), (e) => e.statusCode === 404 && /known models/.test(e.message));
});

test("Ollama's probes", async () => {
  const tags = await (await fetch(`${url}/api/tags`, { headers })).json();
  assert(tags.models.some((m) => m.name === model));
  assert.match((await (await fetch(`${url}/api/version`, { headers })).json()).version, /^\d+\.\d+\.\d+$/);
  assert.equal((await fetch(`${url}/api/show`, { method: "POST", headers, body: JSON.stringify({ model }) })).status, 200);
  assert.match((await (await fetch(`${url}/api/chat`, { method: "POST", headers, body: JSON.stringify({ model, messages }) })).json()).error, /v1\/chat\/completions/);
});

console.log(`1..${tests.length}`);
let failed = 0;
for (const [i, t] of tests.entries()) {
  try {
    await t.run();
    console.log(`ok ${i + 1} - ${t.name}`);
  } catch (e) {
    failed++;
    console.log(`not ok ${i + 1} - ${t.name}`);
    console.log(String(e.stack ?? e).replace(/^/gm, "# "));
  }
}
process.exit(failed ? 1 : 0);
