// Path FUSED: all-gather + matmul, and matmul + reduce-scatter, each as a single persistent kernel on every rank, for Hopper GPUs.
//
// Roles of the three warp groups of a block, as in CUTLASS's warp-specialised kernels and DeepGEMM
//   one warp group    single threads schedule tiles, load operands (TMA) and store results (TMA)
//   two warp groups   multiply (wgmma), each 64 rows of a 128 x TILE_N tile
// A block gets tiles from a counter in global memory; it takes its next tile shortly before the current one ends.
//
// All-gather + matmul (tile order as in Flux, Chang et al. 2024)
//   1. The first blocks push this rank's shard into its slot on every peer, and signal each peer once its shard is complete.
//   2. All blocks compute tiles: first of the own shard, then of the next rank's shard, and so on. Tiles of a peer's shard wait
//      for its signal.
//
// Matmul + reduce-scatter
//   1. Tiles of a peer's part are stored into this rank's slot on that peer; each half tile signals a flag there.
//   2. Tiles of the own part come late: they wait for the peers' flags, load the peers' tiles and sum in rank order in float32.
//   With `pull`, a tile stays in a slot of this rank, and its owner reads it there after the flag.
//
// Memory of a rank: words of `entered` (its own operation count, and the epochs of its peers) | signals or flags | counters | slots.
// Shared memory: STAGES of operands | a ring of result boxes for each multiplying warp group | two buffers that copy the gathered A.
//
// Synchronisation between ranks
// - A rank enters an operation by signalling its epoch to the peers; nothing is written to a peer before it has entered.
// - Work that needs no peer fills the wait: own tiles of an all-gather, about one tile a block of a reduce-scatter.
// - Epochs are counted in device memory, so graphs replay without extra nodes.
// - A wait ends after `timeout` or when the host sets `stop`. The kernel then reports the missing rank and continues; its results
//   are undefined. A rank that has not entered is sent nothing.
//
// Invariants
// - Counters are zero when the kernel ends.
// - A warp that has read a box by ldmatrix executes fence.proxy.async before it marks the box empty: the barrier alone does not keep
//   TMA from overwriting the box.
// - All ranks launch a matmul + reduce-scatter. In an all-gather + matmul a rank may run path PIPELINED instead, which pushes the
//   same shards with the same signals.
//
// Picture: docs/design/operator-paths.md. Experiments: docs/design/experiments/fused-matmul.md.
//
// Compiled with
//   TILE_N      64, 128 or 256
//   TYPE        Bfloat16 or Float16
//   TRANSPOSED  1: the columns of B are contiguous (K-major); 0: its rows
//   SCATTER     1: matmul + reduce-scatter; 0: all-gather + matmul
//   GATED       1: all-gather + matmul with one K-major B, the columns of the gates, then the columns of the values; stores
//               silu(gates) * values of the unrounded sums. TILE_N is 128 or 256
//   SCALED      1: A and B are float8 (e4m3), and TYPE is of the product. Sums are multiplied by the scales of their row and
//               their column. K-major, TILE_N is 64 or 128
#include "hopper.cuh"
#include "signal.cuh"
#include "silu.cuh"

#ifndef TILE_N
#define TILE_N 256
#endif
#ifndef TYPE
#define TYPE Bfloat16
#endif
#ifndef TRANSPOSED
#define TRANSPOSED 0
#endif
#ifndef SCATTER
#define SCATTER 0
#endif
#ifndef GATED
#define GATED 0
#endif
#ifndef SCALED
#define SCALED 0
#endif

const int MAX_RIGHTS = 4;  // Bs of an all-gather + matmul
const int FUSED_THREADS = 384;  // three warp groups
const int TILE_M = 128;
const int HALF_M = TILE_M / 2;  // rows of a tile that a warp group computes
const int STEP_BYTES = 128;  // of a row of A in a k step: the width of a swizzled box
const int ITEM = SCALED ? 1 : 2;  // bytes of an element of A and B
const int BLOCK_K = STEP_BYTES / ITEM;
const int BOX_COLUMNS = 64;
const int BOX_BYTES = HALF_M * BOX_COLUMNS * 2;
const int OUT_N = GATED ? TILE_N / 2 : TILE_N;  // columns that a tile stores
const int BOXES = OUT_N / BOX_COLUMNS;          // boxes that a warp group stores
const int RING = TILE_N == 256 ? 4 : 2;         // result boxes in shared memory for each multiplying warp group
const int LEFT_BYTES = TILE_M * STEP_BYTES;
const int RIGHT_BYTES = STEP_BYTES * TILE_N;
const int STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES;
const int STAGES = TILE_N == 256 ? 3 : TILE_N == 128 ? 5 : 7;
const int SCHEDULE_AHEAD = 4 * 256 / TILE_N;  // k steps before a tile's last load at which the next tile is scheduled
const int PUSH_BYTES = 32768;                 // of one push; its buffers use the memory of the stages
const int PUSH_BUFFERS = 4;
const int COPY_BYTES = 8192;  // of one copy to the gathered A
const int ROWS_IN_GROUP = 16;  // tile rows that are computed before the next tile column
const int SHARED_BYTES = 1024 + STAGES * STAGE_BYTES + 2 * RING * BOX_BYTES + 2 * COPY_BYTES;
static_assert(SHARED_BYTES <= 232448, "a block has 227 KB of shared memory");
static_assert(!GATED || (TRANSPOSED && !SCATTER && TILE_N >= 2 * BOX_COLUMNS), "gated: K-major, all-gather, TILE_N of at least 128");
static_assert(!SCALED || (TRANSPOSED && !GATED && TILE_N <= 128), "scaled: K-major, without gates, TILE_N of at most 128");
static_assert(BOXES <= RING, "the ring holds all results of a tile");
static_assert(PUSH_BUFFERS * PUSH_BYTES <= STAGES * STAGE_BYTES, "push buffers fit into the stages");

// Kernel argument, in words of 8 bytes. Java: the offsets of the launcher's struct.
struct Launch {
  TensorMap left;               // A: this rank's shard (gather), all of A (scatter)
  TensorMap arrived;            // this rank's slots, one per rank. With `pull` they hold the parts that peers read
  TensorMap right[MAX_RIGHTS];  // each B
  TensorMap out[MAX_RANKS];     // gather: the product with each B. Scatter: this rank's slot on each peer, and at `rank` its
                                // result. With `pull`: where this rank reads on each peer
  u64 columns[MAX_RIGHTS];      // of each B; gated: of the output
  u64 rights;                   // number of Bs
  u64 grouped;                  // 1: the maps of row-major Bs have dimensions {column in a box, row, box}
  u64 rows;                     // of a shard or a part
  u64 inner;                    // k
  u64 left_bytes;               // of a box of A; fewer rows than a tile if a rank has fewer
  u64 rank;
  u64 ranks;
  float factor;   // of the sums; a power of two, so it does not round
  u64 own_delay;  // scatter: tiles of the last peer's part before the own part's first tile
  u64 pull;       // 1: owners read the parts, 0: parts are pushed
  u64 pushers;    // gather: blocks that push the shard
  Status* status;
  u64 timeout;               // ns
  u32* counters;             // of this rank; 0 before and after a launch
  char* entered[MAX_RANKS];  // on each rank: a word per rank, the epoch that the rank has entered; at `rank` the operation count
  u64 entered_distance;      // bytes between words
  char* signals[MAX_RANKS];  // on each rank. Gather: a word per rank. Scatter: per rank, a word per half tile
  u64 rank_distance;         // bytes between the words of two ranks
  const char* shard;         // gather: this rank's shard
  u64 slot_bytes;            // from one slot to the next
  char* slots[MAX_RANKS];    // gather: of each rank
  char* gathered;            // gather: where the gathered A is copied to, or null
  const float* row_scales;   // scaled: of the rows of all parts
  const float* column_scales[MAX_RIGHTS];  // scaled: of the columns of each B
  u64 scale_step;            // scaled. 1: each row and column has a scale; 0: A has one scale, and each B
};

// Indices of `counters`.
const int NEXT_TILE = 0;
const int BLOCKS_ENDED = 1;
#if !SCATTER
const int PUSHED = 2;  // + rank: blocks that have pushed their share to it
#endif

struct Tile {
  u32 part;    // rank whose rows it has; NO_PART: no tile left
  u32 row;     // first row within the part
  u32 right;   // which B
  u32 column;  // first column
  u32 number;  // within the part
};
const u32 NO_PART = ~0u;

// Barriers are pairs "full" (data ready) and "empty" (buffer free). Index 2: the two multiplying warp groups, or two buffers.
struct Shared {
  Barrier full[STAGES], empty[STAGES];             // operands
  Barrier tile_full[2], tile_empty[2];             // `tiles`
  Barrier tile_ending;                             // the current tile is about to end: schedule the next
  Barrier box_full[2][RING], box_empty[2][RING];   // peers' boxes in the ring
  Barrier result_ready[2], ring_free[2];           // results in the ring
  Barrier push_loaded[PUSH_BUFFERS], copy_loaded[2];
  Tile tiles[2];  // the current tile and the next
  u64 epoch;      // of this operation
  int timed_out;  // a wait for a peer has failed
};

__device__ __forceinline__ u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

// Waits until a peer has signalled this operation on a word of this rank. Later TMA copies see what the peer wrote. No-op after a
// failed wait.
__device__ __forceinline__ void wait_rank(const Launch& launch, Shared& shared, const char* word, u32 peer) {
  if (*(volatile int*)&shared.timed_out) return;
  if (!wait_signal((const u64*)word, shared.epoch, launch.status, launch.timeout, peer)) *(volatile int*)&shared.timed_out = 1;
  fence_async();
}

// The word of `source` in the row `entered` of a rank.
__device__ __forceinline__ char* entered(const Launch& launch, u32 on, u32 source) {
  return launch.entered[on] + source * launch.entered_distance;
}

// Signals to a peer that this rank has entered the operation. One thread per rank.
__device__ __forceinline__ void signal_entered(const Launch& launch, const Shared& shared, u32 peer) {
  if (peer < launch.ranks && peer != launch.rank) signal((u64*)entered(launch, peer, launch.rank), shared.epoch);
}

// Waits until a peer has entered the operation, unless a wait has failed before. Returns whether the peer has entered: only then
// may data be sent to it.
__device__ __forceinline__ bool wait_entered(const Launch& launch, Shared& shared, u32 peer) {
  const char* word = entered(launch, launch.rank, peer);
  wait_rank(launch, shared, word, peer);
  return is_signalled((const u64*)word, shared.epoch);
}

// Tile columns of all Bs.
__device__ __forceinline__ u32 tile_columns(const Launch& launch) {
  u32 sum = 0;
  for (u32 i = 0; i < launch.rights; i++) sum += ceil_div(launch.columns[i], OUT_N);
  return sum;
}

// The tile of an index of the tile counter.
__device__ __forceinline__ Tile tile_at(const Launch& launch, u32 index) {
  u32 tile_rows = ceil_div(launch.rows, TILE_M);
  u32 across = tile_columns(launch);
  u32 part_tiles = tile_rows * across;
  u32 step = index / part_tiles;
  u32 number = index - step * part_tiles;
  if (step >= launch.ranks) return {NO_PART};
  Tile tile;
#if SCATTER
  // After `own_delay` tiles of the last peer's part, its tiles and the own part's tiles alternate: by then the peers have
  // computed their first tiles of the own part.
  u32 begin = (launch.ranks - 2) * part_tiles + launch.own_delay;
  if (launch.ranks > 1 && index >= begin) {
    u32 both = index - begin;
    u32 left = part_tiles - launch.own_delay;
    bool own = both >= 2 * left || (both & 1);
    number = both >= 2 * left ? left + (both - 2 * left) : own ? both / 2 : launch.own_delay + both / 2;
    step = own ? launch.ranks - 1 : launch.ranks - 2;
  }
  tile.part = (launch.rank + 1 + step) % launch.ranks;
#else
  tile.part = (launch.rank + step) % launch.ranks;
#endif
  // Down a group of tile rows, then to the next tile column: the operands stay in L2.
  u32 group = number / (ROWS_IN_GROUP * across);
  u32 height = min((u32)ROWS_IN_GROUP, tile_rows - group * ROWS_IN_GROUP);
  u32 within = number - group * ROWS_IN_GROUP * across;
  tile.row = (group * ROWS_IN_GROUP + within % height) * TILE_M;
  u32 column = within / height;
  tile.right = 0;
  while (column >= ceil_div(launch.columns[tile.right], OUT_N)) column -= ceil_div(launch.columns[tile.right++], OUT_N);
  tile.column = column * OUT_N;
  tile.number = number;
  return tile;
}

#if SCATTER
// The flag of `source` on a rank for half a tile.
__device__ __forceinline__ char* flag_word(const Launch& launch, u32 on, u32 source, u32 number, u32 half) {
  return launch.signals[on] + source * launch.rank_distance + (2 * number + half) * sizeof(u64);
}
#else
// The signal of `source` on a rank.
__device__ __forceinline__ char* signal_word(const Launch& launch, u32 on, u32 source) {
  return launch.signals[on] + source * launch.rank_distance;
}

__device__ __forceinline__ u64 shard_size(const Launch& launch) { return launch.rows * launch.inner * ITEM; }

// One thread of each pushing block: pushes the block's share of the shard to all peers, through shared memory.
__device__ void push(const Launch& launch, Shared& shared, char* memory) {
  u64 end = shard_size(launch);
  u64 first = blockIdx.x * (u64)PUSH_BYTES;
  u64 distance = launch.pushers * PUSH_BYTES;
  u32 loads = 0, stores = 0;
  for (u32 step = 1; step < launch.ranks; step++) {
    u32 peer = (launch.rank + launch.ranks - step) % launch.ranks;
    if (!wait_entered(launch, shared, peer)) continue;
    char* slot = launch.slots[peer] + launch.rank * launch.slot_bytes;
    u64 to_load = first;
    for (u64 to_store = first; to_store < end; to_store += distance) {
      for (; to_load < end && loads - stores < PUSH_BUFFERS - 1; to_load += distance, loads++) {
        // The buffer is free: all stores but the last have been read.
        wait_stores_read<1>();
        u32 bytes = min((u64)PUSH_BYTES, end - to_load);
        Barrier& loaded = shared.push_loaded[loads % PUSH_BUFFERS];
        loaded.arrive_expecting(bytes);
        load_bytes(memory + loads % PUSH_BUFFERS * PUSH_BYTES, launch.shard + to_load, bytes, loaded);
      }
      u32 buffer = stores % PUSH_BUFFERS;
      shared.push_loaded[buffer].wait(stores / PUSH_BUFFERS & 1);
      store_bytes(slot + to_store, memory + buffer * PUSH_BYTES, min((u64)PUSH_BYTES, end - to_store));
      commit_stores();
      stores++;
    }
    wait_stores_written();
    fence_async();
    // The last block that has pushed to this peer signals for all blocks.
    u32* count = launch.counters + PUSHED + peer;
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    if (before == launch.pushers - 1) {
      *(volatile u32*)count = 0;
      __threadfence_system();
      signal((u64*)signal_word(launch, peer, launch.rank), shared.epoch);
    }
  }
}

// One thread: copies the block's share of all shards to the gathered A.
__device__ void copy_gathered(const Launch& launch, Shared& shared, char* memory) {
  u64 end = shard_size(launch);
  u64 first = blockIdx.x * (u64)COPY_BYTES;
  u32 copies = 0;
  for (u32 step = 0; step < launch.ranks; step++) {
    u32 source = (launch.rank + step) % launch.ranks;
    const char* from = source == launch.rank ? launch.shard : launch.slots[launch.rank] + source * launch.slot_bytes;
    char* to = launch.gathered + source * end;
    if (first < end && source != launch.rank) wait_rank(launch, shared, signal_word(launch, launch.rank, source), source);
    for (u64 at = first; at < end; at += gridDim.x * (u64)COPY_BYTES, copies++) {
      u32 bytes = min((u64)COPY_BYTES, end - at);
      char* buffer = memory + copies % 2 * COPY_BYTES;
      wait_stores_read<1>();
      shared.copy_loaded[copies % 2].arrive_expecting(bytes);
      load_bytes(buffer, from + at, bytes, shared.copy_loaded[copies % 2]);
      shared.copy_loaded[copies % 2].wait(copies / 2 & 1);
      store_bytes(to + at, buffer, bytes);
      commit_stores();
    }
  }
  wait_stores_written();
}
#endif

#if SCATTER
// Waits until all peers have signalled both halves of a tile of this rank's part. Returns early if a wait for a peer has failed.
__device__ void wait_parts(const Launch& launch, Shared& shared, u32 number) {
  for (u32 source = 0; source < launch.ranks; source++) {
    if (source == launch.rank) continue;
    for (u32 half = 0; half < 2; half++) {
      const u64* flag = (const u64*)flag_word(launch, launch.rank, source, number, half);
      while (*(const volatile u64*)flag < shared.epoch && !*(volatile int*)&shared.timed_out) {
      }
    }
  }
}
#endif

// One thread: the tile scheduler. It fetches a tile SCHEDULE_AHEAD k steps before the previous tile has been loaded: late enough to
// balance the blocks, early enough that the loading thread does not wait for the counter. After a tile of this rank's part, it fetches
// the next tile only when the peers' sums for that tile have arrived. A block that fetched earlier would hold its next tile while it
// waits, although a free block could compute that tile, and the peers may wait for it.
__device__ void schedule_tiles(const Launch& launch, Shared& shared) {
  Tile tile = {NO_PART};
  for (u32 index = 0;; index++) {
    u32 entry = index & 1;
#if SCATTER
    if (tile.part == launch.rank) wait_parts(launch, shared, tile.number);
#endif
    shared.tile_ending.wait(index & 1);
    shared.tile_empty[entry].wait((index >> 1 & 1) ^ 1);
    tile = tile_at(launch, atomicAdd(launch.counters + NEXT_TILE, 1));
    shared.tiles[entry] = tile;
    shared.tile_full[entry].arrive();
    if (tile.part == NO_PART) return;
  }
}

// Returns the block's tile number `index`. One thread of each consumer: 8 multiplying warps, 1 loading and 2 moving threads.
__device__ __forceinline__ Tile next_tile(Shared& shared, u32 index) {
  u32 entry = index & 1;
  shared.tile_full[entry].wait(index >> 1 & 1);
  Tile tile = shared.tiles[entry];
  shared.tile_empty[entry].arrive();
  return tile;
}

// One thread: loads the operands of the block's tiles.
__device__ void load_operands(const Launch& launch, Shared& shared, char* stages) {
#if !SCATTER
  if (blockIdx.x < launch.pushers) push(launch, shared, stages);
  u32 arrived = launch.rank;  // the last rank whose shard has arrived
#endif
  u32 steps = ceil_div(launch.inner, BLOCK_K);
  u32 ends = steps > SCHEDULE_AHEAD ? steps - SCHEDULE_AHEAD : 0;
  shared.tile_ending.arrive();
  u32 stage = 0, parity = 0;
  for (u32 index = 0;; index++) {
    Tile tile = next_tile(shared, index);
    if (tile.part == NO_PART) break;
#if !SCATTER
    bool own = tile.part == launch.rank;
    if (!own && tile.part != arrived) wait_rank(launch, shared, signal_word(launch, launch.rank, tile.part), tile.part);
    arrived = tile.part;
#endif
    const TensorMap& right = launch.right[tile.right];
    if (steps == 0) shared.tile_ending.arrive();
    for (u32 step = 0; step < steps; step++) {
      if (step == ends) shared.tile_ending.arrive();
      shared.empty[stage].wait(parity ^ 1);
      char* left_box = stages + stage * STAGE_BYTES;
      char* right_box = left_box + LEFT_BYTES;
      Barrier& full = shared.full[stage];
      full.arrive_expecting(launch.left_bytes + RIGHT_BYTES);
#if SCATTER
      load_box(left_box, launch.left, full, step * BLOCK_K, tile.row, tile.part);
#else
      if (own) {
        load_box(left_box, launch.left, full, step * BLOCK_K, tile.row);
      } else {
        load_box(left_box, launch.arrived, full, step * BLOCK_K, tile.row, tile.part);
      }
#endif
      if (GATED) {
        load_box(right_box, right, full, step * BLOCK_K, tile.column);
        load_box(right_box + RIGHT_BYTES / 2, right, full, step * BLOCK_K, launch.columns[0] + tile.column);
      } else if (TRANSPOSED) {
        load_box(right_box, right, full, step * BLOCK_K, tile.column);
      } else if (launch.grouped) {
        load_box(right_box, right, full, 0, step * BLOCK_K, tile.column / BOX_COLUMNS);
      } else {
#pragma unroll
        for (int box = 0; box < TILE_N / BOX_COLUMNS; box++) {
          load_box(right_box + box * STEP_BYTES * BOX_COLUMNS, right, full, tile.column + box * BOX_COLUMNS, step * BLOCK_K);
        }
      }
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  // The last block resets the counters and counts the operation; all blocks have read the count before.
  if (atomicAdd(launch.counters + BLOCKS_ENDED, 1) == gridDim.x - 1) {
    launch.counters[NEXT_TILE] = 0;
    launch.counters[BLOCKS_ENDED] = 0;
    *(volatile u64*)entered(launch, launch.rank, launch.rank) = shared.epoch;
  }
}

// One thread for each multiplying warp group: stores its results; scatter: loads the peers' parts of own tiles into the ring.
__device__ void move_results(const Launch& launch, Shared& shared, char* ring, u32 half) {
#if SCATTER
  u32 boxes = 0;            // loaded
  u32 ready = launch.rank;  // the last rank that has entered
#endif
  for (u32 index = 0;; index++) {
    Tile tile = next_tile(shared, index);
    if (tile.part == NO_PART) break;
    u32 row = tile.row + half * HALF_M;
#if SCATTER
    bool own = tile.part == launch.rank;
    if (own) {
      for (u32 box = 0; box < BOXES; box++) {
        for (u32 source = 0; source < launch.ranks; source++) {
          if (source == launch.rank) continue;
          if (box == 0) wait_rank(launch, shared, flag_word(launch, launch.rank, source, tile.number, half), source);
          u32 ring_slot = boxes % RING;
          shared.box_empty[half][ring_slot].wait((boxes / RING & 1) ^ 1);
          shared.box_full[half][ring_slot].arrive_expecting(BOX_BYTES);
          char* to = ring + ring_slot * BOX_BYTES;
          Barrier& arrived = shared.box_full[half][ring_slot];
          u32 column = tile.column + box * BOX_COLUMNS;
          if (launch.pull) {
            load_box(to, launch.out[source], arrived, column, row);
          } else {
            load_box(to, launch.arrived, arrived, column, row, source);
          }
          boxes++;
        }
      }
    }
#endif
    shared.ring_free[half].arrive();
    shared.result_ready[half].wait(index & 1);
#if SCATTER
    if (!own) {
      if (tile.part != ready && !wait_entered(launch, shared, tile.part)) continue;
      ready = tile.part;
    }
#endif
    for (u32 box = 0; box < BOXES; box++) {
#if SCATTER
      if (launch.pull && !own) {
        store_box(launch.arrived, ring + box * BOX_BYTES, tile.column + box * BOX_COLUMNS, row, tile.part);
      } else {
        store_box(launch.out[tile.part], ring + box * BOX_BYTES, tile.column + box * BOX_COLUMNS, row);
      }
#else
      store_box(launch.out[tile.right], ring + box * BOX_BYTES, tile.column + box * BOX_COLUMNS, row, tile.part);
#endif
    }
    commit_stores();
#if SCATTER
    if (!own) {
      wait_stores_written();
      fence_async();
      signal((u64*)flag_word(launch, tile.part, launch.rank, tile.number, half), shared.epoch);
      continue;
    }
#endif
    wait_stores_read<0>();
  }
  wait_stores_written();
}

// Adds a thread's elements of a box, two to a word, to its sums.
__device__ __forceinline__ void add(float* sums, const u32 (&pairs)[4][4]) {
#pragma unroll
  for (int i = 0; i < 16; i++) {
    sums[2 * i] += TYPE::load((u16)pairs[i / 4][i % 4]);
    sums[2 * i + 1] += TYPE::load((u16)(pairs[i / 4][i % 4] >> 16));
  }
}

#if SCALED
typedef Float8 Operand;

// The scales of a thread's two rows and of columns lane, lane + 32 and so on of a tile.
struct Scales {
  float rows[2], columns[TILE_N / WARP];

  __device__ __forceinline__ void load(const Launch& launch, const Tile& tile, u32 row, u32 lane) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u64 index = tile.part * launch.rows + min((u64)tile.row + row + 8 * i, launch.rows - 1);
      rows[i] = launch.row_scales[launch.scale_step * index];
    }
#pragma unroll
    for (int i = 0; i < TILE_N / WARP; i++) {
      u64 index = min((u64)tile.column + i * WARP + lane, launch.columns[tile.right] - 1);
      columns[i] = launch.column_scales[tile.right][launch.scale_step * index];
    }
  }
  __device__ __forceinline__ void apply(float (&sums)[TILE_N / 2], u32 lane) const {
#pragma unroll
    for (int i = 0; i < TILE_N / 4; i++) {
      // Of every eight columns, a thread has two: 2 (lane % 4) and the next.
      float column = __shfl_sync(~0u, columns[i / 8], i / 2 % 4 * 8 + lane % 4 * 2 + i % 2);
      float* pair = sums + i / 2 * 4 + i % 2;
      pair[0] = pair[0] * rows[0] * column;
      pair[2] = pair[2] * rows[1] * column;
    }
  }
};
#else
typedef TYPE Operand;
#endif

// A warp group: multiplies its half of the rows of each tile.
__device__ void compute(const Launch& launch, Shared& shared, char* stages, char* ring, u32 half) {
  const int COUNT = TILE_N / 2;  // sums of a thread: in two rows, two of every eight columns
  float d[COUNT];
  u32 thread = threadIdx.x % 128, lane = thread % 32;
  // stmatrix and ldmatrix: a warp's 16 rows x 16 columns are four 8 x 8 matrices, rows first. A row of a box has 8 swizzled chunks
  // of 16 bytes.
  u32 row = thread / 32 * 16 + lane % 16;
  u32 matrices = shared_address(ring) + row * 128;
  u32 swizzle = (lane / 16 ^ row % 8) << 4;
  u32 steps = ceil_div(launch.inner, BLOCK_K);
  u32 stage = 0, parity = 0;
#if SCATTER
  u32 boxes = 0;  // added
#endif
  for (u32 index = 0;; index++) {
    Tile tile = lane == 0 ? next_tile(shared, index) : Tile();
    u32 part = __shfl_sync(~0u, tile.part, 0);
    if (part == NO_PART) break;
#if SCALED
    Scales scales;
    scales.load(launch, {part, __shfl_sync(~0u, tile.row, 0), __shfl_sync(~0u, tile.right, 0), __shfl_sync(~0u, tile.column, 0)},
                half * HALF_M + thread / 32 * 16 + lane / 4, lane);
#endif
    if (SCALED || steps == 0) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) d[i] = 0;
    }
    for (u32 step = 0; step < steps; step++) {
      shared.full[stage].wait(parity);
      u32 left = shared_address(stages + stage * STAGE_BYTES) + half * HALF_M * STEP_BYTES;
      u32 right = shared_address(stages + stage * STAGE_BYTES + LEFT_BYTES);
#if SCALED
      float sums[COUNT];  // of this step: the tensor core keeps too few bits of longer float8 sums
#else
      float(&sums)[COUNT] = d;
#endif
      begin_products();
#pragma unroll
      for (int k = 0; k < STEP_BYTES / 32; k++) {
        u64 b = TRANSPOSED ? matrix(right + k * 32, 16, 1024) : matrix(right + k * 2048, STEP_BYTES * BOX_COLUMNS, 1024);
        product<TRANSPOSED>(Operand(), sums, matrix(left + k * 32, 16, 1024), b, (!SCALED && step > 0) | k);
      }
      commit_products();
#if SCALED
      wait_products<0>();
      if (lane == 0) shared.empty[stage].arrive();
#pragma unroll
      for (int i = 0; i < COUNT; i++) d[i] += sums[i];
#else
      // The previous step's products are complete: its stage is free.
      wait_products<1>();
      if (step > 0 && lane == 0) shared.empty[stage == 0 ? STAGES - 1 : stage - 1].arrive();
#endif
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
#if SCALED
    scales.apply(d, lane);
#else
    wait_products<0>();
    if (steps > 0 && lane == 0) shared.empty[stage == 0 ? STAGES - 1 : stage - 1].arrive();
#endif
#if SCATTER
    if (part == launch.rank) {
#pragma unroll
      for (int box = 0; box < BOXES; box++) {
        float* own = d + box * 32;
        float sum[32];  // of the ranks below this rank
        for (u32 source = 0; source < launch.ranks; source++) {
          if (source == launch.rank) continue;
          u32 ring_slot = boxes % RING;
          shared.box_full[half][ring_slot].wait(boxes / RING & 1);
          u32 pairs[4][4];
#pragma unroll
          for (int j = 0; j < 4; j++) load_matrices(matrices + ring_slot * BOX_BYTES + (swizzle ^ j << 5), pairs[j]);
          // The reads end before the next load overwrites the box: TMA does not wait for what is only ordered by the barrier.
          fence_async_shared();
          __syncwarp();
          if (lane == 0) shared.box_empty[half][ring_slot].arrive();
          if (source > launch.rank) {
            add(own, pairs);
          } else if (source > 0) {
            add(sum, pairs);
          } else {
#pragma unroll
            for (int i = 0; i < 32; i++) sum[i] = -0.0f;  // the neutral element: -0 + x has the bits of x
            add(sum, pairs);
          }
          if (source + 1 == launch.rank) {
#pragma unroll
            for (int i = 0; i < 32; i++) own[i] += sum[i];
          }
          boxes++;
        }
        if (launch.factor != 1) {
#pragma unroll
          for (int i = 0; i < 32; i++) own[i] *= launch.factor;
        }
      }
    }
#endif
    if (GATED) {
      // A thread holds both a gate and its value, half a tile of columns apart.
#pragma unroll
      for (int i = 0; i < COUNT / 2; i++) d[i] = silu_fast(d[i]) * d[i + COUNT / 2];
    }
    shared.ring_free[half].wait(index & 1);
    // All warps have read the peers' boxes before any warp overwrites the ring.
    asm volatile("bar.sync %0, 128;" ::"r"(half + 1) : "memory");
#pragma unroll
    for (int j = 0; j < OUT_N / 8; j += 2) {
      const float* sums = d + 4 * j;
      store_matrices(matrices + j / 8 * BOX_BYTES + (swizzle ^ j % 8 << 4), pack(TYPE(), sums[0], sums[1]), pack(TYPE(), sums[2], sums[3]),
                     pack(TYPE(), sums[4], sums[5]), pack(TYPE(), sums[6], sums[7]));
    }
    fence_async_shared();
    asm volatile("bar.sync %0, 128;" ::"r"(half + 1) : "memory");
    if (thread == 0) shared.result_ready[half].arrive();
  }
}

extern "C" __global__ void __launch_bounds__(FUSED_THREADS, 1) fused_matmul(const __grid_constant__ Launch launch) {
  extern __shared__ char unaligned[];
  __shared__ Shared shared;
  char* stages = (char*)(((u64)unaligned + 1023) / 1024 * 1024);
  char* rings = stages + STAGES * STAGE_BYTES;
  u32 group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    shared.epoch = next_epoch((const u64*)entered(launch, launch.rank, launch.rank));
    for (int i = 0; i < STAGES; i++) {
      shared.full[i].init(1);
      shared.empty[i].init(8);
    }
    for (int i = 0; i < PUSH_BUFFERS; i++) shared.push_loaded[i].init(1);
    for (int i = 0; i < 2; i++) {
      shared.tile_full[i].init(1);
      shared.tile_empty[i].init(11);  // the consumers of next_tile
      shared.result_ready[i].init(1);
      shared.ring_free[i].init(1);
      shared.copy_loaded[i].init(1);
      for (int k = 0; k < RING; k++) {
        shared.box_full[i][k].init(1);
        shared.box_empty[i][k].init(4);
      }
    }
    shared.tile_ending.init(1);
    shared.timed_out = 0;
    publish_barriers();
  }
  __syncthreads();
  if (group == 0) {
    give_registers<40>();
    // By block 0, which starts first: another kernel may occupy some SMs until the peers continue.
    if (blockIdx.x == 0 && threadIdx.x >= 96) signal_entered(launch, shared, threadIdx.x - 96);
    // Threads of one warp run concurrently here: they are branches of one statement (independent thread scheduling).
    switch (threadIdx.x) {
      case 0: load_operands(launch, shared, stages); break;
      case 32: move_results(launch, shared, rings, 0); break;
      case 64: move_results(launch, shared, rings + RING * BOX_BYTES, 1); break;
      case 96: schedule_tiles(launch, shared); break;
#if !SCATTER
      case 97:
        if (launch.gathered != nullptr) copy_gathered(launch, shared, rings + 2 * RING * BOX_BYTES);
        break;
#endif
    }
  } else {
    take_registers<232>();
    compute(launch, shared, stages, rings + (group - 1) * RING * BOX_BYTES, group - 1);
  }
}
