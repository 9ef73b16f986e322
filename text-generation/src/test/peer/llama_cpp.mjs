// Answers of llama.cpp for LlamaCppTest: node llama_cpp.mjs FILE... with {"prompt": [TOKEN, ...], "tokens": N} on the standard input
// prints, for each GGUF file, {"tokens": [TOKEN, ...], "logProbabilities": [NUMBER, ...]}, greedily chosen, on one thread.
// Keys and values are float16, of a file F32.gguf float32. Its folder has node_modules with node-llama-cpp.
import {readFileSync} from "node:fs";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const {prompt, tokens: count} = JSON.parse(readFileSync(0));
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: 1});
for (const modelPath of process.argv.slice(2)) {
  const model = await llama.loadModel({modelPath});
  const exact = {flashAttention: false, experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"};
  const context = await model.createContext({contextSize: 256, threads: 1, ...modelPath.endsWith("F32.gguf") ? exact : {}});
  const tokens = [], logProbabilities = [];
  const options = {temperature: 0, yieldEogToken: true};
  for await (const {token, confidence} of context.getSequence().evaluateWithMetadata(prompt, {confidence: true}, options)) {
    tokens.push(token);
    logProbabilities.push(Math.log(confidence));
    if (tokens.length === count) break;
  }
  console.log(JSON.stringify({tokens, logProbabilities}));
  await model.dispose();
}
process.exit(0);
