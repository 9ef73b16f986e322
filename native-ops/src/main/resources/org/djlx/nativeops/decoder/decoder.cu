// Kernels of one rank of an LLM, except for the large matmuls. They are compiled from eight sources at the same time:
//
//   decoder.cu     decode steps: embedding, attention to the KV cache (attention.cuh)
//                  prefill: norms of heads; rotary embedding with the write to the KV cache, copies from it; the MLP's gated activation
//   matmul.cu      decode steps: matmul of few rows; once for each number of rows
//   experts.cu     decode steps: mixture of experts; once for each number of rows
//   wide_matmul.cu decode steps on Hopper GPUs: matmul of up to 128 rows
//   wide_experts.cu prefill on Hopper GPUs: mixture of experts
//   chain.cu       decode steps of a rank alone: the matmuls between two attentions as one kernel
//   lora.cu        decode steps: adapters of the rows of a matmul
//   sampling.cu    decode steps: logits to tokens
//
// all_reduce_rms_norm.cu has the all-reduce and norm after attention and MLP. All kernels are bound by memory bandwidth. Decode
// kernels use programmatic dependent launch: a matmul loads its first weights, which no kernel writes, while the primary kernel still
// runs.
//
// Picture: docs/design/text-generation.md. Experiments: docs/design/experiments/text-generation.md.
//
// All are compiled with
//   TYPE          Float16 or Bfloat16: weights, KV cache and activations
// decoder.cu is compiled with
//   HEAD_SIZE     a multiple of 16, up to 128
//   GROUP_SIZE    query heads that share a KV head, up to 8
//   BLOCK_TOKENS  tokens of a KV cache block; a multiple of 16
//   CACHE_BITS    16: elements of T; 8: e4m3, with a scale for each token and KV head
// Needs compute capability 8.0.
#include "decoder/attention.cuh"
#include "rms_norm.cuh"
#include "silu.cuh"

#ifdef HAS_BFLOAT16

// ---------------------------------------------------------------------------------------------------------------------------
// Embedding of each row's token; zeros if another rank has the token, or if the row has no token.

struct Embedding {
  Bits* output;           // (rows, hidden)
  const int* tokens;      // of each row; -1: none; or SAMPLED
  const int* slots;       // of each row: the index of its sequence in `sampled`
  const int* sampled;
  const Bits* embedding;  // (count, hidden): this rank's tokens, starting at `first`
  u64 first;
  u64 count;
  u64 hidden;
};

// One block per row.
extern "C" __global__ void decode_embed(const __grid_constant__ Embedding args) {
  launch_dependents();
  wait_for_primary();
  int token = args.tokens[blockIdx.x];
  if (token == SAMPLED) token = args.sampled[args.slots[blockIdx.x]];
  bool here = token >= 0 && token >= args.first && token - args.first < args.count;
  const Bits* row = args.embedding + (here ? token - args.first : 0) * args.hidden;
  for (u64 i = threadIdx.x; i * PACK < args.hidden; i += blockDim.x) {
    store_pack<T>(args.output + blockIdx.x * args.hidden, args.hidden, i, here ? load_pack<T>(row, args.hidden, i) : zeros());
  }
}

// ---------------------------------------------------------------------------------------------------------------------------
// Prefill.

struct Rotation {
  Bits* qkv;             // (rows, query heads + key heads + value heads, HEAD_SIZE); queries and keys are rotated in place
  Cache cache;
  const int* slots;      // KV cache slot of each row
  const int* positions;  // position of each row in its sequence
  const float* cosines;  // (positions, HEAD_SIZE / 2)
  const float* sines;
  u64 queries;           // query heads; may be 0
  u64 heads;             // KV heads
};

// One block per row.
extern "C" __global__ void prefill_rotate_and_cache(const __grid_constant__ Rotation args) {
  u64 row = blockIdx.x, position = args.positions[row];
  Bits* qkv = args.qkv + row * (args.queries + 2 * args.heads) * HEAD_SIZE;
  u64 angles = position * (HEAD_SIZE / 2);
  rotate_and_cache(qkv, args.queries, args.heads, args.cache, args.slots[row], args.cosines + angles, args.sines + angles);
}

struct Gathering {
  Bits* keys;        // (rows, KV heads, HEAD_SIZE)
  Bits* values;
  Cache cache;
  const u64* slots;  // KV cache slot of each row
  u64 heads;         // KV heads
};

// Copies keys and values from the KV cache. One block per row.
extern "C" __global__ void prefill_gather(const __grid_constant__ Gathering args) {
  u64 row = blockIdx.x, slot = args.slots[row];
  u32 packs = args.heads * HEAD_SIZE / PACK;
  for (u32 i = threadIdx.x; i < 2 * packs; i += blockDim.x) {
    bool is_key = i < packs;
    u32 pack = is_key ? i : i - packs;
    const Cached* from = (is_key ? args.cache.keys : args.cache.values) + (slot * packs + pack) * PACK;
    Pack<T> x;
#if CACHE_BITS == 8
    x.vector = pack_of_e4m3<T>(((const u32*)from)[0], ((const u32*)from)[1]);
    u64 at = scale_index(slot, args.heads, pack * PACK / HEAD_SIZE);
    float scale = (is_key ? args.cache.key_scales : args.cache.value_scales)[at];
#pragma unroll
    for (int e = 0; e < PACK; e++) x.elements[e] = T::store(T::load(x.elements[e]) * scale);
#else
    x.vector = *(const uint4*)from;
#endif
    ((uint4*)(is_key ? args.keys : args.values))[row * packs + pack] = x.vector;
  }
}

struct HeadNorms {
  Bits* qkv;                  // (rows, query heads + key heads + value heads, HEAD_SIZE); queries and keys are normed in place
  const Bits* query_weights;  // (HEAD_SIZE)
  const Bits* key_weights;
  u64 queries;                // query heads; may be 0
  u64 heads;                  // KV heads
  float epsilon;
};

// Norms each head of queries and keys, before the rotation; also in decode steps. One block per row, one warp per head.
extern "C" __global__ void norm_heads(const __grid_constant__ HeadNorms args) {
  launch_dependents();
  wait_for_primary();
  u32 lane = threadIdx.x % WARP;
  for (u64 head = threadIdx.x / WARP; head < args.queries + args.heads; head += blockDim.x / WARP) {
    Bits* x = args.qkv + (blockIdx.x * (args.queries + 2 * args.heads) + head) * HEAD_SIZE;
    const Bits* weights = head < args.queries ? args.query_weights : args.key_weights;
    float squares = 0;
    for (u32 i = lane; i < HEAD_SIZE; i += WARP) squares += T::load(x[i]) * T::load(x[i]);
    for (int step = WARP / 2; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
    float scale = norm_scale(squares, HEAD_SIZE, args.epsilon);
    for (u32 i = lane; i < HEAD_SIZE; i += WARP) x[i] = T::store(T::load(x[i]) * scale * T::load(weights[i]));
  }
}

struct Activation {
  Bits* output;      // (rows, width)
  const Bits* both;  // (rows, 2 width): gates, then values
  u64 rows;
  u64 width;         // a multiple of 8
};

// output = silu(gates) * values
extern "C" __global__ void prefill_activate(const __grid_constant__ Activation args) {
  u64 packs = args.width / PACK;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < args.rows * packs; i += (u64)gridDim.x * blockDim.x) {
    const uint4* from = (const uint4*)args.both + i / packs * 2 * packs + i % packs;
    Pack<T> gates, values;
    gates.vector = from[0];
    values.vector = from[packs];
#pragma unroll
    for (int e = 0; e < PACK; e++) {
      float gate = T::load(gates.elements[e]);
      gates.elements[e] = T::store(silu_fast(gate) * T::load(values.elements[e]));
    }
    ((uint4*)args.output)[i] = gates.vector;
  }
}

#endif
