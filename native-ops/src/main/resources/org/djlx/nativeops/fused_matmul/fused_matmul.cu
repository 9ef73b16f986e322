// All-gather + matmul, and matmul + reduce-scatter, each as one launch on every rank: a persistent matmul for Hopper GPUs
// whose tiles wait for what other ranks send, and are sent to them.
//
// A block is a warp group that moves data and two that multiply, 64 rows of a tile of 128 x TILE_N each, as in CUTLASS's
// warp-specialised kernels and in DeepGEMM. Tiles are dealt out by a counter in memory, the next shortly before a tile ends.
//
// All-gather + matmul (Flux, Chang et al. 2024, has the same order of tiles): the first blocks push this rank's shard into
// a slot on every peer, and raise a signal there; then they compute like the others. Tiles of this rank's own shard come
// first, then those of the next rank's, and so on; they wait for the shard's signal.
//
// Matmul + reduce-scatter: a tile of another rank's part is stored into a slot on that rank, and a flag of its own is
// raised there. The own part's tiles come late; they take the other ranks' tiles in, in rank order, and sum in float32.
// Or the tile stays in a slot of this rank, and its owner, told by the flag, reads it there (`pull`).
//
// Compiled with
//   TILE_N      64, 128 or 256
//   TYPE        Bfloat16 or Float16
//   TRANSPOSED  1: B's columns lie together (K-major), 0: its rows
//   SCATTER     1: matmul + reduce-scatter, 0: all-gather + matmul
//   GATED       1: all-gather + matmul with one B, K-major, whose columns are gates and, behind them, as many values; what is
//               stored is silu(gates) * values, from sums that are not rounded before. TILE_N is 128 or 256
//
// A launch counts the operation in this rank's memory, and tells the others that it has entered: nothing is written where another
// rank reads before that one has entered, too. So graphs replay with nothing around them. Where ranks arrive at different times, what
// needs no other rank is computed during that wait: an all-gather's own tiles, and about a tile of a block of a reduce-scatter.
//
// Every wait for another rank ends after `timeout`, or when the host sets `stop`; then the kernel tells the host who was
// missing, and goes on without: what it has computed is worthless. A rank that has not entered is sent nothing.
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

const int MAX_RIGHTS = 4;
const int TILE_M = 128;
const int HALF_M = TILE_M / 2;          // the rows of a tile that a warp group computes
const int BLOCK_K = 64;                 // 128 bytes, the width of a swizzled box
const int BOX_COLUMNS = 64;
const int BOX = HALF_M * BOX_COLUMNS * 2;
const int OUT_N = GATED ? TILE_N / 2 : TILE_N;  // columns of what a tile stores
const int BOXES = OUT_N / BOX_COLUMNS;   // of the rows of a warp group
const int RING = TILE_N == 256 ? 4 : 2;  // boxes in shared memory for each warp group that computes
const int LEFT = TILE_M * BLOCK_K * 2;
const int RIGHT = BLOCK_K * TILE_N * 2;
const int STAGE = LEFT + RIGHT;
const int STAGES = TILE_N == 256 ? 3 : TILE_N == 128 ? 5 : 7;
const int AHEAD = 4 * 256 / TILE_N;  // steps before a tile's last load, when the next tile is dealt: as long as that takes, and more
const int PIECE = 32768;  // bytes that a block pushes at once, from memory that stages use later
const int PIECES = 4;
const int COPY = 8192;    // bytes of the gathered A that a block copies at once
const int ROWS_IN_GROUP = 16;
const int SHARED = 1024 + STAGES * STAGE + 2 * RING * BOX + 2 * COPY;
static_assert(SHARED <= 232448, "a block has 227 KB of shared memory");
static_assert(!GATED || (TRANSPOSED && !SCATTER && TILE_N >= 2 * BOX_COLUMNS), "there is no such gated kernel");
static_assert(BOXES <= RING, "a tile's results are put into the ring at once");
static_assert(PIECES * PIECE <= STAGES * STAGE, "pieces are pushed from the stages' memory");

// All that a launch is told, in words of 8 bytes.
struct Launch {
  // A: this rank's shard, or all of it. B. What is stored: the products; or this rank's slot on each rank, and its result.
  // What comes in: the shards, or the parts, of all ranks, in slots of this rank. If parts are pulled, these slots hold what
  // the other ranks read, and `out` is where this rank reads.
  TensorMap left;
  TensorMap arrived;
  TensorMap right[MAX_RIGHTS];
  TensorMap out[MAX_RANKS];
  u64 columns[MAX_RIGHTS];  // of each B, or of what is stored if it is gated
  u64 rights;               // how many Bs
  u64 grouped;              // whether each B that is row-major is described in groups of a box's columns: {column, row, group}
  u64 rows;                 // of a shard or a part
  u64 inner;
  u64 left_bytes;  // of a box of A, which has fewer rows than a tile where a rank has
  u64 rank;
  u64 ranks;
  float factor; // of the sums; a power of two, so that nothing is rounded
  u64 lag;      // tiles of the last other part that come before the own part's
  u64 pull;     // whether a part is read by its owner
  u64 pushers;  // blocks
  Status* status;
  u64 timeout;      // ns
  u32* counters;    // of this rank: zero, and so again when the kernel ends
  char* entered[MAX_RANKS];  // of each rank: a word for each that tells it its epoch, and its own count
  u64 entered_distance;      // bytes from a rank's word to the next one's
  char* signals[MAX_RANKS];  // of each rank. Gather: a word for each rank that raises it. Scatter: for each rank and half tile
  u64 rank_distance;         // bytes from a rank's word to the next one's
  const char* shard;         // this rank's
  u64 slot_bytes;            // from a rank's slot to the next
  char* slots[MAX_RANKS];    // of each rank, of which the shards are sent
  char* whole;               // where the gathered A is to be copied to, or null
};

// Where the counters are.
const int NEXT_TILE = 0;
const int BLOCKS_ENDED = 1;
#if !SCATTER
const int PUSHED = 2;  // for each rank, the blocks that have pushed their pieces
#endif

// Which tile it is.
struct Place {
  u32 part;    // whose rows; NONE behind the last tile
  u32 row;     // the first one within the part
  u32 right;   // which B
  u32 column;  // the first one
  u32 number;  // within the part
};
const u32 NONE = ~0u;

struct Shared {
  Barrier full[STAGES], empty[STAGES];
  Barrier turn_full[2], turn_empty[2], turn_ends;
  Barrier box_full[2][RING], box_empty[2][RING];
  Barrier staged[2], stage_free[2];
  Barrier pieces[PIECES], copies[2];
  Place turns[2];  // the tile that is computed, and the next
  u32 epoch;    // of this operation, to which signals and flags are raised
  int gave_up;  // whether a wait for another rank was in vain
};

__device__ __forceinline__ u32 ceil_div(u32 a, u32 b) { return (a + b - 1) / b; }

__device__ __forceinline__ void await_rank(const Launch& launch, Shared& shared, const char* word, u32 peer) {
  if (*(volatile int*)&shared.gave_up) return;
  if (!wait_signal((const u32*)word, shared.epoch, launch.status, launch.timeout, peer)) *(volatile int*)&shared.gave_up = 1;
  fence_async();
}

// Where a rank tells another its epoch.
__device__ __forceinline__ char* entered(const Launch& launch, u32 on, u32 source) {
  return launch.entered[on] + source * launch.entered_distance;
}

// A thread for each rank.
__device__ __forceinline__ void tell_entered(const Launch& launch, const Shared& shared, u32 peer) {
  if (peer < launch.ranks && peer != launch.rank) signal((u32*)entered(launch, peer, launch.rank), shared.epoch);
}

// Waits until a peer has entered, unless a wait was in vain before. Returns whether it has: only then it is sent anything.
__device__ __forceinline__ bool await_entered(const Launch& launch, Shared& shared, u32 peer) {
  const char* word = entered(launch, launch.rank, peer);
  await_rank(launch, shared, word, peer);
  return is_signalled((const u32*)word, shared.epoch);
}

__device__ __forceinline__ u32 tile_columns(const Launch& launch) {
  u32 sum = 0;
  for (u32 i = 0; i < launch.rights; i++) sum += ceil_div(launch.columns[i], OUT_N);
  return sum;
}

__device__ __forceinline__ Place place(const Launch& launch, u32 tile) {
  u32 tile_rows = ceil_div(launch.rows, TILE_M);
  u32 across = tile_columns(launch);
  u32 each = tile_rows * across;
  u32 step = tile / each;
  u32 number = tile - step * each;
  if (step >= launch.ranks) return {NONE};
  Place place;
#if SCATTER
  // The own part's tiles begin when the peers have had time to compute those of the last part; then both in turn.
  u32 begin = (launch.ranks - 2) * each + launch.lag;
  if (launch.ranks > 1 && tile >= begin) {
    u32 both = tile - begin;
    u32 left = each - launch.lag;
    bool own = both >= 2 * left || (both & 1);
    number = both >= 2 * left ? left + (both - 2 * left) : own ? both / 2 : launch.lag + both / 2;
    step = own ? launch.ranks - 1 : launch.ranks - 2;
  }
  place.part = (launch.rank + 1 + step) % launch.ranks;
#else
  place.part = (launch.rank + step) % launch.ranks;
#endif
  // Down a group of rows first, then to the next column: what is read stays in the L2 cache.
  u32 group = number / (ROWS_IN_GROUP * across);
  u32 height = min((u32)ROWS_IN_GROUP, tile_rows - group * ROWS_IN_GROUP);
  u32 within = number - group * ROWS_IN_GROUP * across;
  place.row = (group * ROWS_IN_GROUP + within % height) * TILE_M;
  u32 column = within / height;
  place.right = 0;
  while (column >= ceil_div(launch.columns[place.right], OUT_N)) column -= ceil_div(launch.columns[place.right++], OUT_N);
  place.column = column * OUT_N;
  place.number = number;
  return place;
}

#if SCATTER
// The flag that a rank raises on another for half a tile.
__device__ __forceinline__ char* flag_word(const Launch& launch, u32 on, u32 source, u32 number, u32 half) {
  return launch.signals[on] + source * launch.rank_distance + (2 * number + half) * sizeof(u32);
}
#else
// The signal that a rank raises on another.
__device__ __forceinline__ char* signal_word(const Launch& launch, u32 on, u32 source) {
  return launch.signals[on] + source * launch.rank_distance;
}

__device__ __forceinline__ u64 shard_size(const Launch& launch) { return launch.rows * launch.inner * 2; }

// Pushes this block's pieces of the shard to all peers.
__device__ void push(const Launch& launch, Shared& shared, char* memory) {
  u64 end = shard_size(launch);
  u64 first = blockIdx.x * (u64)PIECE;
  u64 distance = launch.pushers * PIECE;
  u32 loads = 0, stores = 0;  // pieces so far
  for (u32 step = 1; step < launch.ranks; step++) {
    u32 peer = (launch.rank + launch.ranks - step) % launch.ranks;
    if (!await_entered(launch, shared, peer)) continue;
    char* slot = launch.slots[peer] + launch.rank * launch.slot_bytes;
    u64 to_load = first;
    for (u64 to_store = first; to_store < end; to_store += distance) {
      for (; to_load < end && loads - stores < PIECES - 1; to_load += distance, loads++) {
        // The piece that was here has been read: all but the last store's are.
        wait_stores_read<1>();
        u32 bytes = min((u64)PIECE, end - to_load);
        Barrier& loaded = shared.pieces[loads % PIECES];
        loaded.arrive_expecting(bytes);
        load_bytes(memory + loads % PIECES * PIECE, launch.shard + to_load, bytes, loaded);
      }
      u32 piece = stores % PIECES;
      shared.pieces[piece].wait(stores / PIECES & 1);
      store_bytes(slot + to_store, memory + piece * PIECE, min((u64)PIECE, end - to_store));
      commit_stores();
      stores++;
    }
    wait_stores_written();
    fence_async();
    // Who comes last raises the signal, for all.
    u32* count = launch.counters + PUSHED + peer;
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
    if (before == launch.pushers - 1) {
      *(volatile u32*)count = 0;
      __threadfence_system();
      signal((u32*)signal_word(launch, peer, launch.rank), shared.epoch);
    }
  }
}

// Copies this block's share of all shards to where the caller wants the gathered A.
__device__ void copy_gathered(const Launch& launch, Shared& shared, char* memory) {
  u64 end = shard_size(launch);
  u64 first = blockIdx.x * (u64)COPY;
  u32 copies = 0;
  for (u32 step = 0; step < launch.ranks; step++) {
    u32 source = (launch.rank + step) % launch.ranks;
    const char* from = source == launch.rank ? launch.shard : launch.slots[launch.rank] + source * launch.slot_bytes;
    char* to = launch.whole + source * end;
    if (first < end && source != launch.rank) await_rank(launch, shared, signal_word(launch, launch.rank, source), source);
    for (u64 at = first; at < end; at += gridDim.x * (u64)COPY, copies++) {
      u32 bytes = min((u64)COPY, end - at);
      char* buffer = memory + copies % 2 * COPY;
      wait_stores_read<1>();
      shared.copies[copies % 2].arrive_expecting(bytes);
      load_bytes(buffer, from + at, bytes, shared.copies[copies % 2]);
      shared.copies[copies % 2].wait(copies / 2 & 1);
      store_bytes(to + at, buffer, bytes);
      commit_stores();
    }
  }
  wait_stores_written();
}
#endif

// One thread: deals tiles out to the block. It takes as long as a few steps of a tile, in which who loads does not wait for it.
// Dealt much sooner, tiles would go to blocks that end late, while others have none left.
__device__ void deal_tiles(const Launch& launch, Shared& shared) {
  for (u32 turn = 0;; turn++) {
    u32 entry = turn & 1;
    shared.turn_ends.wait(turn & 1);
    shared.turn_empty[entry].wait((turn >> 1 & 1) ^ 1);
    Place at = place(launch, atomicAdd(launch.counters + NEXT_TILE, 1));
    shared.turns[entry] = at;
    shared.turn_full[entry].arrive();
    if (at.part == NONE) return;
  }
}

// The tile of a turn. One thread of those that are told.
__device__ __forceinline__ Place read_turn(Shared& shared, u32 turn) {
  u32 entry = turn & 1;
  shared.turn_full[entry].wait(turn >> 1 & 1);
  Place at = shared.turns[entry];
  shared.turn_empty[entry].arrive();
  return at;
}

// One thread: loads what the block's tiles multiply.
__device__ void load_tiles(const Launch& launch, Shared& shared, char* stages) {
#if !SCATTER
  if (blockIdx.x < launch.pushers) push(launch, shared, stages);
  u32 arrived = launch.rank;  // the last rank whose shard was there
#endif
  u32 steps = ceil_div(launch.inner, BLOCK_K);
  u32 ends = steps > AHEAD ? steps - AHEAD : 0;
  shared.turn_ends.arrive();
  u32 stage = 0, parity = 0;
  for (u32 turn = 0;; turn++) {
    Place at = read_turn(shared, turn);
    if (at.part == NONE) break;
#if !SCATTER
    bool own = at.part == launch.rank;
    if (!own && at.part != arrived) await_rank(launch, shared, signal_word(launch, launch.rank, at.part), at.part);
    arrived = at.part;
#endif
    const TensorMap& right = launch.right[at.right];
    if (steps == 0) shared.turn_ends.arrive();
    for (u32 step = 0; step < steps; step++) {
      if (step == ends) shared.turn_ends.arrive();
      shared.empty[stage].wait(parity ^ 1);
      char* left_box = stages + stage * STAGE;
      char* right_box = left_box + LEFT;
      Barrier& full = shared.full[stage];
      full.arrive_expecting(launch.left_bytes + RIGHT);
#if SCATTER
      load_box(left_box, launch.left, full, step * BLOCK_K, at.row, at.part);
#else
      if (own) {
        load_box(left_box, launch.left, full, step * BLOCK_K, at.row);
      } else {
        load_box(left_box, launch.arrived, full, step * BLOCK_K, at.row, at.part);
      }
#endif
      if (GATED) {
        load_box(right_box, right, full, step * BLOCK_K, at.column);
        load_box(right_box + RIGHT / 2, right, full, step * BLOCK_K, launch.columns[0] + at.column);
      } else if (TRANSPOSED) {
        load_box(right_box, right, full, step * BLOCK_K, at.column);
      } else if (launch.grouped) {
        load_box(right_box, right, full, 0, step * BLOCK_K, at.column / BOX_COLUMNS);
      } else {
#pragma unroll
        for (int box = 0; box < TILE_N / BOX_COLUMNS; box++) {
          load_box(right_box + box * BLOCK_K * BOX_COLUMNS * 2, right, full, at.column + box * BOX_COLUMNS, step * BLOCK_K);
        }
      }
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  // The last block leaves the counters as they were, and counts the operation: all blocks have read the count before.
  if (atomicAdd(launch.counters + BLOCKS_ENDED, 1) == gridDim.x - 1) {
    launch.counters[NEXT_TILE] = 0;
    launch.counters[BLOCKS_ENDED] = 0;
    *(volatile u32*)entered(launch, launch.rank, launch.rank) = shared.epoch;
  }
}

// One thread for each warp group that computes: stores its results, and loads what other ranks have sent for them.
__device__ void move_results(const Launch& launch, Shared& shared, char* ring, u32 half) {
#if SCATTER
  u32 boxes = 0;  // loaded so far
  u32 ready = launch.rank;  // the last rank that had entered
#endif
  for (u32 turn = 0;; turn++) {
    Place at = read_turn(shared, turn);
    if (at.part == NONE) break;
    u32 row = at.row + half * HALF_M;
#if SCATTER
    bool own = at.part == launch.rank;
    if (own) {
      for (u32 box = 0; box < BOXES; box++) {
        for (u32 source = 0; source < launch.ranks; source++) {
          if (source == launch.rank) continue;
          if (box == 0) await_rank(launch, shared, flag_word(launch, launch.rank, source, at.number, half), source);
          u32 place_in_ring = boxes % RING;
          shared.box_empty[half][place_in_ring].wait((boxes / RING & 1) ^ 1);
          shared.box_full[half][place_in_ring].arrive_expecting(BOX);
          char* to = ring + place_in_ring * BOX;
          Barrier& arrived = shared.box_full[half][place_in_ring];
          u32 column = at.column + box * BOX_COLUMNS;
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
    shared.stage_free[half].arrive();
    shared.staged[half].wait(turn & 1);
#if SCATTER
    if (!own) {
      if (at.part != ready && !await_entered(launch, shared, at.part)) continue;
      ready = at.part;
    }
#endif
    for (u32 box = 0; box < BOXES; box++) {
#if SCATTER
      if (launch.pull && !own) {
        store_box(launch.arrived, ring + box * BOX, at.column + box * BOX_COLUMNS, row, at.part);
      } else {
        store_box(launch.out[at.part], ring + box * BOX, at.column + box * BOX_COLUMNS, row);
      }
#else
      store_box(launch.out[at.right], ring + box * BOX, at.column + box * BOX_COLUMNS, row, at.part);
#endif
    }
    commit_stores();
#if SCATTER
    if (!own) {
      wait_stores_written();
      fence_async();
      signal((u32*)flag_word(launch, at.part, launch.rank, at.number, half), shared.epoch);
      continue;
    }
#endif
    wait_stores_read<0>();
  }
  wait_stores_written();
}

// Adds the values of a box that a thread holds to its sums.
__device__ __forceinline__ void add(float* sums, const u32 (&pairs)[4][4]) {
#pragma unroll
  for (int i = 0; i < 16; i++) {
    sums[2 * i] += TYPE::load((u16)pairs[i / 4][i % 4]);
    sums[2 * i + 1] += TYPE::load((u16)(pairs[i / 4][i % 4] >> 16));
  }
}

// A warp group: multiplies the rows of its half of each tile.
__device__ void compute(const Launch& launch, Shared& shared, char* stages, char* ring, u32 half) {
  const int COUNT = TILE_N / 2;  // each thread has two columns of every eight, in two rows
  float d[COUNT];
  u32 thread = threadIdx.x % 128, lane = thread % 32;
  // The warp's 16 rows by 16 columns are four matrices: rows first. A row of a box has 8 pieces of 16 bytes, swizzled.
  u32 row = thread / 32 * 16 + lane % 16;
  u32 matrices = shared_address(ring) + row * 128;
  u32 swizzle = (lane / 16 ^ row % 8) << 4;
  u32 steps = ceil_div(launch.inner, BLOCK_K);
  u32 stage = 0, parity = 0;
#if SCATTER
  u32 boxes = 0;  // taken in so far
#endif
  for (u32 turn = 0;; turn++) {
    u32 part = lane == 0 ? read_turn(shared, turn).part : 0;
    part = __shfl_sync(~0u, part, 0);
    if (part == NONE) break;
    if (steps == 0) {
#pragma unroll
      for (int i = 0; i < COUNT; i++) d[i] = 0;
    }
    for (u32 step = 0; step < steps; step++) {
      shared.full[stage].wait(parity);
      u32 left = shared_address(stages + stage * STAGE) + half * HALF_M * BLOCK_K * 2;
      u32 right = shared_address(stages + stage * STAGE + LEFT);
      begin_products();
#pragma unroll
      for (int k = 0; k < BLOCK_K / 16; k++) {
        u64 b = TRANSPOSED ? matrix(right + k * 32, 16, 1024) : matrix(right + k * 2048, BLOCK_K * BOX_COLUMNS * 2, 1024);
        product<TRANSPOSED>(TYPE(), d, matrix(left + k * 32, 16, 1024), b, step | k);
      }
      commit_products();
      // The products of the step before have been made: its stage can be loaded again.
      wait_products<1>();
      if (step > 0 && lane == 0) shared.empty[stage == 0 ? STAGES - 1 : stage - 1].arrive();
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
    wait_products<0>();
    if (steps > 0 && lane == 0) shared.empty[stage == 0 ? STAGES - 1 : stage - 1].arrive();
#if SCATTER
    if (part == launch.rank) {
#pragma unroll
      for (int box = 0; box < BOXES; box++) {
        float* own = d + box * 32;
        float sum[32];  // of the ranks before this one
        for (u32 source = 0; source < launch.ranks; source++) {
          if (source == launch.rank) continue;
          u32 place_in_ring = boxes % RING;
          shared.box_full[half][place_in_ring].wait(boxes / RING & 1);
          u32 pairs[4][4];
#pragma unroll
          for (int j = 0; j < 4; j++) load_matrices(matrices + place_in_ring * BOX + (swizzle ^ j << 5), pairs[j]);
          __syncwarp();
          if (lane == 0) shared.box_empty[half][place_in_ring].arrive();
          if (source > launch.rank) {
            add(own, pairs);
          } else if (source > 0) {
            add(sum, pairs);
          } else {
#pragma unroll
            for (int i = 0; i < 32; i++) sum[i] = -0.0f;  // the sum of nothing: -0 + x is x, with its sign
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
      // The thread that has a gate has its value, half a tile of columns behind it.
#pragma unroll
      for (int i = 0; i < COUNT / 2; i++) d[i] = silu_fast(d[i]) * d[i + COUNT / 2];
    }
    shared.stage_free[half].wait(turn & 1);
    // All warps have read what came in before any writes over it.
    asm volatile("bar.sync %0, 128;" ::"r"(half + 1) : "memory");
#pragma unroll
    for (int j = 0; j < OUT_N / 8; j += 2) {
      const float* sums = d + 4 * j;
      store_matrices(matrices + j / 8 * BOX + (swizzle ^ j % 8 << 4), pack(TYPE(), sums[0], sums[1]), pack(TYPE(), sums[2], sums[3]),
                     pack(TYPE(), sums[4], sums[5]), pack(TYPE(), sums[6], sums[7]));
    }
    fence_async_shared();
    asm volatile("bar.sync %0, 128;" ::"r"(half + 1) : "memory");
    if (thread == 0) shared.staged[half].arrive();
  }
}

extern "C" __global__ void __launch_bounds__(384, 1) fused_matmul(const __grid_constant__ Launch launch) {
  extern __shared__ char unaligned[];
  __shared__ Shared shared;
  char* stages = (char*)(((u64)unaligned + 1023) / 1024 * 1024);
  char* rings = stages + STAGES * STAGE;
  u32 group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    shared.epoch = next_epoch((const u32*)entered(launch, launch.rank, launch.rank));
    for (int i = 0; i < STAGES; i++) {
      shared.full[i].init(1);
      shared.empty[i].init(8);
    }
    for (int i = 0; i < PIECES; i++) shared.pieces[i].init(1);
    for (int i = 0; i < 2; i++) {
      shared.turn_full[i].init(1);
      shared.turn_empty[i].init(11);  // eight warps that compute, who loads, and two who move results
      shared.staged[i].init(1);
      shared.stage_free[i].init(1);
      shared.copies[i].init(1);
      for (int k = 0; k < RING; k++) {
        shared.box_full[i][k].init(1);
        shared.box_empty[i][k].init(4);
      }
    }
    shared.turn_ends.init(1);
    shared.gave_up = 0;
    publish_barriers();
  }
  __syncthreads();
  if (group == 0) {
    give_registers<40>();
    // Another kernel may hold some of the GPU's processors until other ranks go on: the first block, which GPUs begin with.
    if (blockIdx.x == 0 && threadIdx.x >= 96) tell_entered(launch, shared, threadIdx.x - 96);
    // What two threads of a warp do they do at once, as these are branches of one statement.
    switch (threadIdx.x) {
      case 0: load_tiles(launch, shared, stages); break;
      case 32: move_results(launch, shared, rings, 0); break;
      case 64: move_results(launch, shared, rings + RING * BOX, 1); break;
      case 96: deal_tiles(launch, shared); break;
#if !SCATTER
      case 97:
        if (launch.whole != nullptr) copy_gathered(launch, shared, rings + 2 * RING * BOX);
        break;
#endif
    }
  } else {
    take_registers<232>();
    compute(launch, shared, stages, rings + (group - 1) * RING * BOX, group - 1);
  }
}
