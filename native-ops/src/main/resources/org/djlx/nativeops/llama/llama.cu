// What a rank of a Llama computes beside large products. For a step of decoding, in which each sequence of a batch has a new token:
// the embedding, products of few rows with the weights, attention to the cached keys and values, and what is sampled from the scores.
// For a prompt: rotations, the activation of the MLP. The all-reduce and the norm behind the attention and the MLP are
// all_reduce_rms_norm.cu's.
//
// All of it is bound by how fast memory is read. Kernels of decoding may be launched while the one before still runs (see
// launch_dependents): products then read their first weights, which nobody writes.
//
// Compiled with
//   TYPE      Float16 or Bfloat16, of weights, cache and what is computed
//   HEAD_SIZE      the size of a head: a multiple of 16 up to 128
//   GROUP_SIZE   how many heads of queries share one of keys and values
//   BLOCK_TOKENS     how many tokens lie side by side in the cache, from where the table says; divides CHUNK
//   SHARED_BYTES      the most bytes of shared memory that a block may have
// Needs compute capability 8.0.
#include "llama/attention.cuh"
#include "llama/sampling.cuh"
#include "llama/matmul.cuh"
#include "silu.cuh"

#ifdef HAS_BFLOAT16

// ---------------------------------------------------------------------------------------------------------------------------
// What a step or a prompt begins with: the embedding of each row's token, or zeros where it is another rank's, or there is none.

// A row's token may be known to the GPU alone, which has sampled it in the step before.
const int SAMPLED = -2;

struct Embedding {
  Bits* output;           // (rows, hidden)
  const int* tokens;      // of each row; -1: none; SAMPLED: what was sampled last for its sequence
  const int* places;      // of each row, where that is
  const int* sampled;
  const Bits* embedding;  // (count, hidden): this rank's tokens, from `first` on
  u64 first;
  u64 count;
  u64 hidden;
};

// A block has a row.
extern "C" __global__ void decode_embed(const __grid_constant__ Embedding args) {
  launch_dependents();
  wait_for_primary();
  int token = args.tokens[blockIdx.x];
  if (token == SAMPLED) token = args.sampled[args.places[blockIdx.x]];
  bool here = token >= 0 && token >= args.first && token - args.first < args.count;
  const Bits* row = args.embedding + (here ? token - args.first : 0) * args.hidden;
  for (u64 i = threadIdx.x; i * PACK < args.hidden; i += blockDim.x) {
    store_pack<T>(args.output + blockIdx.x * args.hidden, args.hidden, i, here ? load_pack<T>(row, args.hidden, i) : zeros());
  }
}

// ---------------------------------------------------------------------------------------------------------------------------
// Of prompts.

struct Rotation {
  Bits* qkv;             // (rows, heads of queries, of keys, of values, HEAD_SIZE); queries and keys are rotated in place
  Bits* keys;            // (rows of the cache, heads of keys, HEAD_SIZE)
  Bits* values;
  const int* places;     // of each row in the cache
  u64 start;             // of the first row in its sequence
  const float* cosines;  // (positions, HEAD_SIZE / 2)
  const float* sines;
  u64 queries;           // heads of them; may be none
  u64 heads;             // of keys
};

// A block has a row.
extern "C" __global__ void prefill_rotate_and_cache(const __grid_constant__ Rotation args) {
  u64 row = blockIdx.x, position = args.start + row;
  rotate_and_cache(args.qkv + row * (args.queries + 2 * args.heads) * HEAD_SIZE, args.queries, args.heads, args.keys, args.values, args.places[row],
            args.cosines + position * (HEAD_SIZE / 2), args.sines + position * (HEAD_SIZE / 2));
}

struct Activation {
  Bits* output;      // (rows, width)
  const Bits* both;  // (rows, gates and values of `width` each)
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
