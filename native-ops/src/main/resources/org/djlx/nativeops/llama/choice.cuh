// The highest score of each row, its first token, and the sum of all exponentials relative to it: first of this rank's tokens,
// then, when ranks have told each other, of all.
#pragma once
#include "llama/common.cuh"

#ifdef HAS_BFLOAT16

struct Best {
  float highest;
  float sum;
  float token;  // exact, as there are fewer than 2^24: an all-reduce with zeros gathers what ranks have
  float score;  // of the token, when it is chosen
};

const float NO_TOKEN = 1 << 30;

struct Scores {
  Best* best;          // (ranks, rows): this rank's, and zeros
  const Bits* scores;  // rows of `width`, at a distance of `stride`
  Best* parts;         // (rows, blocks of a row)
  u32* ended;          // of each row, how many blocks have; 0 before and after
  u64 first;           // the token of the first score
  u64 width;
  u64 stride;
  u64 rank;
  u64 ranks;
};

__device__ __forceinline__ Best joined(const Best& a, const Best& b) {
  float highest = fmaxf(a.highest, b.highest);
  float sum = a.sum * __expf(a.highest - highest) + b.sum * __expf(b.highest - highest);
  bool first = a.highest > b.highest || (a.highest == b.highest && a.token < b.token);
  return Best{highest, sum, first ? a.token : b.token, 0};
}

__device__ __forceinline__ Best of_warp(Best best) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    Best other = {__shfl_xor_sync(~0u, best.highest, distance), __shfl_xor_sync(~0u, best.sum, distance),
                  __shfl_xor_sync(~0u, best.token, distance), 0};
    best = joined(best, other);
  }
  return best;
}

const int BEST_BLOCKS = 16;  // of a row, each of 256 threads
const int BEST_THREADS = 256;

extern "C" __global__ void __launch_bounds__(BEST_THREADS) decode_best(const __grid_constant__ Scores args) {
  launch_dependents();
  __shared__ Best bests[BEST_THREADS / WARP];
  wait_for_primary();
  u32 row = blockIdx.y;
  const Bits* scores = args.scores + row * args.stride;
  Best best = {LEAST, 0, NO_TOKEN, 0};
  for (u64 i = blockIdx.x * BEST_THREADS + threadIdx.x; i * PACK < args.width; i += BEST_BLOCKS * BEST_THREADS) {
    Pack<T> elements;
    elements.vector = load_pack<T>(scores, args.width, i);
    Best own = {LEAST, 0, NO_TOKEN, 0};
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
    best = joined(best, own);
  }
  best = of_warp(best);
  if (threadIdx.x % WARP == 0) bests[threadIdx.x / WARP] = best;
  __syncthreads();
  if (threadIdx.x >= WARP) return;
  best = of_warp(threadIdx.x < BEST_THREADS / WARP ? bests[threadIdx.x] : Best{LEAST, 0, NO_TOKEN, 0});
  bool last = false;
  if (threadIdx.x == 0) {
    args.parts[row * BEST_BLOCKS + blockIdx.x] = best;
    __threadfence();
    last = atomicAdd(&args.ended[row], 1) == BEST_BLOCKS - 1;
    if (last) args.ended[row] = 0;
    __threadfence();
  }
  if (!__shfl_sync(~0u, last, 0)) return;
  best = Best{LEAST, 0, NO_TOKEN, 0};
  if (threadIdx.x < BEST_BLOCKS) {
    const Best* part = args.parts + row * BEST_BLOCKS + threadIdx.x;
    best = Best{__ldcg(&part->highest), __ldcg(&part->sum), __ldcg(&part->token), 0};
  }
  best = of_warp(best);  // on all lanes
  if (threadIdx.x < args.ranks) args.best[threadIdx.x * gridDim.y + row] = threadIdx.x == args.rank ? best : Best{};
}

// ---------------------------------------------------------------------------------------------------------------------------
// The token of each row that follows: the most probable one, or a drawn one. Weights are whole numbers, so that their sums do
// not depend on an order.

// How a row's token is chosen.
struct Draw {
  double scale;  // the weight of a token is 2^(scale * (its score - the highest)); 0: the highest score wins
  double top_p;  // kept are the fewest tokens that have this share of all weights; 1: all
  u64 random;
  u64 top_k;     // how many tokens of the highest scores are kept, and those with an equal one; 0: all
};

struct Choice {
  Best* best;         // of each row, in memory of the host
  const Best* parts;  // (ranks, rows)
  int* chosen;        // of each sequence
  const int* places;  // of each row, where its sequence's is; -1: nobody wants one
  const Draw* draws;
  const Bits* scores;  // rows of `width`, at a distance of `stride`; of all ranks, where a token is drawn
  u64 width;
  u64 stride;
  u64 ranks;
  u64 rows;
};

const int CHOICE_THREADS = 1024;
const int TOPS = 16384;
const float WEIGHT = 1ull << 40;  // of the highest score

// In the order of the scores.
__device__ __forceinline__ u32 key(Bits score) { return (score & 0x8000 ? ~score : score | 0x8000) & 0xffff; }

__device__ __forceinline__ Bits score_of(u32 key) { return key & 0x8000 ? key & 0x7fff : ~key; }

struct Drawing {
  unsigned short tops[TOPS];  // of so many packs each, the highest key: most have none that is kept, and are not read again
  u64 of_warps[CHOICE_THREADS / WARP];
};

struct Row {
  const Bits* scores;
  u64 width;
  u64 packs;
  u32 packs_of_top;
  float highest;
  float scale;
  Drawing& shared;

  __device__ __forceinline__ u64 weight(Bits score) const {
    return (u64)(exp2f((T::load(score) - highest) * scale) * WEIGHT);
  }

  // Tells of the elements of some packs whose keys are not below `low`: their indices, scores and keys.
  template <typename Visit>
  __device__ __forceinline__ void visit(u32 low, u64 first, u64 end, u64 distance, Visit visit) const {
    for (u64 i = first; i < end; i += distance) {
      if (shared.tops[i / packs_of_top] < low) continue;
      Pack<T> pack;
      pack.vector = load_pack<T>(scores, width, i);
#pragma unroll
      for (int e = 0; e < PACK; e++) {
        u32 at = key(pack.elements[e]);
        if (i * PACK + e < width && at >= low) visit(i * PACK + e, pack.elements[e], at);
      }
    }
  }

  // Of this thread's share of all.
  template <typename Visit>
  __device__ __forceinline__ void visit(u32 low, Visit visit_one) const {
    visit(low, threadIdx.x, packs, CHOICE_THREADS, visit_one);
  }

  __device__ void find_tops() const {
    for (u32 top = threadIdx.x; top * packs_of_top < packs; top += CHOICE_THREADS) {
      u32 highest_of = 0;
      u64 first = (u64)top * packs_of_top;
      visit(0, first, min(first + packs_of_top, packs), 1, [&](u64, Bits, u32 at) { highest_of = max(highest_of, at); });
      shared.tops[top] = highest_of;
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
    if (lane == WARP - 1) shared.of_warps[warp] = sum;
    __syncthreads();
    u64 before = sum - value;
    all = 0;
    for (u32 w = 0; w < CHOICE_THREADS / WARP; w++) {
      if (w < warp) before += shared.of_warps[w];
      all += shared.of_warps[w];
    }
    return before;
  }

  __device__ __forceinline__ u64 sum(u64 value) const {
    u64 all;
    sum_before(value, all);
    return all;
  }

  // The highest key such that the elements of this key and higher ones measure `wanted` or more; those from `low` on do. Each
  // pass over the scores tries three keys.
  template <typename Measure>
  __device__ u32 highest_key(u32 low, u64 wanted, Measure measure) const {
    u32 high = 1 << 16;  // those from here on do not
    while (high - low > 1) {
      const int TRIED = 3;
      u32 from = low, to = high, step = max(1u, (high - low) / (TRIED + 1));
      u64 sums[TRIED] = {};
      visit(from + step, [&](u64, Bits score, u32 at) {
        u64 size = measure(score);
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
extern "C" __global__ void __launch_bounds__(CHOICE_THREADS) decode_choose(const __grid_constant__ Choice args) {
  __shared__ Drawing shared;
  u32 index = blockIdx.x;
  Best best = args.parts[index];
  for (u64 rank = 1; rank < args.ranks; rank++) best = joined(best, args.parts[rank * args.rows + index]);
  int place = args.places[index];
  const Draw& draw = args.draws[index];
  if (threadIdx.x == 0) {
    best.score = best.highest;
    args.best[index] = best;
    if (place >= 0) args.chosen[place] = (int)best.token;
  }
  if (draw.scale == 0 || place < 0 || !(best.sum > 0)) return;  // The sum is none if not all scores are numbers.
  u64 packs = pack_count<T>(args.width);
  u32 packs_of_top = (packs + TOPS - 1) / TOPS;
  Row row = {args.scores + index * args.stride, args.width, packs, packs_of_top, best.highest, (float)draw.scale, shared};
  row.find_tops();
  auto weight = [&](Bits score) { return row.weight(score); };
  u32 least = 0;
  if (draw.top_k > 0 && draw.top_k < args.width) {
    least = row.highest_key(0, draw.top_k, [](Bits) { return (u64)1; });
  }
  u64 equal_ones = ~0ull;  // how many of the key `least` are kept: the first ones
  if (draw.top_p < 1) {
    u64 sum = 0, above = 0;
    row.visit(least, [&](u64, Bits score, u32) { sum += row.weight(score); });
    u64 wanted = max(1ull, (u64)ceil(draw.top_p * (double)row.sum(sum)));
    least = row.highest_key(least, wanted, weight);
    row.visit(least + 1, [&](u64, Bits score, u32) { above += row.weight(score); });
    u64 each = max(1ull, row.weight(score_of(least)));
    equal_ones = (wanted - row.sum(above) + each - 1) / each;
  }
  // A thread has packs that follow each other.
  u64 each = (packs + CHOICE_THREADS - 1) / CHOICE_THREADS;
  u64 first = min(threadIdx.x * each, packs), end = min(first + each, packs);
  u64 equals = 0, own = 0, all;
  row.visit(least, first, end, 1, [&](u64, Bits, u32 at) { equals += at == least; });
  u64 equals_before = row.sum_before(equals, all), met = equals_before;
  auto kept = [&](Bits score, u32 at) { return at == least && met++ >= equal_ones ? 0 : row.weight(score); };
  row.visit(least, first, end, 1, [&](u64, Bits score, u32 at) { own += kept(score, at); });
  u64 before = row.sum_before(own, all);
  u64 left = __umul64hi(all, draw.random);
  if (left < before || left - before >= own) return;
  left -= before;
  met = equals_before;
  bool found = false;
  row.visit(least, first, end, 1, [&](u64 token, Bits score, u32 at) {
    u64 weight = kept(score, at);
    if (!found && left < weight) {
      found = true;
      best.token = token;
      best.score = T::load(score);
    }
    left -= found ? 0 : weight;
  });
  args.best[index] = best;
  args.chosen[place] = (int)best.token;
}

#endif
