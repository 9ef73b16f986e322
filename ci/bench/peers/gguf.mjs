// Writes a Llama of Hugging Face's layout as GGUF: node gguf.mjs DIRECTORY FILE float32|bfloat16|q8_0|q4_0|q4_k_m
// Norms are float32, all other weights have the type; of q4_k_m those that llama.cpp chooses are Q6_K. The tokens' texts are made up: only numbers of tokens can be used.
import {closeSync, existsSync, openSync, readFileSync, readSync, writeSync} from "node:fs";
import {join} from "node:path";

const [directory, file, typeName] = process.argv.slice(2);
const config = JSON.parse(readFileSync(join(directory, "config.json")));
const headSize = config.hidden_size / config.num_attention_heads;

/** Maps numbers to an array of another type; its method from() iterates, which takes much longer. */
function convert(numbers, Type, change) {
  const result = new Type(numbers.length);
  for (let i = 0; i < numbers.length; i++) result[i] = change(numbers[i]);
  return result.buffer;
}

/** Opens a file of safetensors; returns its header, the length of that, and a function that reads bytes. */
function open(file) {
  const input = openSync(join(directory, file));
  const bytes = (position, length) => {
    const buffer = new Uint8Array(length);
    readSync(input, buffer, 0, length, position);
    return buffer;
  };
  const length = Number(new DataView(bytes(0, 8).buffer).getBigUint64(0, true));
  return {header: JSON.parse(new TextDecoder().decode(bytes(8, length))), length, bytes, close: () => closeSync(input)};
}

/** The file of each tensor. A model in one file has no index. */
function tensorFiles() {
  const index = join(directory, "model.safetensors.index.json"), single = "model.safetensors";
  if (existsSync(index)) return JSON.parse(readFileSync(index)).weight_map;
  const {header: {__metadata__, ...tensors}, close} = open(single);
  close();
  return Object.fromEntries(Object.keys(tensors).map(name => [name, single]));
}

const files = tensorFiles();

/** Reads a tensor as float32. */
function read(name) {
  const {header, length, bytes, close} = open(files[name]);
  const {dtype, shape, data_offsets: [begin, end]} = header[name];
  const data = bytes(8 + length + begin, end - begin).buffer;
  close();
  const values = dtype === "F32" ? data : convert(new Uint16Array(data), Uint32Array, bits => bits << 16);
  return {shape, values: new Float32Array(values)};
}

/** Reorders the rows of each head: GGUF's Llama rotates neighbours, safetensors' the halves of a head. */
function interleave(values, columns) {
  const result = new Float32Array(values.length);
  for (let row = 0; row < values.length / columns; row++) {
    const inHead = row % headSize;
    const from = row - inHead + (inHead >> 1) + (inHead & 1) * (headSize / 2);
    result.set(values.subarray(from * columns, (from + 1) * columns), row * columns);
  }
  return result;
}

const bits = new Uint32Array(1), float = new Float32Array(bits.buffer);

/** Returns the bits of a number as float16, rounded to nearest even. */
function half(number) {
  float[0] = number;
  const sign = bits[0] >>> 16 & 0x8000, rest = bits[0] & 0x7fffffff;
  return sign | (Math.abs(number) < 2 ** -14 ? Math.round(Math.abs(number) * 2 ** 24)
    : rest - 0x38000000 + 0xfff + (rest >>> 13 & 1) >>> 13);
}

/** Returns an encoder by blocks of 32 numbers: a float16 scale, then the numbers divided by it. */
function blocks(size, encode) {
  return values => {
    const out = new Uint8Array(values.length / 32 * size), view = new DataView(out.buffer);
    for (let block = 0; block < values.length / 32; block++) {
      const x = values.subarray(block * 32, block * 32 + 32);
      const scale = encode(x, out.subarray(block * size + 2, (block + 1) * size), x.reduce((a, b) => Math.abs(b) > Math.abs(a) ? b : a));
      view.setUint16(block * size, half(scale), true);
    }
    return out;
  };
}

/** Returns an encoder by blocks of 256 numbers. */
const superblocks = (size, encode) => values => {
  const out = new Uint8Array(values.length / 256 * size);
  for (let i = 0; i < values.length / 256; i++) encode(values.subarray(i * 256, i * 256 + 256), new DataView(out.buffer, i * size, size));
  return out;
};

/** The scales and minimums of 8 groups have 6 bits, those of the last 4 groups are spread. */
const q4K = {code: 12, encode: superblocks(144, (x, out) => {
  const groups = Array.from({length: 8}, (_, i) => x.subarray(32 * i, 32 * i + 32));
  const minimums = groups.map(group => Math.max(0, -Math.min(...group)));
  const scales = groups.map((group, i) => (Math.max(...group) + minimums[i]) / 15);
  const scale = Math.max(...scales) / 63 || 1, minimum = Math.max(...minimums) / 63 || 1;
  out.setUint16(0, half(scale), true);
  out.setUint16(2, half(minimum), true);
  const put = (at, bits) => out.setUint8(at, out.getUint8(at) | bits);
  groups.forEach((group, i) => {
    const s = Math.round(scales[i] / scale), m = Math.round(minimums[i] / minimum);
    put(4 + i % 4, i < 4 ? s : s >> 4 << 6);
    put(8 + i % 4, i < 4 ? m : m >> 4 << 6);
    if (i >= 4) put(8 + i, s & 15 | (m & 15) << 4);
    group.forEach((value, j) => {
      const q = Math.round((value + minimum * m) / (scale * s || 1));
      put(16 + (i >> 1) * 32 + j, Math.min(15, Math.max(0, q)) << i % 2 * 4);
    });
  });
})};

const q6K = {code: 14, encode: superblocks(210, (x, out) => {
  const scales = Array.from({length: 16}, (_, i) => x.subarray(16 * i, 16 * i + 16).reduce((a, b) => Math.max(a, Math.abs(b)), 0) / 32);
  const scale = Math.max(...scales) / 127 || 1;
  out.setUint16(208, half(scale), true);
  const put = (at, bits) => out.setUint8(at, out.getUint8(at) | bits);
  for (let i = 0; i < 256; i++) {
    const s = Math.round(scales[i >> 4] / scale), q = Math.min(31, Math.max(-32, Math.round(x[i] / (scale * s || 1)))) + 32;
    out.setInt8(192 + (i >> 4), s);
    put((i >> 7) * 64 + i % 64, (q & 15) << (i >> 6) % 2 * 4);
    put(128 + (i >> 7) * 32 + i % 32, q >> 4 << (i >> 5) % 4 * 2);
  }
})};

const float32 = {code: 0, encode: values => new Uint8Array(values.buffer)};
const type = {
  float32,
  q4_k_m: q4K,
  bfloat16: {code: 30, encode: values => new Uint8Array(convert(new Uint32Array(values.buffer), Uint16Array, word => word >>> 16))},
  q8_0: {code: 8, encode: blocks(34, (x, out, most) => {
    const scale = Math.abs(most) / 127;
    for (let i = 0; i < 32; i++) out[i] = Math.round(x[i] / (scale || 1));
    return scale;
  })},
  q4_0: {code: 2, encode: blocks(18, (x, out, most) => {
    const scale = most / -8, four = value => Math.min(15, Math.trunc(value / (scale || 1) + 8.5));
    for (let i = 0; i < 16; i++) out[i] = four(x[i]) | four(x[i + 16]) << 4;
    return scale;
  })},
}[typeName];

const text = value => [number(8, Buffer.byteLength(value)), Buffer.from(value)];
function number(size, value) {
  const buffer = Buffer.alloc(size);
  if (size === 8) buffer.writeBigUInt64LE(BigInt(value));
  else buffer.writeUInt32LE(value);
  return buffer;
}
function floating(value) {
  const buffer = Buffer.alloc(4);
  buffer.writeFloatLE(value);
  return buffer;
}
const integer = (key, value) => [text(key), number(4, 4), number(4, value)];
const real = (key, value) => [text(key), number(4, 6), floating(value)];
const string = (key, value) => [text(key), number(4, 8), text(value)];
const array = (key, code, items) => [text(key), number(4, 9), number(4, code), number(8, items.length), items];

const size = config.vocab_size;
const tokens = ["<unk>", "<s>", "</s>", ...Array.from({length: 256}, (_, i) => `<0x${i.toString(16).toUpperCase().padStart(2, "0")}>`)];
while (tokens.length < size) tokens.push(`t${tokens.length}`);
const kinds = tokens.map((_, i) => i === 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1); // unknown, control, byte, normal
const metadata = [
  string("general.architecture", "llama"),
  integer("llama.context_length", config.max_position_embeddings),
  integer("llama.embedding_length", config.hidden_size),
  integer("llama.block_count", config.num_hidden_layers),
  integer("llama.feed_forward_length", config.intermediate_size),
  integer("llama.attention.head_count", config.num_attention_heads),
  integer("llama.attention.head_count_kv", config.num_key_value_heads),
  integer("llama.rope.dimension_count", headSize),
  integer("llama.vocab_size", size),
  real("llama.attention.layer_norm_rms_epsilon", config.rms_norm_eps),
  real("llama.rope.freq_base", config.rope_theta),
  string("tokenizer.ggml.model", "llama"),
  array("tokenizer.ggml.tokens", 8, tokens.map(text)),
  array("tokenizer.ggml.scores", 6, tokens.map(() => floating(0))),
  array("tokenizer.ggml.token_type", 5, kinds.map(kind => number(4, kind))),
  integer("tokenizer.ggml.bos_token_id", 1),
  integer("tokenizer.ggml.eos_token_id", 2),
];

const parts = {
  "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
  "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
  "mlp.down_proj": "ffn_down", "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
};
const renamed = name => {
  const [, layer, part] = /^(?:model\.layers\.(\d+)\.)?(.*)\.weight$/.exec(name);
  return `${layer === undefined ? "" : `blk.${layer}.`}${parts[part]}.weight`;
};

/** llama.cpp's choice for q4_k_m. */
function hasMoreBits(name) {
  const [, layer] = /layers\.(\d+)\..*(?:v_proj|down_proj)/.exec(name) ?? [];
  const count = config.num_hidden_layers, eighth = Math.floor(count / 8);
  return name === "lm_head.weight" || layer !== undefined && (+layer < eighth || +layer >= Math.floor(7 * count / 8) || (layer - eighth) % 3 === 2);
}

let offset = 0;
const infos = [], padding = length => Buffer.alloc((32 - length % 32) % 32);
// The sizes come first, then the data: each tensor is read twice, so that only one of them is in memory.
const encoded = name => {
  const {shape, values} = read(name);
  const {code, encode} = shape.length === 1 ? float32 : type === q4K && hasMoreBits(name) ? q6K : type;
  return {shape, code, data: encode(/[qk]_proj/.test(name) ? interleave(values, shape[1]) : values)};
};
const output = openSync(file, "w");
const names = Object.keys(files);
for (const name of names) {
  const {shape, code, data} = encoded(name);
  infos.push(text(renamed(name)), number(4, shape.length), shape.toReversed().map(n => number(8, n)), number(4, code), number(8, offset));
  offset += data.length + padding(data.length).length;
}
const header = Buffer.concat(
  [Buffer.from("GGUF"), number(4, 3), number(8, names.length), number(8, metadata.length), metadata, infos].flat(Infinity));
for (const part of [header, ...names]) {
  const data = typeof part === "string" ? encoded(part).data : part;
  writeSync(output, data);
  writeSync(output, padding(data.length));
}
