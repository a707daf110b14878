// The ai SDK by each of its providers, and the clients of OpenAI and Anthropic for Node, against dendrite serve:
// DENDRITE_URL, of the model dendrite-tools, and DENDRITE_THINKS_URL, of one that thinks, each served as "m".
import assert from 'node:assert/strict';
import { test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText, isStepCount, Output, streamText, tool } from 'ai';
import { z } from 'zod';

globalThis.AI_SDK_LOG_WARNINGS = false;
const url = process.env.DENDRITE_URL;
const thinks = process.env.DENDRITE_THINKS_URL;
const prompt = 'What time is it in Lima?';
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
const compatible = (at) => createOpenAICompatible({
  name: 'dendrite', baseURL: `${at}/v1`, apiKey: 'none', includeUsage: true, supportsStructuredOutputs: true,
})('m');
const models = {
  'ai, responses': createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' }).responses('m'),
  'ai, chats': createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' }).chat('m'),
  'ai, compatible': compatible(url),
  'ai, messages': createAnthropic({ baseURL: `${url}/v1`, apiKey: 'none' })('m'),
};
const ask = (model, called) => ({
  model, prompt, tools: clock(called), temperature: 0, maxRetries: 0, stopWhen: isStepCount(3),
});
const thrown = { onError: ({ error }) => { throw error; } };

for (const [name, model] of Object.entries(models)) {
  test(`${name}: a tool loop`, async () => {
    const called = [];
    const { text, steps } = await generateText(ask(model, called));
    assert.deepEqual(called, ['Lima']);
    assert.match(text, /09:15/);
    assert.equal(steps.length, 2);
    assert.equal(steps[0].finishReason, 'tool-calls');
  });

  test(`${name}: a streamed tool loop`, async () => {
    const called = [];
    const result = streamText({ ...ask(model, called), ...thrown });
    let text = '';
    for await (const part of result.textStream) text += part;
    assert.deepEqual(called, ['Lima']);
    assert.match(text, /09:15/);
    assert.ok((await result.totalUsage).inputTokens > 0);
  });

  test(`${name}: a tool that has to be called`, async () => {
    const alarm = tool({ inputSchema: z.object({ time: z.string() }) });
    const { toolCalls } = await generateText({
      model, prompt, tools: { set_alarm: alarm, ...clock([]) }, temperature: 0, maxRetries: 0,
      toolChoice: { type: 'tool', toolName: 'set_alarm' },
    });
    assert.deepEqual(toolCalls.map(({ toolName }) => toolName), ['set_alarm']);
  });

  test(`${name}: objects, whole and streamed`, async () => {
    const output = Output.object({ schema: z.object({
      ok: z.boolean(), size: z.enum(['small', 'large']), name: z.string().max(20),
    }) });
    const asked = { model, prompt: 'A pair', output, maxOutputTokens: 300, maxRetries: 0 };
    const whole = await generateText(asked);
    assert.equal(typeof whole.output.ok, 'boolean');
    const result = streamText({ ...asked, ...thrown });
    const parts = [];
    for await (const part of result.partialOutputStream) parts.push(part);
    assert.ok(parts.length > 0);
    assert.deepEqual(parts.at(-1), await result.output);
  });

  test(`${name}: errors`, async () => {
    await assert.rejects(generateText({ model, prompt: 'a '.repeat(2000), maxRetries: 0 }), (error) => {
      assert.ok(APICallError.isInstance(error));
      assert.equal(error.statusCode, 400);
      assert.match(error.message, /context|too long/);
      return true;
    });
  });
}

test('ai, compatible: thoughts', async () => {
  const asked = { model: compatible(thinks), prompt, maxRetries: 0,
                  providerOptions: { dendrite: { reasoningEffort: 'high' } } };
  const { reasoningText, text } = await generateText(asked);
  assert.deepEqual([reasoningText.trim(), text.trim()], ['What is there to say?', 'pong']);
  const result = streamText({ ...asked, ...thrown });
  const kinds = [];
  for await (const part of result.stream) kinds.push(part.type);
  assert.ok(kinds.indexOf('reasoning-end') < kinds.indexOf('text-start'), kinds);
  assert.equal((await result.reasoningText).trim(), 'What is there to say?');
});

test('ai, messages: thoughts', async () => {
  const { reasoningText, text } = await generateText({
    model: createAnthropic({ baseURL: `${thinks}/v1`, apiKey: 'none' })('m'), prompt, maxRetries: 0,
    providerOptions: { anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } } },
  });
  assert.deepEqual([reasoningText.trim(), text.trim()], ['What is there to say?', 'pong']);
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
