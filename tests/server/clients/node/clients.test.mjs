// The ai SDK, and the clients of OpenAI and Anthropic for Node, against dendrite serve: DENDRITE_URL, of the
// model dendrite-tools, served as "m".
import assert from 'node:assert/strict';
import { test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { generateObject, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const url = process.env.DENDRITE_URL;
const clock = (called) => ({
  get_time: tool({
    description: 'The time in a city',
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      called.push(city);
      return '09:15';
    },
  }),
});
const models = {
  'ai, responses': createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' }).responses('m'),
  'ai, messages': createAnthropic({ baseURL: `${url}/v1`, apiKey: 'none' })('m'),
};
const ask = (model, called) => ({
  model,
  prompt: 'What time is it in Lima?',
  tools: clock(called),
  temperature: 0,
  maxRetries: 0,
  stopWhen: stepCountIs(3),
});

for (const [name, model] of Object.entries(models)) {
  test(`${name}: a tool loop`, async () => {
    const called = [];
    const { text, steps } = await generateText(ask(model, called));
    assert.deepEqual(called, ['Lima']);
    assert.match(text, /09:15/);
    assert.equal(steps.length, 2);
  });

  test(`${name}: a streamed tool loop`, async () => {
    const called = [];
    const result = streamText({ ...ask(model, called), onError: ({ error }) => { throw error; } });
    let text = '';
    for await (const part of result.textStream) text += part;
    assert.deepEqual(called, ['Lima']);
    assert.match(text, /09:15/);
    assert.ok((await result.totalUsage).inputTokens > 0);
  });
}

test('ai, responses: an object', async () => {
  const { object } = await generateObject({
    model: models['ai, responses'], prompt: 'A pair', maxOutputTokens: 300, maxRetries: 0,
    schema: z.object({ ok: z.boolean(), size: z.enum(['small', 'large']) }),
  });
  assert.equal(typeof object.ok, 'boolean');
});

test('anthropic: a streamed call', async () => {
  const client = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 });
  const stream = client.messages.stream({
    model: 'm', max_tokens: 200, messages: [{ role: 'user', content: 'What time is it in Lima?' }],
    tools: [{ name: 'get_time', input_schema: { type: 'object', properties: { city: { type: 'string' } } } }],
  });
  const message = await stream.finalMessage();
  assert.equal(message.stop_reason, 'tool_use');
  assert.equal(message.content.at(-1).name, 'get_time');
});

test('openai: a streamed response, and the turn behind it', async () => {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
  const tools = [{ type: 'function', name: 'get_time', strict: false,
                   parameters: { type: 'object', properties: { city: { type: 'string' } } } }];
  const stream = client.responses.stream({ model: 'm', input: 'What time is it in Lima?', tools, temperature: 0 });
  const first = await stream.finalResponse();
  const call = first.output.at(-1);
  assert.equal(call.name, 'get_time');
  const second = await client.responses.create({
    model: 'm', previous_response_id: first.id, tools, temperature: 0,
    input: [{ type: 'function_call_output', call_id: call.call_id, output: '09:15' }],
  });
  assert.match(second.output_text, /09:15/);
  assert.ok(second.usage.input_tokens_details.cached_tokens > 0);
});
