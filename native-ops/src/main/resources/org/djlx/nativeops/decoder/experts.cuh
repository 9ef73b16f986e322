// Mixture of experts: chooses a row's experts, and adds up their results. For decode steps (experts.cu) and prefills (wide_experts.cu).
#pragma once
#include "decoder/common.cuh"

#ifdef HAS_BFLOAT16

const int ROUTE_WARPS = 8;            // of a block that chooses experts, a warp for each row
const int MAX_EXPERTS = 256;          // of a layer
const int MAX_CHOSEN = 16;            // of a row
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
  int expert;    // -1: the weight is 0
  float weight;  // the router's; 0 if it rounds to 0 or the row has no token
};

// Chooses the experts of a row, by one warp. Lane i < chosen returns the expert with the i-th highest logit. args is a Route or WideRoute.
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
  u32 first = 0;  // the highest key; exponentials are relative to its logit
  float sum = 0;
  for (u32 choice = 0; choice < chosen; choice++) {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++) most = max(most, keys[i]);
    most = __reduce_max_sync(~0u, most);
    if (choice == 0) first = most;
    if (lane == choice) own = most;
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

// output[row] = sum over i of weights[row][i] * results[row][i]. Grid: x covers the packs of a row, y the rows.
extern "C" __global__ void combine_experts(const __grid_constant__ Combination args) {
  launch_dependents();
  wait_for_primary();
  u32 packs = args.width / PACK, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const float* weights = args.weights + blockIdx.y * args.chosen;
  const uint4* results = (const uint4*)args.results + blockIdx.y * args.chosen * packs + i;
  float sum[PACK] = {};
#pragma unroll 4
  for (u32 choice = 0; choice < args.chosen; choice++) {
    float weight = weights[choice];
    Pack<T> pack;
    pack.vector = results[(u64)choice * packs];
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
