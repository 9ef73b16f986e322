// Mixture of experts in prefills on Hopper GPUs. The GPU chooses the experts, so the host waits for nothing. In the order of launches:
//
//   choose_experts     chooses each row's experts by the router's logits, and counts the pairs of each expert
//   list_chunks        lists the chunks
//   gather_rows        gives each pair a place, and copies its row of x there
//   expert_tiles_*     gate and up projection of the rows in the order of places: silu(x gates) * (x values)
//   expert_tiles_*     down projection; the results are in the order of pairs
//   combine_experts    adds up each row's results, times the router's weights
//
// Pair    number row * chosen + i: a row and its expert with the i-th highest logit
// Place   index in the list of the pairs of expert 0, then those of expert 1 and so on; without pairs whose weight rounds to 0. The order
//         of an expert's pairs may differ between runs
// Chunk   up to `chunk_rows` adjacent places, all of one expert
//
// Invariant: bit for bit, the result of a row depends only on the row and the weights, not on its place (wide_matmul.cuh; combine_experts
// adds in the order of logits).
// Synchronisation: none between blocks. All threads wait for the primary before they read or write.
//
// Needs weights of 16 bits. Compiled with TYPE, Float16 or Bfloat16.
#include "decoder/experts.cuh"
#include "decoder/wide_matmul.cuh"
#include "hopper.cuh"

#ifdef HAS_BFLOAT16

struct WideChunk {
  int expert;
  int first_chunk;  // of the expert
  int chunks;       // of the expert
  int first;        // place
  int count;
};

struct WideRoute {
  const Bits* logits;     // (rows, experts), rows `stride` elements apart
  const int* positions;   // of each row; -1: no token. null: all are tokens
  float* weights;         // (rows, chosen): the router's; 0: the pair has no place
  int* experts_of_pairs;  // (rows, chosen); -1: the pair has no place
  int* counts;            // of the pairs of each expert; 0 before choose_experts and after list_chunks
  int* next_places;       // of each expert
  WideChunk* chunks;
  int* chunk_count;
  int* pairs;             // by place
  const Bits* x;          // (rows, hidden)
  Bits* gathered;         // (places, hidden)
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
  __shared__ int places[MAX_EXPERTS], chunks[MAX_EXPERTS];  // of the experts up to and with the thread's
  launch_dependents();
  wait_for_primary();
  int expert = threadIdx.x, rows = args.chunk_rows;
  bool exists = expert < args.experts;
  int own = exists ? args.counts[expert] : 0, own_chunks = (own + rows - 1) / rows;
  places[expert] = own;
  chunks[expert] = own_chunks;
  __syncthreads();
  for (int distance = 1; distance < MAX_EXPERTS; distance *= 2) {
    int other = expert >= distance ? places[expert - distance] : 0, other_chunks = expert >= distance ? chunks[expert - distance] : 0;
    __syncthreads();
    places[expert] += other;
    chunks[expert] += other_chunks;
    __syncthreads();
  }
  if (expert == MAX_EXPERTS - 1) *args.chunk_count = chunks[expert];
  if (!exists) return;
  int first = places[expert] - own, first_chunk = chunks[expert] - own_chunks;
  args.counts[expert] = 0;
  args.next_places[expert] = first;
  for (int i = 0; i < own_chunks; i++) {
    args.chunks[first_chunk + i] = {expert, first_chunk, own_chunks, first + i * rows, min(rows, own - i * rows)};
  }
}

// A block for each row.
extern "C" __global__ void gather_rows(const __grid_constant__ WideRoute args) {
  __shared__ int places[MAX_CHOSEN];  // of the row's pairs; -1: none
  launch_dependents();
  wait_for_primary();
  u64 row = blockIdx.x;
  if (threadIdx.x < args.chosen) {
    u64 pair = row * args.chosen + threadIdx.x;
    int expert = args.experts_of_pairs[pair], place = expert < 0 ? -1 : atomicAdd(args.next_places + expert, 1);
    if (place >= 0) args.pairs[place] = pair;
    places[threadIdx.x] = place;
  }
  __syncthreads();
  u32 packs = args.hidden / PACK;
  const uint4* x = (const uint4*)args.x + row * packs;
  for (u32 i = threadIdx.x; i < packs; i += blockDim.x) {
    uint4 pack = x[i];
    for (u32 k = 0; k < args.chosen; k++) {
      if (places[k] >= 0) ((uint4*)args.gathered)[(u64)places[k] * packs + i] = pack;
    }
  }
}

// The tiles of an expert's weight times its chunks. Blocks are numbered by expert, then tile, then chunk, so that blocks which run at the
// same time share weights in the L2 cache.
struct WideExperts {
  WideMatmul matmul;         // its `weight` and `batch` are not used; x: (places, depth)
  const TensorMap* weights;  // of each expert
  const WideChunk* chunks;
  const int* chunk_count;
  const int* pairs;          // by place; the results are in this order. null: in the order of places
  u64 tiles;                 // of a weight
};

struct OneExpert {
  const WideMatmul& args;
  const TensorMap* weight;
  const int* pairs;  // of the chunk
  u32 tile, first_row, rows;

  // All threads of the block call this. A block beyond the last chunk has no rows.
  __device__ __forceinline__ explicit OneExpert(const WideExperts& of)
      : args(of.matmul), weight(of.weights), pairs(of.pairs), tile(0), first_row(0), rows(0) {
    wait_for_primary();
    u32 tiles = of.tiles, of_expert = blockIdx.x / tiles;  // a chunk of the block's expert
    if (of_expert >= *of.chunk_count) return;
    const WideChunk& any = of.chunks[of_expert];
    u32 index = blockIdx.x - any.first_chunk * tiles;  // of the block, among those of the expert
    tile = index / any.chunks;
    const WideChunk& own = of.chunks[any.first_chunk + index % any.chunks];
    weight += own.expert;
    first_row = own.first;
    rows = own.count;
    // The host has written the map by ordinary stores.
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(weight) : "memory");
    fence_async();  // The previous kernel has written x by ordinary stores.
  }
  __device__ __forceinline__ void load_weight(void* to, Barrier& loaded, int x, int y) const { load_box(to, *weight, loaded, x, y); }
  __device__ __forceinline__ u64 output_row(u32 b) const { return pairs ? pairs[first_row + b] : first_row + b; }
};

#define EXPERT_TILES(chunk_rows, columns)                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                   \
      expert_tiles_##chunk_rows##_##columns(const __grid_constant__ WideExperts args) {                      \
    OneExpert work(args);                                                                                    \
    if (work.rows > 0) wide_matmul<chunk_rows, columns, 1>(work);                                            \
  }

// Rows of a chunk, columns of a tile, the same for all; WideExperts.java reads these lines.
EXPERT_TILES(64, 256)
EXPERT_TILES(128, 256)

#endif
