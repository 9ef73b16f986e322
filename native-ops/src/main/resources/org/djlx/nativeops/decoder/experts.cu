// Mixture of experts in decode steps. The GPU chooses the experts, so one CUDA graph serves every choice. In the order of launches:
//
//   decode_route           chooses each row's experts by the router's logits, and lists pairs and chunks
//   decode_expert_matmul   gate and up projection of each pair: silu(x gates) * (x values)
//   decode_expert_matmul   down projection of each pair
//   combine_experts        adds up each row's results, times the router's weights
//
// Pair          number row * chosen + i: a row and its expert with the i-th highest logit
// sorted_pairs  the pairs of expert 0 in the order of rows, then those of expert 1 and so on; without pairs of rows that have no token,
//               and without pairs whose weight rounds to 0
// Chunk         up to `chunk_rows` adjacent entries of `sorted_pairs`, all of one expert. Experts without pairs have no chunk, so their
//               weights are not read
//
// Invariants
// - The result of a row depends neither on the other rows nor on their number (matmul.cuh; combine_experts adds in the order of logits).
// - `sorted_pairs` and chunks are the same in every run.
// Synchronisation: the last block of decode_route lists the pairs of all blocks; otherwise none between blocks. All kernels wait for their
// primary. The gate and up projection lets the down projection start only after this wait, so the down projection reads `sorted_pairs` and
// chunks, and copies weights, while the gate and up projection still runs.
//
// Needs weights of 16 bits. Compiled with
//   ROWS   8, 16, 32 or 64: the largest number of pairs of a chunk; 8 also compiles decode_route and experts.cuh
// and with the macros of matmul.cuh.
#include "decoder/matmul.cuh"

#ifdef HAS_BFLOAT16

struct ExpertChunk {
  u64 weights[2];  // the expert's, by address: gate and up, down
  int first;       // index in `sorted_pairs`
  int count;       // number of pairs
};

#if ROWS == 8
#include "decoder/experts.cuh"

const int MAX_PAIRS = 256 * MAX_CHOSEN;
static_assert(MAX_EXPERTS <= ROUTE_WARPS * WARP, "a thread for each expert");

struct Route {
  const Bits* logits;    // (rows, experts), rows `stride` elements apart
  const int* positions;  // of each row; -1: no token
  float* weights;        // (rows, chosen): the router's; 0: the pair is in no chunk
  int* sorted_pairs;
  ExpertChunk* chunks;
  int* chunk_count;
  u32* blocks_ended;     // 0 before and after a launch
  int* experts_of_pairs; // (rows, chosen): scratch space of launches with several blocks
  const u64* addresses;  // of the experts' weights: gate and up of all experts, then down of all
  u64 rows;              // at most MAX_PAIRS / chosen
  u64 experts;
  u64 chosen;            // experts of a row
  u64 stride;
  u64 normalizes;        // 1: softmax over the row's chosen experts; 0: over all experts
  u64 chunk_rows;
};

// A block chooses experts for ROUTE_WARPS rows. The last block to end lists the pairs of all rows.
extern "C" __global__ void __launch_bounds__(ROUTE_WARPS* WARP) decode_route(const __grid_constant__ Route args) {
  __shared__ short experts_of_pairs[MAX_PAIRS];     // -1: in no chunk
  __shared__ bool is_last;                          // whether this is the last block to end
  // Both hold a count for each expert first, later the sum of the counts before it:
  __shared__ u16 before[ROUTE_WARPS][MAX_EXPERTS];  // pairs of a warp; then of the warps before it
  __shared__ u32 offsets[MAX_EXPERTS + 1];          // pairs, and chunks in the upper half; then of the experts before it
  launch_dependents();
  u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, below = (1u << lane) - 1;
  u32 experts = args.experts, chosen = args.chosen, pairs = args.rows * args.chosen;
  u64 gate_up = 0, down = 0;  // weights of the expert with the thread's index
  if (threadIdx.x < experts) {
    gate_up = args.addresses[threadIdx.x];
    down = args.addresses[experts + threadIdx.x];
  }
  wait_for_primary();

  // Step 1: choose experts, a warp for each row.
  u32 row = blockIdx.x * ROUTE_WARPS + warp;
  if (row < args.rows) {
    Choice choice = choose(args, row, lane);
    if (lane < chosen) {
      args.weights[row * chosen + lane] = choice.weight;
      if (gridDim.x == 1) {
        experts_of_pairs[row * chosen + lane] = choice.expert;
      } else {
        args.experts_of_pairs[row * chosen + lane] = choice.expert;
      }
    }
  }
  if (gridDim.x > 1) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      is_last = atomicAdd(args.blocks_ended, 1) == gridDim.x - 1;
      if (is_last) *args.blocks_ended = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (u32 i = threadIdx.x; i < pairs; i += ROUTE_WARPS * WARP) experts_of_pairs[i] = args.experts_of_pairs[i];
  }
  __syncthreads();

  // Step 2: count the pairs of each expert. A warp has a range of adjacent pairs.
  u32 per_warp = (pairs + ROUTE_WARPS * WARP - 1) / (ROUTE_WARPS * WARP) * WARP, warps = (pairs + per_warp - 1) / per_warp;
  u32 begin = warp * per_warp, end = min(begin + per_warp, pairs);
  for (u32 i = lane; i < experts; i += WARP) before[warp][i] = 0;
  __syncwarp();
  for (u32 base = begin; base < end; base += WARP) {
    int expert = base + lane < end ? experts_of_pairs[base + lane] : -1;
    u32 same = __match_any_sync(~0u, expert);
    if (expert >= 0 && !(same & below)) before[warp][expert] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  if (threadIdx.x < MAX_EXPERTS) {
    u32 count = 0;
    for (u32 w = 0; w < warps && threadIdx.x < experts; w++) {
      u32 own = before[w][threadIdx.x];
      before[w][threadIdx.x] = count;
      count += own;
    }
    offsets[threadIdx.x] = count | (count + (u32)args.chunk_rows - 1) / (u32)args.chunk_rows << 16;
  }
  __syncthreads();

  // Step 3: exclusive prefix sums of the counts over experts.
  if (warp == 0) {
    u32 own[KEYS], total = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
      own[i] = total;
      total += offsets[lane * KEYS + i];
    }
    u32 sum = total;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
      u32 other = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += other;
    }
#pragma unroll
    for (int i = 0; i < KEYS; i++) offsets[lane * KEYS + i] = sum - total + own[i];
    if (lane == WARP - 1) {
      offsets[MAX_EXPERTS] = sum;
      *args.chunk_count = sum >> 16;
    }
  }
  __syncthreads();

  // Step 4: list the pairs, then the chunks.
  for (u32 base = begin; base < end; base += WARP) {
    int expert = base + lane < end ? experts_of_pairs[base + lane] : -1;
    u32 same = __match_any_sync(~0u, expert);
    if (expert >= 0) args.sorted_pairs[(offsets[expert] & 0xffff) + before[warp][expert] + __popc(same & below)] = base + lane;
    __syncwarp();
    if (expert >= 0 && !(same & below)) before[warp][expert] += __popc(same);
    __syncwarp();
  }
  if (threadIdx.x >= experts) return;
  int rows = args.chunk_rows, from = offsets[threadIdx.x] & 0xffff, to = offsets[threadIdx.x + 1] & 0xffff;
  ExpertChunk* chunk = args.chunks + (offsets[threadIdx.x] >> 16);
  for (; from < to; from += rows) *chunk++ = {{gate_up, down}, from, min(rows, to - from)};
}

#endif

struct ExpertMatmul {
  Bits* output;                // (pairs, width)
  const Bits* x;               // (pairs / pairs_of_x, depth)
  const ExpertChunk* chunks;
  const int* chunk_count;
  const int* sorted_pairs;
  u64 pairs_of_x;              // pairs of a row of x: pair i multiplies row i / pairs_of_x
  u64 width;                   // a weight has shape (width, depth); gated: (2 width, depth), gates then values
  u64 depth;                   // a multiple of 8
  u64 gated;                   // 1: gate and up projection, launched after decode_route; 0: down projection, launched after that
};

// The output of a chunk, for store_sums.
struct ExpertOutput {
  Bits* output;
  const float* scales;
  const Bits* bias;
  u64 width;
  u64 stride;
  u64 gated;
};

// The work of a block, for matmul(). Groups are numbered chunk by chunk. A block has a range of adjacent groups, so it seldom reads another
// chunk.
struct ExpertWork {
  const ExpertMatmul& args;
  u32 end = 0;  // of this block's range of groups

  struct Group {
    u32 index, chunk, column;
    const char* weight;  // of the expert
    int first, count;    // of ExpertChunk
  };

  template <int X_TILES>
  struct Rows {
    const Bits* x;
    u32 depth;
    int rows[X_TILES];  // indices of rows of x; -1: none
    __device__ __forceinline__ const Bits* at(int x_tile, u32 k) const { return x + ((u64)rows[x_tile] * depth + k); }
    __device__ __forceinline__ bool exists(int x_tile) const { return rows[x_tile] >= 0; }
  };

  struct RowOfPair {
    const int* pairs;  // of the group's chunk, in `sorted_pairs`
    __device__ __forceinline__ u64 operator()(u32 b) const { return pairs[b]; }
  };

  __device__ __forceinline__ explicit ExpertWork(const ExpertMatmul& matmul) : args(matmul) {}

  // Copies the chunk of a group into the group. No-op if the group is beyond the block's range.
  __device__ __forceinline__ void read_chunk(Group& group) const {
    if (!exists(group)) return;
    const ExpertChunk& chunk = args.chunks[group.chunk];
    group.weight = (const char*)chunk.weights[args.gated ? 0 : 1];
    group.first = chunk.first;
    group.count = chunk.count;
  }
  __device__ __forceinline__ Group first(u32 columns) {
    if (args.gated) wait_for_primary();
    launch_dependents();
    u32 of_chunk = ((u32)args.width + columns - 1) / columns, groups = of_chunk * *args.chunk_count;  // numbers of groups
    u32 begin = (u64)groups * blockIdx.x / gridDim.x;
    end = (u64)groups * (blockIdx.x + 1) / gridDim.x;
    Group group = {begin, begin / of_chunk, begin % of_chunk * columns, nullptr, 0, 0};
    read_chunk(group);
    return group;
  }
  __device__ __forceinline__ void advance(Group& group, u32 columns) const {
    group.index++;
    group.column += columns;
    if (group.column < args.width) return;
    group.column = 0;
    group.chunk++;
    read_chunk(group);
  }
  __device__ __forceinline__ bool exists(const Group& group) const { return group.index < end; }
  __device__ __forceinline__ const char* weight(const Group& group) const { return group.weight; }
  __device__ __forceinline__ const float* scales() const { return nullptr; }
  __device__ __forceinline__ void wait_for_x() const { wait_for_primary(); }
  template <int X_TILES>
  __device__ __forceinline__ Rows<X_TILES> rows(const Group& group, u32 row) const {
    Rows<X_TILES> all = {args.x, (u32)args.depth, {}};
#pragma unroll
    for (int x_tile = 0; x_tile < X_TILES; x_tile++) {
      bool there = exists(group) && x_tile * 8 + (int)row < group.count;
      all.rows[x_tile] = there ? args.sorted_pairs[group.first + x_tile * 8 + row] / (int)args.pairs_of_x : -1;
    }
    return all;
  }
  __device__ __forceinline__ void store(const Group& group, float (&sum)[4], u32 n, u32 b) const {
    ExpertOutput output = {args.output, nullptr, nullptr, args.width, args.width, args.gated};
    store_sums(output, group.count, sum, n, b, RowOfPair{args.sorted_pairs + group.first});
  }
};

#define EXPERT_MATMUL(rows, weight_tiles, max_stages)                                                    \
  extern "C" __global__ void __launch_bounds__(MATMUL_WARPS* WARP, 1)                                    \
      decode_expert_matmul_##rows##_##weight_tiles(const __grid_constant__ ExpertMatmul args) {          \
    matmul<rows / 8, weight_tiles, stages(rows / 8, weight_tiles, max_stages, true), true>(ExpertWork(args)); \
  }

// Largest number of pairs of a chunk, weight tiles of a group, largest number of stages. ExpertKernels.java reads these lines.
#if ROWS == 8
EXPERT_MATMUL(8, 3, 7)
EXPERT_MATMUL(8, 2, 10)
#elif ROWS == 16
EXPERT_MATMUL(16, 3, 6)
EXPERT_MATMUL(16, 2, 8)
#elif ROWS == 32
EXPERT_MATMUL(32, 3, 4)
EXPERT_MATMUL(32, 2, 6)
#elif ROWS == 64
EXPERT_MATMUL(64, 2, 3)
EXPERT_MATMUL(64, 1, 4)
#endif

#endif
