// All-to-all of rows with splits on the device: for mixtures of experts. The host knows neither the splits nor the sizes.
//
// A rank has n = ranks x experts chunks of rows. `experts` is the number of experts of each rank; 1 for the 1-D form.
//   dispatch   chunk d * experts + j goes to expert j of rank d. Output: by expert, then by source rank
//   combine    chunk j * ranks + d goes back to rank d. Output: by source rank, then by expert
//
// Memory of a rank, in its half of the P2P buffer:
//   | splits: a row of `experts` for each source | words: sent and read for each peer and lane | slots: stages for each peer and lane |
// A pair of ranks sees its chunks as one stream of bytes. The stream is cut into pieces; piece i goes through lane i % lanes, and the
// pieces of a lane through its stages in turn. So a stream of any length passes through a slot of any size.
//
// Synchronisation: block 0 clears the words, enters the operation, waits until all peers have entered, sends the splits and signals.
// All blocks wait for the splits of all peers. Then the first blocks copy what the rank sends itself. Of the others half send and
// half receive, a lane at a time: a sender waits for a free stage (word `read`), a receiver for a piece (word `sent`).
//
// Invariants
// - The device counts operations (KernelSignals), so a graph can replay the kernel.
// - Nothing is written to a peer before it has entered. A rank enters after its words are clear.
// - Every write to a peer is one that the peer waits for before its kernel ends: the receiver of a piece signals `read` only if the
//   sender needs the stage again. So no late write meets the next operation.
// - A rank with wrong splits sends no rows. A rank with too small an output receives its rows and drops them. Both report to the host, and the kernels of all ranks end. Received splits are checked, so no access is out of bounds whatever peers send.
// - Senders and receivers are different blocks, and all blocks of all ranks are resident: neither waits for its own rank's other half.
// - Pieces are multiples of 16 bytes, so ranks whose arrays allow other units (16, 4 or 1 bytes) cut the same pieces.
//
// Experiments: docs/design/experiments/all-to-all.md.
#include "signal.cuh"

typedef long long i64;

const int VDEV_THREADS = 512;
const int VDEV_STAGES = 2;  // of a lane
const int AT_ONCE = 8;      // loads of a thread in flight
const int MAX_SPLITS = 1024;
const u64 MIN_PIECE = 16384;  // bytes: smaller ones take as long
const u64 PACK_BYTES = 16;
const u64 MAX_ROWS = 1ull << 50;  // of a received chunk: sums of any words that a peer sends do not wrap around

// Why splits are refused. Java: SplitError.
const u32 BAD_SPLIT = 1;
const u32 BAD_SUM = 2;
const u32 BAD_OFFSET = 3;
const u32 BAD_OUTPUT = 4;

// Kernel argument. Sizes are in bytes unless they count rows.
struct VdevLaunch {
  const char* input;
  char* output;
  const u64* in_splits;
  const u64* in_offsets;  // of the chunks in the input, in rows; null: they follow each other
  u64* out_splits;        // n splits, then n offsets
  u64 input_rows;
  u64 output_rows;
  u64 row_bytes;
  u64 experts;
  u64 combine;      // 1: combine, 0: dispatch
  u64 major_align;  // the rows of an expert in the output take a multiple of it, at least one; 0: no padding
  u64 rank;
  u64 ranks;
  u64 lanes;
  u64 own_blocks;   // that copy what the rank sends itself
  u64 words_begin;  // in a half
  u64 slots_begin;
  u64 stage_bytes;  // a multiple of 16
  u64 timeout;      // ns
  Status* status;
  u32* counters;  // 0 before and after a launch
  u64 distance;   // between the words of source ranks
  char* entered[MAX_RANKS];
  char* signals[MAX_RANKS];
  char* half[MAX_RANKS];  // of each rank's buffer
};

struct VdevShared {
  u64 in[MAX_SPLITS + 1];     // rows before each own chunk; equal neighbours: an empty chunk
  u64 out[MAX_SPLITS + 1];    // rows before each chunk of the output, without padding
  u64 pad[MAX_SPLITS + 1];    // rows of padding before each expert
  u64 wire[MAX_SPLITS + 1];   // of a pair: rows before each chunk in the stream
  u64 place[MAX_SPLITS + 1];  // of a pair: where each chunk begins in the input or output, in rows
  u64 epoch;
  u32 bad;  // the first bad split; n: none
};

__device__ __forceinline__ uint4 load_l2(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

__device__ __forceinline__ u32 load_l2(const u32* from) {
  u32 value;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ unsigned char load_l2(const unsigned char* from) {
  u32 value;
  asm volatile("ld.global.cg.u8 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return (unsigned char)value;
}

// Copies bytes, a multiple of the unit, by all threads of the block. Loads pass L1, which may hold what a stage held before.
template <typename Unit>
__device__ __forceinline__ void copy_units(char* to, const char* from, u64 bytes) {
  u64 count = bytes / sizeof(Unit);
  for (u64 begin = threadIdx.x; begin < count; begin += AT_ONCE * VDEV_THREADS) {
    Unit values[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      if (begin + k * VDEV_THREADS < count) values[k] = load_l2((const Unit*)from + begin + k * VDEV_THREADS);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      if (begin + k * VDEV_THREADS < count) ((Unit*)to)[begin + k * VDEV_THREADS] = values[k];
    }
  }
}

// Replaces values[0 .. count) by their exclusive prefix sums and stores the sum at values[count].
__device__ void prefix_sums(u64* values, u32 count) {
  __syncthreads();
  if (threadIdx.x < 32) {
    u64 total = 0;
    for (u32 begin = 0; begin < count; begin += 32) {
      u32 i = begin + threadIdx.x;
      u64 value = i < count ? values[i] : 0;
      u64 sum = value;
      for (u32 step = 1; step < 32; step *= 2) {
        u64 before = __shfl_up_sync(~0u, sum, step);
        if (threadIdx.x >= step) sum += before;
      }
      if (i < count) values[i] = total + sum - value;
      total += __shfl_sync(~0u, sum, 31);
    }
    if (threadIdx.x == 0) values[count] = total;
  }
  __syncthreads();
}

// Reports the first refusal of this rank to the host. One thread.
__device__ void refuse(Status* status, u32 reason, u32 index, u64 value, u64 limit) {
  if (status->refused != 0) return;
  status->refused_index = index;
  status->refused_value = value;
  status->refused_limit = limit;
  __threadfence_system();
  status->refused = reason;
  __threadfence_system();
}

// The number of a chunk among the chunks that a rank sends.
__device__ __forceinline__ u32 sent_chunk(const VdevLaunch& launch, u32 to, u32 expert) {
  return launch.combine ? expert * launch.ranks + to : to * launch.experts + expert;
}

// The number of a chunk in the output.
__device__ __forceinline__ u32 out_chunk(const VdevLaunch& launch, u32 from, u32 expert) {
  return launch.combine ? from * launch.experts + expert : expert * launch.ranks + from;
}

__device__ __forceinline__ u64* entered_word(const VdevLaunch& launch, u32 on, u32 source) {
  return (u64*)(launch.entered[on] + source * launch.distance);
}

__device__ __forceinline__ u64* splits_word(const VdevLaunch& launch, u32 on, u32 source) {
  return (u64*)(launch.signals[on] + source * launch.distance);
}

// The splits that a source has sent to a rank.
__device__ __forceinline__ u64* sent_splits(const VdevLaunch& launch, u32 on, u32 source) {
  return (u64*)launch.half[on] + source * launch.experts;
}

enum Word { SENT, READ };

// SENT: how many pieces `peer` has put into the lane on `on`. READ: how many pieces `peer` has read that `on` has sent it.
__device__ __forceinline__ u64* lane_word(const VdevLaunch& launch, u32 on, u32 peer, u32 lane, Word word) {
  return (u64*)(launch.half[on] + launch.words_begin) + (peer * launch.lanes + lane) * 2 + word;
}

__device__ __forceinline__ char* stage(const VdevLaunch& launch, u32 on, u32 source, u32 lane, u64 piece) {
  u64 number = ((u64)source * launch.lanes + lane) * VDEV_STAGES + piece % VDEV_STAGES;
  return launch.half[on] + launch.slots_begin + number * launch.stage_bytes;
}

// Waits for a word of this rank; all threads of the block learn the outcome.
__device__ bool block_wait(const VdevLaunch& launch, const u64* word, u64 value, u32 peer) {
  return __syncthreads_and(threadIdx.x != 0 || wait_signal(word, value, launch.status, launch.timeout, peer));
}

// Signals after all that the block has read and written before.
__device__ void block_signal(u64* word, u64 value) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    signal(word, value);
  }
}

// Counts the rows before each own chunk. Wrong splits count as none, and block 0 reports them.
__device__ void read_splits(const VdevLaunch& launch, VdevShared& shared) {
  u32 n = launch.ranks * launch.experts;
  if (threadIdx.x == 0) shared.bad = n;
  __syncthreads();
  auto is_bad = [&](u32 i) { return launch.in_splits[i] > launch.input_rows; };  // a negative one is large
  auto is_placed = [&](u32 i) {
    u64 rows = launch.in_splits[i];
    return launch.in_offsets == nullptr || rows == 0 || is_bad(i) || launch.in_offsets[i] <= launch.input_rows - rows;
  };
  for (u32 i = threadIdx.x; i < n; i += VDEV_THREADS) {
    shared.in[i] = launch.in_splits[i];
    if (is_bad(i) || !is_placed(i)) atomicMin(&shared.bad, i);
  }
  prefix_sums(shared.in, n);
  u32 bad = shared.bad;
  u64 sum = shared.in[n];
  bool too_many = bad == n && launch.in_offsets == nullptr && sum > launch.input_rows;
  if (blockIdx.x == 0 && threadIdx.x == 0 && (bad < n || too_many)) {
    if (too_many) {
      refuse(launch.status, BAD_SUM, 0, sum, launch.input_rows);
    } else if (is_bad(bad)) {
      refuse(launch.status, BAD_SPLIT, bad, launch.in_splits[bad], launch.input_rows);
    } else {
      refuse(launch.status, BAD_OFFSET, bad, launch.in_offsets[bad], launch.input_rows - launch.in_splits[bad]);
    }
  }
  __syncthreads();
  if (bad < n || too_many) {
    for (u32 i = threadIdx.x; i <= n; i += VDEV_THREADS) shared.in[i] = 0;
  }
  __syncthreads();
}

// Clears this rank's words and signals to the peers that it has entered the operation. Block 0.
__device__ void enter_operation(const VdevLaunch& launch, u64 epoch) {
  u32 words = launch.ranks * launch.lanes * 2, peer = threadIdx.x;
  for (u32 i = threadIdx.x; i < words; i += VDEV_THREADS) *lane_word(launch, launch.rank, 0, i / 2, (Word)(i % 2)) = 0;
  __syncthreads();
  if (peer < launch.ranks && peer != launch.rank) {
    __threadfence_system();
    signal(entered_word(launch, peer, launch.rank), epoch);
  }
}

// Sends each peer its splits when it has entered. Block 0. Returns false on timeout or stop.
__device__ bool send_splits(const VdevLaunch& launch, const VdevShared& shared) {
  u32 ranks = launch.ranks, rank = launch.rank, peer = threadIdx.x;
  bool is_peer = peer < ranks && peer != rank;
  bool good = !is_peer || wait_signal(entered_word(launch, rank, peer), shared.epoch, launch.status, launch.timeout, peer);
  if (!__syncthreads_and(good)) return false;
  for (u32 i = threadIdx.x; i < ranks * launch.experts; i += VDEV_THREADS) {
    u32 to = i / launch.experts, expert = i % launch.experts;
    u32 chunk = sent_chunk(launch, to, expert);
    if (to != rank) sent_splits(launch, to, rank)[expert] = shared.in[chunk + 1] - shared.in[chunk];
  }
  __syncthreads();
  if (is_peer) {
    __threadfence_system();
    signal(splits_word(launch, peer, rank), shared.epoch);
  }
  return true;
}

// The rows before a chunk of the output, with padding.
__device__ __forceinline__ u64 out_offset(const VdevLaunch& launch, const VdevShared& shared, u32 chunk) {
  return shared.out[chunk] + (launch.major_align == 0 ? 0 : shared.pad[chunk / launch.ranks]);
}

// Computes the chunks of the output. Returns whether they fit; block 0 stores them, and reports if they do not.
__device__ bool plan_output(const VdevLaunch& launch, VdevShared& shared) {
  u32 n = launch.ranks * launch.experts;
  u64 align = launch.major_align;
  for (u32 i = threadIdx.x; i < n; i += VDEV_THREADS) {
    u32 from = i / launch.experts, expert = i % launch.experts;
    u32 chunk = sent_chunk(launch, from, expert);
    u64 rows = from == launch.rank ? shared.in[chunk + 1] - shared.in[chunk]
                                   : *(const volatile u64*)(sent_splits(launch, launch.rank, from) + expert);
    shared.out[out_chunk(launch, from, expert)] = rows < MAX_ROWS ? rows : MAX_ROWS;
  }
  prefix_sums(shared.out, n);
  if (align != 0) {
    for (u32 expert = threadIdx.x; expert < launch.experts; expert += VDEV_THREADS) {
      u64 rows = shared.out[(expert + 1) * launch.ranks] - shared.out[expert * launch.ranks];
      u64 aligned = (rows + align - 1) / align * align;
      shared.pad[expert] = (aligned == 0 ? align : aligned) - rows;
    }
    prefix_sums(shared.pad, launch.experts);
  }
  u64 total = shared.out[n] + (align == 0 ? 0 : shared.pad[launch.experts]);
  if (blockIdx.x == 0) {
    for (u32 i = threadIdx.x; i < n; i += VDEV_THREADS) {
      launch.out_splits[i] = shared.out[i + 1] - shared.out[i];
      launch.out_splits[n + i] = out_offset(launch, shared, i);
    }
    if (threadIdx.x == 0 && total > launch.output_rows) refuse(launch.status, BAD_OUTPUT, 0, total, launch.output_rows);
  }
  return total <= launch.output_rows;
}

// Prepares wire and place for what goes to a rank.
__device__ void plan_sent(const VdevLaunch& launch, VdevShared& shared, u32 to) {
  __syncthreads();
  for (u32 expert = threadIdx.x; expert < launch.experts; expert += VDEV_THREADS) {
    u32 chunk = sent_chunk(launch, to, expert);
    shared.wire[expert] = shared.in[chunk + 1] - shared.in[chunk];
    shared.place[expert] = launch.in_offsets == nullptr ? shared.in[chunk] : launch.in_offsets[chunk];
  }
  prefix_sums(shared.wire, launch.experts);
}

// Prepares wire and place for what comes from a rank.
__device__ void plan_received(const VdevLaunch& launch, VdevShared& shared, u32 from) {
  __syncthreads();
  for (u32 expert = threadIdx.x; expert < launch.experts; expert += VDEV_THREADS) {
    u32 chunk = out_chunk(launch, from, expert);
    shared.wire[expert] = shared.out[chunk + 1] - shared.out[chunk];
    shared.place[expert] = out_offset(launch, shared, chunk);
  }
  prefix_sums(shared.wire, launch.experts);
}

// The pieces of a pair's stream; sender and receiver compute the same.
struct Pieces {
  u64 bytes;  // of the stream
  u64 piece;  // of each piece but the last
  u64 count;
};

__device__ Pieces pieces(const VdevLaunch& launch, u64 rows) {
  Pieces result;
  result.bytes = rows * launch.row_bytes;
  // If the stream fits, a piece for each stage: no sender waits, and the receiver works while the sender does.
  u64 even = (result.bytes / (VDEV_STAGES * launch.lanes) / PACK_BYTES + 1) * PACK_BYTES;
  u64 wanted = even < MIN_PIECE ? MIN_PIECE : even;
  result.piece = wanted < launch.stage_bytes ? wanted : launch.stage_bytes;
  result.count = (result.bytes + result.piece - 1) / result.piece;
  return result;
}

// Calls body(expert, begin, end) for each chunk's bytes in a piece; positions in the stream. `expert` is where to begin, and moves on.
template <typename Body>
__device__ __forceinline__ void each_part(const VdevLaunch& launch, const VdevShared& shared, u64 begin, u64 end, u32& expert,
                                          const Body& body) {
  while (begin < end) {
    u64 chunk_end = shared.wire[expert + 1] * launch.row_bytes;
    if (chunk_end <= begin) {
      expert++;
      continue;
    }
    u64 part_end = chunk_end < end ? chunk_end : end;
    body(expert, begin, part_end);
    begin = part_end;
  }
}

// The address of position `at` of the stream in the input or output.
template <typename Char>
__device__ __forceinline__ Char* placed(const VdevLaunch& launch, const VdevShared& shared, Char* rows, u32 expert, u64 at) {
  return rows + shared.place[expert] * launch.row_bytes + (at - shared.wire[expert] * launch.row_bytes);
}

// Sends a lane's pieces to a peer. Returns false on timeout or stop.
template <typename Unit>
__device__ bool send(const VdevLaunch& launch, VdevShared& shared, u32 to, u32 lane) {
  plan_sent(launch, shared, to);
  Pieces all = pieces(launch, shared.wire[launch.experts]);
  u32 expert = 0;
  u32 sent = 0;
  for (u64 i = lane; i < all.count; i += launch.lanes, sent++) {
    if (sent >= VDEV_STAGES &&
        !block_wait(launch, lane_word(launch, launch.rank, to, lane, READ), sent - VDEV_STAGES + 1, to)) {
      return false;
    }
    u64 begin = i * all.piece;
    u64 end = begin + all.piece < all.bytes ? begin + all.piece : all.bytes;
    char* slot = stage(launch, to, launch.rank, lane, sent);
    each_part(launch, shared, begin, end, expert, [&](u32 j, u64 from, u64 until) {
      copy_units<Unit>(slot + (from - begin), placed(launch, shared, launch.input, j, from), until - from);
    });
    block_signal(lane_word(launch, to, launch.rank, lane, SENT), sent + 1);
  }
  return true;
}

// Receives a lane's pieces from a peer; `keep`: into the output. Returns false on timeout or stop.
template <typename Unit>
__device__ bool receive(const VdevLaunch& launch, VdevShared& shared, u32 from, u32 lane, bool keep) {
  plan_received(launch, shared, from);
  Pieces all = pieces(launch, shared.wire[launch.experts]);
  u32 expert = 0;
  u32 read = 0;
  for (u64 i = lane; i < all.count; i += launch.lanes) {
    if (!block_wait(launch, lane_word(launch, launch.rank, from, lane, SENT), read + 1, from)) return false;
    u64 begin = i * all.piece;
    u64 end = begin + all.piece < all.bytes ? begin + all.piece : all.bytes;
    const char* slot = stage(launch, launch.rank, from, lane, read);
    if (keep) {
      each_part(launch, shared, begin, end, expert, [&](u32 j, u64 at, u64 until) {
        copy_units<Unit>(placed(launch, shared, launch.output, j, at), slot + (at - begin), until - at);
      });
    }
    read++;
    bool needed = i + VDEV_STAGES * launch.lanes < all.count;
    if (needed) block_signal(lane_word(launch, from, launch.rank, lane, READ), read);
  }
  return true;
}

// Copies this block's share of what the rank sends itself.
template <typename Unit>
__device__ void copy_own(const VdevLaunch& launch, VdevShared& shared) {
  plan_sent(launch, shared, launch.rank);
  Pieces all = pieces(launch, shared.wire[launch.experts]);
  u32 expert = 0;
  for (u64 i = blockIdx.x; i < all.count; i += launch.own_blocks) {
    u64 begin = i * all.piece;
    u64 end = begin + all.piece < all.bytes ? begin + all.piece : all.bytes;
    each_part(launch, shared, begin, end, expert, [&](u32 j, u64 from, u64 until) {
      u64 row = out_offset(launch, shared, out_chunk(launch, launch.rank, j));
      char* to = launch.output + row * launch.row_bytes + (from - shared.wire[j] * launch.row_bytes);
      copy_units<Unit>(to, placed(launch, shared, launch.input, j, from), until - from);
    });
  }
}

// Sends or receives streams: lane after lane of one peer after the other. Every `workers`-th is this worker's. On all ranks a worker
// takes its lanes in this order, so the first lane that has not ended always has both its sender and its receiver, and the number of
// workers may differ between ranks.
template <typename Unit>
__device__ void move_streams(const VdevLaunch& launch, VdevShared& shared, u32 worker, u32 workers, bool sends, bool keep) {
  u32 ranks = launch.ranks, rank = launch.rank;
  bool good = true;
  for (u32 i = worker; i < (ranks - 1) * launch.lanes && good; i += workers) {
    u32 step = 1 + i / launch.lanes, lane = i % launch.lanes;
    good = sends ? send<Unit>(launch, shared, (rank + step) % ranks, lane)
                 : receive<Unit>(launch, shared, (rank + ranks - step) % ranks, lane, keep);
  }
}

template <typename Unit>
__device__ __forceinline__ void exchange(const VdevLaunch& launch) {
  __shared__ VdevShared shared;
  u32 ranks = launch.ranks, rank = launch.rank;
  if (threadIdx.x == 0) shared.epoch = next_epoch(entered_word(launch, rank, rank));
  __syncthreads();
  if (blockIdx.x == 0) enter_operation(launch, shared.epoch);
  read_splits(launch, shared);
  bool good = blockIdx.x != 0 || send_splits(launch, shared);
  u32 peer = threadIdx.x;
  if (good && peer < ranks && peer != rank) {
    good = wait_signal(splits_word(launch, rank, peer), shared.epoch, launch.status, launch.timeout, peer);
  }
  if (__syncthreads_and(good)) {
    bool fits = plan_output(launch, shared);
    if (blockIdx.x < launch.own_blocks) {
      if (fits) copy_own<Unit>(launch, shared);
    } else {
      u32 index = blockIdx.x - launch.own_blocks;
      move_streams<Unit>(launch, shared, index / 2, (gridDim.x - launch.own_blocks) / 2, index % 2 == 0, fits);
    }
  }
  // The last block counts the operation; all blocks have read the count before.
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(launch.counters, 1) == gridDim.x - 1) {
    *launch.counters = 0;
    *(volatile u64*)entered_word(launch, rank, rank) = shared.epoch;
  }
}

// By the largest unit that divides the row length and the addresses of input and output. It may differ between ranks.
#define ALL_TO_ALL_VDEV(unit, Unit)                                      \
  extern "C" __global__ void __launch_bounds__(VDEV_THREADS)             \
      all_to_all_vdev_##unit(const __grid_constant__ VdevLaunch launch) { \
    exchange<Unit>(launch);                                              \
  }

ALL_TO_ALL_VDEV(16, uint4)
ALL_TO_ALL_VDEV(4, u32)
ALL_TO_ALL_VDEV(1, unsigned char)
