// Real clients against a server with a model of random weights: node clients.mjs URL TOKEN. Fails with the first wrong answer.
import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';

const [url, token] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url + '/v1', apiKey: token, maxRetries: 0 });
const messages = [{ role: 'user', content: 'Say something.', name: 'me' }];
const greedy = { model: 'tiny', temperature: 0 };

// openai: chats
const chat = await client.chat.completions.create({
  ...greedy, messages, max_completion_tokens: 12, n: 2, logprobs: true, top_logprobs: 3, frequency_penalty: 0.5, store: false,
  metadata: { a: 'b' }, parallel_tool_calls: false, service_tier: 'auto', seed: 1,
});
assert.match(chat._request_id, /^req_/);
assert.equal(chat.choices.length, 2);
assert.equal(chat.choices[0].message.content, chat.choices[1].message.content);
assert.equal(chat.usage.completion_tokens, 24);
const listed = chat.choices[1].logprobs.content;
assert.equal(listed.length, 12);
assert.ok(listed.every(each => each.logprob <= 0 && each.top_logprobs.length === 3));
assert.equal(listed.map(each => each.token).join(''), chat.choices[1].message.content);

// openai: the helper for streams, over two turns
const turns = [...messages];
for (let turn = 0; turn < 2; turn++) {
  const stream = client.chat.completions.stream({ ...greedy, messages: turns, max_tokens: 12, stream_options: { include_usage: true } });
  let text = '';
  stream.on('content', delta => (text += delta));
  const end = await stream.finalChatCompletion();
  assert.equal(end.choices[0].message.content, text);
  assert.equal(end.usage.completion_tokens, 12);
  turns.push(end.choices[0].message, { role: 'user', content: 'Go on.' });
}

// openai: completions with the log probabilities of the prompt
const completion = await client.completions.create({ ...greedy, prompt: 'Once', echo: true, logprobs: 2, max_tokens: 5 });
const { text, logprobs } = completion.choices[0];
assert.ok(text.startsWith('Once'));
assert.equal(logprobs.tokens.length, completion.usage.total_tokens);
assert.equal(logprobs.token_logprobs[0], null);
assert.ok(logprobs.token_logprobs.slice(1).every(each => each <= 0));

// openai: responses
const options = { ...greedy, input: 'Say something.', max_output_tokens: 12 };
const response = await client.responses.create(options);
assert.equal(response.status, 'incomplete');
assert.ok(response.output_text.length > 0);
const events = client.responses.stream(options);
let streamed = '';
events.on('response.output_text.delta', event => (streamed += event.delta));
assert.equal((await events.finalResponse()).output_text, streamed);
assert.equal(streamed, response.output_text);

// openai: errors
const long = client.chat.completions.create({ ...greedy, messages, max_tokens: 1_000_000 });
await assert.rejects(long, error => error.status === 400 && error.code === 'context_length_exceeded');
const both = client.chat.completions.create({ ...greedy, messages, max_tokens: 3, max_completion_tokens: 3 });
await assert.rejects(both, error => error.status === 400 && error.param === 'max_tokens');

// ai: responses, its default, then chats and completions
const provider = createOpenAI({ baseURL: url + '/v1', apiKey: token });
for (const model of [provider('tiny'), provider.chat('tiny'), provider.completion('tiny')]) {
  const request = { model, prompt: 'Say something.', temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
  const whole = await generateText(request);
  assert.equal(whole.finishReason, 'length');
  assert.equal(whole.usage.outputTokens, 12);
  const parts = streamText(request);
  let all = '';
  for await (const part of parts.textStream) all += part;
  assert.equal(all, whole.text);
  assert.equal(await parts.finishReason, 'length');
}
// openai and ai: tools in responses, over two turns
const parameters = {
  type: 'object', properties: { city: { enum: ['Rome', 'Oslo'] } }, required: ['city'], additionalProperties: false,
};
const weather = { type: 'function', name: 'weather', description: 'The weather', parameters, strict: true };
const question = [{ role: 'user', content: 'How is the weather?' }];
const request = { ...greedy, input: question, tools: [weather], tool_choice: 'required', parallel_tool_calls: false };
const called = await client.responses.create(request);
const call = called.output[0];
assert.equal(call.type, 'function_call');
assert.ok(['Rome', 'Oslo'].includes(JSON.parse(call.arguments).city));
const stream = client.responses.stream(request);
let args = '';
stream.on('response.function_call_arguments.delta', event => (args += event.delta));
assert.equal((await stream.finalResponse()).output[0].arguments, args);
assert.equal(args, call.arguments);
const result = { type: 'function_call_output', call_id: call.call_id, output: 'rain' };
const answer = await client.responses.create({
  ...request, input: [...question, ...called.output, result], tool_choice: 'none', max_output_tokens: 12,
});
assert.ok(answer.output_text.length > 0);
const lookUp = tool({ description: 'The weather', inputSchema: jsonSchema(parameters), execute: ({ city }) => city + ': rain' });
for (const model of [provider('tiny'), provider.chat('tiny')]) {
  const options = {
    model, tools: { lookUp }, stopWhen: stepCountIs(2), prompt: 'How is the weather?', temperature: 0, maxOutputTokens: 900, maxRetries: 0,
    providerOptions: { openai: { store: false } },
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? { type: 'tool', toolName: 'lookUp' } : 'none' }),
  };
  const whole = await generateText(options);
  assert.equal(whole.steps.length, 2);
  assert.match(whole.steps[0].toolResults[0].output, /^(Rome|Oslo): rain$/);
  const parts = streamText(options);
  let all = '';
  for await (const part of parts.textStream) all += part;
  assert.equal(all, whole.text);
}
console.log('all clients got right answers');
