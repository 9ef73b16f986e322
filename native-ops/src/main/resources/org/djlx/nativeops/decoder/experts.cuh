// Mixtures of experts: the choice of a row's experts, and the sum of their results. For decode steps (experts.cu) and prefills
// (wide_experts.cu).
#pragma once
#include "decoder/common.cuh"

#ifdef HAS_BFLOAT16

const int ROUTE_WARPS = 8;  // of a block that chooses, one for each row
const int MAX_EXPERTS = 256;
const int MAX_CHOSEN = 16;  // experts of a row
const int KEYS = MAX_EXPERTS / WARP;  // of a lane

// The sort key of an expert: higher for a higher logit; among equal logits, for a lower index. Never 0. NaNs are ordered by their bits.
__device__ __forceinline__ u32 expert_key(Bits logit, u32 expert) {
  u32 bits = logit & 0x7fff ? logit : 0;  // -0 equals 0
  return (bits & 0x8000 ? 0xffff & ~bits : bits | 0x8000) << 16 | (0xffff - expert);
}

__device__ __forceinline__ u32 expert_of(u32 key) { return 0xffff - (key & 0xffff); }

__device__ __forceinline__ float logit_of(u32 key) {
  u32 bits = key >> 16;
  return T::load(bits & 0x8000 ? bits & 0x7fff : 0xffff & ~bits);
}

struct Choice {
  int expert;  // -1: the pair is in no chunk
  float weight;
};

// Chooses the experts of a row, by one warp. Lane i < chosen returns choice i. Of args it reads the members that Route and WideRoute share.
template <typename A>
__device__ __forceinline__ Choice choose(const A& args, u32 row, u32 lane) {
  u32 experts = args.experts, chosen = args.chosen;
  const Bits* logits = args.logits + row * args.stride;
  u32 keys[KEYS], own = 0;
#pragma unroll
  for (int i = 0; i < KEYS; i++) {
    u32 expert = i * WARP + lane;
    keys[i] = expert < experts ? expert_key(logits[expert], expert) : 0;
  }
  u32 first = 0;  // the key of place 0; exponentials are relative to its logit
  float sum = 0;
  for (u32 place = 0; place < chosen; place++) {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++) most = max(most, keys[i]);
    most = __reduce_max_sync(~0u, most);
    if (place == 0) first = most;
    if (lane == place) own = most;
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
      if (keys[i] != most) continue;
      keys[i] = 0;
      if (!args.normalizes) sum += expf(logit_of(most) - logit_of(first));
    }
  }
  float weight = lane < chosen ? expf(logit_of(own) - logit_of(first)) : 0;
  if (args.normalizes) {
    sum = weight;
  } else {
#pragma unroll
    for (int i = 0; i < KEYS; i++) sum += keys[i] ? expf(logit_of(keys[i]) - logit_of(first)) : 0;
  }
  bool is_token = !args.positions || args.positions[row] >= 0;
  weight = is_token ? weight / warp_sum(sum) : 0;
  return {weight == 0 ? -1 : (int)expert_of(own), weight};
}

struct Combination {
  Bits* output;          // (rows, width)
  const Bits* results;   // (rows, chosen, width)
  const float* weights;  // (rows, chosen); 0: the result is not read
  u64 chosen;
  u64 width;             // a multiple of 8
};

// output[row] = sum over places of weights[row][place] * results[row][place]. Blocks along y have a row each.
extern "C" __global__ void combine_experts(const __grid_constant__ Combination args) {
  launch_dependents();
  wait_for_primary();
  u32 packs = args.width / PACK, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const float* weights = args.weights + blockIdx.y * args.chosen;
  const uint4* results = (const uint4*)args.results + blockIdx.y * args.chosen * packs + i;
  float sum[PACK] = {};
#pragma unroll 4
  for (u32 place = 0; place < args.chosen; place++) {
    float weight = weights[place];
    Pack<T> pack;
    pack.vector = results[(u64)place * packs];
    if (weight == 0) pack.vector = zeros();  // No matmul wrote this result.
#pragma unroll
    for (int e = 0; e < PACK; e++) sum[e] += weight * T::load(pack.elements[e]);
  }
  Pack<T> pack;
#pragma unroll
  for (int e = 0; e < PACK; e++) pack.elements[e] = T::store(sum[e]);
  ((uint4*)args.output)[blockIdx.y * (u64)packs + i] = pack.vector;
}


#endif
