// From logits to the next token of each row.
//
//   decode_top     per row, over this rank's part of the vocabulary: highest logit, the first token with it, sum of exponentials
//   decode_sample  merges the ranks' results of decode_top; then takes the most probable token, or samples one
//
// Memory: logits in rows; results in arrays of Top, one per row and rank. An all-reduce between the two kernels gathers the ranks'
// results, because each rank writes zeros for its peers.
// Synchronisation: in decode_top, each block of a row increments `blocks_ended`; decode_sample has one block per row.
#pragma once
#include "llama/common.cuh"

#ifdef HAS_BFLOAT16

struct Top {
  float highest;  // logit
  float sum;      // of exp(logit - highest)
  float token;    // exact in float32: fewer than 2^24 tokens
  float logit;    // of the sampled token; set by decode_sample
};

const float NO_TOKEN = 1 << 30;

struct Logits {
  Top* top;            // (ranks, rows): this rank's results, zeros for the others
  const Bits* logits;  // (rows, width), rows `stride` elements apart
  Top* parts;          // (rows, TOP_BLOCKS)
  u32* blocks_ended;   // of each row; 0 before and after a launch
  u64 first;           // token of the first logit
  u64 width;
  u64 stride;
  u64 rank;
  u64 ranks;
};

// Merges the results of two sets of tokens. Of equal logits the lower token wins.
__device__ __forceinline__ Top merge(const Top& a, const Top& b) {
  float highest = fmaxf(a.highest, b.highest);
  float sum = a.sum * __expf(a.highest - highest) + b.sum * __expf(b.highest - highest);
  bool first = a.highest > b.highest || (a.highest == b.highest && a.token < b.token);
  return Top{highest, sum, first ? a.token : b.token, 0};
}

// Merges the results of a warp. All lanes get the merged result.
__device__ __forceinline__ Top warp_top(Top top) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    Top other = {__shfl_xor_sync(~0u, top.highest, distance), __shfl_xor_sync(~0u, top.sum, distance),
                  __shfl_xor_sync(~0u, top.token, distance), 0};
    top = merge(top, other);
  }
  return top;
}

const int TOP_BLOCKS = 16;  // per row
const int TOP_THREADS = 256;

extern "C" __global__ void __launch_bounds__(TOP_THREADS) decode_top(const __grid_constant__ Logits args) {
  launch_dependents();
  __shared__ Top warp_tops[TOP_THREADS / WARP];
  wait_for_primary();
  // Step 1: each thread goes through its packs of the row.
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
  // Step 2: merge the threads of the block.
  top = warp_top(top);
  if (threadIdx.x % WARP == 0) warp_tops[threadIdx.x / WARP] = top;
  __syncthreads();
  if (threadIdx.x >= WARP) return;
  top = warp_top(threadIdx.x < TOP_THREADS / WARP ? warp_tops[threadIdx.x] : Top{LOWEST, 0, NO_TOKEN, 0});
  // Step 3: the last block of the row merges the blocks.
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
  top = warp_top(top);
  if (threadIdx.x < args.ranks) args.top[threadIdx.x * gridDim.y + row] = threadIdx.x == args.rank ? top : Top{};
}

// ---------------------------------------------------------------------------------------------------------------------------
// Sampling. Weights are integers, so their sums do not depend on the order of addition.

// Parameters of one row. Size in Java: LlamaKernels.SAMPLING_BYTES.
struct SamplingParameters {
  double scale;  // log2(e) / temperature: the weight of a token is 2^(scale * (logit - highest)); 0: greedy
  double top_p;  // keep the fewest tokens whose share of all weights is at least this; 1: all
  u64 random;
  u64 top_k;     // keep this many of the highest logits, and logits equal to the lowest of them; 0: all
};

struct Sampling {
  Top* top;           // of each row; pinned host memory
  const Top* parts;   // (ranks, rows): results of decode_top
  int* sampled;       // token of each sequence
  const int* slots;  // of each row: the index of its sequence in `sampled`; -1: do not sample
  const SamplingParameters* parameters;
  const Bits* logits;  // (rows, width) of all ranks, rows `stride` elements apart; needed only for rows that are not greedy
  u64 width;
  u64 stride;
  u64 ranks;
  u64 rows;
};

const int SAMPLE_THREADS = 1024;
const int KEY_GROUPS = 16384;       // groups of packs; shared memory keeps the highest key of each
const float WEIGHT = 1ull << 40;    // of the highest logit

// Keys of 16 bits have the order of the logits. key() and logit_of() are inverse.
__device__ __forceinline__ u32 key(Bits logit) { return (logit & 0x8000 ? ~logit : logit | 0x8000) & 0xffff; }

__device__ __forceinline__ Bits logit_of(u32 key) { return key & 0x8000 ? key & 0x7fff : ~key; }

struct SamplingShared {
  unsigned short group_keys[KEY_GROUPS];  // highest key of each group; later passes skip groups without kept tokens
  u64 warp_sums[SAMPLE_THREADS / WARP];
};

// The logits of a row, and the passes of a block over them.
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

  // Calls visit(index, logit, key) for each element of some packs with a key of at least `low`.
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

  // As above, for this thread's share of all packs.
  template <typename Visit>
  __device__ __forceinline__ void visit(u32 low, Visit visit_element) const {
    visit(low, threadIdx.x, packs, SAMPLE_THREADS, visit_element);
  }

  __device__ void find_group_keys() const {
    for (u32 group = threadIdx.x; group * group_packs < packs; group += SAMPLE_THREADS) {
      u32 group_key = 0;
      u64 first = (u64)group * group_packs;
      visit(0, first, min(first + group_packs, packs), 1, [&](u64, Bits, u32 at) { group_key = max(group_key, at); });
      shared.group_keys[group] = group_key;
    }
    __syncthreads();
  }

  // Exclusive prefix sum over the threads of the block; `all` is the total.
  __device__ __forceinline__ u64 sum_before(u64 value, u64& all) const {
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u64 sum = value;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
      u64 other = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += other;
    }
    __syncthreads();  // the previous call's sums have been read
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

  // Returns the highest key for which the sum of measure() over all elements with at least this key is `wanted` or more. The sum
  // for `low` must be `wanted` or more. Narrows the range from `low` on; each pass over the logits tries three keys.
  template <typename Measure>
  __device__ u32 highest_key(u32 low, u64 wanted, Measure measure) const {
    u32 high = 1 << 16;  // from this key on, the sum is less than `wanted`
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

// One block per row.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS) decode_sample(const __grid_constant__ Sampling args) {
  __shared__ SamplingShared shared;
  u32 index = blockIdx.x;
  // Step 1: merge the ranks' results, and store the most probable token.
  Top top = args.parts[index];
  for (u64 rank = 1; rank < args.ranks; rank++) top = merge(top, args.parts[rank * args.rows + index]);
  int slot = args.slots[index];
  const SamplingParameters& parameters = args.parameters[index];
  if (threadIdx.x == 0) {
    top.logit = top.highest;
    args.top[index] = top;
    if (slot >= 0) args.sampled[slot] = (int)top.token;
  }
  if (parameters.scale == 0 || slot < 0 || !(top.sum > 0)) return;  // the sum is NaN if a logit is NaN
  // Step 2: find the lowest key that top-k and top-p keep.
  u64 packs = pack_count<T>(args.width);
  u32 group_packs = (packs + KEY_GROUPS - 1) / KEY_GROUPS;
  Row row = {args.logits + index * args.stride, args.width, packs, group_packs, top.highest, (float)parameters.scale, shared};
  row.find_group_keys();
  auto weight = [&](Bits logit) { return row.weight(logit); };
  u32 lowest_kept = 0;
  if (parameters.top_k > 0 && parameters.top_k < args.width) {
    lowest_kept = row.highest_key(0, parameters.top_k, [](Bits) { return (u64)1; });
  }
  u64 kept_equal = ~0ull;  // of the tokens with the key `lowest_kept`, only this many are kept, the first ones
  if (parameters.top_p < 1) {
    u64 sum = 0, above = 0;
    row.visit(lowest_kept, [&](u64, Bits logit, u32) { sum += row.weight(logit); });
    u64 wanted = max(1ull, (u64)ceil(parameters.top_p * (double)row.sum(sum)));
    lowest_kept = row.highest_key(lowest_kept, wanted, weight);
    row.visit(lowest_kept + 1, [&](u64, Bits logit, u32) { above += row.weight(logit); });
    u64 each = max(1ull, row.weight(logit_of(lowest_kept)));
    kept_equal = (wanted - row.sum(above) + each - 1) / each;
  }
  // Step 3: sample from the kept tokens in token order. A thread has contiguous packs.
  u64 each = (packs + SAMPLE_THREADS - 1) / SAMPLE_THREADS;
  u64 first = min(threadIdx.x * each, packs), end = min(first + each, packs);
  u64 equals = 0, own = 0, all;
  row.visit(lowest_kept, first, end, 1, [&](u64, Bits, u32 at) { equals += at == lowest_kept; });
  u64 equals_before = row.sum_before(equals, all), equals_seen = equals_before;
  auto kept = [&](Bits logit, u32 at) { return at == lowest_kept && equals_seen++ >= kept_equal ? 0 : row.weight(logit); };
  row.visit(lowest_kept, first, end, 1, [&](u64, Bits logit, u32 at) { own += kept(logit, at); });
  u64 before = row.sum_before(own, all);
  u64 left = __umul64hi(all, parameters.random);
  if (left < before || left - before >= own) return;
  left -= before;
  equals_seen = equals_before;
  bool found = false;
  row.visit(lowest_kept, first, end, 1, [&](u64 token, Bits logit, u32 at) {
    u64 weight = kept(logit, at);
    if (!found && left < weight) {
      found = true;
      top.token = token;
      top.logit = T::load(logit);
    }
    left -= found ? 0 : weight;
  });
  args.top[index] = top;
  args.sampled[slot] = (int)top.token;
}

#endif
