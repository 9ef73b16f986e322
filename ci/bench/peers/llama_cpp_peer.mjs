// Measures llama.cpp on the CPU for ci/bench/run.sh bench-llama-cpp: node llama_cpp_peer.mjs DIRECTORY TYPE THREADS SEQUENCES
// Writes the model as DIRECTORY/model.gguf, unless DIRECTORY is a file that ends with .gguf, prints {"llama.cpp": VERSION, "seconds": of loading} and answers lines of JSON:
//   {"prompts": [[TOKEN, ...], ...], "tokens": N}   greedy answers of N tokens, computed together
//   {"tokens": [[TOKEN, ...], ...], "nanos": [[TIME, ...], ...]}   TIME is that of a token since the start
// Keys and values are float16. Its folder has node_modules with node-llama-cpp, so that nothing is compiled.
import {execFileSync} from "node:child_process";
import {readFileSync, rmSync} from "node:fs";
import {join} from "node:path";
import {createInterface} from "node:readline";
import {fileURLToPath} from "node:url";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [directory, type, threads, sequences] = process.argv.slice(2);
const beside = name => fileURLToPath(new URL(name, import.meta.url));
const say = answer => console.log(JSON.stringify(answer));
const isFile = directory.endsWith(".gguf"), file = isFile ? directory : join(directory, "model.gguf");
let context, loaded;
try {
  if (!isFile) execFileSync(process.execPath, [beside("gguf.mjs"), directory, file, type]);
  const start = performance.now();
  const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: +threads});
  const model = await llama.loadModel({modelPath: file});
  context = await model.createContext({contextSize: 1024, sequences: +sequences, threads: +threads});
  loaded = (performance.now() - start) / 1e3;
} catch (error) {
  say({error: String(error)});
  process.exit(1);
} finally {
  if (!isFile) rmSync(file, {force: true}); // It stays mapped.
}
const free = Array.from({length: +sequences}, () => context.getSequence());

async function generate(sequence, prompt, count, start) {
  const tokens = [], nanos = [];
  for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
    tokens.push(token);
    nanos.push(Math.round((performance.now() - start) * 1e6));
    if (tokens.length === count) break;
  }
  return {tokens, nanos};
}

const {version} = JSON.parse(readFileSync(beside("node_modules/node-llama-cpp/package.json")));
const {release} = JSON.parse(readFileSync(beside("node_modules/node-llama-cpp/llama/binariesGithubRelease.json")));
say({"llama.cpp": `${release} of node-llama-cpp ${version}`, seconds: loaded});
for await (const line of createInterface({input: process.stdin})) {
  const {prompts, tokens} = JSON.parse(line);
  for (const sequence of free) await sequence.clearHistory();
  const start = performance.now();
  const answers = await Promise.all(prompts.map((prompt, i) => generate(free[i], prompt, tokens, start)));
  say({tokens: answers.map(answer => answer.tokens), nanos: answers.map(answer => answer.nanos)});
}
process.exit(0);
