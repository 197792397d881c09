// OpenAI's own SDK for Node against a proxy: node check.mjs BASE_URL. Prints one JSON object.
// The upstream behind the proxy answers by the text of the first message; see test_openai_node.py.

import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "sk-client", maxRetries: 0, timeout: 30_000 });
const say = (content) => [{ role: "user", content }];
const out = {};

{
  const { data, response } = await client.chat.completions
    .create({ model: "gpt-4o", messages: say("hello") })
    .withResponse();
  out.create = {
    text: data.choices[0].message.content,
    usage: data.usage.prompt_tokens,
    model: response.headers.get("x-chatfuse-model"),
    tokensIn: Number(response.headers.get("x-chatfuse-tokens-in")),
  };
}

for (const asks of [false, true]) {
  const stream = await client.chat.completions.create({
    model: "gpt-4o",
    messages: say("stream"),
    stream: true,
    ...(asks ? { stream_options: { include_usage: true } } : {}),
  });
  let text = "";
  const usage = [];
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    if (chunk.usage) usage.push(chunk.usage.total_tokens);
  }
  out[asks ? "streamWithUsage" : "stream"] = { text, usage };
}

{
  // JavaScript strings may hold half a character: daily life for a proxy.
  const found = await client.chat.completions.create({ model: "gpt-4o", messages: say("hello \ud83d") });
  out.surrogate = found.choices[0].message.content;
}

{
  const tools = [
    {
      type: "function",
      function: { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
    },
  ];
  const messages = say("tools");
  const first = await client.chat.completions.create({ model: "gpt-4o", messages, tools });
  const message = first.choices[0].message;
  const call = message.tool_calls[0];
  messages.push(message, { role: "tool", tool_call_id: call.id, content: "sunny" });
  const second = await client.chat.completions.create({ model: "gpt-4o", messages, tools });
  out.tools = { name: call.function.name, arguments: call.function.arguments, text: second.choices[0].message.content };
}

out.models = [];
for await (const model of client.models.list()) out.models.push(model.id);

out.errors = {};
for (const what of ["400", "401", "403", "404", "409", "422", "429", "500", "hang up", "long ".repeat(3000), 5]) {
  try {
    await client.chat.completions.create({ model: "gpt-4o", messages: say(what) });
  } catch (error) {
    const name = typeof what === "string" ? what.slice(0, 7).trim() : "shape";
    out.errors[name] = { class: error.constructor.name, status: error.status, code: error.code };
  }
}

try {
  const stream = await client.chat.completions.create({ model: "gpt-4o", messages: say("break"), stream: true });
  for await (const _ of stream);
} catch (error) {
  out.broken = { class: error.constructor.name, code: error.code };
}

console.log(JSON.stringify(out));
