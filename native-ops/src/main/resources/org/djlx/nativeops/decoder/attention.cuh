// Attention of new tokens to the KV cache and to themselves; rotary embedding of queries and keys; writes to the KV cache.
//
// Split over blocks (flash decoding: Dao and others, 2023): a block has CHUNK tokens of one sequence and one KV head, or a span of
// several chunks (decode_spans). The last block of a sequence and KV head to end merges the parts, in their order. A warp has
// WARP_TOKENS tokens at a time.
//
// Tensor core operands: the first product's left operand is the queries of the KV head's group. Its result, the scores, has the
// register layout of a left operand, which the second product needs (FlashAttention-2: Dao, 2023). Right operands are loaded 16
// bytes at a time; both operands of a product permute k alike, which does not change the sum.
//
// Memory: qkv rows, KV cache in blocks of BLOCK_TOKENS tokens (block table), partial results of chunks.
// Synchronisation: the blocks of a row and KV head count themselves in `chunks_ended`; no wait.
//
// Invariants
// - Keys and values of a new token are used as the cache stores them: computing or loading them gives the same bits.
// - A row's result does not depend on the other rows, except in decode_spans: spans and warps depend on the number of rows.
#pragma once
#include "decoder/common.cuh"
#include "e4m3.cuh"
#include "rotary.cuh"

#ifndef HEAD_SIZE
#define HEAD_SIZE 128
#endif
#ifndef GROUP_SIZE
#define GROUP_SIZE 4
#endif
#ifndef BLOCK_TOKENS
#define BLOCK_TOKENS 16
#endif
#ifndef CACHE_BITS
#define CACHE_BITS 16
#endif

#ifdef HAS_BFLOAT16

const int WARP_TOKENS = 16;
const int ATTENTION_WARPS = 8;
const int CHUNK = ATTENTION_WARPS * WARP_TOKENS;
const int PADDED_HEAD = HEAD_SIZE + 8;  // fewer bank conflicts
static_assert(BLOCK_TOKENS % WARP_TOKENS == 0, "the tokens of a warp are in one cache block");

// The KV cache of a layer. NARROW: elements are e4m3, with a scale for each token and KV head.
const bool NARROW = CACHE_BITS == 8;
#if CACHE_BITS == 8
typedef unsigned char Cached;
#else
typedef Bits Cached;
#endif
struct Cache {
  Cached* keys;       // (tokens, KV heads, HEAD_SIZE)
  Cached* values;
  float* key_scales;  // (blocks, KV heads, BLOCK_TOKENS)
  float* value_scales;
};
const int CACHED_PACK = 16 / sizeof(Cached);  // elements that a lane loads at a time
const int PARTS = CACHED_PACK / PACK;         // packs of T of one load
const int KEY_STEPS = (HEAD_SIZE + 4 * CACHED_PACK - 1) / (4 * CACHED_PACK);    // loads of a key by 4 lanes
const int VALUE_STEPS = (HEAD_SIZE + 8 * CACHED_PACK - 1) / (8 * CACHED_PACK);  // loads of a value by 8 lanes

__device__ __forceinline__ u64 scale_index(u32 slot, u64 heads, u32 head) {
  return (slot / BLOCK_TOKENS * heads + head) * BLOCK_TOKENS + slot % BLOCK_TOKENS;
}

__device__ __forceinline__ u32 word(const uint4& pack, int i) {
  return i == 0 ? pack.x : i == 1 ? pack.y : i == 2 ? pack.z : pack.w;
}

// The pack of T `part` of a load, without its scale.
__device__ __forceinline__ uint4 widened(const uint4& load, int part) {
  return NARROW ? pack_of_e4m3<T>(word(load, 2 * part), word(load, 2 * part + 1)) : load;
}

// Element i of two loads as a pair of T, without scales.
__device__ __forceinline__ u32 elements(const uint4& first, const uint4& second, int i) {
  if (!NARROW) return __byte_perm(word(first, i / 2), word(second, i / 2), i % 2 ? 0x7632 : 0x5410);
  return from_e4m3<T>(__byte_perm(word(first, i / 4), word(second, i / 4), (4 + i % 4) << 8 | i % 4) & 0x00ff00ff);
}

// Positions and block table are written before the first kernel of a step starts: they are read before wait_for_primary().
struct Attention {
  Bits* output;          // (rows, KV heads * GROUP_SIZE, HEAD_SIZE)
  const Bits* qkv;       // (rows, query heads + key heads + value heads, HEAD_SIZE)
  Cache cache;
  const int* positions;  // of the new tokens; -1: no token
  const int* table;      // block table: (rows, table_stride), the first token of each block in the cache
  const float* cosines;  // (positions, HEAD_SIZE / 2)
  const float* sines;
  const int* first_chunks;  // of each row: the chunks of all previous rows
  float* chunks;            // partial results: (rows, KV heads, parts of the row, GROUP_SIZE, HEAD_SIZE + 2); room for all chunks
  u32* chunks_ended;        // (rows, KV heads); 0 before and after a launch
  u64 window;               // tokens that a token attends to, itself included
  u64 table_stride;
  u64 heads;                // KV heads
};

__device__ __forceinline__ u32 pair(Bits first, Bits second) { return first | (u32)second << 16; }

// Rotates element i of a head's first half and element i of its second half, rounded.
__device__ __forceinline__ void rotate_elements(Bits& one, Bits& other, float cosine, float sine) {
  float first = T::load(one), second = T::load(other);
  rotate_pair<true>(first, second, cosine, sine);
  one = T::store(first);
  other = T::store(second);
}

__device__ __forceinline__ void rotate(Bits* to, const Bits* head, u32 i, const float* cosines, const float* sines) {
  Bits first = head[i], second = head[i + HEAD_SIZE / 2];
  rotate_elements(first, second, cosines[i], sines[i]);
  to[i] = first;
  to[i + HEAD_SIZE / 2] = second;
}

// Rounds a head to e4m3, by a warp. Returns the lane's 4 elements; zeros past the end of the head. If an element is NaN or infinite,
// so is the scale.
__device__ __forceinline__ u32 narrowed(const Bits* head, float& scale) {
  u32 lane = threadIdx.x % WARP;
  uint2 four = lane * 4 < HEAD_SIZE ? ((const uint2*)head)[lane] : make_uint2(0, 0);
  float x[4];
  u32 most = 0, bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    x[i] = T::load((Bits)((i < 2 ? four.x : four.y) >> i % 2 * 16));
    most = max(most, magnitude_bits(x[i]));
  }
  float largest = __uint_as_float(__reduce_max_sync(~0u, most)), inverse = inverse_scale(largest);
  scale = largest / E4M3_MAX;
#pragma unroll
  for (int i = 0; i < 4; i += 2) bytes |= to_e4m3(x[i] * inverse, x[i + 1] * inverse) << i * 8;
  return bytes;
}

// Index of an element of a head in `merged`: avoids bank conflicts.
__device__ __forceinline__ u32 swizzled(u32 e) { return e ^ (e >> 5 & 1) << 2; }

// Writes key and value of the newest token to the cache. NARROW: two warps round them, and also write them to own and own_scales.
template <int WARPS>
__device__ __forceinline__ void write_newest(const Attention& args, u32 head, u32 slot, const Bits* key, const Bits* value,
                                             Cached (&own)[2][HEAD_SIZE], float (&own_scales)[2]) {
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u64 at = (slot * args.heads + head) * HEAD_SIZE;
  if (!NARROW) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < HEAD_SIZE; i += WARPS * WARP) {
      args.cache.keys[at + i] = key[i];
      args.cache.values[at + i] = value[i];
    }
  } else if (warp < 2) {
    float scale;
    u32 bytes = narrowed(warp == 0 ? key : value, scale);
    if (lane * 4 < HEAD_SIZE) {
      ((u32*)own[warp])[lane] = bytes;
      ((u32*)((warp == 0 ? args.cache.keys : args.cache.values) + at))[lane] = bytes;
    }
    if (lane == 0) {
      float* scales = warp == 0 ? args.cache.key_scales : args.cache.value_scales;
      own_scales[warp] = scales[scale_index(slot, args.heads, head)] = scale;
    }
  }
}

// Merges the results of a block's warps into part `part` of a row and KV head. The last block to end merges all `count` parts, in
// their order; the first one is at `first_part` in args.chunks.
template <int WARPS>
__device__ __forceinline__ void merge_warps(const Attention& args, u32 row, u32 head, u32 count, u32 part, u64 first_part,
                                            const float (&merged)[WARPS][GROUP_SIZE][PADDED_HEAD], const float (&warp_max)[WARPS][8],
                                            const float (&warp_total)[WARPS][8]) {
  __shared__ bool is_last;
  const int ENTRY = HEAD_SIZE + 2;
  Bits* output = args.output + ((u64)row * args.heads + head) * GROUP_SIZE * HEAD_SIZE;
#pragma unroll 1
  for (u32 i = threadIdx.x * 2; i < GROUP_SIZE * HEAD_SIZE; i += 2 * WARPS * WARP) {
    u32 q = i / HEAD_SIZE, e = i % HEAD_SIZE;
    float highest = LOWEST;
#pragma unroll
    for (int w = 0; w < WARPS; w++) highest = fmaxf(highest, warp_max[w][q]);
    float total = 0;
    float2 value = make_float2(0, 0);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      float factor = exp2f(warp_max[w][q] - highest);
      float2 of_warp = *(const float2*)&merged[w][q][swizzled(e)];
      total += warp_total[w][q] * factor;
      value.x += of_warp.x * factor;
      value.y += of_warp.y * factor;
    }
    if (count == 1) {
      *(u32*)&output[i] = pair(T::store(value.x / total), T::store(value.y / total));
    } else {
      float* entry = args.chunks + ((first_part + part) * GROUP_SIZE + q) * ENTRY;
      *(float2*)&entry[e] = value;
      if (e == 0) *(float2*)&entry[HEAD_SIZE] = make_float2(highest, total);
    }
  }
  if (count == 1) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    u32* chunks_ended = &args.chunks_ended[row * args.heads + head];
    __threadfence();
    is_last = atomicAdd(chunks_ended, 1) == count - 1;
    if (is_last) *chunks_ended = 0;
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
#pragma unroll 1
  for (u32 i = threadIdx.x * 2; i < GROUP_SIZE * HEAD_SIZE; i += 2 * WARPS * WARP) {
    u32 q = i / HEAD_SIZE, e = i % HEAD_SIZE;
    const float* entries = args.chunks + (first_part * GROUP_SIZE + q) * ENTRY;
    float highest = LOWEST, total = 0;
    float2 value = make_float2(0, 0);
#pragma unroll 4
    for (u32 c = 0; c < count; c++) {
      const float* entry = entries + (u64)c * GROUP_SIZE * ENTRY;
      float2 sums = __ldcg((const float2*)(entry + HEAD_SIZE)), weighted = __ldcg((const float2*)(entry + e));
      float next = fmaxf(highest, sums.x);
      float old = exp2f(highest - next), factor = exp2f(sums.x - next);
      highest = next;
      total = total * old + sums.y * factor;
      value.x = value.x * old + weighted.x * factor;
      value.y = value.y * old + weighted.y * factor;
    }
    *(u32*)&output[i] = pair(T::store(value.x / total), T::store(value.y / total));
  }
}

// LATE_VALUES: loads values after the scores. Needs fewer registers, so more blocks fit on an SM.
// CACHED: several rows are of one sequence, so decode_rotate_and_cache has rotated the queries and written the new keys and values.
template <bool LATE_VALUES, bool CACHED>
__device__ __forceinline__ void attend(const Attention& args, float scale) {
  static_assert(LATE_VALUES || !CACHED, "early values do not include the newest token");
  __shared__ __align__(16) Bits queries[GROUP_SIZE][HEAD_SIZE];
  __shared__ __align__(16) Bits own_key[HEAD_SIZE];
  __shared__ __align__(16) Cached own[2][HEAD_SIZE];  // NARROW: key and value of the newest token
  __shared__ float own_scales[2];
  __shared__ __align__(16) float merged[ATTENTION_WARPS][GROUP_SIZE][PADDED_HEAD];
  __shared__ float warp_max[ATTENTION_WARPS][8], warp_total[ATTENTION_WARPS][8];
  launch_dependents();
  u32 head = blockIdx.x, row = blockIdx.y, chunk = blockIdx.z;  // the last chunks, short or empty, start last
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 upper = lane / 4, within = lane % 4;
  // Step 1: load keys, and early values, of cached tokens while the primary kernel ends, unless that kernel writes some of these tokens.
  if (CACHED) wait_for_primary();
  int position = args.positions[row];
  u64 first_chunk = args.first_chunks[row];
  if (position < (int)(chunk * CHUNK)) {
    if (position < 0) wait_for_primary();  // dependents of this kernel rely on earlier kernels, too
    return;
  }
  u32 count = position / CHUNK + 1;
  first_chunk = first_chunk * args.heads + (u64)head * count;
  const Bits* qkv = args.qkv + (u64)row * args.heads * (GROUP_SIZE + 2) * HEAD_SIZE;
  const int* table = args.table + (u64)row * args.table_stride;
  auto slot_of = [&](int token) { return (u32)(table[token / BLOCK_TOKENS] + token % BLOCK_TOKENS); };
  auto cache_offset = [&](u32 slot) { return (slot * args.heads + head) * HEAD_SIZE; };
  u32 pitch = args.heads * HEAD_SIZE;  // elements between tokens of a cache block
  const Bits* new_key = qkv + (args.heads * GROUP_SIZE + head) * HEAD_SIZE;
  const Bits* new_value = qkv + (args.heads * (GROUP_SIZE + 1) + head) * HEAD_SIZE;
  const Cached* own_value = NARROW ? own[1] : (const Cached*)new_value;

  // Elements past the end are zeros.
  uint4 keys[2][KEY_STEPS], values[4][VALUE_STEPS];
  int first = chunk * CHUNK + warp * WARP_TOKENS;
  u32 slot = first <= position ? slot_of(first) : 0;
  u64 base = cache_offset(slot);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int token = first + half * 8 + upper;
    bool there = token < position || (CACHED && token == position);
    const Cached* key = args.cache.keys + base + (half * 8 + upper) * pitch;
#pragma unroll
    for (int step = 0; step < KEY_STEPS; step++) {
      u32 e = (step * 4 + within) * CACHED_PACK;
      keys[half][step] = there && e < HEAD_SIZE ? *(const uint4*)(key + e) : zeros();
    }
  }
  auto load_values = [&](int end) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int token = first + i / 2 * 8 + within * 2 + i % 2;
      bool there = token < end;
      const Cached* old_value = args.cache.values + base + (i / 2 * 8 + within * 2 + i % 2) * pitch;
      const Cached* value = !CACHED && token == position ? own_value : old_value;
#pragma unroll
      for (int step = 0; step < VALUE_STEPS; step++) {
        u32 e = (step * 8 + upper) * CACHED_PACK;
        values[i][step] = there && e < HEAD_SIZE ? *(const uint4*)(value + e) : zeros();
      }
    }
  };
  if (!LATE_VALUES) load_values(position);
  // NARROW: a lane has the scale of the key of token `lane`, or of the value of token `lane` - WARP_TOKENS.
  float token_scale = 0;
  if (NARROW) {
    const float* scales = lane < WARP_TOKENS ? args.cache.key_scales : args.cache.value_scales;
    token_scale = scales[scale_index(slot, args.heads, head) + lane % WARP_TOKENS];
  }
  // Step 2: rotate the queries; the block with the newest token also rotates its key and writes key and value to the cache.
  if (!CACHED) wait_for_primary();
  const float* cosines = args.cosines + (u64)position * (HEAD_SIZE / 2);
  const float* sines = args.sines + (u64)position * (HEAD_SIZE / 2);
#pragma unroll 1
  for (u32 i = threadIdx.x; i < GROUP_SIZE * HEAD_SIZE / 2; i += ATTENTION_WARPS * WARP) {
    u32 q = i / (HEAD_SIZE / 2);
    const Bits* query = qkv + (head * GROUP_SIZE + q) * HEAD_SIZE;
    u32 e = i % (HEAD_SIZE / 2);
    if (CACHED) {
      queries[q][e] = query[e];
      queries[q][e + HEAD_SIZE / 2] = query[e + HEAD_SIZE / 2];
    } else {
      rotate(queries[q], query, e, cosines, sines);
    }
  }
  bool newest = !CACHED && chunk == count - 1;
#pragma unroll 1
  for (u32 i = threadIdx.x; newest && i < HEAD_SIZE / 2; i += ATTENTION_WARPS * WARP) rotate(own_key, new_key, i, cosines, sines);
  __syncthreads();
  if (newest) write_newest<ATTENTION_WARPS>(args, head, slot_of(position), own_key, new_value, own, own_scales);
  if (NARROW) __syncthreads();
  if (newest) {
    if (NARROW && first + (int)lane % WARP_TOKENS == position) token_scale = own_scales[lane / WARP_TOKENS];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const Cached* key = NARROW ? own[0] : (const Cached*)own_key;
#pragma unroll
      for (int step = 0; step < KEY_STEPS; step++) {
        u32 e = (step * 4 + within) * CACHED_PACK;
        if (first + half * 8 + (int)upper == position && e < HEAD_SIZE) keys[half][step] = *(const uint4*)(key + e);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (first + i / 2 * 8 + (int)within * 2 + i % 2 != position) continue;
#pragma unroll
      for (int step = 0; !LATE_VALUES && step < VALUE_STEPS; step++) {
        u32 e = (step * 8 + upper) * CACHED_PACK;
        if (e < HEAD_SIZE) values[i][step] = *(const uint4*)(own_value + e);
      }
    }
  }

  // Step 3: scores = queries * keys.
  float scores[2][4] = {};
#pragma unroll
  for (int step = 0; step < KEY_STEPS; step++) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      u32 e = (step * 4 + within) * CACHED_PACK + part * PACK;
      uint4 query = upper < GROUP_SIZE && e < HEAD_SIZE ? *(const uint4*)&queries[upper < GROUP_SIZE ? upper : 0][e] : zeros();
#pragma unroll
      for (int half = 0; half < 2; half++) {
        uint4 key = widened(keys[half][step], part);
        mma(scores[half], query.x, 0, query.y, 0, key.x, key.y);
        mma(scores[half], query.z, 0, query.w, 0, key.z, key.w);
      }
    }
  }
  if (LATE_VALUES) load_values(position + 1);
  float largest_scale = 1;  // NARROW: of the warp's values; float16's range is too small for weights times scales
  if (NARROW) {
    int distance = position - first - (int)lane % WARP_TOKENS;
    if (distance < 0 || distance >= (int)args.window) token_scale = 0;  // may be of an earlier sequence
    if (!T::IS_BFLOAT16) {
      largest_scale = __uint_as_float(__reduce_max_sync(~0u, lane < WARP_TOKENS ? 0 : __float_as_uint(token_scale)));
      if (lane >= WARP_TOKENS && largest_scale > 0) token_scale /= largest_scale;
    }
  }
  // Step 4: softmax weights of the warp's tokens. A lane has the scores of query `upper` for the 4 tokens whose values it has.
  float max_score = LOWEST, sum = 0, weights[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int distance = position - (first + i / 2 * 8 + (int)within * 2 + i % 2);
    bool there = distance >= 0 && distance < (int)args.window;
    if (NARROW) scores[i / 2][i % 2] *= __shfl_sync(~0u, token_scale, i / 2 * 8 + within * 2 + i % 2);
    weights[i] = there ? scores[i / 2][i % 2] * scale : 2 * LOWEST;
    max_score = fmaxf(max_score, weights[i]);
  }
  max_score = fmaxf(max_score, __shfl_xor_sync(~0u, max_score, 1));
  max_score = fmaxf(max_score, __shfl_xor_sync(~0u, max_score, 2));
  // A weight is split into two 16-bit elements, since one has too few bits; the second is in the rows of the left operand that no
  // query uses.
  Bits large[4], small[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    weights[i] = exp2f(weights[i] - max_score);
    sum += weights[i];
    if (NARROW) weights[i] *= __shfl_sync(~0u, token_scale, WARP_TOKENS + i / 2 * 8 + within * 2 + i % 2);
    large[i] = T::store(weights[i]);
    small[i] = T::store(weights[i] - T::load(large[i]));
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (within == 0) {
    warp_max[warp][upper] = max_score;
    warp_total[warp][upper] = sum;
  }
  // Step 5: weights * values.
#pragma unroll
  for (int step = 0; step < VALUE_STEPS; step++) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      // Column c of product i is element i of a load of the lanes with `upper` = c.
      float weighted[2][PACK];
#pragma unroll
      for (int i = 0; i < PACK; i++) {
        float both[4] = {};
        int e = part * PACK + i;
        mma(both, pair(large[0], large[1]), pair(small[0], small[1]), pair(large[2], large[3]), pair(small[2], small[3]),
                 elements(values[0][step], values[1][step], e), elements(values[2][step], values[3][step], e));
        weighted[0][i] = (both[0] + both[2]) * largest_scale;
        weighted[1][i] = (both[1] + both[3]) * largest_scale;
      }
      if (upper < GROUP_SIZE) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
          u32 e = (step * 8 + within * 2 + k / 2) * CACHED_PACK + part * PACK + k % 2 * 4;
          const float* four = weighted[k / 2] + k % 2 * 4;
          if (e < HEAD_SIZE) *(float4*)&merged[warp][upper][swizzled(e)] = make_float4(four[0], four[1], four[2], four[3]);
        }
      }
    }
  }
  __syncthreads();
  merge_warps<ATTENTION_WARPS>(args, row, head, count, chunk, first_chunk, merged, warp_max, warp_total);
}

// Attention of many sequences: a block has a span of a sequence's tokens and one KV head. Its warps take turns at the tokens, and load
// the next ones while they compute. The second product is transposed: its left operand is the values, 16 elements of a head; its
// right operand the weights of up to 8 queries, with GROUP_SIZE up to 4 both elements of a weight side by side.
// `size`: tokens of a span, a multiple of CHUNK: a row has at most as many parts as chunks, for which args.chunks has room.
template <int SPAN_WARPS>
__device__ __forceinline__ void attend_span(const Attention& args, float scale, int size) {
  const bool PAIRED = GROUP_SIZE <= 4;
  __shared__ __align__(16) Bits queries[GROUP_SIZE][HEAD_SIZE];
  __shared__ __align__(16) Bits own_key[HEAD_SIZE];
  __shared__ __align__(16) Cached own[2][HEAD_SIZE];  // NARROW: key and value of the newest token
  __shared__ float own_scales[2];
  __shared__ __align__(16) float merged[SPAN_WARPS][GROUP_SIZE][PADDED_HEAD];
  __shared__ float warp_max[SPAN_WARPS][8], warp_total[SPAN_WARPS][8];
  launch_dependents();
  u32 head = blockIdx.x, row = blockIdx.y, span = blockIdx.z;
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 upper = lane / 4, within = lane % 4;
  // Step 1: load the first keys and values, unless the primary kernel writes some of them.
  int position = args.positions[row];
  u64 first_part = args.first_chunks[row];
  if (position < (int)span * size) {
    if (position < 0) wait_for_primary();  // dependents of this kernel rely on earlier kernels, too
    return;
  }
  u32 count = position / size + 1;
  first_part = first_part * args.heads + (u64)head * count;
  const Bits* qkv = args.qkv + (u64)row * args.heads * (GROUP_SIZE + 2) * HEAD_SIZE;
  const int* table = args.table + (u64)row * args.table_stride;
  auto slot_of = [&](int token) { return (u32)(table[token / BLOCK_TOKENS] + token % BLOCK_TOKENS); };
  u32 pitch = args.heads * HEAD_SIZE;  // elements between tokens of a cache block
  const Bits* new_key = qkv + (args.heads * GROUP_SIZE + head) * HEAD_SIZE;
  const Bits* new_value = qkv + (args.heads * (GROUP_SIZE + 1) + head) * HEAD_SIZE;
  int end = min(position + 1, (int)(span + 1) * size);

  // Elements past the end are zeros. NARROW: a lane has the scale of the key of token `lane`, or of the value of token
  // `lane` - WARP_TOKENS.
  uint4 keys[2][KEY_STEPS], values[4][VALUE_STEPS];
  float token_scale = 0, next_scale = 0;
  u64 base = 0;  // of the loaded tokens in the cache
  auto load_keys = [&](int first) {
    u32 slot = slot_of(first);
    base = (slot * args.heads + head) * HEAD_SIZE;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int token = first + half * 8 + upper;
      const Cached* key = args.cache.keys + base + (half * 8 + upper) * pitch;
      if (token == position) key = NARROW ? own[0] : (const Cached*)own_key;
#pragma unroll
      for (int step = 0; step < KEY_STEPS; step++) {
        u32 e = (step * 4 + within) * CACHED_PACK;
        keys[half][step] = token < end && e < HEAD_SIZE ? *(const uint4*)(key + e) : zeros();
      }
    }
    if (NARROW) {
      const float* scales = lane < WARP_TOKENS ? args.cache.key_scales : args.cache.value_scales;
      scales += scale_index(slot, args.heads, head) + lane % WARP_TOKENS;
      next_scale = *(first + (int)lane % WARP_TOKENS == position ? own_scales + lane / WARP_TOKENS : scales);
    }
  };
  auto load_values = [&](int first) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int t = i / 2 * 8 + within * 2 + i % 2;
      const Cached* value = args.cache.values + base + t * pitch;
      if (first + t == position) value = NARROW ? own[1] : (const Cached*)new_value;
#pragma unroll
      for (int step = 0; step < VALUE_STEPS; step++) {
        u32 e = (step * 8 + upper) * CACHED_PACK;
        values[i][step] = first + t < end && e < HEAD_SIZE ? *(const uint4*)(value + e) : zeros();
      }
    }
  };
  int first = span * size + warp * WARP_TOKENS;
  bool is_early = first + WARP_TOKENS <= position;
  if (first < end && is_early) {
    load_keys(first);
    load_values(first);
  }
  // Step 2: rotate the queries; the block with the newest token also rotates its key and writes key and value to the cache.
  wait_for_primary();
  const float* cosines = args.cosines + (u64)position * (HEAD_SIZE / 2);
  const float* sines = args.sines + (u64)position * (HEAD_SIZE / 2);
#pragma unroll 1
  for (u32 i = threadIdx.x; i < GROUP_SIZE * HEAD_SIZE / 2; i += SPAN_WARPS * WARP) {
    u32 q = i / (HEAD_SIZE / 2);
    rotate(queries[q], qkv + (head * GROUP_SIZE + q) * HEAD_SIZE, i % (HEAD_SIZE / 2), cosines, sines);
  }
  bool newest = span == count - 1;
#pragma unroll 1
  for (u32 i = threadIdx.x; newest && i < HEAD_SIZE / 2; i += SPAN_WARPS * WARP) rotate(own_key, new_key, i, cosines, sines);
  __syncthreads();
  if (newest) write_newest<SPAN_WARPS>(args, head, slot_of(position), own_key, new_value, own, own_scales);
  if (NARROW) __syncthreads();
  if (first < end && !is_early) {
    load_keys(first);
    load_values(first);
  }

  float sums[VALUE_STEPS][PARTS][4][4] = {};  // a lane has elements of the columns 2 within and 2 within + 1
  float highest = LOWEST, total = 0;          // of query `upper`
  // The unit of the sums: in float16, whose range is too small for weights times scales, the largest scale of a value.
  float unit = NARROW && !T::IS_BFLOAT16 ? 0 : 1;
#pragma unroll 1
  for (; first < end; first += SPAN_WARPS * WARP_TOKENS) {
    int next = first + SPAN_WARPS * WARP_TOKENS;
    token_scale = next_scale;
    // Step 3: scores = queries * keys.
    float scores[2][4] = {}, weights[4], most = highest, sum = 0;
#pragma unroll
    for (int step = 0; step < KEY_STEPS; step++) {
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        u32 e = (step * 4 + within) * CACHED_PACK + part * PACK;
        uint4 query = upper < GROUP_SIZE && e < HEAD_SIZE ? *(const uint4*)&queries[upper < GROUP_SIZE ? upper : 0][e] : zeros();
#pragma unroll
        for (int half = 0; half < 2; half++) {
          uint4 key = widened(keys[half][step], part);
          mma(scores[half], query.x, 0, query.y, 0, key.x, key.y);
          mma(scores[half], query.z, 0, query.w, 0, key.z, key.w);
        }
      }
    }
    if (next < end) load_keys(next);
    float ratio = 1;  // of the old unit to the new one
    if (NARROW) {
      int distance = position - first - (int)lane % WARP_TOKENS;
      if (distance < 0 || distance >= (int)args.window) token_scale = 0;  // may be of an earlier sequence
      if (!T::IS_BFLOAT16) {
        float largest = __uint_as_float(__reduce_max_sync(~0u, lane < WARP_TOKENS ? 0 : __float_as_uint(token_scale)));
        if (largest > unit) {
          ratio = unit / largest;
          unit = largest;
        }
        if (lane >= WARP_TOKENS && unit > 0) token_scale /= unit;
      }
    }
    // Step 4: softmax weights. A lane has the scores of query `upper` for the 4 tokens whose values it has.
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int t = i / 2 * 8 + within * 2 + i % 2, distance = position - first - t;
      bool there = distance >= 0 && distance < (int)args.window;
      if (NARROW) scores[i / 2][i % 2] *= __shfl_sync(~0u, token_scale, t);
      weights[i] = there ? scores[i / 2][i % 2] * scale : 2 * LOWEST;
      most = fmaxf(most, weights[i]);
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    Bits large[4], small[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      weights[i] = exp2f(weights[i] - most);
      sum += weights[i];
      if (NARROW) weights[i] *= __shfl_sync(~0u, token_scale, WARP_TOKENS + i / 2 * 8 + within * 2 + i % 2);
      large[i] = T::store(weights[i]);
      small[i] = T::store(weights[i] - T::load(large[i]));
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    float old = exp2f(highest - most);
    highest = most;
    total = total * old + sum;
    old *= ratio;
    // Step 5: sums = sums * old + values * weights.
    float olds[2];
    u32 right[2] = {pair(large[0], large[1]), pair(large[2], large[3])}, rest[2] = {pair(small[0], small[1]), pair(small[2], small[3])};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      olds[i] = __shfl_sync(~0u, old, (within * 2 + i) % (PAIRED ? 4 : 8) * 4);
      u32 of_other = __shfl_xor_sync(~0u, rest[i], 16);
      if (PAIRED && upper >= 4) right[i] = of_other;
    }
#pragma unroll
    for (int step = 0; step < VALUE_STEPS; step++) {
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float(&to)[4] = sums[step][part][i];
          u32 left[4];
#pragma unroll
          for (int k = 0; k < 4; k++) {
            to[k] *= olds[k % 2];
            left[k] = elements(values[k / 2 * 2][step], values[k / 2 * 2 + 1][step], part * PACK + k % 2 * 4 + i);
          }
          mma(to, left[0], left[1], left[2], left[3], right[0], right[1]);
          if (!PAIRED) mma(to, left[0], left[1], left[2], left[3], rest[0], rest[1]);
        }
      }
    }
    if (next < end) load_values(next);
  }
  // Step 6: merge the warps.
  if (within == 0) {
    warp_max[warp][upper] = highest;
    warp_total[warp][upper] = total;
  }
#pragma unroll
  for (int step = 0; step < VALUE_STEPS; step++) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float four[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          four[i] = sums[step][part][i][k] * unit;
          if (PAIRED) four[i] += __shfl_xor_sync(~0u, four[i], 2);
        }
        u32 q = within * 2 + k % 2, e = (step * 8 + upper) * CACHED_PACK + part * PACK + k / 2 * 4;
        if (q < GROUP_SIZE && e < HEAD_SIZE) *(float4*)&merged[warp][q][swizzled(e)] = make_float4(four[0], four[1], four[2], four[3]);
      }
    }
  }
  __syncthreads();
  merge_warps<SPAN_WARPS>(args, row, head, count, span, first_part, merged, warp_max, warp_total);
}

#define ATTENTION(name, late, cached, blocks)                                                                      \
  extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS* WARP, blocks)                                      \
      name(const __grid_constant__ Attention args, float scale) {                                                    \
    attend<late, cached>(args, scale);                                                                               \
  }

#if CACHE_BITS == 8  // values take half the registers: decode_attention loads them early for any number of blocks
ATTENTION(decode_attention, false, false, 4)
ATTENTION(decode_attention_cached, true, true, 3)
#else
ATTENTION(decode_attention, false, false, 2)
ATTENTION(decode_attention_late, true, false, 4)
ATTENTION(decode_attention_cached, true, true, 4)
#endif

#define SPANS(cache_bits, warps, blocks)                                                     \
  extern "C" __global__ void __launch_bounds__(warps* WARP, blocks)                          \
      decode_spans_##warps(const __grid_constant__ Attention args, float scale, int size) {  \
    attend_span<warps>(args, scale, size);                                                   \
  }

// Bits of the cache, warps of a thread block, blocks that an SM holds; DecoderKernels.java reads these lines.
#if CACHE_BITS == 8
SPANS(8, 4, 4)
SPANS(8, 8, 2)
#else
SPANS(16, 4, 3)
SPANS(16, 6, 2)
#endif

// Rotates the queries and keys of a row in place, and writes its keys and values to the cache. A thread has a pack of each half of a
// head, or a pack of a value; NARROW: a warp then has a head of keys or values.
__device__ __forceinline__ void rotate_and_cache(Bits* qkv, u64 queries, u64 heads, const Cache& cache, u64 slot,
                                                 const float* cosines, const float* sines) {
  const u32 PACKS = HEAD_SIZE / 2 / PACK;  // of half a head
  u64 size = heads * HEAD_SIZE;
  u32 first_key = queries, first_value = first_key + heads;
  for (u32 i = threadIdx.x; i < (first_value + (NARROW ? 0 : 2 * heads)) * PACKS; i += blockDim.x) {
    if (i >= first_value * PACKS) {
      u32 pack = i - first_value * PACKS;
      ((uint4*)(cache.values + slot * size))[pack] = ((const uint4*)(qkv + first_value * HEAD_SIZE))[pack];
      continue;
    }
    u32 head = i / PACKS, pack = i % PACKS;
    uint4* from = (uint4*)(qkv + head * HEAD_SIZE) + pack;
    Pack<T> first, second;
    first.vector = from[0];
    second.vector = from[PACKS];
#pragma unroll
    for (int e = 0; e < PACK; e += 4) {
      float4 cosine = *(const float4*)(cosines + pack * PACK + e), sine = *(const float4*)(sines + pack * PACK + e);
      rotate_elements(first.elements[e], second.elements[e], cosine.x, sine.x);
      rotate_elements(first.elements[e + 1], second.elements[e + 1], cosine.y, sine.y);
      rotate_elements(first.elements[e + 2], second.elements[e + 2], cosine.z, sine.z);
      rotate_elements(first.elements[e + 3], second.elements[e + 3], cosine.w, sine.w);
    }
    from[0] = first.vector;
    from[PACKS] = second.vector;
    if (!NARROW && head >= first_key) {
      uint4* key = (uint4*)(cache.keys + slot * size + (head - first_key) * HEAD_SIZE) + pack;
      key[0] = first.vector;
      key[PACKS] = second.vector;
    }
  }
  if (!NARROW) return;
  __syncthreads();
  u32 lane = threadIdx.x % WARP;
  for (u32 i = threadIdx.x / WARP; i < 2 * heads; i += blockDim.x / WARP) {
    bool is_key = i < heads;
    u64 head = is_key ? i : i - heads;
    float scale;
    u32 bytes = narrowed(qkv + (queries + i) * HEAD_SIZE, scale);
    if (lane * 4 < HEAD_SIZE) ((u32*)((is_key ? cache.keys : cache.values) + slot * size + head * HEAD_SIZE))[lane] = bytes;
    if (lane == 0) (is_key ? cache.key_scales : cache.value_scales)[scale_index(slot, heads, head)] = scale;
  }
}

// One block per row. Writes to qkv, which is const in the struct for decode_attention.
extern "C" __global__ void decode_rotate_and_cache(const __grid_constant__ Attention args) {
  launch_dependents();
  wait_for_primary();
  u64 row = blockIdx.x;
  int position = args.positions[row];
  if (position < 0) return;
  u64 slot = args.table[row * args.table_stride + position / BLOCK_TOKENS] + position % BLOCK_TOKENS;
  Bits* qkv = (Bits*)args.qkv + row * args.heads * (GROUP_SIZE + 2) * HEAD_SIZE;
  u64 angles = (u64)position * (HEAD_SIZE / 2);
  rotate_and_cache(qkv, args.heads * GROUP_SIZE, args.heads, args.cache, slot, args.cosines + angles, args.sines + angles);
}

#endif
