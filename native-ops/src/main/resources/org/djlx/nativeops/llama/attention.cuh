// Attention of new tokens to all before them and themselves, whose key is rotated and written to the cache with its value.
//
// A block has CHUNK tokens of a sequence and one head of keys and values (flash decoding: Dao and others, 2023); the last to
// end for a sequence and head puts the chunks together, in their order. A warp has 16 tokens. Its first product's left operand
// is the queries of all heads that share the keys, its second one's their shares: the tensor core's layout of what it returns is
// that of a left operand (FlashAttention-2: Dao, 2023). Right operands are loaded 16 bytes at a time; as in products, which
// element the tensor core takes them for is up to who loads both alike.
#pragma once
#include "llama/common.cuh"
#include "rotary.cuh"

#ifdef HAS_BFLOAT16

const int TOKENS = 16;  // of a warp
const int ATTENTION_WARPS = 8;
const int CHUNK = ATTENTION_WARPS * TOKENS;
const int KEY_STEPS = (HEAD + STEP - 1) / STEP;              // loads of a key by 4 lanes
const int VALUE_STEPS = (HEAD + 8 * PACK - 1) / (8 * PACK);  // loads of a value by 8 lanes
const int PADDED = HEAD + 8;                                 // so that lanes meet on few banks
static_assert(BLOCK % TOKENS == 0, "tokens of a warp lie side by side");

struct Attention {
  Bits* output;          // (rows, heads of keys * SHARING, HEAD)
  const Bits* qkv;       // (rows, heads of queries, of keys, of values, HEAD)
  Bits* keys;            // (rows of the cache, heads of keys, HEAD)
  Bits* values;
  const int* positions;  // of the new tokens; -1: none; written before the first kernel of a step begins, as the table is
  const int* table;      // (rows, table_stride): where in the cache each BLOCK of tokens begins
  const float* cosines;  // (positions, HEAD / 2)
  const float* sines;
  const int* first_chunks;  // of each row, how many chunks the rows before have
  float* chunks;         // (all chunks, heads of keys, SHARING, HEAD + 2), but a row's heads one after the other
  u32* ended;            // (rows, heads of keys): how many chunks have; 0 before and after
  u64 table_stride;
  u64 heads;             // of keys
};

__device__ __forceinline__ u32 pair(Bits first, Bits second) { return first | (u32)second << 16; }

// Turns a pair of elements of a head by an angle: one of its first half and one of its second.
__device__ __forceinline__ void turn(Bits& one, Bits& other, float cosine, float sine) {
  float first = T::load(one), second = T::load(other);
  rotate_pair<true>(first, second, cosine, sine);
  one = T::store(first);
  other = T::store(second);
}

__device__ __forceinline__ void rotate(Bits* to, const Bits* head, u32 i, const float* cosines, const float* sines) {
  Bits first = head[i], second = head[i + HEAD / 2];
  turn(first, second, cosines[i], sines[i]);
  to[i] = first;
  to[i + HEAD / 2] = second;
}

// Where an element of a head is among those of a warp in shared memory: so that lanes meet on few banks.
__device__ __forceinline__ u32 swizzled(u32 e) { return e ^ (e >> 5 & 1) << 2; }

// LATE: values are loaded behind the scores, which takes fewer registers, so that a multiprocessor has more blocks.
// PLACED: decode_rotate has rotated queries, and written keys and values to the cache, as several rows are of one sequence.
template <bool LATE, bool PLACED>
__device__ __forceinline__ void attend(const Attention& args, float scale) {
  static_assert(LATE || !PLACED, "values that are loaded early leave the newest to who has it");
  __shared__ __align__(16) Bits queries[SHARING][HEAD];
  __shared__ __align__(16) Bits own_key[HEAD];
  __shared__ __align__(16) float merged[ATTENTION_WARPS][SHARING][PADDED];
  __shared__ float most_of[ATTENTION_WARPS][8], sum_of[ATTENTION_WARPS][8];
  __shared__ bool is_last;
  launch_dependents();
  u32 head = blockIdx.x, row = blockIdx.y, chunk = blockIdx.z;  // the last chunks, which may be short or empty, begin last
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 upper = lane / 4, within = lane % 4;
  // Keys and values of earlier tokens are read while the kernel before ends, unless decode_rotate writes some of them.
  if (PLACED) wait_for_primary();
  int position = args.positions[row];
  u64 first_chunk = args.first_chunks[row];
  if (position < (int)(chunk * CHUNK)) {
    if (position < 0) wait_for_primary();  // who awaits this kernel relies on those before, too
    return;
  }
  u32 count = position / CHUNK + 1;
  first_chunk = first_chunk * args.heads + (u64)head * count;
  const Bits* qkv = args.qkv + (u64)row * args.heads * (SHARING + 2) * HEAD;
  const int* table = args.table + (u64)row * args.table_stride;
  auto place = [&](int token) { return ((u64)(table[token / BLOCK] + token % BLOCK) * args.heads + head) * HEAD; };
  u32 pitch = args.heads * HEAD;  // from a token to the next of its block
  const Bits* new_key = qkv + (args.heads * SHARING + head) * HEAD;
  const Bits* new_value = qkv + (args.heads * (SHARING + 1) + head) * HEAD;

  // What is not there reads as zeros.
  uint4 keys[2][KEY_STEPS], values[4][VALUE_STEPS];
  int first = chunk * CHUNK + warp * TOKENS;
  u64 base = first <= position ? place(first) : 0;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int token = first + half * 8 + upper;
    bool there = token < position || (PLACED && token == position);
    const Bits* key = args.keys + base + (half * 8 + upper) * pitch;
#pragma unroll
    for (int step = 0; step < KEY_STEPS; step++) {
      u32 e = step * STEP + within * PACK;
      keys[half][step] = there && e < HEAD ? *(const uint4*)(key + e) : zeros();
    }
  }
  auto load_values = [&](int end) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int token = first + i / 2 * 8 + within * 2 + i % 2;
      bool there = token < end;
      const Bits* value = !PLACED && token == position ? new_value : args.values + base + (i / 2 * 8 + within * 2 + i % 2) * pitch;
#pragma unroll
      for (int step = 0; step < VALUE_STEPS; step++) {
        u32 e = (step * 8 + upper) * PACK;
        values[i][step] = there && e < HEAD ? *(const uint4*)(value + e) : zeros();
      }
    }
  };
  if (!LATE) load_values(position);
  if (!PLACED) wait_for_primary();
  const float* cosines = args.cosines + (u64)position * (HEAD / 2);
  const float* sines = args.sines + (u64)position * (HEAD / 2);
#pragma unroll 1
  for (u32 i = threadIdx.x; i < SHARING * HEAD / 2; i += ATTENTION_WARPS * WARP) {
    u32 q = i / (HEAD / 2);
    const Bits* query = qkv + (head * SHARING + q) * HEAD;
    u32 e = i % (HEAD / 2);
    if (PLACED) {
      queries[q][e] = query[e];
      queries[q][e + HEAD / 2] = query[e + HEAD / 2];
    } else {
      rotate(queries[q], query, e, cosines, sines);
    }
  }
  bool newest = !PLACED && chunk == count - 1;
#pragma unroll 1
  for (u32 i = threadIdx.x; newest && i < HEAD / 2; i += ATTENTION_WARPS * WARP) rotate(own_key, new_key, i, cosines, sines);
  __syncthreads();
  if (newest) {
    u64 at = place(position);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < HEAD; i += ATTENTION_WARPS * WARP) {
      args.keys[at + i] = own_key[i];
      args.values[at + i] = new_value[i];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int step = 0; step < KEY_STEPS; step++) {
        u32 e = step * STEP + within * PACK;
        if (first + half * 8 + (int)upper == position && e < HEAD) keys[half][step] = *(const uint4*)&own_key[e];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int step = 0; step < VALUE_STEPS; step++) {
        u32 e = (step * 8 + upper) * PACK;
        bool own = !LATE && first + i / 2 * 8 + (int)within * 2 + i % 2 == position;
        if (own && e < HEAD) values[i][step] = *(const uint4*)(new_value + e);
      }
    }
  }

  float scores[2][4] = {};
#pragma unroll
  for (int step = 0; step < KEY_STEPS; step++) {
    u32 e = step * STEP + within * PACK;
    uint4 query = upper < SHARING && e < HEAD ? *(const uint4*)&queries[upper < SHARING ? upper : 0][e] : zeros();
#pragma unroll
    for (int half = 0; half < 2; half++) {
      multiply(scores[half], query.x, 0, query.y, 0, keys[half][step].x, keys[half][step].y);
      multiply(scores[half], query.z, 0, query.w, 0, keys[half][step].z, keys[half][step].w);
    }
  }
  if (LATE) load_values(position + 1);
  // A lane has the scores of the query `upper` for 4 tokens: the same whose values it has.
  float most = LEAST, sum = 0, share[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    bool there = first + i / 2 * 8 + (int)within * 2 + i % 2 <= position;
    share[i] = there ? scores[i / 2][i % 2] * scale : 2 * LEAST;
    most = fmaxf(most, share[i]);
  }
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
  // A share is the sum of two elements, as one has too few bits; the second one is in the rows of the left operand that no query
  // has.
  Bits large[4], small[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    share[i] = exp2f(share[i] - most);
    sum += share[i];
    large[i] = T::store(share[i]);
    small[i] = T::store(share[i] - T::load(large[i]));
  }
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (within == 0) {
    most_of[warp][upper] = most;
    sum_of[warp][upper] = sum;
  }
#pragma unroll
  for (int step = 0; step < VALUE_STEPS; step++) {
    // Column c of product i is element i of the packs that lanes with `upper` = c have.
    float weighted[2][PACK];
    Pack<T> parts[4];
#pragma unroll
    for (int i = 0; i < 4; i++) parts[i].vector = values[i][step];
#pragma unroll
    for (int i = 0; i < PACK; i++) {
      float both[4] = {};
      multiply(both, pair(large[0], large[1]), pair(small[0], small[1]), pair(large[2], large[3]), pair(small[2], small[3]),
               pair(parts[0].elements[i], parts[1].elements[i]), pair(parts[2].elements[i], parts[3].elements[i]));
      weighted[0][i] = both[0] + both[2];
      weighted[1][i] = both[1] + both[3];
    }
    if (upper < SHARING) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        u32 e = (step * 8 + within * 2) * PACK + k * 4;
        const float* four = weighted[k / 2] + k % 2 * 4;
        if (e < HEAD) *(float4*)&merged[warp][upper][swizzled(e)] = make_float4(four[0], four[1], four[2], four[3]);
      }
    }
  }
  __syncthreads();
  const int ENTRY = HEAD + 2;
  Bits* output = args.output + ((u64)row * args.heads + head) * SHARING * HEAD;
#pragma unroll 1
  for (u32 i = threadIdx.x * 2; i < SHARING * HEAD; i += 2 * ATTENTION_WARPS * WARP) {
    u32 q = i / HEAD, e = i % HEAD;
    float highest = LEAST;
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; w++) highest = fmaxf(highest, most_of[w][q]);
    float total = 0;
    float2 value = make_float2(0, 0);
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; w++) {
      float factor = exp2f(most_of[w][q] - highest);
      float2 its = *(const float2*)&merged[w][q][swizzled(e)];
      total += sum_of[w][q] * factor;
      value.x += its.x * factor;
      value.y += its.y * factor;
    }
    if (count == 1) {
      *(u32*)&output[i] = pair(T::store(value.x / total), T::store(value.y / total));
    } else {
      float* entry = args.chunks + ((first_chunk + chunk) * SHARING + q) * ENTRY;
      *(float2*)&entry[e] = value;
      if (e == 0) *(float2*)&entry[HEAD] = make_float2(highest, total);
    }
  }
  if (count == 1) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    u32* ended = &args.ended[row * args.heads + head];
    __threadfence();
    is_last = atomicAdd(ended, 1) == count - 1;
    if (is_last) *ended = 0;
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
#pragma unroll 1
  for (u32 i = threadIdx.x * 2; i < SHARING * HEAD; i += 2 * ATTENTION_WARPS * WARP) {
    u32 q = i / HEAD, e = i % HEAD;
    const float* entries = args.chunks + (first_chunk * SHARING + q) * ENTRY;
    float highest = LEAST, total = 0;
    float2 value = make_float2(0, 0);
#pragma unroll 4
    for (u32 c = 0; c < count; c++) {
      const float* entry = entries + (u64)c * SHARING * ENTRY;
      float2 its = __ldcg((const float2*)(entry + HEAD)), its_value = __ldcg((const float2*)(entry + e));
      float next = fmaxf(highest, its.x);
      float old = exp2f(highest - next), factor = exp2f(its.x - next);
      highest = next;
      total = total * old + its.y * factor;
      value.x = value.x * old + its_value.x * factor;
      value.y = value.y * old + its_value.y * factor;
    }
    *(u32*)&output[i] = pair(T::store(value.x / total), T::store(value.y / total));
  }
}

#define ATTENTION(name, late, placed, blocks)                                                                      \
  extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS* WARP, blocks)                                      \
      name(const __grid_constant__ Attention args, float scale) {                                                    \
    attend<late, placed>(args, scale);                                                                               \
  }

ATTENTION(decode_attention, false, false, 2)
ATTENTION(decode_attention_late, true, false, 4)
ATTENTION(decode_attention_placed, true, true, 4)

// Rotates queries and keys of a row in place, and writes its keys and values to the cache. A thread has packs of both halves of
// a head, or one of a value.
__device__ __forceinline__ void place_row(Bits* qkv, u64 queries, u64 heads, Bits* keys, Bits* values, u64 place,
                                          const float* cosines, const float* sines) {
  const u32 PACKS = HEAD / 2 / PACK;  // of half a head
  u64 size = heads * HEAD;
  u32 first_key = queries, first_value = first_key + heads;
  for (u32 i = threadIdx.x; i < (first_value + 2 * heads) * PACKS; i += blockDim.x) {
    if (i >= first_value * PACKS) {
      u32 pack = i - first_value * PACKS;
      ((uint4*)(values + place * size))[pack] = ((const uint4*)(qkv + first_value * HEAD))[pack];
      continue;
    }
    u32 head = i / PACKS, pack = i % PACKS;
    uint4* from = (uint4*)(qkv + head * HEAD) + pack;
    Pack<T> first, second;
    first.vector = from[0];
    second.vector = from[PACKS];
#pragma unroll
    for (int e = 0; e < PACK; e += 4) {
      float4 cosine = *(const float4*)(cosines + pack * PACK + e), sine = *(const float4*)(sines + pack * PACK + e);
      turn(first.elements[e], second.elements[e], cosine.x, sine.x);
      turn(first.elements[e + 1], second.elements[e + 1], cosine.y, sine.y);
      turn(first.elements[e + 2], second.elements[e + 2], cosine.z, sine.z);
      turn(first.elements[e + 3], second.elements[e + 3], cosine.w, sine.w);
    }
    from[0] = first.vector;
    from[PACKS] = second.vector;
    if (head >= first_key) {
      uint4* key = (uint4*)(keys + place * size + (head - first_key) * HEAD) + pack;
      key[0] = first.vector;
      key[PACKS] = second.vector;
    }
  }
}

// A block has a row. The queries that it writes are const in the struct, for decode_attention's sake.
extern "C" __global__ void decode_rotate(const __grid_constant__ Attention args) {
  launch_dependents();
  wait_for_primary();
  u64 row = blockIdx.x;
  int position = args.positions[row];
  if (position < 0) return;
  u64 place = args.table[row * args.table_stride + position / BLOCK] + position % BLOCK;
  place_row((Bits*)args.qkv + row * args.heads * (SHARING + 2) * HEAD, args.heads * SHARING, args.heads, args.keys, args.values, place,
            args.cosines + (u64)position * (HEAD / 2), args.sines + (u64)position * (HEAD / 2));
}

#endif
