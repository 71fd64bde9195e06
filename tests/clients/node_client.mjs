// OpenAI's client for Node against a server: `node node_client.mjs BASE MODEL QUESTION TOOL CASE` prints JSON.
import OpenAI from "openai";

const [base, model, question, tool, name] = process.argv.slice(2);
const client = new OpenAI({ baseURL: base, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: question }];
const asked = { model, messages, temperature: 0, max_tokens: 300 };
const tools = [JSON.parse(tool)];

const cases = {
  async chat() {
    const reply = await client.chat.completions.create(asked);
    return { content: reply.choices[0].message.content, usage: reply.usage };
  },
  async stream() {
    let content = "";
    let usage = null;
    const stream = await client.chat.completions.create({
      ...asked, stream: true, stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      content += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    return { content, usage };
  },
  async tools() {
    const reply = await client.chat.completions.create({ ...asked, tools, tool_choice: "required" });
    const [choice] = reply.choices;
    return { calls: choice.message.tool_calls, reason: choice.finish_reason };
  },
  async streamedTools() {
    const stream = client.chat.completions.stream({ ...asked, tools, tool_choice: "required" });
    const message = await stream.finalMessage();
    return { calls: message.tool_calls };
  },
  // The client runs the tool and sends its result back, as often as the model asks.
  async runTools() {
    let ran = 0;
    const run = { function: () => { ran += 1; return "sunny"; }, parse: JSON.parse };
    const runner = client.chat.completions.runTools(
      { ...asked, tools: [{ type: "function", function: { ...tools[0].function, ...run } }], tool_choice: tools[0] },
      { maxChatCompletions: 2 },
    );
    await runner.done().catch(() => {});
    return { ran, roles: runner.messages.map((message) => message.role) };
  },
  async parse() {
    // Bounded: a small model that has begun a number may never end it.
    const schema = {
      type: "object",
      properties: { number: { type: "integer", minimum: 0, maximum: 99999 } },
      required: ["number"],
      additionalProperties: false,
    };
    const reply = await client.chat.completions.parse({
      ...asked, response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema } },
    });
    return { content: JSON.parse(reply.choices[0].message.content) };
  },
  async abort() {
    const stream = client.chat.completions.stream({ ...asked, max_tokens: 8000, ignore_eos: true });
    let chunks = 0;
    try {
      for await (const _ of stream) if (++chunks === 3) stream.abort();
    } catch (error) {
      return { chunks, error: error.constructor.name };
    }
    return { chunks, error: null };
  },
  async models() {
    const ids = [];
    for await (const one of client.models.list()) ids.push(one.id);
    return { ids, one: (await client.models.retrieve(model)).id };
  },
  async error() {
    try {
      await client.chat.completions.create({ ...asked, top_p: 7 });
    } catch (error) {
      return { kind: error.constructor.name, status: error.status, param: error.param };
    }
    return {};
  },
};

console.log(JSON.stringify(await cases[name]()));
