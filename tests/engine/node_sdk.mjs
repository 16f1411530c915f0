// The unmodified Node `openai` SDK against SLUICE_URL; prints one JSON object of what it saw.
// The package is installed in a cache folder (SDK_DIR), so it is required from there.
import { createRequire } from "node:module";

const require = createRequire(`${process.env.SDK_DIR}/`);
const { OpenAI, NotFoundError, BadRequestError } = require("openai");

const model = process.env.SLUICE_MODEL;
const client = new OpenAI({
  baseURL: `${process.env.SLUICE_URL}/v1`,
  apiKey: process.env.SLUICE_API_KEY,
  maxRetries: 0,
  timeout: 60_000,
});
const messages = [{ role: "user", content: "Hello" }];
const seen = {};

const reply = await client.chat.completions.create({ model, messages, max_tokens: 8, ignore_eos: true });
seen.chat = reply.usage.completion_tokens;

const chunks = await client.chat.completions.create({
  model, messages, max_tokens: 8, ignore_eos: true, stream: true, stream_options: { include_usage: true },
});
let finish = null;
let usage = null;
for await (const chunk of chunks) {
  finish = chunk.choices[0]?.finish_reason ?? finish;
  usage = chunk.usage ?? usage;
}
seen.stream = { finish, tokens: usage.completion_tokens };

const text = 'Grüße, "世界" 🙂';
const runner = client.chat.completions.stream({ model, messages, max_tokens: 64, structured_outputs: { choice: [text] } });
seen.text = (await runner.finalContent()) === text;

const completion = await client.completions.create({ model, prompt: "Once upon", max_tokens: 4, ignore_eos: true });
seen.completion = completion.usage.completion_tokens;

const events = await client.responses.create({ model, input: "Hello", max_output_tokens: 8, stream: true });
const kinds = [];
for await (const event of events) kinds.push(event.type);
seen.responses = [kinds[0], kinds.at(-1)];

// A client that leaves in the middle of a stream.
const left = await client.chat.completions.create({ model, messages, max_tokens: 2000, ignore_eos: true, stream: true });
for await (const chunk of left) {
  if (chunk.choices[0]?.delta?.content) break;
}
seen.left = left.controller.signal.aborted;

seen.errors = [];
for (const [body, kind] of [
  [{ model: "nope", messages }, NotFoundError],
  [{ model, messages, temperature: -1 }, BadRequestError],
]) {
  try {
    await client.chat.completions.create(body);
    seen.errors.push("none");
  } catch (error) {
    seen.errors.push(error instanceof kind ? error.status : String(error));
  }
}

console.log(JSON.stringify(seen));
