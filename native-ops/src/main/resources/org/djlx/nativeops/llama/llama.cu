// What a rank of a Llama computes beside large products. For a step of decoding, in which each sequence of a batch has a new token:
// the embedding, products of few rows with the weights, attention to the cached keys and values, and what is chosen from the scores.
// For a prompt: rotations, the activation of the MLP. The all-reduce and the norm behind the attention and the MLP are
// all_reduce_rms_norm.cu's.
//
// All of it is bound by how fast memory is read. Kernels of decoding may be launched while the one before still runs (see
// let_others_begin): products then read their first weights, which nobody writes.
//
// Compiled with
//   TYPE      Float16 or Bfloat16, of weights, cache and what is computed
//   HEAD      the size of a head: a multiple of 16 up to 128
//   SHARING   how many heads of queries share one of keys and values
//   BLOCK     how many tokens lie side by side in the cache, from where the table says; divides CHUNK
//   ROOM      the most bytes of shared memory that a block may have
// Needs compute capability 8.0.
#include "element.cuh"

#ifndef TYPE
#define TYPE Bfloat16
#endif
#ifndef HEAD
#define HEAD 128
#endif
#ifndef SHARING
#define SHARING 4
#endif
#ifndef BLOCK
#define BLOCK 16
#endif
#ifndef ROOM
#define ROOM 232448
#endif

#ifdef HAS_BFLOAT16

typedef TYPE T;
typedef T::Bits Bits;

const int WARP = 32;
const int PACK = Pack<T>::COUNT;

// Copies 16 bytes to shared memory, or zeros. Weights, which are read once, bring what lies beside them to the second cache.
template <bool ONCE>
__device__ __forceinline__ void copy_pack(u32 to, const Bits* from, bool there) {
  if (ONCE) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
  }
}

__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for the thread's own copies, but those of the last PENDING groups.
template <int PENDING>
__device__ __forceinline__ void await_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ uint4 zeros() { return make_uint4(0, 0, 0, 0); }

// ---------------------------------------------------------------------------------------------------------------------------
// What a step begins with: the embedding of each row's token, or zeros where it is another rank's, or there is none.

// A row's token may be known to the GPU alone, which has chosen it in the step before.
const int CHOSEN = -2;

struct Embedding {
  Bits* output;           // (rows, hidden)
  const int* tokens;      // of each row; -1: none; CHOSEN: what was chosen last for its sequence
  const int* places;      // of each row, where that is
  const int* chosen;
  const Bits* embedding;  // (count, hidden): this rank's tokens, from `first` on
  u64 first;
  u64 count;
  u64 hidden;
};

// A block has a row.
extern "C" __global__ void decode_embed(const __grid_constant__ Embedding of) {
  let_others_begin();
  await_others();
  int token = of.tokens[blockIdx.x];
  if (token == CHOSEN) token = of.chosen[of.places[blockIdx.x]];
  bool here = token >= 0 && token >= of.first && token - of.first < of.count;
  const Bits* row = of.embedding + (here ? token - of.first : 0) * of.hidden;
  for (u64 i = threadIdx.x; i * PACK < of.hidden; i += blockDim.x) {
    store_pack<T>(of.output + blockIdx.x * of.hidden, of.hidden, i, here ? load_pack<T>(row, of.hidden, i) : zeros());
  }
}

// ---------------------------------------------------------------------------------------------------------------------------
// Products of few rows: output[b][n] = sum over k of x[b][k] * weight[n][k], in float32, rounded once.
//
// The weight is the left operand of the tensor core's products, 16 of its rows (a stripe) at a time, and 8 rows of x (a tile) are
// the right one. A warp's lanes load 16 bytes each, which are next to each other in k, and both operands' alike: which k the tensor
// core takes them for does not matter to a sum. So a lane needs nothing but what it has copied itself: shared memory is a place for
// what is on its way, and no thread waits for another until the end. The warps of a block divide k, and their sums are added in the
// order of warps. What a row of x gets depends neither on the other rows nor on their number.
//
// Shared memory, for each warp: STAGES of a load each, which take turns: 16 bytes of each lane for the upper and lower half of each
// stripe, then for each tile. At the end, sums: 16 bytes of each lane for each stripe and tile.

struct Product {
  Bits* output;        // rows at a distance of `stride`
  const Bits* x;       // (batch, depth)
  const Bits* weight;  // (width, depth); gated, that of gates and behind it that of values
  u64 batch;
  u64 width;   // of the output
  u64 depth;   // a multiple of 8
  u64 stride;
  u64 gated;   // 1: output = silu(x gates) * (x values), so that 8 columns come from a stripe instead of 16; or 0
};

const int PRODUCT_WARPS = 8;
const int STEP = 4 * PACK;           // in k, of a load: 4 lanes a row
const int TURN = 2 * PRODUCT_WARPS;  // loads; warps take turns, of two each: a line of the second cache

__device__ __forceinline__ void multiply(float (&sum)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if (T::IS_BFLOAT16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// TILES of x, STRIPES of weights. Neither changes the order in which a sum is taken.
template <int TILES, int STRIPES, int STAGES>
__device__ __forceinline__ void product(const Product& of) {
  const int PACKS = 2 * STRIPES + TILES;  // of a lane in a stage
  const int STAGE = PACKS * WARP;
  static_assert(STRIPES * TILES <= STAGES * PACKS, "sums need more room than stages");
  extern __shared__ __align__(16) uint4 staged[];
  let_others_begin();
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 row = lane / 4;            // of both operands
  u32 within = lane % 4 * PACK;  // of a load
  u32 batch = of.batch, width = of.width, depth = of.depth;
  bool gated = of.gated;
  u32 columns = gated ? 8 : 16;  // of a stripe
  u32 column = blockIdx.x * STRIPES * columns + row;
  u32 lower = gated ? 0 : 8;  // the column of a stripe's lower half
  const Bits* weight = of.weight + (u64)column * depth;
  u64 to_lower = (u64)(gated ? width : 8) * depth, to_next = (u64)columns * depth;
  const Bits* x = of.x + (u64)row * depth;
  u32 own = warp * STAGES * STAGE + lane;
  u32 address = (u32)__cvta_generic_to_shared(staged + own);
  u32 loads = (depth + TURN * STEP - 1) / (TURN * STEP) * 2;
  auto k_of = [&](u32 load) { return (load / 2 * TURN + warp * 2 + load % 2) * STEP + within; };
  auto copy_weights = [&](u32 stage, u32 load) {
    u32 k = k_of(load);
    const Bits* from = weight + k;
#pragma unroll
    for (int stripe = 0; stripe < STRIPES; stripe++) {
      u32 c = column + stripe * columns, to = address + (stage + stripe * 2 * WARP) * 16;
      copy_pack<true>(to, from, k < depth && c < width);
      copy_pack<true>(to + WARP * 16, from + to_lower, k < depth && c + lower < width);
      from += to_next;
    }
  };
  auto is_x = [&](int tile, u32 k) { return tile * 8 + row < batch && k < depth; };
  auto copy_x = [&](u32 stage, u32 load) {
    u32 k = k_of(load);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      copy_pack<false>(address + (stage + (2 * STRIPES + tile) * WARP) * 16, x + (tile * 8 * depth + k), is_x(tile, k));
    }
  };

  // Weights of the first loads, a group each; then x, which others have written: of the first load directly, so that it waits for no
  // group behind its weights, of the others a group each.
#pragma unroll
  for (int load = 0; load < STAGES; load++) {
    if (load < loads) copy_weights(load * STAGE, load);
    end_group();
  }
  await_others();
  uint4 first[TILES];
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    u32 k = k_of(0);
    first[tile] = is_x(tile, k) ? *(const uint4*)(x + (tile * 8 * depth + k)) : zeros();
  }
#pragma unroll
  for (int load = 1; load < STAGES; load++) {
    if (load < loads) copy_x(load * STAGE, load);
    end_group();
  }
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) staged[own + (2 * STRIPES + tile) * WARP] = first[tile];
  await_groups<2 * STAGES - 2>();

  float sums[STRIPES][TILES][4] = {};
  u32 stage = 0;
#pragma unroll 1
  for (u32 load = 0; load < loads; load++) {
    if (load > 0) await_groups<STAGES - 1>();
    const uint4* from = staged + own + stage;
    uint4 right[TILES];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) right[tile] = from[(2 * STRIPES + tile) * WARP];
#pragma unroll
    for (int stripe = 0; stripe < STRIPES; stripe++) {
      uint4 upper = from[stripe * 2 * WARP], lower = from[(stripe * 2 + 1) * WARP];
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        multiply(sums[stripe][tile], upper.x, lower.x, upper.y, lower.y, right[tile].x, right[tile].y);
      }
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        multiply(sums[stripe][tile], upper.z, lower.z, upper.w, lower.w, right[tile].z, right[tile].w);
      }
    }
    // Products have taken what was in the stage.
    if (load + STAGES < loads) {
      copy_weights(stage, load + STAGES);
      copy_x(stage, load + STAGES);
    }
    end_group();
    stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
  }

  // Still each lane's own room, whose copies have all arrived.
#pragma unroll
  for (int stripe = 0; stripe < STRIPES; stripe++)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      const float* four = sums[stripe][tile];
      ((float4*)staged)[own + (stripe * TILES + tile) * WARP] = make_float4(four[0], four[1], four[2], four[3]);
    }
  __syncthreads();
  for (u32 part = warp; part < STRIPES * TILES; part += PRODUCT_WARPS) {
    float sum[4] = {};
#pragma unroll
    for (int w = 0; w < PRODUCT_WARPS; w++) {
      float4 four = ((const float4*)staged)[w * STAGES * STAGE + part * WARP + lane];
      sum[0] += four.x;
      sum[1] += four.y;
      sum[2] += four.z;
      sum[3] += four.w;
    }
    u32 n = column + part / TILES * columns, b = part % TILES * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (b + i >= batch || n >= width) continue;
      Bits* to = of.output + (b + i) * of.stride + n;
      if (gated) {
        *to = T::store(sum[i] / (1 + __expf(-sum[i])) * sum[i + 2]);
      } else {
        *to = T::store(sum[i]);
        if (n + 8 < width) to[8] = T::store(sum[i + 2]);
      }
    }
  }
}

// Fewer stages where there is no room. The host leaves alone kernels that have no room for two.
__host__ __device__ constexpr int stages(int tiles, int stripes, int most) {
  int fit = ROOM / (PRODUCT_WARPS * WARP * 16 * (2 * stripes + tiles));
  return fit < 2 ? 2 : fit < most ? fit : most;
}

#define PRODUCT(rows, stripes, most)                                                  \
  extern "C" __global__ void __launch_bounds__(PRODUCT_WARPS* WARP)                   \
      decode_product_##rows##_##stripes(const __grid_constant__ Product of) {         \
    product<rows / 8, stripes, stages(rows / 8, stripes, most)>(of);                  \
  }

// NOTES.md has what was measured. The host knows these numbers, and chooses by how many stripes there are; 64 rows have too many
// sums for 7 of a block.
PRODUCT(8, 7, 3)
PRODUCT(8, 2, 10)
PRODUCT(8, 1, 10)
PRODUCT(16, 7, 3)
PRODUCT(16, 2, 6)
PRODUCT(16, 1, 6)
PRODUCT(32, 7, 3)
PRODUCT(32, 2, 5)
PRODUCT(32, 1, 5)
PRODUCT(64, 4, 3)
PRODUCT(64, 2, 4)
PRODUCT(64, 1, 4)

// ---------------------------------------------------------------------------------------------------------------------------
// Attention of new tokens to all before them and themselves, whose key is rotated and written to the cache with its value.
//
// A block has CHUNK tokens of a sequence and one head of keys and values (flash decoding: Dao and others, 2023); the last to
// end for a sequence and head puts the chunks together, in their order. A warp has 16 tokens. Its first product's left operand
// is the queries of all heads that share the keys, its second one's their shares: the tensor core's layout of what it returns is
// that of a left operand (FlashAttention-2: Dao, 2023). Right operands are loaded 16 bytes at a time; as in products, which
// element the tensor core takes them for is up to who loads both alike.

const int TOKENS = 16;  // of a warp
const int ATTENTION_WARPS = 8;
const int CHUNK = ATTENTION_WARPS * TOKENS;
const int KEY_STEPS = (HEAD + STEP - 1) / STEP;              // loads of a key by 4 lanes
const int VALUE_STEPS = (HEAD + 8 * PACK - 1) / (8 * PACK);  // loads of a value by 8 lanes
const int PADDED = HEAD + 4;                                 // so that lanes meet on few banks
const float LEAST = -1e30f;                                  // a score that none is below

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

union Elements {
  uint4 all;
  Bits bits[PACK];
};

__device__ __forceinline__ u32 pair(Bits first, Bits second) { return first | (u32)second << 16; }

// Turns a pair of elements of a head by an angle: one of its first half and one of its second.
__device__ __forceinline__ void rotate(Bits* to, const Bits* head, u32 i, const float* cosines, const float* sines) {
  float first = T::load(head[i]), second = T::load(head[i + HEAD / 2]), cosine = cosines[i], sine = sines[i];
  to[i] = T::store(__fsub_rn(__fmul_rn(first, cosine), __fmul_rn(second, sine)));
  to[i + HEAD / 2] = T::store(__fadd_rn(__fmul_rn(second, cosine), __fmul_rn(first, sine)));
}

// LATE: values are loaded behind the scores, which takes fewer registers, so that a multiprocessor has more blocks.
// PLACED: decode_rotate has rotated queries, and written keys and values to the cache, as several rows are of one sequence.
template <bool LATE, bool PLACED>
__device__ __forceinline__ void attend(const Attention& of, float scale) {
  static_assert(LATE || !PLACED, "values that are loaded early leave the newest to who has it");
  __shared__ __align__(16) Bits queries[SHARING][HEAD];
  __shared__ __align__(16) Bits own_key[HEAD];
  __shared__ __align__(16) float merged[ATTENTION_WARPS][SHARING][PADDED];
  __shared__ float most_of[ATTENTION_WARPS][8], sum_of[ATTENTION_WARPS][8];
  __shared__ bool is_last;
  let_others_begin();
  u32 chunk = blockIdx.x, head = blockIdx.y, row = blockIdx.z;
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  u32 upper = lane / 4, within = lane % 4;
  // Keys and values of earlier tokens are read while the kernel before ends, unless decode_rotate writes some of them.
  if (PLACED) await_others();
  int position = of.positions[row];
  if (position < (int)(chunk * CHUNK)) {
    await_others();  // who awaits this kernel relies on those before, too
    return;
  }
  u32 count = position / CHUNK + 1;
  const Bits* qkv = of.qkv + (u64)row * of.heads * (SHARING + 2) * HEAD;
  const int* table = of.table + (u64)row * of.table_stride;
  auto place = [&](int token) { return ((u64)(table[token / BLOCK] + token % BLOCK) * of.heads + head) * HEAD; };
  const Bits* new_key = qkv + (of.heads * SHARING + head) * HEAD;
  const Bits* new_value = qkv + (of.heads * (SHARING + 1) + head) * HEAD;

  // What is not there reads as zeros.
  uint4 keys[2][KEY_STEPS], values[4][VALUE_STEPS];
  int first = chunk * CHUNK + warp * TOKENS;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    int token = first + half * 8 + upper;
    bool there = token < position || (PLACED && token == position);
    const Bits* key = of.keys + (there ? place(token) : 0);
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
      const Bits* value = !PLACED && token == position ? new_value : of.values + (there ? place(token) : 0);
#pragma unroll
      for (int step = 0; step < VALUE_STEPS; step++) {
        u32 e = (step * 8 + upper) * PACK;
        values[i][step] = there && e < HEAD ? *(const uint4*)(value + e) : zeros();
      }
    }
  };
  if (!LATE) load_values(position);
  if (!PLACED) await_others();
  const float* cosines = of.cosines + (u64)position * (HEAD / 2);
  const float* sines = of.sines + (u64)position * (HEAD / 2);
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
  for (u32 i = threadIdx.x; newest && i < HEAD / 2; i += ATTENTION_WARPS * WARP) rotate(own_key, new_key, i, cosines, sines);
  __syncthreads();
  if (newest) {
    u64 at = place(position);
    for (u32 i = threadIdx.x; i < HEAD; i += ATTENTION_WARPS * WARP) {
      of.keys[at + i] = own_key[i];
      of.values[at + i] = new_value[i];
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
    Elements parts[4];
#pragma unroll
    for (int i = 0; i < 4; i++) parts[i].all = values[i][step];
#pragma unroll
    for (int i = 0; i < PACK; i++) {
      float both[4] = {};
      multiply(both, pair(large[0], large[1]), pair(small[0], small[1]), pair(large[2], large[3]), pair(small[2], small[3]),
               pair(parts[0].bits[i], parts[1].bits[i]), pair(parts[2].bits[i], parts[3].bits[i]));
      weighted[0][i] = both[0] + both[2];
      weighted[1][i] = both[1] + both[3];
    }
    if (upper < SHARING) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        int k = j ^ within;  // lanes meet on few banks
        u32 e = (step * 8 + within * 2) * PACK + k * 4;
        float4 four = k == 0   ? make_float4(weighted[0][0], weighted[0][1], weighted[0][2], weighted[0][3])
                      : k == 1 ? make_float4(weighted[0][4], weighted[0][5], weighted[0][6], weighted[0][7])
                      : k == 2 ? make_float4(weighted[1][0], weighted[1][1], weighted[1][2], weighted[1][3])
                               : make_float4(weighted[1][4], weighted[1][5], weighted[1][6], weighted[1][7]);
        if (e < HEAD) *(float4*)&merged[warp][upper][e] = four;
      }
    }
  }
  __syncthreads();
  u64 first_chunk = (u64)of.first_chunks[row] * of.heads + (u64)head * count;
  const int ENTRY = HEAD + 2;
  Bits* output = of.output + ((u64)row * of.heads + head) * SHARING * HEAD;
  for (u32 i = threadIdx.x; i < SHARING * HEAD; i += ATTENTION_WARPS * WARP) {
    u32 q = i / HEAD, e = i % HEAD;
    float highest = LEAST;
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; w++) highest = fmaxf(highest, most_of[w][q]);
    float total = 0, value = 0;
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; w++) {
      float factor = exp2f(most_of[w][q] - highest);
      total += sum_of[w][q] * factor;
      value += merged[w][q][e] * factor;
    }
    if (count == 1) {
      output[i] = T::store(value / total);
    } else {
      float* entry = of.chunks + ((first_chunk + chunk) * SHARING + q) * ENTRY;
      entry[e] = value;
      if (e == 0) {
        entry[HEAD] = highest;
        entry[HEAD + 1] = total;
      }
    }
  }
  if (count == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    u32* ended = &of.ended[row * of.heads + head];
    is_last = atomicAdd(ended, 1) == count - 1;
    if (is_last) *ended = 0;
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
  for (u32 i = threadIdx.x; i < SHARING * HEAD; i += ATTENTION_WARPS * WARP) {
    u32 q = i / HEAD, e = i % HEAD;
    const float* entries = of.chunks + (first_chunk * SHARING + q) * ENTRY;
    float highest = LEAST, total = 0, value = 0;
#pragma unroll 4
    for (u32 c = 0; c < count; c++) {
      const float* entry = entries + (u64)c * SHARING * ENTRY;
      float its = __ldcg(entry + HEAD), its_sum = __ldcg(entry + HEAD + 1), its_value = __ldcg(entry + e);
      float next = fmaxf(highest, its);
      float old = exp2f(highest - next), factor = exp2f(its - next);
      highest = next;
      total = total * old + its_sum * factor;
      value = value * old + its_value * factor;
    }
    output[i] = T::store(value / total);
  }
}

#define ATTENTION(name, late, placed, blocks)                                                                      \
  extern "C" __global__ void __launch_bounds__(ATTENTION_WARPS* WARP, blocks)                                      \
      name(const __grid_constant__ Attention of, float scale) {                                                    \
    attend<late, placed>(of, scale);                                                                               \
  }

ATTENTION(decode_attention, false, false, 2)
ATTENTION(decode_attention_late, true, false, 4)
ATTENTION(decode_attention_placed, true, true, 4)

// Rotates queries and keys of a row in place, and writes its keys and values to the cache.
__device__ __forceinline__ void place_row(Bits* qkv, u64 heads, Bits* keys, Bits* values, u64 place, const float* cosines,
                                          const float* sines) {
  for (u32 i = threadIdx.x; i < heads * (SHARING + 1) * (HEAD / 2); i += blockDim.x) {
    Bits* head = qkv + i / (HEAD / 2) * HEAD;
    rotate(head, head, i % (HEAD / 2), cosines, sines);
  }
  __syncthreads();
  u64 size = heads * HEAD;
  for (u32 i = threadIdx.x; i < size / PACK; i += blockDim.x) {
    ((uint4*)(keys + place * size))[i] = ((const uint4*)(qkv + SHARING * size))[i];
    ((uint4*)(values + place * size))[i] = ((const uint4*)(qkv + (SHARING + 1) * size))[i];
  }
}

// A block has a row. The queries that it writes are const in the struct, for decode_attention's sake.
extern "C" __global__ void decode_rotate(const __grid_constant__ Attention of) {
  let_others_begin();
  await_others();
  u64 row = blockIdx.x;
  int position = of.positions[row];
  if (position < 0) return;
  u64 place = of.table[row * of.table_stride + position / BLOCK] + position % BLOCK;
  place_row((Bits*)of.qkv + row * of.heads * (SHARING + 2) * HEAD, of.heads, of.keys, of.values, place,
            of.cosines + (u64)position * (HEAD / 2), of.sines + (u64)position * (HEAD / 2));
}

// ---------------------------------------------------------------------------------------------------------------------------
// The highest score of each row, its first token, and the sum of all exponentials relative to it: first of this rank's tokens,
// then, when ranks have told each other, of all.

struct Best {
  float highest;
  float sum;
  float token;  // exact, as there are fewer than 2^24: an all-reduce with zeros gathers what ranks have
  float score;  // of the token, when it is chosen
};

const float NO_TOKEN = 1 << 30;

struct Scores {
  Best* best;          // of each row
  const Bits* scores;  // rows of `width`, at a distance of `stride`
  Best* parts;         // (rows, blocks of a row)
  u32* ended;          // of each row, how many blocks have; 0 before and after
  u64 first;           // the token of the first score
  u64 width;
  u64 stride;
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

extern "C" __global__ void __launch_bounds__(BEST_THREADS) decode_best(const __grid_constant__ Scores of) {
  let_others_begin();
  __shared__ Best bests[BEST_THREADS / WARP];
  await_others();
  u32 row = blockIdx.y;
  const Bits* scores = of.scores + row * of.stride;
  Best best = {LEAST, 0, NO_TOKEN, 0};
  for (u64 i = blockIdx.x * BEST_THREADS + threadIdx.x; i * PACK < of.width; i += BEST_BLOCKS * BEST_THREADS) {
    Elements elements;
    elements.all = load_pack<T>(scores, of.width, i);
    Best own = {LEAST, 0, NO_TOKEN, 0};
#pragma unroll
    for (int e = 0; e < PACK; e++) {
      float value = T::load(elements.bits[e]);
      if (i * PACK + e < of.width && value > own.highest) {
        own.highest = value;
        own.token = of.first + i * PACK + e;
      }
    }
#pragma unroll
    for (int e = 0; e < PACK; e++) {
      if (i * PACK + e < of.width) own.sum += __expf(T::load(elements.bits[e]) - own.highest);
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
    of.parts[row * BEST_BLOCKS + blockIdx.x] = best;
    __threadfence();
    last = atomicAdd(&of.ended[row], 1) == BEST_BLOCKS - 1;
    if (last) of.ended[row] = 0;
    __threadfence();
  }
  if (!__shfl_sync(~0u, last, 0)) return;
  best = Best{LEAST, 0, NO_TOKEN, 0};
  if (threadIdx.x < BEST_BLOCKS) {
    const Best* part = of.parts + row * BEST_BLOCKS + threadIdx.x;
    best = Best{__ldcg(&part->highest), __ldcg(&part->sum), __ldcg(&part->token), 0};
  }
  best = of_warp(best);
  if (threadIdx.x == 0) of.best[row] = best;
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
      Elements pack;
      pack.all = load_pack<T>(scores, width, i);
#pragma unroll
      for (int e = 0; e < PACK; e++) {
        u32 at = key(pack.bits[e]);
        if (i * PACK + e < width && at >= low) visit(i * PACK + e, pack.bits[e], at);
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
extern "C" __global__ void __launch_bounds__(CHOICE_THREADS) decode_choose(const __grid_constant__ Choice of) {
  __shared__ Drawing shared;
  u32 index = blockIdx.x;
  Best best = of.parts[index];
  for (u64 rank = 1; rank < of.ranks; rank++) best = joined(best, of.parts[rank * of.rows + index]);
  int place = of.places[index];
  const Draw& draw = of.draws[index];
  if (threadIdx.x == 0) {
    best.score = best.highest;
    of.best[index] = best;
    if (place >= 0) of.chosen[place] = (int)best.token;
  }
  if (draw.scale == 0 || place < 0 || !(best.sum > 0)) return;  // The sum is none if not all scores are numbers.
  u64 packs = (of.width + PACK - 1) / PACK;
  u32 packs_of_top = (packs + TOPS - 1) / TOPS;
  Row row = {of.scores + index * of.stride, of.width, packs, packs_of_top, best.highest, (float)draw.scale, shared};
  row.find_tops();
  auto weight = [&](Bits score) { return row.weight(score); };
  u32 least = 0;
  if (draw.top_k > 0 && draw.top_k < of.width) {
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
  of.best[index] = best;
  of.chosen[place] = (int)best.token;
}

// ---------------------------------------------------------------------------------------------------------------------------
// Of prompts.

struct Rotation {
  Bits* qkv;             // (rows, heads of queries, of keys, of values, HEAD); queries and keys are rotated in place
  Bits* keys;            // (rows of the cache, heads of keys, HEAD)
  Bits* values;
  const u64* places;     // of each row in the cache
  const u64* positions;  // of each row in its sequence
  const float* cosines;  // (positions, HEAD / 2)
  const float* sines;
  u64 heads;             // of keys
};

// A block has a row.
extern "C" __global__ void prompt_rotate(const __grid_constant__ Rotation of) {
  u64 row = blockIdx.x, position = of.positions[row];
  place_row(of.qkv + row * of.heads * (SHARING + 2) * HEAD, of.heads, of.keys, of.values, of.places[row],
            of.cosines + position * (HEAD / 2), of.sines + position * (HEAD / 2));
}

struct Activation {
  Bits* output;      // (rows, width)
  const Bits* both;  // (rows, gates and values of `width` each)
  u64 rows;
  u64 width;         // a multiple of 8
};

// output = silu(gates) * values
extern "C" __global__ void prompt_activate(const __grid_constant__ Activation of) {
  u64 packs = of.width / PACK;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < of.rows * packs; i += (u64)gridDim.x * blockDim.x) {
    const uint4* from = (const uint4*)of.both + i / packs * 2 * packs + i % packs;
    Elements gates, values;
    gates.all = from[0];
    values.all = from[packs];
#pragma unroll
    for (int e = 0; e < PACK; e++) {
      float gate = T::load(gates.bits[e]);
      gates.bits[e] = T::store(gate / (1 + __expf(-gate)) * T::load(values.bits[e]));
    }
    ((uint4*)of.output)[i] = gates.all;
  }
}

#endif
