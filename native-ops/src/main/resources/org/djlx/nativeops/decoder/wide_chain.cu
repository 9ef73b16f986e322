// A chain of matmuls of up to ROWS rows in e4m3 in one persistent kernel, for decode steps of one rank on Hopper GPUs. Between two
// matmuls, blocks add the parts of the product, scale it, add it to the residual or apply the activation, and round the next x to e4m3.
//
// A matmul multiplies x, the left operand of wgmma, by tiles of rows of the weight, the columns of the right operand. A k-block is 128
// columns of x and of the weight; it is summed by tensor cores, which keep few bits, scaled by the scales of x, and added in float32.
// So the bits of a row depend on the row and on the number of blocks alone.
//
// Tiles of up to 128 columns are divided between the blocks of `splits` parts of k, which exchange sums through memory and then
// finish some rows each. Tiles of more columns belong to one block.
//
// Warps of a block
//   CONSUMERS  four groups: each has 64 columns of a tile. Two groups have one k-block of a slot and two the next, if the tile is
//              not wider than 128
//   a producer copies weights into a ring of slots. It runs ahead into the next matmul, so memory is read while blocks wait
//   a producer copies x, a k-block at a time, into a second ring, when x is there
//   one        finds the factors of rows whose norm is not applied yet: the norm of x is x times the weight of the norm, times a factor
//
// Memory of x: tiles of a k-block. The rows have the 128-byte swizzle; behind ROWS rows are their scales in float32.
// Synchronisation: a barrier of all blocks before each matmul. Parts of products need none: they are absent (ABSENT) until they are
// written, and after they were read. All blocks must run at once, so the launch is cooperative.
//
// Compiled with
//   TYPE  Float16 or Bfloat16: of residuals, norms, biases and outputs
#include "decoder/grid.cuh"
#include "e4m3.cuh"
#include "hopper.cuh"
#include "rms_norm.cuh"

// What becomes of a product.
const int STORE = 0;     // output = product
const int ADD = 1;       // new_residual = residual + product; the next x is its norm
const int ACTIVATE = 2;  // the next x is silu(gates) * values

struct Link {
  TensorMap weight;     // (width, depth), with ACTIVATE (2 width, depth), gates then values; boxes of a k-block of the rows of a tile,
                        // with ACTIVATE of half of them
  const float* scales;  // of the weight's rows
  const Bits* bias;     // of the weight's rows; may be null
  u64 width;            // a multiple of 8
  u64 depth;
  u64 kind;
  u64 columns;  // of a tile: a multiple of 8 up to 256. ADD: K; ACTIVATE: 2 K, K gates and their values
  u64 splits;   // up to MAX_SPLITS; 1 if a tile has more than 128 columns
  u64 is_normed;  // 1: x is a residual times the weight of a norm, without the factor of the row
  Bits* output;   // STORE: (batch, width), rows `stride` apart
  u64 stride;
  const Bits* residual;  // ADD: (batch, width)
  Bits* new_residual;
  const Bits* norm_weight;  // (width)
};

const int MAX_LINKS = 4;

struct Chain {
  Link links[MAX_LINKS];
  u64 count;
  u64 batch;                // at most ROWS
  const Bits* input;        // (batch, depth of the first link): its x
  const Bits* norm_weight;  // null: x is the input. Otherwise x is the norm of the input
  char* x[2];               // of even and odd links
  float* squares;           // (tiles of x, ROWS): sums of squares of the residual
  float* parts;             // (blocks, ROWS, K); ABSENT before and after
  u32* arrivals;            // counter of the grid barrier; 0 before the first launch, and used by one stream only
  u64 epsilon;              // the bits of a float
};

const int ROWS = 64;
const int K = 128;  // of a k-block
const int GROUPS = 4;
const int GROUP_THREADS = CONSUMERS / GROUPS * WARP;
const int GROUP_COLUMNS = 64;
const int SUMS = GROUP_COLUMNS * ROWS / GROUP_THREADS;  // of a thread
const int THREADS = CONSUMERS * WARP;
const int MAX_SPLITS = 4;
const int SLOTS = 5;
const int SLOT_BYTES = GROUPS * GROUP_COLUMNS * K;
const int X_BYTES = ROWS * K;
const int X_TILE_BYTES = X_BYTES + ROWS * 4;
const int X_RING_BYTES = 7 * X_BYTES;
const int MAX_X_SLOTS = 16;
const int SHARED_BYTES = SLOTS * SLOT_BYTES + X_RING_BYTES;
static_assert(SHARED_BYTES <= 220 << 10, "the rest is for barriers, scales and factors");
const int MAX_UNDER_WAY = 2;  // slots of weights that are copied at a time; 1 while consumers wait
const u32 ABSENT = 0xffffffff;  // a NaN that no instruction computes

// Shared memory of a block. `running`: the link that consumers multiply, read by the producer of weights.
struct Shared {
  char* weights;
  char* x;  // after a matmul: exchange of sums between groups
  float (*x_scales)[ROWS];
  float* factors;
  Barrier *loaded, *emptied, *x_loaded, *x_emptied;
  Barrier* x_ready;  // of an item: x is in memory, and its ring is free
  Barrier* factors_ready;
  volatile int* running;
};

__device__ __forceinline__ u32 tile_columns(const Link& link) { return link.kind == ACTIVATE ? K : link.columns; }  // of the product
__device__ __forceinline__ u32 k_blocks_of(u64 depth) { return (depth + K - 1) / K; }
__device__ __forceinline__ u32 blocks_in_slot(const Link& link) { return link.columns > 2 * GROUP_COLUMNS ? 1 : 2; }

__device__ __forceinline__ u32 items_of(const Link& link) {
  u32 columns = tile_columns(link);
  return (link.width + columns - 1) / columns * link.splits;
}

// Calls item(tile, split, first k-block, end) for each item of this block.
template <typename Item>
__device__ __forceinline__ void for_items(const Link& link, Item item) {
  u32 splits = link.splits, k_blocks = k_blocks_of(link.depth);
#pragma unroll 1
  for (u32 i = blockIdx.x; i < items_of(link); i += gridDim.x) {
    u32 split = i % splits;
    item(i / splits, split, k_blocks * split / splits, k_blocks * (split + 1) / splits);
  }
}

// A slot of x has the rows that there are. wgmma reads ROWS rows, whatever follows.
__device__ __forceinline__ u32 x_slot_bytes(const Chain& args) { return (args.batch + 7) / 8 * 8 * K; }
__device__ __forceinline__ u32 x_slots(const Chain& args) { return min((X_RING_BYTES - X_BYTES) / x_slot_bytes(args) + 1, MAX_X_SLOTS); }

// The producer of weights. One thread calls it.
__device__ __forceinline__ void copy_weights(const Chain& args, const Shared& shared) {
  Stage next = {0, 0}, oldest = {0, 0};
  int under_way = 0;
#pragma unroll 1
  for (int i = 0; i < args.count; i++) {
    const Link& link = args.links[i];
    u32 in_slot = blocks_in_slot(link), bytes = link.columns * K;
    for_items(link, [&](u32 tile, u32 split, u32 begin, u32 end) {
#pragma unroll 1
      for (u32 k = begin; k < end; k += in_slot) {
        shared.emptied[next.index].wait(next.parity ^ 1);
        int limit = *shared.running < i ? 1 : MAX_UNDER_WAY;
        while (under_way >= limit) {
          shared.loaded[oldest.index].wait(oldest.parity);
          oldest.skip(1, SLOTS);
          under_way--;
        }
        under_way++;
        u32 count = min(in_slot, end - k), row = tile * tile_columns(link);
        Barrier& loaded = shared.loaded[next.index];
        loaded.arrive_expecting(count * bytes);
        char* to = shared.weights + next.index * SLOT_BYTES;
        for (u32 b = 0; b < count; b++) load_box_once(to + b * bytes, link.weight, loaded, (k + b) * K, row);
        if (link.kind == ACTIVATE) load_box_once(to + K * K, link.weight, loaded, k * K, (u32)link.width + row);
        next.skip(1, SLOTS);
      }
    });
  }
}

// The producer of x. One thread calls it.
__device__ __forceinline__ void copy_x(const Chain& args, const Shared& shared) {
  Stage next = {0, 0};
  u32 items = 0, bytes = x_slot_bytes(args), slots = x_slots(args);
#pragma unroll 1
  for (int i = 0; i < args.count; i++) {
    for_items(args.links[i], [&](u32 tile, u32 split, u32 begin, u32 end) {
      shared.x_ready->wait(items++ % 2);
      fence_async();
#pragma unroll 1
      for (u32 k = begin; k < end; k++) {
        shared.x_emptied[next.index].wait(next.parity ^ 1);
        Barrier& loaded = shared.x_loaded[next.index];
        const char* from = args.x[i % 2] + (u64)k * X_TILE_BYTES;
        loaded.arrive_expecting(bytes + ROWS * sizeof(float));
        load_bytes(shared.x + next.index * bytes, from, bytes, loaded);
        load_bytes(shared.x_scales[next.index], from + X_BYTES, ROWS * sizeof(float), loaded);
        next.skip(1, slots);
      }
    });
  }
}

// Finds the factors of rows, and fetches into the L2 cache what finishes a tile. One warp calls it; a lane has two rows.
__device__ __forceinline__ void find_factors(const Chain& args, const Shared& shared) {
  u32 lane = threadIdx.x % WARP, items = 0;
#pragma unroll 1
  for (int i = 0; i < args.count; i++) {
    const Link& link = args.links[i];
    bool is_found = !link.is_normed;
    for_items(link, [&](u32 tile, u32 split, u32 begin, u32 end) {
      shared.x_ready->wait(items++ % 2);
      u32 columns = tile_columns(link), first = tile * columns, bytes = min(columns, (u32)link.width - first) / 8 * 8 * sizeof(Bits);
      if (lane == 0) {
        prefetch_bytes(link.scales + first, bytes * 2);
        if (link.kind == ACTIVATE) prefetch_bytes(link.scales + link.width + first, bytes * 2);
        if (link.kind == ADD) prefetch_bytes(link.norm_weight + first, bytes);
      }
      if (is_found) return;
      is_found = true;
      float2 squares = make_float2(0, 0);
      u32 tiles = k_blocks_of(link.depth);
#pragma unroll 16
      for (u32 t = 0; t < tiles; t++) {
        float2 of_tile = __ldcg((const float2*)(args.squares + t * ROWS) + lane);
        squares.x += of_tile.x;
        squares.y += of_tile.y;
      }
      float epsilon = __uint_as_float((u32)args.epsilon);
      ((float2*)shared.factors)[lane] = make_float2(norm_scale(squares.x, link.depth, epsilon), norm_scale(squares.y, link.depth, epsilon));
      __syncwarp();
      if (lane == 0) shared.factors_ready->arrive();
    });
  }
}

__device__ __forceinline__ float4 floats(const uint2& four) {
  return make_float4(T::load((Bits)four.x), T::load((Bits)(four.x >> 16)), T::load((Bits)four.y), T::load((Bits)(four.y >> 16)));
}

// Rounds two floats to e4m3, the first to the lower byte.
__device__ __forceinline__ u32 two_e4m3(float first, float second) {
  u16 both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
  return both;
}

__device__ __forceinline__ u32 swizzled(u32 row, u32 column) { return row * K + (column ^ row % 8 * 16); }

// Stores a row of a tile of x, four columns a lane.
__device__ __forceinline__ void store_x(char* x, u32 row, u32 tile, float4 of) {
  u32 lane = threadIdx.x % WARP;
  char* to = x + (u64)tile * X_TILE_BYTES;
  u32 most = max(max(magnitude_bits(of.x), magnitude_bits(of.y)), max(magnitude_bits(of.z), magnitude_bits(of.w)));
  float largest = __uint_as_float(__reduce_max_sync(~0u, most)), inverse = largest > 0 ? 448 / largest : 0;
  if (lane == 0) ((float*)(to + X_BYTES))[row] = largest / 448;
  *(u32*)(to + swizzled(row, lane * 4)) = two_e4m3(of.x * inverse, of.y * inverse) | two_e4m3(of.z * inverse, of.w * inverse) << 16;
}

// Stores a row of a tile of the residual as x times the weight of a norm, and its sum of squares. There are `depth` columns.
__device__ __forceinline__ void store_normed(const Chain& args, char* x, const Bits* norm_weight, u32 depth, u32 row, u32 tile, float4 of) {
  u32 lane = threadIdx.x % WARP, column = tile * K + lane * 4;
  float squares = warp_sum(of.x * of.x + of.y * of.y + of.z * of.z + of.w * of.w);
  if (lane == 0) args.squares[tile * ROWS + row] = squares;
  float4 weight = column < depth ? floats(*(const uint2*)(norm_weight + column)) : make_float4(0, 0, 0, 0);
  store_x(x, row, tile, make_float4(of.x * weight.x, of.y * weight.y, of.z * weight.z, of.w * weight.w));
}

// Makes x of the first link.
__device__ __forceinline__ void make_x(const Chain& args) {
  u32 depth = args.links[0].depth, tiles = k_blocks_of(depth);
  for (u32 i = threadIdx.x / WARP * gridDim.x + blockIdx.x; i < args.batch * tiles; i += gridDim.x * CONSUMERS) {
    u32 row = i / tiles, tile = i % tiles, column = tile * K + threadIdx.x % WARP * 4;
    float4 of = column < depth ? floats(*(const uint2*)(args.input + (u64)row * depth + column)) : make_float4(0, 0, 0, 0);
    if (args.norm_weight) {
      store_normed(args, args.x[0], args.norm_weight, depth, row, tile, of);
    } else {
      store_x(args.x[0], row, tile, of);
    }
  }
}

// Stores and loads of parts. Their lines stay in the L2 cache while the KV cache is read.
__device__ __forceinline__ void store_part(float* to, float first, float second) {
  const u64 EVICT_LAST = 0x14f0000000000000;  // as createpolicy.fractional.L2::evict_last makes it
  asm volatile("st.global.L2::cache_hint.v2.f32 [%0], {%1, %2}, %3;" ::"l"(to), "f"(first), "f"(second), "l"(EVICT_LAST) : "memory");
}
__device__ __forceinline__ uint4 load_part(const float* from) {
  uint4 part;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(part.x), "=r"(part.y), "=r"(part.z), "=r"(part.w)
               : "l"(from));
  return part;
}
__device__ __forceinline__ bool is_absent(const uint4& part) {
  return part.x == ABSENT || part.y == ABSENT || part.z == ABSENT || part.w == ABSENT;
}

// Four columns of a row in all parts, for a lane that has columns. All lanes of a warp call the functions, so that it stays together.
struct Parts {
  float* first;  // the lane's columns in the first part
  u32 splits;    // 0: the lane has no columns
  uint4 parts[MAX_SPLITS];

  __device__ __forceinline__ float* address(int i) { return first + i * (ROWS * K); }
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < MAX_SPLITS; i++) parts[i] = i < splits ? load_part(address(i)) : zeros();
  }
  // Waits for absent parts, and makes all absent. Returns the sum in the order of the splits.
  __device__ __forceinline__ float4 take() {
    float4 sum = make_float4(0, 0, 0, 0);
    u64 begin = 0;
#pragma unroll
    for (int i = 0; i < MAX_SPLITS; i++) {
      while (__any_sync(~0u, is_absent(parts[i]))) {
        u64 now = global_time();
        if (begin == 0) begin = now;
        if (now - begin > DEADLINE) __trap();
        if (i < splits) parts[i] = load_part(address(i));
      }
      if (i < splits) __stcg((uint4*)address(i), make_uint4(ABSENT, ABSENT, ABSENT, ABSENT));
      sum.x += __uint_as_float(parts[i].x);
      sum.y += __uint_as_float(parts[i].y);
      sum.z += __uint_as_float(parts[i].z);
      sum.w += __uint_as_float(parts[i].w);
    }
    return sum;
  }
};

// Finishes rows of a tile whose blocks store their parts: adds them, and stores the output, or the residual and the next x. A warp has
// a row at a time.
__device__ __forceinline__ void finish(const Chain& args, const Link& link, char* next_x, u32 tile, u32 begin, u32 end) {
  u32 lane = threadIdx.x % WARP, within = lane * 4, width = link.width, splits = link.splits, column = tile * (u32)link.columns + within;
  bool is_there = within < link.columns && column < width;
#pragma unroll 1
  for (u32 row = begin + threadIdx.x / WARP; row < end; row += CONSUMERS) {
    Parts parts = {args.parts + ((u64)tile * splits * ROWS + row) * K + within, within < link.columns ? splits : 0};
    parts.load();
    float4 total = make_float4(0, 0, 0, 0), scales = total, bias = total;
    if (link.kind == ADD && is_there) total = floats(__ldcg((const uint2*)(link.residual + (u64)row * width + column)));
    if (is_there) scales = *(const float4*)(link.scales + column);
    if (is_there && link.bias) bias = floats(*(const uint2*)(link.bias + column));
    float4 sum = parts.take();
    total.x += sum.x * scales.x + bias.x;
    total.y += sum.y * scales.y + bias.y;
    total.z += sum.z * scales.z + bias.z;
    total.w += sum.w * scales.w + bias.w;
    uint2 rounded = make_uint2(pack(T(), total.x, total.y), pack(T(), total.z, total.w));
    Bits* to = link.kind == STORE ? link.output + row * link.stride : link.new_residual + (u64)row * width;
    if (is_there) *(uint2*)(to + column) = rounded;
    if (link.kind == ADD) store_normed(args, next_x, link.norm_weight, width, row, tile, floats(rounded));
  }
}

// Sums of a thread: elements i and i + 1 are of columns 2 (lane % 4) and the next one of each eight; of row lane / 4, or 8 more if
// i % 4 is 2.
__device__ __forceinline__ int row_of_sum(int i) { return i % 4 / 2; }
__device__ __forceinline__ int column_of_sum(int i) { return i / 4 * 8 + i % 2; }

// Applies the factors of rows, and the scales and biases of the `count` columns there are, to sums; zeros for other columns.
__device__ __forceinline__ void scale(const Link& link, float (&sums)[SUMS], const float (&factors)[2], u32 weight_row, int count) {
  float2 scales[SUMS / 4];
#pragma unroll
  for (int i = 0; i < SUMS / 4; i++) scales[i] = i * 8 < count ? *(const float2*)(link.scales + weight_row + i * 8) : make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < SUMS; i++) {
    bool is_there = column_of_sum(i) < count;
    float bias = is_there && link.bias ? T::load(link.bias[weight_row + column_of_sum(i)]) : 0;
    sums[i] = is_there ? sums[i] * factors[row_of_sum(i)] * (i % 2 ? scales[i / 4].y : scales[i / 4].x) + bias : 0;
  }
}

// Makes a tile of the next x of a tile of gates and values: groups 0 and 1 have the scaled sums of the gates, 2 and 3 those of their
// values.
__device__ __forceinline__ void activate(const Shared& shared, char* next_x, u32 tile, float (&sums)[SUMS]) {
  struct Exchange {
    float values[GROUPS / 2][SUMS][GROUP_THREADS];
    char x[X_TILE_BYTES];
    float largest[2][ROWS];  // magnitudes, of the columns of a group
  };
  static_assert(sizeof(Exchange) <= X_RING_BYTES, "sums are exchanged where x was");
  Exchange& exchange = *(Exchange*)shared.x;
  u32 group = threadIdx.x / GROUP_THREADS, thread = threadIdx.x % GROUP_THREADS, lane = threadIdx.x % WARP;
  u32 row = thread / WARP * 16 + lane / 4;
  if (group >= 2) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) exchange.values[group - 2][i][thread] = sums[i];
  }
  consumers_barrier();
  if (group < 2) {
    u32 most[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
      sums[i] = __fdividef(sums[i], 1 + __expf(-sums[i])) * exchange.values[group][i][thread];
      most[row_of_sum(i)] = max(most[row_of_sum(i)], magnitude_bits(sums[i]));
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      most[r] = max(most[r], __shfl_xor_sync(~0u, most[r], 1));
      most[r] = max(most[r], __shfl_xor_sync(~0u, most[r], 2));
      if (lane % 4 == 0) exchange.largest[group][row + r * 8] = __uint_as_float(most[r]);
    }
  }
  consumers_barrier();
  if (group < 2) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      u32 most = max(__float_as_uint(exchange.largest[0][row + r * 8]), __float_as_uint(exchange.largest[1][row + r * 8]));
      float largest = __uint_as_float(most), inverse = largest > 0 ? 448 / largest : 0;
      if (group == 0 && lane % 4 == 0) ((float*)(exchange.x + X_BYTES))[row + r * 8] = largest / 448;
#pragma unroll
      for (int i = r * 2; i < SUMS; i += 4) {
        u32 column = group * GROUP_COLUMNS + lane % 4 * 2 + column_of_sum(i);
        *(u16*)(exchange.x + swizzled(row + r * 8, column)) = two_e4m3(sums[i] * inverse, sums[i + 1] * inverse);
      }
    }
  }
  consumers_barrier();
  uint4* to = (uint4*)(next_x + (u64)tile * X_TILE_BYTES);
  for (u32 i = threadIdx.x; i < X_TILE_BYTES / 16; i += THREADS) to[i] = ((const uint4*)exchange.x)[i];
}

// Stores this block's part of a tile. Groups 0 and 2, and 1 and 3, have sums of the same columns; each stores half of them.
__device__ __forceinline__ void store_parts(const Chain& args, const Link& link, const Shared& shared, const float (&sums)[SUMS],
                                            const float (&factors)[2]) {
  const int HALF = SUMS / 2;
  float(*halves)[HALF][GROUP_THREADS] = (float(*)[HALF][GROUP_THREADS])shared.x;
  u32 group = threadIdx.x / GROUP_THREADS, thread = threadIdx.x % GROUP_THREADS, lane = threadIdx.x % WARP;
  bool is_upper = group >= 2;
#pragma unroll
  for (int i = 0; i < HALF; i++) halves[group][i][thread] = is_upper ? sums[i] : sums[HALF + i];
  consumers_barrier();
  u32 first = group % 2 * GROUP_COLUMNS + (is_upper ? GROUP_COLUMNS / 2 : 0), row = thread / WARP * 16 + lane / 4;
  float* to = args.parts + (u64)blockIdx.x * (ROWS * K) + first + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < HALF; i += 2) {
    u32 r = row + row_of_sum(i) * 8;
    float factor = factors[row_of_sum(i)];
    float one = (is_upper ? sums[HALF + i] : sums[i]) + halves[group ^ 2][i][thread];
    float other = (is_upper ? sums[HALF + i + 1] : sums[i + 1]) + halves[group ^ 2][i + 1][thread];
    if (r < args.batch && first + column_of_sum(i) < link.columns) store_part(to + r * K + column_of_sum(i), one * factor, other * factor);
  }
}

// Multiplies this block's items of a link.
__device__ __forceinline__ void multiply(const Chain& args, int i, const Shared& shared, Stage& slot, Stage& x_slot, u32& factors_parity) {
  const Link& link = args.links[i];
  char* next_x = args.x[(i + 1) % 2];
  u32 group = threadIdx.x / GROUP_THREADS, lane = threadIdx.x % WARP, row = threadIdx.x / WARP % 4 * 16 + lane / 4;
  u32 in_slot = blocks_in_slot(link), slots = x_slots(args), x_bytes = x_slot_bytes(args);
  u32 own_block = in_slot == 2 ? group / 2 : 0, first = (in_slot == 2 ? group % 2 : group) * GROUP_COLUMNS;
  float factors[2] = {1, 1};
  bool is_first = true;
  for_items(link, [&](u32 tile, u32 split, u32 begin, u32 end) {
    if (threadIdx.x == 0) {
      fence_async();
      shared.x_ready->arrive();
    }
    float sums[SUMS] = {};
#pragma unroll 1
    for (u32 k = begin; k < end; k += in_slot) {
      u32 count = min(in_slot, end - k);
      shared.loaded[slot.index].wait(slot.parity);
#pragma unroll 1
      for (u32 b = 0; b < count; b++) {
        shared.x_loaded[x_slot.index].wait(x_slot.parity);
        if (b == own_block && first < link.columns) {
          u32 left = shared_address(shared.x + x_slot.index * x_bytes);
          u32 right = shared_address(shared.weights + slot.index * SLOT_BYTES) + (b * (u32)link.columns + first) * K;
          float scales[2] = {shared.x_scales[x_slot.index][row], shared.x_scales[x_slot.index][row + 8]};
          float products[SUMS] = {};
          begin_products();
#pragma unroll
          for (int part = 0; part < K / 32; part++) {
            product<true>(Float8(), products, matrix(left + part * 32, 16, 1024), matrix(right + part * 32, 16, 1024), part);
          }
          commit_products();
          wait_products<0>();
#pragma unroll
          for (int s = 0; s < SUMS; s++) sums[s] += products[s] * scales[row_of_sum(s)];
        }
        __syncwarp();
        if (lane == 0) shared.x_emptied[x_slot.index].arrive();
        x_slot.skip(1, slots);
      }
      if (lane == 0) shared.emptied[slot.index].arrive();
      slot.skip(1, SLOTS);
    }
    if (link.is_normed && is_first) {
      shared.factors_ready->wait(factors_parity);
      factors_parity ^= 1;
      factors[0] = shared.factors[row];
      factors[1] = shared.factors[row + 8];
    }
    is_first = false;
    consumers_barrier();  // all have read x
    if (in_slot == 2) {
      store_parts(args, link, shared, sums, factors);
      u32 batch = args.batch, splits = link.splits;
      finish(args, link, next_x, tile, batch * split / splits, batch * (split + 1) / splits);
    } else {
      u32 within = (link.kind == ACTIVATE ? group % 2 * GROUP_COLUMNS : first) + lane % 4 * 2, column = tile * tile_columns(link) + within;
      int there = min((int)(tile_columns(link) - within), (int)((u32)link.width - column));
      scale(link, sums, factors, column + (link.kind == ACTIVATE && group >= 2 ? (u32)link.width : 0), there);
      if (link.kind == ACTIVATE) {
        activate(shared, next_x, tile, sums);
      } else {
#pragma unroll
        for (int s = 0; s < SUMS; s += 2) {
          u32 r = row + row_of_sum(s) * 8;
          if (r < args.batch && column_of_sum(s) < there) {
            *(u32*)(link.output + r * link.stride + column + column_of_sum(s)) = pack(T(), sums[s], sums[s + 1]);
          }
        }
      }
    }
    consumers_barrier();  // what was exchanged has been read
  });
}

extern "C" __global__ void __launch_bounds__(THREADS + 3 * WARP, 1) decode_wide_chain(const __grid_constant__ Chain args) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ Barrier loaded[SLOTS], emptied[SLOTS], x_loaded[MAX_X_SLOTS], x_emptied[MAX_X_SLOTS], x_ready, factors_ready;
  __shared__ __align__(16) float x_scales[MAX_X_SLOTS][ROWS], factors[ROWS];
  __shared__ volatile int running;
  Shared shared = {memory,  memory + SLOTS * SLOT_BYTES, x_scales, factors,        loaded,  emptied,
                   x_loaded, x_emptied,                  &x_ready, &factors_ready, &running};
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; i++) {
      loaded[i].init(1);
      emptied[i].init(CONSUMERS);
    }
    for (int i = 0; i < MAX_X_SLOTS; i++) {
      x_loaded[i].init(1);
      x_emptied[i].init(CONSUMERS);
    }
    x_ready.init(1);
    factors_ready.init(1);
    publish_barriers();
    running = -1;
  }
  __syncthreads();
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (warp == CONSUMERS) {
    if (lane == 0) copy_weights(args, shared);
    return;
  }
  wait_for_primary();
  if (warp == CONSUMERS + 1) {
    if (lane == 0) copy_x(args, shared);
    return;
  }
  if (warp == CONSUMERS + 2) {
    find_factors(args, shared);
    return;
  }
  launch_dependents();
  u32 phase = *(const volatile u32*)args.arrivals, factors_parity = 0;
  Stage slot = {0, 0}, x_slot = {0, 0};
  make_x(args);
#pragma unroll 1
  for (int i = 0; i < args.count; i++) {
    grid_barrier(args.arrivals, phase);
    if (threadIdx.x == 0) running = i;
    multiply(args, i, shared, slot, x_slot, factors_parity);
  }
}
