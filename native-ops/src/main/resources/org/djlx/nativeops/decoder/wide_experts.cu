// Mixture of experts in prefills on Hopper GPUs. The GPU chooses the experts, so the host does not wait. In the order of launches:
//
//   choose_experts     chooses each row's experts by the router's logits, and counts the pairs of each expert
//   list_chunks        lists the chunks
//   gather_rows        lists the pairs in the order of experts, and copies the row of x of each
//   expert_tiles_*     gate and up projection of the copied rows: silu(x gates) * (x values)
//   expert_tiles_*     down projection; stores the results by pair
//   combine_experts    adds up each row's results, times the router's weights
//
// Pair          number row * chosen + i: a row and its expert with the i-th highest logit
// sorted_pairs  the pairs of expert 0, then those of expert 1 and so on; without pairs whose weight rounds to 0. The order of an expert's
//               pairs may differ between runs
// Chunk         up to `chunk_rows` adjacent entries of `sorted_pairs`, all of one expert
//
// Invariant: bit for bit, the result of a row depends only on the row and the weights, not on the order of `sorted_pairs`
// (wide_matmul.cuh; combine_experts adds in the order of logits).
// Synchronisation: none between blocks. All threads wait for the primary kernel before they read or write.
//
// Needs weights of 16 bits. Compiled with TYPE, Float16 or Bfloat16.
#include "decoder/experts.cuh"
#include "decoder/wide_matmul.cuh"
#include "hopper.cuh"

#ifdef HAS_BFLOAT16

struct WideChunk {
  int expert;
  int first_chunk;  // index of the expert's first chunk
  int chunks;       // number of chunks of the expert
  int first;        // index in `sorted_pairs`
  int count;        // number of pairs
};

struct WideRoute {
  const Bits* logits;     // (rows, experts), rows `stride` elements apart
  const int* positions;   // of each row; -1: no token. null: all rows have tokens
  float* weights;         // (rows, chosen): the router's; 0: the pair is in no chunk
  int* experts_of_pairs;  // (rows, chosen); -1: the pair is in no chunk
  int* counts;            // number of pairs of each expert; 0 before choose_experts and after list_chunks
  int* next;              // for each expert, the index in `sorted_pairs` at which gather_rows stores its next pair
  WideChunk* chunks;
  int* chunk_count;
  int* sorted_pairs;
  const Bits* x;          // (rows, hidden)
  Bits* gathered;         // (pairs, hidden): rows of x in the order of `sorted_pairs`
  u64 rows;
  u64 experts;
  u64 chosen;             // experts of a row
  u64 stride;
  u64 normalizes;         // 1: softmax over the row's chosen experts; 0: over all experts
  u64 chunk_rows;
  u64 hidden;             // a multiple of 8
};

// A warp for each row.
extern "C" __global__ void __launch_bounds__(ROUTE_WARPS* WARP) choose_experts(const __grid_constant__ WideRoute args) {
  launch_dependents();
  wait_for_primary();
  u32 row = blockIdx.x * ROUTE_WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (row >= args.rows) return;
  Choice choice = choose(args, row, lane);
  if (lane >= args.chosen) return;
  u64 pair = row * args.chosen + lane;
  args.weights[pair] = choice.weight;
  args.experts_of_pairs[pair] = choice.expert;
  if (choice.expert >= 0) atomicAdd(args.counts + choice.expert, 1);
}

// One block with a thread for each expert.
extern "C" __global__ void __launch_bounds__(MAX_EXPERTS) list_chunks(const __grid_constant__ WideRoute args) {
  __shared__ int pair_sums[MAX_EXPERTS], chunk_sums[MAX_EXPERTS];  // inclusive prefix sums over experts
  launch_dependents();
  wait_for_primary();
  int expert = threadIdx.x, rows = args.chunk_rows;
  bool exists = expert < args.experts;
  int pairs = exists ? args.counts[expert] : 0, chunks = (pairs + rows - 1) / rows;
  pair_sums[expert] = pairs;
  chunk_sums[expert] = chunks;
  __syncthreads();
  for (int distance = 1; distance < MAX_EXPERTS; distance *= 2) {
    int more_pairs = expert >= distance ? pair_sums[expert - distance] : 0;
    int more_chunks = expert >= distance ? chunk_sums[expert - distance] : 0;
    __syncthreads();
    pair_sums[expert] += more_pairs;
    chunk_sums[expert] += more_chunks;
    __syncthreads();
  }
  if (expert == MAX_EXPERTS - 1) *args.chunk_count = chunk_sums[expert];
  if (!exists) return;
  int first = pair_sums[expert] - pairs, first_chunk = chunk_sums[expert] - chunks;
  args.counts[expert] = 0;
  args.next[expert] = first;
  for (int i = 0; i < chunks; i++) {
    args.chunks[first_chunk + i] = {expert, first_chunk, chunks, first + i * rows, min(rows, pairs - i * rows)};
  }
}

// A block for each row.
extern "C" __global__ void gather_rows(const __grid_constant__ WideRoute args) {
  __shared__ int indices[MAX_CHOSEN];  // of the row's pairs in `sorted_pairs`; -1: the pair is in no chunk
  launch_dependents();
  wait_for_primary();
  u64 row = blockIdx.x;
  if (threadIdx.x < args.chosen) {
    u64 pair = row * args.chosen + threadIdx.x;
    int expert = args.experts_of_pairs[pair], index = expert < 0 ? -1 : atomicAdd(args.next + expert, 1);
    if (index >= 0) args.sorted_pairs[index] = pair;
    indices[threadIdx.x] = index;
  }
  __syncthreads();
  u32 packs = args.hidden / PACK;
  const uint4* x = (const uint4*)args.x + row * packs;
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
    uint4 pack = x[i];
    for (u32 k = 0; k < args.chosen; k++) {
      if (indices[k] >= 0) ((uint4*)args.gathered)[(u64)indices[k] * packs + i] = pack;
    }
  }
}

// One block for each tile of an expert's weight and chunk of the expert. Blocks are numbered by expert, then tile, then chunk, so that
// blocks that run at the same time share weights in the L2 cache.
struct ExpertTiles {
  WideMatmul matmul;         // `weight` and `batch` are not used. x: the rows in the order of `sorted_pairs`
  const TensorMap* weights;  // of each expert
  const WideChunk* chunks;
  const int* chunk_count;
  const int* sorted_pairs;   // results are stored by pair. null: in the order of the rows of x
  u64 tiles;                 // number of tiles of a weight
};

// The work of a block, for wide_matmul.
struct ExpertTile {
  const WideMatmul& args;
  const TensorMap* weight;
  const int* sorted_pairs;
  u32 tile, first_row, rows;

  // All threads of the block call this. `rows` is 0 in blocks beyond the last chunk.
  __device__ __forceinline__ explicit ExpertTile(const ExpertTiles& all)
      : args(all.matmul), weight(all.weights), sorted_pairs(all.sorted_pairs), tile(0), first_row(0), rows(0) {
    wait_for_primary();
    // An expert has `tiles` adjacent blocks for each of its chunks. So this chunk is one of the expert's, and says which blocks these are.
    u32 tiles = all.tiles, some_chunk = blockIdx.x / tiles;
    if (some_chunk >= *all.chunk_count) return;
    const WideChunk& some = all.chunks[some_chunk];
    u32 block = blockIdx.x - some.first_chunk * tiles;  // index among the expert's blocks
    tile = block / some.chunks;
    const WideChunk& chunk = all.chunks[some.first_chunk + block % some.chunks];
    weight += chunk.expert;
    first_row = chunk.first;
    rows = chunk.count;
    // The map was copied to global memory; TMA must see it.
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(weight) : "memory");
    fence_async();  // The previous kernel has written x by ordinary stores.
  }
  __device__ __forceinline__ void load_weight(void* to, Barrier& loaded, int x, int y) const { load_box(to, *weight, loaded, x, y); }
  __device__ __forceinline__ u64 output_row(u32 b) const { return sorted_pairs ? sorted_pairs[first_row + b] : first_row + b; }
};

#define EXPERT_TILES(chunk_rows, columns)                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                   \
      expert_tiles_##chunk_rows##_##columns(const __grid_constant__ ExpertTiles args) {                      \
    ExpertTile work(args);                                                                                   \
    if (work.rows > 0) wide_matmul<chunk_rows, columns, 1, 1>(work);                                          \
  }

// chunk_rows, columns of a tile; WideExperts.java reads these lines. All have the same number of columns, as the tensor maps of the weights do.
EXPERT_TILES(64, 256)
EXPERT_TILES(128, 256)

#endif
