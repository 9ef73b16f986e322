// The highest logit of each row, its first token, and the sum of all exponentials relative to it: first of this rank's tokens,
// then, when ranks have told each other, of all.
#pragma once
#include "llama/common.cuh"

#ifdef HAS_BFLOAT16

struct Top {
  float highest;
  float sum;
  float token;  // exact, as there are fewer than 2^24: an all-reduce with zeros gathers what ranks have
  float logit;  // of the token, when it is sampled
};

const float NO_TOKEN = 1 << 30;

struct Logits {
  Top* top;          // (ranks, rows): this rank's, and zeros
  const Bits* logits;  // rows of `width`, at a distance of `stride`
  Top* parts;         // (rows, blocks of a row)
  u32* blocks_ended;          // of each row, how many blocks have; 0 before and after
  u64 first;           // the token of the first logit
  u64 width;
  u64 stride;
  u64 rank;
  u64 ranks;
};

__device__ __forceinline__ Top merge(const Top& a, const Top& b) {
  float highest = fmaxf(a.highest, b.highest);
  float sum = a.sum * __expf(a.highest - highest) + b.sum * __expf(b.highest - highest);
  bool first = a.highest > b.highest || (a.highest == b.highest && a.token < b.token);
  return Top{highest, sum, first ? a.token : b.token, 0};
}

__device__ __forceinline__ Top warp_top(Top top) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    Top other = {__shfl_xor_sync(~0u, top.highest, distance), __shfl_xor_sync(~0u, top.sum, distance),
                  __shfl_xor_sync(~0u, top.token, distance), 0};
    top = merge(top, other);
  }
  return top;
}

const int TOP_BLOCKS = 16;  // of a row, each of 256 threads
const int TOP_THREADS = 256;

extern "C" __global__ void __launch_bounds__(TOP_THREADS) decode_top(const __grid_constant__ Logits args) {
  launch_dependents();
  __shared__ Top warp_tops[TOP_THREADS / WARP];
  wait_for_primary();
  u32 row = blockIdx.y;
  const Bits* logits = args.logits + row * args.stride;
  Top top = {LOWEST, 0, NO_TOKEN, 0};
  for (u64 i = blockIdx.x * TOP_THREADS + threadIdx.x; i * PACK < args.width; i += TOP_BLOCKS * TOP_THREADS) {
    Pack<T> elements;
    elements.vector = load_pack<T>(logits, args.width, i);
    Top own = {LOWEST, 0, NO_TOKEN, 0};
#pragma unroll
    for (int e = 0; e < PACK; e++) {
      float value = T::load(elements.elements[e]);
      if (i * PACK + e < args.width && value > own.highest) {
        own.highest = value;
        own.token = args.first + i * PACK + e;
      }
    }
#pragma unroll
    for (int e = 0; e < PACK; e++) {
      if (i * PACK + e < args.width) own.sum += __expf(T::load(elements.elements[e]) - own.highest);
    }
    top = merge(top, own);
  }
  top = warp_top(top);
  if (threadIdx.x % WARP == 0) warp_tops[threadIdx.x / WARP] = top;
  __syncthreads();
  if (threadIdx.x >= WARP) return;
  top = warp_top(threadIdx.x < TOP_THREADS / WARP ? warp_tops[threadIdx.x] : Top{LOWEST, 0, NO_TOKEN, 0});
  bool last = false;
  if (threadIdx.x == 0) {
    args.parts[row * TOP_BLOCKS + blockIdx.x] = top;
    __threadfence();
    last = atomicAdd(&args.blocks_ended[row], 1) == TOP_BLOCKS - 1;
    if (last) args.blocks_ended[row] = 0;
    __threadfence();
  }
  if (!__shfl_sync(~0u, last, 0)) return;
  top = Top{LOWEST, 0, NO_TOKEN, 0};
  if (threadIdx.x < TOP_BLOCKS) {
    const Top* part = args.parts + row * TOP_BLOCKS + threadIdx.x;
    top = Top{__ldcg(&part->highest), __ldcg(&part->sum), __ldcg(&part->token), 0};
  }
  top = warp_top(top);  // on all lanes
  if (threadIdx.x < args.ranks) args.top[threadIdx.x * gridDim.y + row] = threadIdx.x == args.rank ? top : Top{};
}

// ---------------------------------------------------------------------------------------------------------------------------
// The token of each row that follows: the most probable one, or a drawn one. Weights are whole numbers, so that their sums do
// not depend on an order.

// How a row's token is sampled.
struct SamplingParameters {
  double scale;  // the weight of a token is 2^(scale * (its logit - the highest)); 0: the highest logit wins
  double top_p;  // kept are the fewest tokens that have this share of all weights; 1: all
  u64 random;
  u64 top_k;     // how many tokens of the highest logits are kept, and those with an equal one; 0: all
};

struct Sampling {
  Top* top;         // of each row, in memory of the host
  const Top* parts;  // (ranks, rows)
  int* sampled;        // of each sequence
  const int* places;  // of each row, where its sequence's is; -1: nobody wants one
  const SamplingParameters* parameters;
  const Bits* logits;  // rows of `width`, at a distance of `stride`; of all ranks, where a token is drawn
  u64 width;
  u64 stride;
  u64 ranks;
  u64 rows;
};

const int SAMPLE_THREADS = 1024;
const int KEY_GROUPS = 16384;
const float WEIGHT = 1ull << 40;  // of the highest logit

// In the order of the logits.
__device__ __forceinline__ u32 key(Bits logit) { return (logit & 0x8000 ? ~logit : logit | 0x8000) & 0xffff; }

__device__ __forceinline__ Bits logit_of(u32 key) { return key & 0x8000 ? key & 0x7fff : ~key; }

struct SamplingShared {
  unsigned short group_keys[KEY_GROUPS];  // of so many packs each, the highest key: most have none that is kept, and are not read again
  u64 warp_sums[SAMPLE_THREADS / WARP];
};

struct Row {
  const Bits* logits;
  u64 width;
  u64 packs;
  u32 group_packs;
  float highest;
  float scale;
  SamplingShared& shared;

  __device__ __forceinline__ u64 weight(Bits logit) const {
    return (u64)(exp2f((T::load(logit) - highest) * scale) * WEIGHT);
  }

  // Tells of the elements of some packs whose keys are not below `low`: their indices, logits and keys.
  template <typename Visit>
  __device__ __forceinline__ void visit(u32 low, u64 first, u64 end, u64 distance, Visit visit) const {
    for (u64 i = first; i < end; i += distance) {
      if (shared.group_keys[i / group_packs] < low) continue;
      Pack<T> pack;
      pack.vector = load_pack<T>(logits, width, i);
#pragma unroll
      for (int e = 0; e < PACK; e++) {
        u32 at = key(pack.elements[e]);
        if (i * PACK + e < width && at >= low) visit(i * PACK + e, pack.elements[e], at);
      }
    }
  }

  // Of this thread's share of all.
  template <typename Visit>
  __device__ __forceinline__ void visit(u32 low, Visit visit_element) const {
    visit(low, threadIdx.x, packs, SAMPLE_THREADS, visit_element);
  }

  __device__ void find_group_keys() const {
    for (u32 top = threadIdx.x; top * group_packs < packs; top += SAMPLE_THREADS) {
      u32 group_key = 0;
      u64 first = (u64)top * group_packs;
      visit(0, first, min(first + group_packs, packs), 1, [&](u64, Bits, u32 at) { group_key = max(group_key, at); });
      shared.group_keys[top] = group_key;
    }
    __syncthreads();
  }

  // The sum of what the threads before this one have, and of what all have.
  __device__ __forceinline__ u64 sum_before(u64 value, u64& all) const {
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u64 sum = value;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
      u64 other = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += other;
    }
    __syncthreads();  // The sums of the last call have been read.
    if (lane == WARP - 1) shared.warp_sums[warp] = sum;
    __syncthreads();
    u64 before = sum - value;
    all = 0;
    for (u32 w = 0; w < SAMPLE_THREADS / WARP; w++) {
      if (w < warp) before += shared.warp_sums[w];
      all += shared.warp_sums[w];
    }
    return before;
  }

  __device__ __forceinline__ u64 sum(u64 value) const {
    u64 all;
    sum_before(value, all);
    return all;
  }

  // The highest key such that the elements of this key and higher ones measure `wanted` or more; those from `low` on do. Each
  // pass over the logits tries three keys.
  template <typename Measure>
  __device__ u32 highest_key(u32 low, u64 wanted, Measure measure) const {
    u32 high = 1 << 16;  // those from here on do not
    while (high - low > 1) {
      const int TRIED = 3;
      u32 from = low, to = high, step = max(1u, (high - low) / (TRIED + 1));
      u64 sums[TRIED] = {};
      visit(from + step, [&](u64, Bits logit, u32 at) {
        u64 size = measure(logit);
#pragma unroll
        for (int t = 0; t < TRIED; t++) sums[t] += at >= from + (t + 1) * step ? size : 0;
      });
#pragma unroll
      for (int t = 0; t < TRIED; t++) {
        u32 tried = from + (t + 1) * step;
        if (tried >= to) break;
        if (sum(sums[t]) < wanted) {
          high = tried;
          break;
        }
        low = tried;
      }
    }
    return low;
  }
};

// A block has a row.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS) decode_sample(const __grid_constant__ Sampling args) {
  __shared__ SamplingShared shared;
  u32 index = blockIdx.x;
  Top top = args.parts[index];
  for (u64 rank = 1; rank < args.ranks; rank++) top = merge(top, args.parts[rank * args.rows + index]);
  int place = args.places[index];
  const SamplingParameters& parameter = args.parameters[index];
  if (threadIdx.x == 0) {
    top.logit = top.highest;
    args.top[index] = top;
    if (place >= 0) args.sampled[place] = (int)top.token;
  }
  if (parameter.scale == 0 || place < 0 || !(top.sum > 0)) return;  // The sum is none if not all logits are numbers.
  u64 packs = pack_count<T>(args.width);
  u32 group_packs = (packs + KEY_GROUPS - 1) / KEY_GROUPS;
  Row row = {args.logits + index * args.stride, args.width, packs, group_packs, top.highest, (float)parameter.scale, shared};
  row.find_group_keys();
  auto weight = [&](Bits logit) { return row.weight(logit); };
  u32 least = 0;
  if (parameter.top_k > 0 && parameter.top_k < args.width) {
    least = row.highest_key(0, parameter.top_k, [](Bits) { return (u64)1; });
  }
  u64 kept_equal = ~0ull;  // how many of the key `least` are kept: the first ones
  if (parameter.top_p < 1) {
    u64 sum = 0, above = 0;
    row.visit(least, [&](u64, Bits logit, u32) { sum += row.weight(logit); });
    u64 wanted = max(1ull, (u64)ceil(parameter.top_p * (double)row.sum(sum)));
    least = row.highest_key(least, wanted, weight);
    row.visit(least + 1, [&](u64, Bits logit, u32) { above += row.weight(logit); });
    u64 each = max(1ull, row.weight(logit_of(least)));
    kept_equal = (wanted - row.sum(above) + each - 1) / each;
  }
  // A thread has packs that follow each other.
  u64 each = (packs + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
  u64 first = min(threadIdx.x * each, packs), end = min(first + each, packs);
  u64 equals = 0, own = 0, all;
  row.visit(least, first, end, 1, [&](u64, Bits, u32 at) { equals += at == least; });
  u64 equals_before = row.sum_before(equals, all), met = equals_before;
  auto kept = [&](Bits logit, u32 at) { return at == least && met++ >= kept_equal ? 0 : row.weight(logit); };
  row.visit(least, first, end, 1, [&](u64, Bits logit, u32 at) { own += kept(logit, at); });
  u64 before = row.sum_before(own, all);
  u64 left = __umul64hi(all, parameter.random);
  if (left < before || left - before >= own) return;
  left -= before;
  met = equals_before;
  bool found = false;
  row.visit(least, first, end, 1, [&](u64 token, Bits logit, u32 at) {
    u64 weight = kept(logit, at);
    if (!found && left < weight) {
      found = true;
      top.token = token;
      top.logit = T::load(logit);
    }
    left -= found ? 0 : weight;
  });
  args.top[index] = top;
  args.sampled[place] = (int)top.token;
}

#endif
