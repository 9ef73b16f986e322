// A chain of matmuls of few rows in one persistent kernel, for decode steps of one rank on Hopper GPUs. A matmul can begin with the
// norm of its rows.
//
// Results are bit-identical to those of matmul.cu. A block owns a range of each weight's tiles, 16 rows of the weight each. Consumer
// warps multiply; one producer thread copies tiles by TMA into a ring in shared memory. The producer runs ahead into the next weight
// while consumers wait at the grid barrier, so memory is read nearly without a gap from the first matmul of a chain to the last. The
// first copies of a chain run beside the kernel before it.
//
// Consumer warps: two sets of 8 warps. A block multiplies a group of GROUP_TILES tiles at a time; the sets take the tiles of the group in
// turn. The warps of a set divide k as those of matmul.cu do.
//
// Shared memory (a segment is SEGMENT bytes of a weight row)
//   ring   `stages` stages, each with a segment of each row of a weight tile; with 4-bit weights, followed by their scales
//   sums   for each consumer warp: 16 bytes per lane for each tile of its set in a group
//   x      `window` segments of each row of x; a row takes window * X_BYTES + X_PAD
//
// Synchronisation: a barrier of all blocks before each matmul but the first. All blocks must run at once, so the launch is cooperative.
//
// Compiled with
//   TYPE         Float16 or Bfloat16
//   WEIGHT_BITS  16, 8 or 4 (weights.cuh)
//   ZERO_GROUP   with 4 bits (int4.cuh)
// and at most 72 registers, so that a block of decode_attention_late fits on an SM beside one of this kernel. ptxas may use all
// of them: check -Xptxas -v for spills after each change.
#include "decoder/output.cuh"
#include "hopper.cuh"
#include "rms_norm.cuh"
#include "signal.cuh"

const int CONSUMERS = 16;  // warps that multiply. The warp that copies must not call barriers

__device__ __forceinline__ void consumers_barrier() { barrier<1, CONSUMERS>(); }

// The barrier of the consumers of all thread blocks, with acquire and release. Together the blocks add UPPER to `arrivals`, so its upper
// bit flips when the last block arrives. `phase`: `arrivals` before the first barrier of the launch; each barrier flips its upper bit.
__device__ __forceinline__ void grid_barrier(u32* arrivals, u32& phase) {
  const u32 UPPER = 0x80000000;
  consumers_barrier();
  if (threadIdx.x == 0) {
    u32 add = blockIdx.x == 0 ? UPPER - (gridDim.x - 1) : 1, now;
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(arrivals), "r"(add) : "memory");
    u64 begin = global_time();
    for (u32 i = 1;; i++) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrivals) : "memory");
      if ((now ^ phase) & UPPER) break;
      if (i % 1024 == 0 && global_time() - begin > DEADLINE) __trap();
    }
  }
  phase ^= UPPER;
  consumers_barrier();
}

struct Link {
  TensorMap weight;  // (width, depth), gated: (2 width, depth), gates then values; in words of 4 bytes; boxes of 8 rows of a segment
  TensorMap groups;  // 4 bits: the words of the weight's groups, boxes of 8 rows of a segment
  Bits* output;      // (batch, width), rows `stride` elements apart
  const Bits* x;     // (batch, depth)
  const float* scales;  // 8 bits: of the weight's rows
  const Bits* bias;     // (width); gated: (2 width); may be null
  u64 width;
  u64 depth;
  u64 stride;
  u64 gated;  // 1: output = silu(x gates) * (x values); a weight tile then yields 8 columns instead of 16
  // The weight of a norm, (depth): the matmul multiplies norm(residual + x), whose rows must fit into the window. Null: it multiplies x.
  const Bits* norm_weight;
  const Bits* residual;
  Bits* new_residual;  // receives residual + x; must not be residual or x
  u64 epsilon;         // the bits of a float
};

const int MAX_LINKS = 4;

struct Chain {
  Link links[MAX_LINKS];
  u64 count;
  u64 batch;     // at most 8
  u64 stages;    // GROUP_TILES to MAX_STAGES
  u64 window;    // segments of x in shared memory at a time
  u32* arrivals; // counter of the grid barrier; 0 before the first launch, and used by one stream only
};

const int SETS = 2;
const int SET_WARPS = 8;
static_assert(CONSUMERS == SETS * SET_WARPS, "one more warp copies weights");
const int SEGMENT = 1024;                        // bytes of a weight row in a stage: each warp of a set multiplies two loads
const int LOAD_BYTES = 64;                       // of a weight row, by 4 lanes at once
const int TILE_ROWS = 16;
const int SCALES = SEGMENT / GROUP_BYTES;        // words of groups of a weight row in a stage, with 4 bits
const int STAGE_BYTES = TILE_ROWS * (SEGMENT + (WEIGHT_BITS == 4 ? SCALES * 4 : 0));
const int MAX_STAGES = 12;
const int GROUP_TILES = 4;                       // tiles that a block multiplies at a time
const int SET_TILES = GROUP_TILES / SETS;
const int SUM_BYTES = CONSUMERS * SET_TILES * WARP * 16;
const int X_BYTES = SEGMENT * 16 / WEIGHT_BITS;  // of a row of x in a segment
const int X_PAD = WEIGHT_BITS == 16 ? 64 : 16;   // lanes of different rows are in different banks
const int MAX_UNDER_WAY = 4;  // stages that are copied at a time; 1 while consumers wait, so that their loads do not queue behind weights

__device__ __forceinline__ void set_barrier(u32 set) {
  if (set == 0) {
    barrier<2, SET_WARPS>();
  } else {
    barrier<3, SET_WARPS>();
  }
}

__device__ __forceinline__ u32 columns_of(const Link& link) { return link.gated ? 8 : 16; }  // of a weight tile

// Returns the first weight tile of a block. Divides in 32 bits, by constants where it can: divisions of 64 bits take 0.5 us before each
// matmul.
__device__ __forceinline__ u32 first_tile(const Link& link, u32 block) {
  u32 width = link.width, tiles = link.gated ? (width + 7) / 8 : (width + 15) / 16;
  return tiles * block / gridDim.x;
}

__device__ __forceinline__ u32 segments_of(const Link& link) { return (row_bytes(link.depth) + SEGMENT - 1) / SEGMENT; }

// Shared memory of a block. `running`: the link that consumers multiply, read by the producer.
struct Shared {
  char* ring;
  Barrier* loaded;
  Barrier* emptied;
  float4* sums;
  char* x;
  volatile int* running;
};

// The producer: copies the weights of all links: groups of tiles, a group's segments, a segment's tiles. One thread calls it.
__device__ __forceinline__ void copy_weights(const Chain& args, const Shared& shared) {
  Stage next = {0, 0}, oldest = {0, 0};
  u32 stages = args.stages;
  int under_way = 0;
#pragma unroll 1
  for (int i = 0; i < args.count; i++) {
    const Link& link = args.links[i];
    u32 columns = columns_of(link), lower_row = link.gated ? (u32)link.width : 8;
    u32 end = first_tile(link, blockIdx.x + 1), segments = segments_of(link);
    if (blockIdx.x == 0 && link.norm_weight) prefetch_bytes(link.norm_weight, link.depth * sizeof(Bits));
#pragma unroll 1
    for (u32 group = first_tile(link, blockIdx.x); group < end; group += GROUP_TILES) {
#pragma unroll 1
      for (u32 segment = 0; segment < segments; segment++) {
#pragma unroll 1
        for (u32 tile = group; tile < min(group + GROUP_TILES, end); tile++) {
          shared.emptied[next.index].wait(next.parity ^ 1);
          // Limit the copies under way.
          int limit = *shared.running < i ? 1 : MAX_UNDER_WAY;
          while (under_way >= limit) {
            shared.loaded[oldest.index].wait(oldest.parity);
            oldest.skip(1, stages);
            under_way--;
          }
          under_way++;
          Barrier& loaded = shared.loaded[next.index];
          loaded.arrive_expecting(STAGE_BYTES);
          char *to = shared.ring + next.index * STAGE_BYTES, *scales = to + TILE_ROWS * SEGMENT;
          u32 row = tile * columns;
          load_box(to, link.weight, loaded, segment * (SEGMENT / 4), row);
          load_box(to + 8 * SEGMENT, link.weight, loaded, segment * (SEGMENT / 4), row + lower_row);
          if (WEIGHT_BITS == 4) {
            load_box(scales, link.groups, loaded, segment * SCALES, row);
            load_box(scales + 8 * SCALES * 4, link.groups, loaded, segment * SCALES, row + lower_row);
          }
          next.skip(1, stages);
        }
      }
    }
  }
}

// Writes the norms of residual + x to shared memory, with the same bits as add_rms_norm, and zeros behind them to the end of the last
// segment.
__device__ __forceinline__ void norm_rows(const Chain& args, const Link& link, const Shared& shared) {
  const int THREADS = CONSUMERS * WARP;
  static_assert(THREADS == NORM_THREADS, "a thread does the work of one of add_rms_norm");
  u32 packs = link.depth / PACK, threads = min((packs + WARP - 1) / WARP * WARP, THREADS), pitch = args.window * X_BYTES + X_PAD;
  u32 own_end = threadIdx.x < threads ? packs : 0;  // 0: the thread has no packs
  const uint4* weight = (const uint4*)link.norm_weight;
  uint4 first_weight = threadIdx.x < packs ? weight[threadIdx.x] : zeros();
  float* sums = (float*)shared.sums;
#pragma unroll 2
  for (u32 row = 0; row < args.batch; row++) {
    const uint4 *x = (const uint4*)link.x + row * packs, *residual = (const uint4*)link.residual + row * packs;
    float squares = 0;
    for (u32 i = threadIdx.x; i < own_end; i += threads) {
      uint4 sum = add_packs<T>(__ldcg(residual + i), __ldcg(x + i));
      ((uint4*)(shared.x + row * pitch))[i] = sum;
      if (blockIdx.x == 0) ((uint4*)link.new_residual + row * packs)[i] = sum;
      squares = add_squares<T>(squares, sum);
    }
    store_warp_sum(squares, sums + row * CONSUMERS, threadIdx.x / WARP);
  }
  consumers_barrier();
  u32 end = segments_of(link) * (X_BYTES / 16);
  for (u32 row = 0; row < args.batch; row++) {
    float scale = norm_scale(sum_of_warps(sums + row * CONSUMERS, CONSUMERS), link.depth, __uint_as_float((u32)link.epsilon));
    uint4* to = (uint4*)(shared.x + row * pitch);
    for (u32 i = threadIdx.x; i < own_end; i += threads) {
      to[i] = normalize_pack<T>(to[i], scale, i == threadIdx.x ? first_weight : weight[i]);
    }
    for (u32 i = packs + threadIdx.x; i < end; i += THREADS) to[i] = zeros();
  }
  consumers_barrier();
}

// Copies a window of x to shared memory: from a segment to the window's or the row's last one, all at once. Elements past the depth
// become 0.
__device__ __forceinline__ void copy_window(const Chain& args, const Link& link, const Shared& shared, u32 segment) {
  u32 packs = min((u32)args.window, segments_of(link) - segment) * (X_BYTES / 16), first = segment * (X_BYTES / 16);
  consumers_barrier();  // the window before has been read
#pragma unroll 1
  for (u32 row = 0; row < args.batch; row++) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < packs; i += CONSUMERS * WARP) {
      u32 to = shared_address(shared.x) + row * ((u32)args.window * X_BYTES + X_PAD) + i * 16, k = (first + i) * PACK;
      copy_pack_async<false>(to, link.x + row * link.depth + k, k < link.depth);
    }
  }
  commit_copies();
  wait_copies<0>();
  consumers_barrier();
}

// Multiplies this set's TILES tiles of a group. group: the group's first tile; tiles: its size; stage: of its first tile.
template <int TILES>
__device__ __forceinline__ void multiply(const Chain& args, const Link& link, const Shared& shared, u32 group, u32 tiles, bool is_first,
                                         Stage& stage) {
  u32 set = threadIdx.x / (SET_WARPS * WARP), warp = threadIdx.x / WARP % SET_WARPS, lane = threadIdx.x % WARP;
  u32 row = lane / 4;  // of both operands
  u32 segments = segments_of(link);
  u32 own_byte = warp * 2 * LOAD_BYTES + lane % 4 * 16;  // byte of the first load in a segment
  bool is_row = row < args.batch, copies_x = !link.norm_weight && (is_first || segments > args.window);
  float sums[TILES ? TILES : 1][4] = {};
  u32 in_window = 0;
  const char* x = shared.x + row * ((u32)args.window * X_BYTES + X_PAD);  // the lane's row, in the current segment
#pragma unroll 1
  for (u32 segment = 0; segment < segments; segment++) {
    if (in_window == 0 && copies_x) copy_window(args, link, shared, segment);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      Stage of = stage;
      of.skip(t * SETS + set, args.stages);
      shared.loaded[of.index].wait(of.parity);
      const char* weights = shared.ring + of.index * STAGE_BYTES;
#pragma unroll
      for (int load = 0; load < 2; load++) {
        u32 byte = own_byte + load * LOAD_BYTES;
        uint4 upper_bytes = *(const uint4*)(weights + row * SEGMENT + byte);
        uint4 lower_bytes = *(const uint4*)(weights + (row + 8) * SEGMENT + byte);
        float of_group[4];  // before they are scaled, with 4 bits
        float(&part)[4] = WEIGHT_BITS == 4 ? of_group : sums[t];
        auto group_word = [&](int i, int half) {
          return ((const u32*)(weights + TILE_ROWS * SEGMENT))[(row + half * 8) * SCALES + (warp * 2 + load) * (LOAD_BYTES / GROUP_BYTES) + i / GROUP_PARTS];
        };
        u32 offsets[2] = {};
#pragma unroll
        for (int i = 0; i < X_PACKS; i++) {
          if (WEIGHT_BITS == 4 && i % GROUP_PARTS == 0) {
#pragma unroll
            for (int half = 0; half < 2; half++) offsets[half] = offsets_of(ZERO_GROUP ? group_word(i, half) : 0);
#pragma unroll
            for (int e = 0; e < 4; e++) of_group[e] = 0;
          }
          uint4 right = is_row ? *(const uint4*)(x + element_of(byte, i) * sizeof(Bits)) : zeros();
          uint4 upper = weights_of(upper_bytes, i, offsets[0]), lower = weights_of(lower_bytes, i, offsets[1]);
          mma(part, upper.x, lower.x, upper.y, lower.y, right.x, right.y);
          mma(part, upper.z, lower.z, upper.w, lower.w, right.z, right.w);
          if (WEIGHT_BITS == 4 && (i + 1) % GROUP_PARTS == 0) {
#pragma unroll
            for (int e = 0; e < 4; e++) sums[t][e] += part[e] * group_scale(group_word(i, e / 2));
          }
        }
      }
      __syncwarp();
      if (lane == 0) shared.emptied[of.index].arrive();
    }
    stage.skip(tiles, args.stages);
    x += X_BYTES;
    if (++in_window == args.window) {
      in_window = 0;
      x -= (u32)args.window * X_BYTES;
    }
  }
  if (TILES == 0) return;
  // Add the warps' sums in the order of warps, as matmul.cu does.
  float4* set_sums = shared.sums + set * (SET_WARPS * SET_TILES * WARP);
  set_barrier(set);  // the sums of the previous tiles have been read
#pragma unroll
  for (int t = 0; t < TILES; t++) {
    set_sums[(warp * SET_TILES + t) * WARP + lane] = make_float4(sums[t][0], sums[t][1], sums[t][2], sums[t][3]);
  }
  set_barrier(set);
  if ((int)warp >= TILES) return;
  float sum[4] = {};
#pragma unroll
  for (int w = 0; w < SET_WARPS; w++) {
    float4 of_warp = set_sums[(w * SET_TILES + warp) * WARP + lane];
    sum[0] += of_warp.x;
    sum[1] += of_warp.y;
    sum[2] += of_warp.z;
    sum[3] += of_warp.w;
  }
  store_sums(link, args.batch, sum, (group + warp * SETS + set) * columns_of(link) + row, lane % 4 * 2);
}

extern "C" __global__ void decode_chain(const __grid_constant__ Chain args) {
  extern __shared__ __align__(128) char ring[];
  __shared__ Barrier loaded[MAX_STAGES], emptied[MAX_STAGES];
  __shared__ volatile int running;
  char* sums = ring + args.stages * STAGE_BYTES;
  Shared shared = {ring, loaded, emptied, (float4*)sums, sums + SUM_BYTES, &running};
  if (threadIdx.x == 0) {
    for (int i = 0; i < args.stages; i++) {
      loaded[i].init(1);
      emptied[i].init(SET_WARPS);
    }
    publish_barriers();
    running = -1;
  }
  __syncthreads();
  launch_dependents();
  if (threadIdx.x / WARP == CONSUMERS) {
    if (threadIdx.x % WARP == 0) copy_weights(args, shared);
    return;
  }
  wait_for_primary();
  u32 set = threadIdx.x / (SET_WARPS * WARP);
  u32 phase = *(const volatile u32*)args.arrivals;
  Stage stage = {0, 0};
#pragma unroll 1
  for (int i = 0; i < args.count; i++) {
    const Link& link = args.links[i];
    u32 first = first_tile(link, blockIdx.x), end = first_tile(link, blockIdx.x + 1);
    if (i > 0) grid_barrier(args.arrivals, phase);
    if (link.norm_weight) norm_rows(args, link, shared);
    if (threadIdx.x == 0) running = i;
#pragma unroll 1
    for (u32 group = first; group < end; group += GROUP_TILES) {
      u32 tiles = min(end - group, GROUP_TILES);
      switch ((tiles + SETS - 1 - set) / SETS) {
        case 0: multiply<0>(args, link, shared, group, tiles, group == first, stage); break;
        case 1: multiply<1>(args, link, shared, group, tiles, group == first, stage); break;
        default: multiply<2>(args, link, shared, group, tiles, group == first, stage);
      }
    }
  }
}
