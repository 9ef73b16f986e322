// A chain of matmuls of up to ROWS rows in e4m3 in one persistent kernel, for decode steps of one rank on Hopper GPUs. Between two
// matmuls the kernel scales the product, adds it to the residual or applies the activation, and rounds the result to e4m3: the x of
// the next matmul.
//
// Terms
//   link     a matmul, x times the transposed weight, and the use of its product (`kind`)
//   tile     up to 256 columns of a product: rows of the weight, the right operand of wgmma. The left operand is x
//   k-block  K columns of x and of the weight
//   split    a range of k-blocks. A narrow tile, of at most 128 columns, has `splits` of them; a wide tile has one
//   item     the work of one thread block: a split of a tile
//   part     the sums of one item of a narrow tile. The blocks of a tile exchange parts through memory, then each finishes some rows
//   factor   1 / sqrt(mean(residual^2) + epsilon) of a row, for an RMSNorm. x is then residual * norm weight without the factor,
//            because the sum of squares is complete only after the grid barrier. The sums are multiplied by the factor instead
//
// Precision: tensor cores sum a k-block, with the few bits of Float8 (hopper.cuh). The sums are multiplied by the scales of x and
// added in float32. Bit for bit, a row of the result depends only on its input row and on the number of thread blocks, which
// determines the splits; it does not depend on the other rows or on their number.
//
// Warps of a thread block
//   CONSUMERS  multiply, in GROUPS warp groups of 64 columns each. Wide tile: each group has its own columns. Narrow tile: a slot holds
//              two k-blocks; groups 0 and 1 multiply the first one, groups 2 and 3 the second one
//   1          copies weights into a ring of slots. Runs ahead into the next link, so memory is read while consumers wait
//   1          copies x into a second ring, a k-block at a time, after x is in memory
//   1          computes the factors of rows
//
// Memory of x: a tile of X_TILE_BYTES for each k-block: ROWS rows of K bytes in the 128-byte swizzle, then the ROWS scales in float32.
// Synchronisation: a barrier of all blocks before each matmul. Parts need no barrier: each float is ABSENT until it is written, and the
// block that reads it makes it ABSENT again. All blocks must run at once, so the launch is cooperative.
//
// Compiled with
//   TYPE  Float16 or Bfloat16: of the input, residuals, norm weights, biases and outputs
#include "decoder/grid.cuh"
#include "e4m3.cuh"
#include "hopper.cuh"
#include "rms_norm.cuh"

// Kinds of links: the use of the product.
const int STORE = 0;     // output = product
const int ADD = 1;       // new_residual = residual + product; the next x is its norm, without the factor
const int ACTIVATE = 2;  // the next x is silu(gates) * values

struct Link {
  TensorMap weight;     // (width, depth); ACTIVATE: (2 width, depth), gates then values. Boxes: a k-block of the rows of a tile;
                        // ACTIVATE: of half of the rows
  const float* scales;  // of the weight's rows
  const Bits* bias;     // of the weight's rows; may be null
  u64 width;            // columns of the output, the new residual or the activated x; a multiple of 8
  u64 depth;
  u64 kind;
  u64 columns;    // rows of the weight in a tile: a multiple of 8 up to 256. ADD: K. ACTIVATE: 2 K, K gates then their K values
  u64 splits;     // of a tile; up to MAX_SPLITS. Each item of a narrow tile has its own thread block
  u64 is_normed;  // 1: x lacks the factors of rows. Not with ADD, which overwrites the sums of squares
  Bits* output;   // STORE: (batch, width), rows `stride` elements apart
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
  const Bits* input;        // (batch, depth of the first link)
  const Bits* norm_weight;  // (depth of the first link): the first link multiplies the norm of the input. Null: it multiplies the input
  char* x[2];               // of even and of odd links
  float* squares;           // (tiles of x, ROWS): sums of squares of the residual, before its norm
  float* parts;             // (blocks, ROWS, K); ABSENT before and after a launch
  u32* arrivals;            // counter of the grid barrier; 0 before the first launch, and used by one stream only
  u64 epsilon;              // the bits of a float
};

const int ROWS = 64;
const int K = 128;  // columns of a k-block
const int GROUPS = 4;
const int CONSUMER_THREADS = CONSUMERS * WARP;
const int THREADS = CONSUMER_THREADS + 3 * WARP;  // with the warps that copy and the one that computes factors
const int GROUP_THREADS = CONSUMER_THREADS / GROUPS;
const int GROUP_COLUMNS = 64;
const int SUMS = GROUP_COLUMNS * ROWS / GROUP_THREADS;  // of a thread
const int MAX_SPLITS = 4;
const int SLOTS = 5;  // of the ring of weights
const int SLOT_BYTES = GROUPS * GROUP_COLUMNS * K;
const int X_BYTES = ROWS * K;
const int X_TILE_BYTES = X_BYTES + ROWS * 4;
const int X_RING_BYTES = 7 * X_BYTES;
const int MAX_X_SLOTS = 16;
const int SHARED_BYTES = SLOTS * SLOT_BYTES + X_RING_BYTES;
static_assert(SHARED_BYTES <= 220 << 10, "the rest is for barriers, scales and factors");
// Slots of weights that are copied at a time; 1 while consumers wait, so that their loads do not queue behind weights.
const int MAX_UNDER_WAY = 2;
const u32 ABSENT = 0xffffffff;  // a NaN that no instruction computes

// Shared memory of a block.
struct Shared {
  char* weights;  // the ring of weights
  char* x;        // the ring of x; after an item's last k-block, consumers exchange sums here
  float (*x_scales)[ROWS];  // of the slots of the ring of x
  float* factors;
  Barrier *loaded, *emptied;      // of the slots of weights
  Barrier *x_loaded, *x_emptied;  // of the slots of x
  Barrier* x_ready;               // one phase for each item: its x is in memory, and the ring of x is free
  Barrier* factors_ready;         // one phase for each item: the factors of its link are in `factors`
  volatile int* running;          // the link that consumers multiply, read by the producer of weights
};

__device__ __forceinline__ u32 k_blocks_of(u64 depth) { return (depth + K - 1) / K; }
__device__ __forceinline__ u32 k_blocks_per_slot(const Link& link) { return link.columns > 2 * GROUP_COLUMNS ? 1 : 2; }  // 1: wide tiles
// The columns of a tile, counted as `width` is: gates and their values are one column.
__device__ __forceinline__ u32 tile_width(const Link& link) { return link.kind == ACTIVATE ? K : link.columns; }

__device__ __forceinline__ u32 items_of(const Link& link) {
  u32 columns = tile_width(link), width = link.width;  // 32 bits: a division of 64 bits takes 0.2 us
  return (width + columns - 1) / columns * (u32)link.splits;
}

// Calls item(tile, split, first k-block, end) for each item of this block.
template <typename Item>
__device__ __forceinline__ void for_each_item(const Link& link, Item item) {
  u32 splits = link.splits, k_blocks = k_blocks_of(link.depth);
#pragma unroll 1
  for (u32 i = blockIdx.x; i < items_of(link); i += gridDim.x) {
    u32 split = i % splits;
    item(i / splits, split, k_blocks * split / splits, k_blocks * (split + 1) / splits);
  }
}

// A slot of x holds the rows of the batch, rounded up to 8. wgmma always reads ROWS rows: it also reads bytes after the slot, for sums
// that are not used. The ring has room for these reads after its last slot.
__device__ __forceinline__ u32 x_slot_bytes(const Chain& args) { return (args.batch + 7) / 8 * 8 * K; }
__device__ __forceinline__ u32 x_slots(const Chain& args) { return min((X_RING_BYTES - X_BYTES) / x_slot_bytes(args) + 1, MAX_X_SLOTS); }

// The producer of weights: copies the weights of all items of this block, in the order in which consumers multiply them. One thread
// calls it.
__device__ __forceinline__ void copy_weights(const Chain& args, const Shared& shared) {
  Stage next = {0, 0}, oldest = {0, 0};
  int under_way = 0;
#pragma unroll 1
  for (int i = 0; i < args.count; i++) {
    const Link& link = args.links[i];
    u32 per_slot = k_blocks_per_slot(link), k_block_bytes = link.columns * K;
    for_each_item(link, [&](u32 tile, u32 split, u32 begin, u32 end) {
#pragma unroll 1
      for (u32 k = begin; k < end; k += per_slot) {
        shared.emptied[next.index].wait(next.parity ^ 1);
        // Limit the copies under way.
        int limit = *shared.running < i ? 1 : MAX_UNDER_WAY;
        while (under_way >= limit) {
          shared.loaded[oldest.index].wait(oldest.parity);
          oldest.skip(1, SLOTS);
          under_way--;
        }
        under_way++;
        u32 count = min(per_slot, end - k), row = tile * tile_width(link);
        Barrier& loaded = shared.loaded[next.index];
        loaded.arrive_expecting(count * k_block_bytes);
        char* to = shared.weights + next.index * SLOT_BYTES;
        for (u32 b = 0; b < count; b++) load_box_once(to + b * k_block_bytes, link.weight, loaded, (k + b) * K, row);
        if (link.kind == ACTIVATE) load_box_once(to + K * K, link.weight, loaded, k * K, (u32)link.width + row);
        next.skip(1, SLOTS);
      }
    });
  }
}

// The producer of x: copies the k-blocks of all items of this block. One thread calls it.
__device__ __forceinline__ void copy_x(const Chain& args, const Shared& shared) {
  Stage next = {0, 0};
  u32 items = 0, slot_bytes = x_slot_bytes(args), slots = x_slots(args);
#pragma unroll 1
  for (int i = 0; i < args.count; i++) {
    for_each_item(args.links[i], [&](u32 tile, u32 split, u32 begin, u32 end) {
      shared.x_ready->wait(items++ % 2);
      fence_async();
#pragma unroll 1
      for (u32 k = begin; k < end; k++) {
        shared.x_emptied[next.index].wait(next.parity ^ 1);
        Barrier& loaded = shared.x_loaded[next.index];
        const char* from = args.x[i % 2] + (u64)k * X_TILE_BYTES;
        loaded.arrive_expecting(slot_bytes + ROWS * sizeof(float));
        load_bytes(shared.x + next.index * slot_bytes, from, slot_bytes, loaded);
        load_bytes(shared.x_scales[next.index], from + X_BYTES, ROWS * sizeof(float), loaded);
        next.skip(1, slots);
      }
    });
  }
}

// Computes the factors of rows. Prefetches into L2 the scales and norm weights of this block's tiles, which consumers need after the
// sums. One warp calls it; a lane has two rows.
__device__ __forceinline__ void compute_factors(const Chain& args, const Shared& shared) {
  u32 lane = threadIdx.x % WARP, items = 0;
  float epsilon = __uint_as_float((u32)args.epsilon);
#pragma unroll 1
  for (int i = 0; i < args.count; i++) {
    const Link& link = args.links[i];
    for_each_item(link, [&](u32 tile, u32 split, u32 begin, u32 end) {
      shared.x_ready->wait(items++ % 2);
      u32 columns = tile_width(link), first = tile * columns, bytes = min(columns, (u32)link.width - first) / 8 * 8 * sizeof(Bits);
      if (lane == 0) {
        prefetch_bytes(link.scales + first, bytes * 2);
        if (link.kind == ACTIVATE) prefetch_bytes(link.scales + link.width + first, bytes * 2);
        if (link.kind == ADD) prefetch_bytes(link.norm_weight + first, bytes);
      }
      float2 squares = make_float2(0, 0), factors = make_float2(1, 1);
      u32 tiles = link.is_normed ? k_blocks_of(link.depth) : 0;
#pragma unroll 16
      for (u32 t = 0; t < tiles; t++) {
        float2 of_tile = __ldcg((const float2*)(args.squares + t * ROWS) + lane);
        squares.x += of_tile.x;
        squares.y += of_tile.y;
      }
      if (link.is_normed) factors = make_float2(norm_scale(squares.x, link.depth, epsilon), norm_scale(squares.y, link.depth, epsilon));
      ((float2*)shared.factors)[lane] = factors;
      __syncwarp();
      if (lane == 0) shared.factors_ready->arrive();
    });
  }
}

__device__ __forceinline__ float4 to_floats(const uint2& four) {
  return make_float4(T::load((Bits)four.x), T::load((Bits)(four.x >> 16)), T::load((Bits)four.y), T::load((Bits)(four.y >> 16)));
}

// Returns the byte of an element in its tile of x.
__device__ __forceinline__ u32 swizzled(u32 row, u32 column) { return row * K + (column ^ row % 8 * 16); }

// Rounds a row of a tile of x to e4m3, and stores it with its scale. A warp calls it; a lane has the values of four columns.
__device__ __forceinline__ void store_x(char* x, u32 row, u32 tile, float4 values) {
  u32 lane = threadIdx.x % WARP;
  char* to = x + (u64)tile * X_TILE_BYTES;
  u32 own_bits = max(max(magnitude_bits(values.x), magnitude_bits(values.y)), max(magnitude_bits(values.z), magnitude_bits(values.w)));
  float largest = __uint_as_float(__reduce_max_sync(~0u, own_bits)), inverse = inverse_scale(largest);
  if (lane == 0) ((float*)(to + X_BYTES))[row] = largest / E4M3_MAX;
  u32 lower = to_e4m3(values.x * inverse, values.y * inverse), upper = to_e4m3(values.z * inverse, values.w * inverse);
  *(u32*)(to + swizzled(row, lane * 4)) = lower | upper << 16;
}

// Stores a row of a tile of x, residual * norm weight, and the sum of squares of the residual's columns. A residual has `depth` columns.
__device__ __forceinline__ void store_normed_x(const Chain& args, char* x, const Bits* norm_weight, u32 depth, u32 row, u32 tile,
                                               float4 residual) {
  u32 lane = threadIdx.x % WARP, column = tile * K + lane * 4;
  float squares = warp_sum(residual.x * residual.x + residual.y * residual.y + residual.z * residual.z + residual.w * residual.w);
  if (lane == 0) args.squares[tile * ROWS + row] = squares;
  float4 weight = column < depth ? to_floats(*(const uint2*)(norm_weight + column)) : make_float4(0, 0, 0, 0);
  store_x(x, row, tile, make_float4(residual.x * weight.x, residual.y * weight.y, residual.z * weight.z, residual.w * weight.w));
}

// Stores x of the first link. A warp has a row of a tile at a time.
__device__ __forceinline__ void store_first_x(const Chain& args) {
  u32 depth = args.links[0].depth, tiles = k_blocks_of(depth);
  for (u32 i = threadIdx.x / WARP * gridDim.x + blockIdx.x; i < args.batch * tiles; i += gridDim.x * CONSUMERS) {
    u32 row = i / tiles, tile = i % tiles, column = tile * K + threadIdx.x % WARP * 4;
    float4 values = column < depth ? to_floats(*(const uint2*)(args.input + (u64)row * depth + column)) : make_float4(0, 0, 0, 0);
    if (args.norm_weight) {
      store_normed_x(args, args.x[0], args.norm_weight, depth, row, tile, values);
    } else {
      store_x(args.x[0], row, tile, values);
    }
  }
}

// Stores two columns of a part, and loads four. The cache hint keeps parts in L2 while the KV cache is read.
__device__ __forceinline__ void store_pair(float* to, float first, float second) {
  const u64 EVICT_LAST = 0x14f0000000000000;  // as createpolicy.fractional.L2::evict_last makes it
  asm volatile("st.relaxed.gpu.global.L2::cache_hint.v2.f32 [%0], {%1, %2}, %3;" ::"l"(to), "f"(first), "f"(second), "l"(EVICT_LAST) : "memory");
}
__device__ __forceinline__ uint4 load_four(const float* from) {
  uint4 part;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(part.x), "=r"(part.y), "=r"(part.z), "=r"(part.w)
               : "l"(from));
  return part;
}
__device__ __forceinline__ bool is_absent(const uint4& part) {
  return part.x == ABSENT || part.y == ABSENT || part.z == ABSENT || part.w == ABSENT;
}

// A lane's four columns of a row in all parts of a tile. All lanes of a warp call load(), then take_sum(), also lanes without columns.
struct Parts {
  float* first;  // the lane's columns in the first part
  u32 splits;    // 0: the lane has no columns
  uint4 parts[MAX_SPLITS];

  __device__ __forceinline__ float* address(int i) { return first + i * (ROWS * K); }
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < MAX_SPLITS; i++) parts[i] = i < splits ? load_four(address(i)) : zeros();
  }
  // Waits until all parts are written, and adds them in the order of the splits. Makes them ABSENT again.
  __device__ __forceinline__ float4 take_sum() {
    float4 sum = make_float4(0, 0, 0, 0);
    u64 begin = 0;
#pragma unroll
    for (int i = 0; i < MAX_SPLITS; i++) {
      while (__any_sync(~0u, is_absent(parts[i]))) {
        u64 now = global_time();
        if (begin == 0) begin = now;
        if (now - begin > DEADLINE) __trap();
        if (i < splits) parts[i] = load_four(address(i));
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

// Finishes the rows [begin, end) of a narrow tile: adds the parts, and stores the output, or the residual and the next x. A warp has a
// row at a time, a lane four columns.
__device__ __forceinline__ void finish_rows(const Chain& args, const Link& link, char* next_x, u32 tile, u32 begin, u32 end) {
  u32 lane = threadIdx.x % WARP, in_tile = lane * 4, width = link.width, splits = link.splits, column = tile * (u32)link.columns + in_tile;
  bool has_columns = in_tile < link.columns && column < width;
#pragma unroll 1
  for (u32 row = begin + threadIdx.x / WARP; row < end; row += CONSUMERS) {
    Parts parts = {args.parts + ((u64)tile * splits * ROWS + row) * K + in_tile, in_tile < link.columns ? splits : 0};
    parts.load();
    float4 result = make_float4(0, 0, 0, 0), scales = result, bias = result;
    if (link.kind == ADD && has_columns) result = to_floats(__ldcg((const uint2*)(link.residual + (u64)row * width + column)));
    if (has_columns) scales = *(const float4*)(link.scales + column);
    if (has_columns && link.bias) bias = to_floats(*(const uint2*)(link.bias + column));
    float4 sum = parts.take_sum();
    result.x += sum.x * scales.x + bias.x;
    result.y += sum.y * scales.y + bias.y;
    result.z += sum.z * scales.z + bias.z;
    result.w += sum.w * scales.w + bias.w;
    uint2 rounded = make_uint2(pack(T(), result.x, result.y), pack(T(), result.z, result.w));
    Bits* to = link.kind == STORE ? link.output + row * link.stride : link.new_residual + (u64)row * width;
    if (has_columns) *(uint2*)(to + column) = rounded;
    if (link.kind == ADD) store_normed_x(args, next_x, link.norm_weight, width, row, tile, to_floats(rounded));
  }
}

// The layout of sums is that of wgmma. A thread has sums of two rows, first_row() and first_row() + 8, and from column 2 * (lane % 4) on.
// Sum i is row_of_sum(i) * 8 rows and column_of_sum(i) columns after that. `warp` is the warp's index in its group.
__device__ __forceinline__ u32 first_row(u32 warp, u32 lane) { return warp * 16 + lane / 4; }
__device__ __forceinline__ int row_of_sum(int i) { return i % 4 / 2; }
__device__ __forceinline__ int column_of_sum(int i) { return i / 4 * 8 + i % 2; }

// Multiplies sums by the factors of rows and by the scales of weight rows, and adds the bias. weight_row: the weight row of the thread's
// first column. Columns from `count` on do not exist: their sums become 0.
__device__ __forceinline__ void scale_sums(const Link& link, float (&sums)[SUMS], const float (&factors)[2], u32 weight_row, int count) {
  float2 scales[SUMS / 4];
#pragma unroll
  for (int i = 0; i < SUMS / 4; i++) scales[i] = i * 8 < count ? *(const float2*)(link.scales + weight_row + i * 8) : make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < SUMS; i++) {
    bool exists = column_of_sum(i) < count;
    float bias = exists && link.bias ? T::load(link.bias[weight_row + column_of_sum(i)]) : 0;
    sums[i] = exists ? sums[i] * factors[row_of_sum(i)] * (i % 2 ? scales[i / 4].y : scales[i / 4].x) + bias : 0;
  }
}

// Stores a tile of the next x, silu(gates) * values. Groups 0 and 1 pass the scaled sums of the gates, groups 2 and 3 those of the values.
__device__ __forceinline__ void store_activated(const Shared& shared, char* next_x, u32 tile, float (&sums)[SUMS]) {
  struct Exchange {
    float values[GROUPS / 2][SUMS][GROUP_THREADS];
    char x[X_TILE_BYTES];
    float largest[GROUPS / 2][ROWS];  // magnitude in a row, of the columns of a group
  };
  static_assert(sizeof(Exchange) <= X_RING_BYTES, "sums are exchanged where x was");
  Exchange& exchange = *(Exchange*)shared.x;
  u32 group = threadIdx.x / GROUP_THREADS, thread = threadIdx.x % GROUP_THREADS, lane = threadIdx.x % WARP;
  u32 row = first_row(thread / WARP, lane);
  if (group >= 2) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) exchange.values[group - 2][i][thread] = sums[i];
  }
  consumers_barrier();
  if (group < 2) {
    u32 largest_bits[2] = {0, 0};  // of the thread's two rows
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
      sums[i] = __fdividef(sums[i], 1 + __expf(-sums[i])) * exchange.values[group][i][thread];
      largest_bits[row_of_sum(i)] = max(largest_bits[row_of_sum(i)], magnitude_bits(sums[i]));
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      largest_bits[r] = max(largest_bits[r], __shfl_xor_sync(~0u, largest_bits[r], 1));
      largest_bits[r] = max(largest_bits[r], __shfl_xor_sync(~0u, largest_bits[r], 2));
      if (lane % 4 == 0) exchange.largest[group][row + r * 8] = __uint_as_float(largest_bits[r]);
    }
  }
  consumers_barrier();
  if (group < 2) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      u32 largest_bits = max(__float_as_uint(exchange.largest[0][row + r * 8]), __float_as_uint(exchange.largest[1][row + r * 8]));
      float largest = __uint_as_float(largest_bits), inverse = inverse_scale(largest);
      if (group == 0 && lane % 4 == 0) ((float*)(exchange.x + X_BYTES))[row + r * 8] = largest / E4M3_MAX;
#pragma unroll
      for (int i = r * 2; i < SUMS; i += 4) {
        u32 column = group * GROUP_COLUMNS + lane % 4 * 2 + column_of_sum(i);
        *(u16*)(exchange.x + swizzled(row + r * 8, column)) = to_e4m3(sums[i] * inverse, sums[i + 1] * inverse);
      }
    }
  }
  consumers_barrier();
  uint4* to = (uint4*)(next_x + (u64)tile * X_TILE_BYTES);
  for (u32 i = threadIdx.x; i < X_TILE_BYTES / 16; i += CONSUMER_THREADS) to[i] = ((const uint4*)exchange.x)[i];
}

// Stores this block's part of a narrow tile. Groups g and g ^ 2 have sums of the same columns, from different k-blocks. They exchange
// half of their sums: groups 0 and 1 store the lower half of their columns, groups 2 and 3 the upper half.
__device__ __forceinline__ void store_part(const Chain& args, const Link& link, const Shared& shared, const float (&sums)[SUMS],
                                           const float (&factors)[2]) {
  const int HALF = SUMS / 2;
  float(*halves)[HALF][GROUP_THREADS] = (float(*)[HALF][GROUP_THREADS])shared.x;
  u32 group = threadIdx.x / GROUP_THREADS, thread = threadIdx.x % GROUP_THREADS, lane = threadIdx.x % WARP;
  bool is_upper = group >= 2;
#pragma unroll
  for (int i = 0; i < HALF; i++) halves[group][i][thread] = is_upper ? sums[i] : sums[HALF + i];
  consumers_barrier();
  u32 first_column = group % 2 * GROUP_COLUMNS + (is_upper ? GROUP_COLUMNS / 2 : 0), row = first_row(thread / WARP, lane);
  float* to = args.parts + (u64)blockIdx.x * (ROWS * K) + first_column + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < HALF; i += 2) {
    u32 r = row + row_of_sum(i) * 8;
    float factor = factors[row_of_sum(i)];
    float sum = (is_upper ? sums[HALF + i] : sums[i]) + halves[group ^ 2][i][thread];
    float next_sum = (is_upper ? sums[HALF + i + 1] : sums[i + 1]) + halves[group ^ 2][i + 1][thread];
    if (r < args.batch && first_column + column_of_sum(i) < link.columns) {
      store_pair(to + r * K + column_of_sum(i), sum * factor, next_sum * factor);
    }
  }
}

// Finishes a wide tile: stores the output, or the next x. first_column: of the group, in the tile. row: first_row().
__device__ __forceinline__ void finish_wide_tile(const Chain& args, const Link& link, const Shared& shared, char* next_x, u32 tile,
                                                 u32 first_column, u32 row, float (&sums)[SUMS], const float (&factors)[2]) {
  u32 group = threadIdx.x / GROUP_THREADS, lane = threadIdx.x % WARP;
  u32 in_tile = (link.kind == ACTIVATE ? group % 2 * GROUP_COLUMNS : first_column) + lane % 4 * 2;
  u32 column = tile * tile_width(link) + in_tile;
  int count = min((int)(tile_width(link) - in_tile), (int)((u32)link.width - column));
  scale_sums(link, sums, factors, column + (link.kind == ACTIVATE && group >= 2 ? (u32)link.width : 0), count);
  if (link.kind == ACTIVATE) {
    store_activated(shared, next_x, tile, sums);
    return;
  }
#pragma unroll
  for (int i = 0; i < SUMS; i += 2) {
    u32 r = row + row_of_sum(i) * 8;
    if (r < args.batch && column_of_sum(i) < count) {
      *(u32*)(link.output + r * link.stride + column + column_of_sum(i)) = pack(T(), sums[i], sums[i + 1]);
    }
  }
}

// Multiplies a k-block of x by a group's columns. x and weights are addresses in shared memory. wgmma sums 32 columns of k at a time.
__device__ __forceinline__ void multiply_k_block(u32 x, u32 weights, float (&products)[SUMS]) {
  begin_products();
#pragma unroll
  for (int step = 0; step < K / 32; step++) {
    product<true>(Float8(), products, matrix(x + step * 32, 16, 1024), matrix(weights + step * 32, 16, 1024), step);
  }
  commit_products();
  wait_products<0>();
}

// Multiplies this block's items of link i, and finishes their tiles. slot, x_slot: positions in the rings of weights and of x.
__device__ __forceinline__ void multiply(const Chain& args, int i, const Shared& shared, Stage& slot, Stage& x_slot, u32& factors_parity) {
  const Link& link = args.links[i];
  char* next_x = args.x[(i + 1) % 2];
  u32 group = threadIdx.x / GROUP_THREADS, lane = threadIdx.x % WARP, row = first_row(threadIdx.x / WARP % 4, lane);
  u32 per_slot = k_blocks_per_slot(link), slots = x_slots(args), x_bytes = x_slot_bytes(args);
  bool is_wide = per_slot == 1;
  u32 own_k_block = is_wide ? 0 : group / 2, first_column = (is_wide ? group : group % 2) * GROUP_COLUMNS;
  for_each_item(link, [&](u32 tile, u32 split, u32 begin, u32 end) {
    if (threadIdx.x == 0) {
      fence_async();  // stores of x and exchanged sums come before the copies by copy_x
      shared.x_ready->arrive();
    }
    float sums[SUMS] = {};
#pragma unroll 1
    for (u32 k = begin; k < end; k += per_slot) {
      u32 count = min(per_slot, end - k);
      shared.loaded[slot.index].wait(slot.parity);
#pragma unroll 1
      for (u32 b = 0; b < count; b++) {
        shared.x_loaded[x_slot.index].wait(x_slot.parity);
        if (b == own_k_block && first_column < link.columns) {
          u32 x = shared_address(shared.x + x_slot.index * x_bytes);
          u32 weights = shared_address(shared.weights + slot.index * SLOT_BYTES) + (b * (u32)link.columns + first_column) * K;
          float x_scales[2] = {shared.x_scales[x_slot.index][row], shared.x_scales[x_slot.index][row + 8]};
          float products[SUMS] = {};
          multiply_k_block(x, weights, products);
#pragma unroll
          for (int s = 0; s < SUMS; s++) sums[s] += products[s] * x_scales[row_of_sum(s)];
        }
        __syncwarp();
        if (lane == 0) shared.x_emptied[x_slot.index].arrive();
        x_slot.skip(1, slots);
      }
      if (lane == 0) shared.emptied[slot.index].arrive();
      slot.skip(1, SLOTS);
    }
    shared.factors_ready->wait(factors_parity);
    factors_parity ^= 1;
    float factors[2] = {shared.factors[row], shared.factors[row + 8]};
    consumers_barrier();  // all have read x
    if (is_wide) {
      finish_wide_tile(args, link, shared, next_x, tile, first_column, row, sums, factors);
    } else {
      store_part(args, link, shared, sums, factors);
      u32 batch = args.batch, splits = link.splits;
      finish_rows(args, link, next_x, tile, batch * split / splits, batch * (split + 1) / splits);
    }
    consumers_barrier();  // all have read the exchanged sums
  });
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode_wide_chain(const __grid_constant__ Chain args) {
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
    compute_factors(args, shared);
    return;
  }
  launch_dependents();
  u32 phase = *(const volatile u32*)args.arrivals, factors_parity = 0;
  Stage slot = {0, 0}, x_slot = {0, 0};
  store_first_x(args);
#pragma unroll 1
  for (int i = 0; i < args.count; i++) {
    grid_barrier(args.arrivals, phase);
    if (threadIdx.x == 0) running = i;
    multiply(args, i, shared, slot, x_slot, factors_parity);
  }
}
