// Runs the kernels of all_reduce.cu, all_reduce_rms_norm.cu, gathered.cu, all_to_all_vdev.cu, signals.cu and reduce.cu as the
// Java code does (AllReduceKernels, SignalKernels, and RmsNormKernels, GatheredExchange, VdevKernels and RankOrderReducer of
// fused-ops), without a JVM, so that compute-sanitizer can watch them. ci/sanitize.sh builds and runs it, for groups of RANKS ranks.
//
//   kernels [GPUS [SEED]]    on the first GPUS GPUs, 2 unless told; 1 will do, but then nothing goes from GPU to GPU
//
// Ranks are streams, dealt out to the GPUs in turn. A group gets a row of launches, of all algorithms, of edge and of random
// sizes, in random order, with kernels between them that stand for cuBLAS's; nothing waits for the GPUs before the last is
// enqueued. Then every tensor is compared, to the bit, with a sum in rank order computed here, and what lies around it with what
// was there.
//
// Kernels that wait for each other must run at once: nothing is allocated, and no kernel comes to a GPU for the first
// time, between the launches of a row; a GPU has a multiprocessor for every block of its ranks. If the kernels of one
// GPU run one after the other all the same, as a tool may want it, groups with more ranks than GPUs are left out.
//
// Exit status: 0 if all that ran is right, 1 if not, 2 if it cannot run here. What was left out is printed.
#include <memory>

#include "common.cuh"

namespace kernels {
#include "all_reduce/all_reduce.cu"
#include "all_reduce_rms_norm/all_reduce_rms_norm.cu"
#include "reduce/reduce.cu"
#include "gathered/gathered.cu"
#include "all_to_all_vdev/all_to_all_vdev.cu"
#include "signals/signals.cu"
}  // namespace kernels

using kernels::Control;
using kernels::Launch;
using kernels::VdevLaunch;
typedef kernels::Rows<kernels::Float32> Rows;  // of any type, as they are all alike

enum Algorithm { ONE_SHOT, TWO_SHOT, DIRECT, MESH };

const char* const ALGORITHMS[] = {"one_shot", "two_shot", "direct", "mesh"};
const int THREADS = 256;
const int MESH_THREADS = 512;
const int DIRECT_BLOCKS = 8;
const int REDUCE_THREADS = kernels::REDUCE_THREADS;
const int MAX_REDUCE_BLOCKS = 528;
const int MESH_RANKS = 8;
const u64 ONE_SHOT_BYTES = 256 << 10;  // the largest tensors
const u64 TWO_SHOT_BYTES = 1 << 20;
const u64 EXCHANGE_BYTES = 64 << 10;  // of a launch, as slots can be smaller than a shard or a part
const u64 PACK = 16;
const u64 LINE = 64;           // from a rank's signal to the next one's
const u64 SENT_BYTES = 8 << 10;  // the most that goes into a slot of the buffer
const u64 VDEV_BYTES = 128 << 10;  // of the part of the buffer that all-to-alls use
const u64 VDEV_LANES = 2;          // at most

// What the Java host takes for granted.
static_assert(sizeof(Launch) == (kernels::MAX_RANKS + 6) * sizeof(u64), "the struct of AllReduceKernels");
static_assert(sizeof(kernels::Entered) == (kernels::MAX_RANKS + 3) * sizeof(u64), "the struct of SignalKernels");
static_assert(sizeof(Rows) == 8 * sizeof(u64), "the members of RmsNormKernels.Rows");

struct ReducedType : Type {
  const void* all_reduce[4];  // the kernel of each algorithm; null where there is none
  const void* reduce;
  const void* all_reduce_rms_norm;
  const void* add_rms_norm;
  const void* scatter;
};

#if RANKS == 8
#define MESH_KERNEL_OF(name) (const void*)kernels::mesh_##name
#else
#define MESH_KERNEL_OF(name) nullptr
#endif

#define REDUCED(name, size)                                                                                   \
  {                                                                                                           \
    ELEMENT(name, size),                                                                                      \
        {(const void*)kernels::one_shot_##name, (const void*)kernels::two_shot_##name,                        \
         (const void*)kernels::direct_##name, MESH_KERNEL_OF(name)},                                          \
        (const void*)kernels::reduce_##name, (const void*)kernels::all_reduce_rms_norm_##name,                \
        (const void*)kernels::add_rms_norm_##name, (const void*)kernels::reduce_scatter_##name                \
  }

const ReducedType TYPES[] = {REDUCED(float32, 4), REDUCED(float16, 2), REDUCED(bfloat16, 2)};

Elements sum(const Type& type, Algorithm algorithm, const std::vector<Elements>& parts, float divisor) {
  Elements result(parts[0].size());
  for (u64 i = 0; i < result.size(); i++) {
    auto sum_of = [&](size_t first, size_t end) {
      float sum = type.load(parts[first][i]);
      for (size_t rank = first + 1; rank < end; rank++) sum += type.load(parts[rank][i]);
      return sum;
    };
    float sum = algorithm == MESH ? sum_of(0, 4) + sum_of(4, 8) : sum_of(0, parts.size());
    result[i] = type.store(sum / divisor);
  }
  return result;
}

// How a rank's region is divided; as RegionLayout does, with one channel of signals.
struct Layout {
  u64 slots[4];   // the size of a slot for each algorithm
  u64 begins[4];  // where its halves begin
  u64 halves[4];  // their size
  u64 met;        // where pairs of ranks count their barriers
  u64 entered;    // where ranks tell which operation they have entered
  u64 signals;
  u64 counters;
  u64 buffer;     // a slot for each rank
  u64 vdev;
  u64 size;

  explicit Layout(u64 ranks) {
    u64 part = align((TWO_SHOT_BYTES + ranks - 1) / ranks, 4096);
    slots[ONE_SHOT] = slots[TWO_SHOT] = slots[DIRECT] = std::max(ONE_SHOT_BYTES, 2 * part);
    slots[MESH] = 2 * ONE_SHOT_BYTES;
    halves[MESH] = (ranks + 1) * slots[MESH];
    halves[ONE_SHOT] = halves[TWO_SHOT] = halves[DIRECT] = (ranks - 1) * slots[ONE_SHOT];
    begins[MESH] = align(sizeof(Control), 4096);
    begins[ONE_SHOT] = begins[TWO_SHOT] = begins[DIRECT] = begins[MESH] + 2 * halves[MESH];
    met = begins[ONE_SHOT] + 2 * halves[ONE_SHOT];
    entered = met + kernels::MAX_RANKS * LINE;
    signals = entered + kernels::MAX_RANKS * LINE;
    counters = signals + kernels::MAX_RANKS * LINE;
    buffer = counters + LINE;
    vdev = align(buffer + ranks * SENT_BYTES, 256);
    size = vdev + VDEV_BYTES;
  }
};

// A call of the kernels of all_reduce_rms_norm.cu.
struct NormCall {
  const ReducedType& type;
  Rows rows;
  float epsilon = 0;

  int threads() const { return std::min<u64>(kernels::NORM_THREADS, align(packs(), kernels::WARP)); }
  u64 packs() const { return (rows.hidden * type.size + 15) / 16; }
  u64 blocks(u64 most) const { return std::clamp<u64>(rows.rows, 1, most); }
};

class Group {
 public:
  explicit Group(const std::vector<int>& gpus) : layout(gpus.size()), ranks(gpus.size()) {
    for (size_t i = 0; i < gpus.size(); i++) {
      ranks[i].open(gpus[i], layout.size);
      check(cudaMemset(ranks[i].region + layout.begins[ONE_SHOT], 0xff, 2 * layout.halves[ONE_SHOT]), "cudaMemset");
      check(cudaDeviceSynchronize(), "cudaMemset");
    }
    max_blocks = std::min(kernels::MAX_BLOCKS, blocks_of_each(gpus));
  }
  Group(const Group&) = delete;
  ~Group() {
    for (Rank& rank : ranks) rank.close();
  }

  u64 size() const { return ranks.size(); }
  int gpu(u64 rank) const { return ranks[rank].gpu; }
  bool finish() { return ::finish(ranks); }
  u32 missing(u64 rank) const { return ranks[rank].status->missing; }

  // Enqueues jobs for all ranks.
  template <typename Jobs>
  void enqueue_all(const Jobs& jobs) {
    ::enqueue_all(ranks, jobs, [this](auto& job, u64 rank) { job.enqueue(*this, rank); });
  }

  void enqueue(u64 rank, const ReducedType& type, Algorithm algorithm, char* address, u64 count, float divisor, u64 timeout) {
    Launch launch = told(rank, algorithm, timeout);
    u32 four = four_of(rank), relay = relay_of(rank);
    void* arguments[] = {&address, &count, &launch, &divisor, &four, &relay};  // the last two are for the mesh alone
    u64 packs = (count * type.size + 15) / 16;
    u64 work = algorithm == TWO_SHOT ? (packs + size() - 1) / size() : packs;
    int threads = algorithm == MESH ? MESH_THREADS : THREADS;
    u64 most = algorithm == DIRECT ? std::min(max_blocks, DIRECT_BLOCKS) : max_blocks;
    u64 blocks = std::clamp<u64>((work + threads - 1) / threads, 1, most);
    use(ranks[rank].gpu);
    check(cudaLaunchKernel(type.all_reduce[algorithm], dim3(blocks), dim3(threads), arguments, 0, ranks[rank].stream),
          ALGORITHMS[algorithm]);
  }

  void enqueue(u64 rank, NormCall call, u64 timeout) {
    Launch launch = told(rank, ONE_SHOT, timeout);
    void* arguments[] = {&call.rows, &call.epsilon, &launch};
    use(ranks[rank].gpu);
    check(cudaLaunchKernel(call.type.all_reduce_rms_norm, dim3(call.blocks(max_blocks)), dim3(call.threads()), arguments,
                           call.packs() * 16, ranks[rank].stream),
          "all_reduce_rms_norm");
  }

  // Gathers shards of some bytes, whole packs.
  void enqueue_gather(u64 rank, char* shard, u64 bytes, char* whole, u64 timeout) {
    Launch launch = told(rank, ONE_SHOT, timeout);
    u64 distance = bytes / PACK;
    u64 done = 0;
    do {
      u64 packs = std::min(EXCHANGE_BYTES, bytes - done) / PACK;
      char *from = shard + done, *to = whole + done;
      void* arguments[] = {&from, &packs, &launch, &to, &distance};
      enqueue_exchange(rank, (const void*)kernels::all_gather, packs, arguments);
      done += EXCHANGE_BYTES;
    } while (done < bytes);
  }

  // Scatters parts of some bytes, whole packs, and sums them.
  void enqueue_scatter(u64 rank, const ReducedType& type, char* parts, u64 bytes, char* sums, float divisor, u64 timeout) {
    Launch launch = told(rank, ONE_SHOT, timeout);
    u64 distance = bytes / type.size;
    u64 done = 0;
    do {
      u64 part = std::min(EXCHANGE_BYTES, bytes - done);
      u64 count = part / type.size;
      char *from = parts + done, *to = sums + done;
      void* arguments[] = {&from, &count, &launch, &to, &distance, &divisor};
      enqueue_exchange(rank, type.scatter, part / PACK, arguments);
      done += EXCHANGE_BYTES;
    } while (done < bytes);
  }

  // An all-to-all; the arrays, sizes and form are given.
  void enqueue_vdev(u64 rank, VdevLaunch launch, u64 timeout) {
    u64 ranks_of_group = size();
    launch.own_blocks = std::max<u64>(1, max_blocks / (4 * size()));
    u64 workers = std::max<u64>(1, (max_blocks - launch.own_blocks) / 2);
    u64 groups = std::clamp<u64>(ranks_of_group - 1, 1, workers);
    u64 pairs = random_up_to(workers / groups * groups);  // another number on each rank, as beside other groups
    launch.rank = rank;
    launch.ranks = ranks_of_group;
    launch.lanes = std::min(workers / groups, VDEV_LANES);
    launch.words_begin = align(launch.ranks * launch.experts * sizeof(u64), 256);
    launch.slots_begin = align(launch.words_begin + launch.ranks * launch.lanes * 2 * sizeof(u64), 256);
    launch.stage_bytes =
        (VDEV_BYTES - launch.slots_begin) / (launch.ranks * launch.lanes * kernels::VDEV_STAGES) / PACK * PACK;
    launch.timeout = timeout;
    launch.status = ranks[rank].status;
    launch.counters = (u32*)(ranks[rank].region + layout.counters);
    launch.distance = LINE;
    for (u64 peer = 0; peer < ranks_of_group; peer++) {
      launch.entered[peer] = ranks[peer].region + layout.entered;
      launch.signals[peer] = ranks[peer].region + layout.signals;
      launch.half[peer] = ranks[peer].region + layout.vdev;
    }
    u64 unit = (u64)launch.input | (u64)launch.output | launch.row_bytes;
    const void* kernel = unit % 16 == 0 ? (const void*)kernels::all_to_all_vdev_16
                         : unit % 4 == 0 ? (const void*)kernels::all_to_all_vdev_4
                                         : (const void*)kernels::all_to_all_vdev_1;
    void* arguments[] = {&launch};
    use(ranks[rank].gpu);
    dim3 blocks(launch.own_blocks + 2 * std::min(pairs, launch.lanes * groups)), threads(kernels::VDEV_THREADS);
    check(cudaLaunchKernel(kernel, blocks, threads, arguments, 0, ranks[rank].stream), "all_to_all_vdev");
  }

  // Enters the next operation, and waits until all have.
  void enter(u64 rank, u64 timeout) {
    kernels::Entered entered = row(rank, layout.entered);
    void* arguments[] = {&entered};
    enqueue_signals(rank, (const void*)kernels::enter, kernels::MAX_RANKS, arguments);
    u32 all = (1u << size()) - 1, lower = (1u << size() / 2) - 1;
    wait_signals(rank, layout.entered, all & ~(1u << rank), timeout);
    // Barriers of each half of the ranks, then of all ranks.
    meet(rank, rank < size() / 2 ? lower : all & ~lower, timeout);
    meet(rank, all, timeout);
  }

  void meet(u64 rank, u32 members, u64 timeout) {
    kernels::Entered met = row(rank, layout.met);
    void* arguments[] = {&met, &members, &ranks[rank].status, &timeout};
    enqueue_signals(rank, (const void*)kernels::meet, kernels::MAX_RANKS, arguments);
  }

  // Copies a tensor into this rank's slot on all, itself included, and what has arrived from all to another; as a schedule does.
  void enqueue_copies(u64 rank, char* tensor, u64 bytes, char* all, u64 timeout) {
    enter(rank, timeout);
    cudaStream_t stream = ranks[rank].stream;
    char* own = ranks[rank].region;
    const u64* count = (const u64*)(own + layout.entered + rank * LINE);
    for (u64 peer = 0; peer < size(); peer++) {
      char* region = ranks[peer].region;
      use(ranks[rank].gpu);
      check(cudaMemcpyAsync(region + layout.buffer + rank * bytes, tensor, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
      u64* word = (u64*)(region + layout.signals + rank * LINE);
      void* arguments[] = {&word, &count};
      enqueue_signals(rank, (const void*)kernels::signal_peer, 1, arguments);
    }
    wait_signals(rank, layout.signals, (1u << size()) - 1, timeout);
    check(cudaMemcpyAsync(all, own + layout.buffer, size() * bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  }

 private:
  kernels::Entered row(u64 rank, u64 begin) {
    kernels::Entered words = {};
    for (u64 peer = 0; peer < size(); peer++) words.words[peer] = ranks[peer].region + begin;
    words.distance = LINE;
    words.rank = rank;
    words.ranks = size();
    return words;
  }

  // Of ranks that a bit each is for, to this one's epoch.
  void wait_signals(u64 rank, u64 row, u32 others, u64 timeout) {
    char *own = ranks[rank].region, *words = own + row;
    const u64* count = (const u64*)(own + layout.entered + rank * LINE);
    u64 distance = LINE;
    void* arguments[] = {&words, &distance, &others, &count, &ranks[rank].status, &timeout};
    enqueue_signals(rank, (const void*)kernels::wait_signals, kernels::MAX_RANKS, arguments);
  }

  void enqueue_signals(u64 rank, const void* kernel, int threads, void** arguments) {
    use(ranks[rank].gpu);
    check(cudaLaunchKernel(kernel, dim3(1), dim3(threads), arguments, 0, ranks[rank].stream), "signals");
  }

  void enqueue_exchange(u64 rank, const void* kernel, u64 packs, void** arguments) {
    u64 blocks = std::clamp<u64>((packs + THREADS - 1) / THREADS, 1, max_blocks);
    use(ranks[rank].gpu);
    check(cudaLaunchKernel(kernel, dim3(blocks), dim3(THREADS), arguments, 0, ranks[rank].stream), "an exchange");
  }

  // A group of one, which only loads the kernel, is its own four and its own relay.
  u32 four_of(u64 rank) const { return size() == 1 ? 1 : rank < 4 ? 0x0f : 0xf0; }
  u32 relay_of(u64 rank) const { return size() == 1 ? 0 : rank ^ 4; }

  Launch told(u64 rank, Algorithm algorithm, u64 timeout) const {
    u32 linked = algorithm == MESH ? four_of(rank) | 1 << relay_of(rank) : ~0u;
    Launch launch = {};
    for (u64 peer = 0; peer < size(); peer++)
      if (linked >> peer & 1) launch.peers.region[peer] = ranks[peer].region;
    launch.status = ranks[rank].status;
    launch.timeout = timeout;
    launch.begin = layout.begins[algorithm];
    launch.half_bytes = layout.halves[algorithm];
    launch.slot_bytes = layout.slots[algorithm];
    launch.rank = rank;
    return launch;
  }

  const Layout layout;
  std::vector<Rank> ranks;
  int max_blocks;
};

// What all ranks of a group enqueue: its tensors, and what they must become.
struct Job {
  virtual ~Job() = default;
  virtual void enqueue(Group& group, u64 rank) = 0;
  virtual bool is_right() const = 0;
};

struct AllReduce : Job {
  const ReducedType& type;
  Algorithm algorithm;
  u64 count;
  u64 begin;
  float divisor;
  std::vector<Tensor*> tensors;  // of each rank
  Elements expected;

  AllReduce(const Group& group, const ReducedType& type, Algorithm algorithm, u64 count, u64 begin, bool average)
      : type(type), algorithm(algorithm), count(count), begin(begin), divisor(average ? group.size() : 1) {
    std::vector<Elements> inputs;
    for (u64 rank = 0; rank < group.size(); rank++) {
      inputs.push_back(random_elements(type, count));
      tensors.push_back(new Tensor(group.gpu(rank), type, begin, inputs.back()));
    }
    expected = sum(type, algorithm, inputs, divisor);
  }
  AllReduce(const AllReduce&) = delete;
  ~AllReduce() override {
    for (Tensor* tensor : tensors) delete tensor;
  }

  void enqueue(Group& group, u64 rank) override {
    group.enqueue(rank, type, algorithm, tensors[rank]->address(), count, divisor, PATIENCE);
  }

  bool is_right() const override {
    bool right = true;
    for (size_t rank = 0; rank < tensors.size(); rank++) {
      std::string name = std::string(ALGORITHMS[algorithm]) + "_" + type.name + ", rank " + std::to_string(rank) +
                         " of " + std::to_string(tensors.size()) + ", from element " + std::to_string(begin);
      right &= tensors[rank]->has(expected, name);
    }
    return right;
  }
};

// By the kernel that exchanges, or by copies and signals.
struct Gather : Job {
  u64 bytes;
  bool copies;
  std::vector<std::unique_ptr<Tensor>> shards, wholes;  // of each rank
  Elements expected;

  Gather(const Group& group, const ReducedType& type, u64 packs, bool copies) : bytes(packs * PACK), copies(copies) {
    for (u64 rank = 0; rank < group.size(); rank++) {
      Elements shard = random_elements(type, bytes / type.size);
      shards.emplace_back(new Tensor(group.gpu(rank), type, 0, shard));
      expected.insert(expected.end(), shard.begin(), shard.end());
    }
    for (u64 rank = 0; rank < group.size(); rank++) {
      wholes.emplace_back(new Tensor(group.gpu(rank), type, 0, Elements(expected.size())));
    }
  }

  void enqueue(Group& group, u64 rank) override {
    char *shard = shards[rank]->address(), *whole = wholes[rank]->address();
    if (copies) {
      group.enqueue_copies(rank, shard, bytes, whole, PATIENCE);
    } else {
      group.enqueue_gather(rank, shard, bytes, whole, PATIENCE);
    }
  }

  bool is_right() const override {
    const char* name = copies ? "gather by copies" : "gather";
    return std::all_of(wholes.begin(), wholes.end(), [&](auto& whole) { return whole->has(expected, name); });
  }
};

struct Scatter : Job {
  const ReducedType& type;
  u64 bytes;
  float divisor;
  std::vector<std::unique_ptr<Tensor>> parts, sums;  // of each rank
  std::vector<Elements> expected;

  Scatter(const Group& group, const ReducedType& type, u64 packs, bool average)
      : type(type), bytes(packs * PACK), divisor(average ? group.size() : 1) {
    u64 count = bytes / type.size;
    std::vector<Elements> inputs;
    for (u64 rank = 0; rank < group.size(); rank++) {
      inputs.push_back(random_elements(type, count * group.size()));
      parts.emplace_back(new Tensor(group.gpu(rank), type, 0, inputs.back()));
      sums.emplace_back(new Tensor(group.gpu(rank), type, 0, Elements(count)));
    }
    for (u64 rank = 0; rank < group.size(); rank++) {
      std::vector<Elements> own;
      for (const Elements& input : inputs) {
        own.emplace_back(input.begin() + rank * count, input.begin() + (rank + 1) * count);
      }
      expected.push_back(sum(type, ONE_SHOT, own, divisor));
    }
  }

  void enqueue(Group& group, u64 rank) override {
    group.enqueue_scatter(rank, type, parts[rank]->address(), bytes, sums[rank]->address(), divisor, PATIENCE);
  }

  bool is_right() const override {
    bool right = true;
    for (size_t rank = 0; rank < sums.size(); rank++) {
      right &= sums[rank]->has(expected[rank], std::string("reduce_scatter_") + type.name + ", rank " + std::to_string(rank));
    }
    return right;
  }
};

// Rows to experts of all ranks, and back. Splits lie in memory as two words each.
struct RowExchange : Job {
  const Type& type;
  u64 columns;
  u64 experts;  // of each rank
  u64 align_to;
  std::vector<std::vector<u64>> splits;                                            // of each rank
  std::vector<std::unique_ptr<Tensor>> in, out, back, in_splits, out_splits, back_splits;  // of each rank
  std::vector<Elements> inputs, outputs, out_words;
  std::vector<u64> rows, received;

  RowExchange(const Group& group, const ReducedType& type, u64 columns, u64 experts, u64 align_to, u64 most, u64 begin)
      : type(type), columns(columns), experts(experts), align_to(align_to) {
    u64 ranks = group.size(), n = ranks * experts;
    for (u64 rank = 0; rank < ranks; rank++) {
      splits.emplace_back(n);
      u64 sum = 0;
      for (u64& split : splits[rank]) sum += split = generator() % 3 == 0 ? 0 : generator() % (most + 1);
      rows.push_back(sum);
      inputs.push_back(random_elements(type, sum * columns));
    }
    for (u64 rank = 0; rank < ranks; rank++) {
      int gpu = group.gpu(rank);
      expect(rank);
      in.emplace_back(new Tensor(gpu, type, begin, inputs[rank]));
      out.emplace_back(new Tensor(gpu, type, begin, Elements(outputs[rank].size())));
      back.emplace_back(new Tensor(gpu, type, begin, Elements(inputs[rank].size())));
      Elements words;
      for (u64 split : splits[rank]) words.insert(words.end(), {(u32)split, 0});
      in_splits.emplace_back(new Tensor(gpu, TYPES[0], 0, words));
      out_splits.emplace_back(new Tensor(gpu, TYPES[0], 0, Elements(4 * n)));
      back_splits.emplace_back(new Tensor(gpu, TYPES[0], 0, Elements(4 * n)));
    }
  }

  // Computes what a rank receives.
  void expect(u64 rank) {
    u64 ranks = splits.size();
    Elements output, sizes, offsets;
    u64 end = 0;
    for (u64 j = 0; j < experts; j++) {
      u64 begin = end;
      for (u64 from = 0; from < ranks; from++) {
        u64 index = rank * experts + j, first = 0;
        for (u64 i = 0; i < index; i++) first += splits[from][i];
        u64 split = splits[from][index];
        sizes.insert(sizes.end(), {(u32)split, 0});
        offsets.insert(offsets.end(), {(u32)end, 0});
        output.insert(output.end(), inputs[from].begin() + first * columns, inputs[from].begin() + (first + split) * columns);
        end += split;
      }
      if (align_to > 0) end = begin + std::max(align(end - begin, align_to), align_to);
      output.resize(end * columns);
    }
    sizes.insert(sizes.end(), offsets.begin(), offsets.end());
    outputs.push_back(output);
    out_words.push_back(sizes);
    received.push_back(end);
  }

  void enqueue(Group& group, u64 rank) override {
    VdevLaunch launch = {};
    launch.row_bytes = columns * type.size;
    launch.experts = experts;
    launch.major_align = align_to;
    launch.input = in[rank]->address();
    launch.output = out[rank]->address();
    launch.in_splits = (const u64*)in_splits[rank]->address();
    launch.out_splits = (u64*)out_splits[rank]->address();
    launch.input_rows = rows[rank];
    launch.output_rows = received[rank];
    group.enqueue_vdev(rank, launch, PATIENCE);
    launch.combine = 1;
    launch.major_align = 0;
    launch.input = launch.output;
    launch.output = back[rank]->address();
    launch.in_splits = launch.out_splits;
    launch.in_offsets = launch.out_splits + splits.size() * experts;
    launch.out_splits = (u64*)back_splits[rank]->address();
    launch.input_rows = received[rank];
    launch.output_rows = rows[rank];
    group.enqueue_vdev(rank, launch, PATIENCE);
  }

  bool is_right() const override {
    bool right = true;
    for (size_t rank = 0; rank < in.size(); rank++) {
      std::string name = "all_to_all_vdev, rank " + std::to_string(rank);
      right &= out_splits[rank]->has(out_words[rank], name + ": splits and offsets");
      right &= out[rank]->has(outputs[rank], name);
      right &= back[rank]->has(inputs[rank], name + ", back");
    }
    return right;
  }
};

// What goes into a norm and comes out, exact in all types: sums are multiples of an eighth, new residuals 2 or -2.
struct NormValues {
  std::vector<Elements> partials;  // of each rank
  Elements total, residual, weight, new_residual, norm;

  NormValues(const Type& type, int ranks, u64 rows, u64 hidden) : partials(ranks) {
    for (u64 i = 0; i < hidden; i++) weight.push_back(type.store((int)(generator() % 17) - 8));
    for (u64 i = 0; i < rows * hidden; i++) {
      float sum = 0;
      for (Elements& partial : partials) {
        float value = ((int)(generator() % 17) - 8) / 8.0f;
        partial.push_back(type.store(value));
        sum += value;
      }
      float result = generator() % 2 ? 2 : -2;
      total.push_back(type.store(sum));
      residual.push_back(type.store(result - sum));
      new_residual.push_back(type.store(result));
      norm.push_back(type.store(result / 2 * type.load(weight[i % hidden])));
    }
  }
};

// The tensors of a rank.
struct NormTensors {
  Tensor new_residual, norm, partial, residual, weight;

  NormTensors(int gpu, const Type& type, u64 begin, const NormValues& values, const Elements& partial)
      : new_residual(gpu, type, begin, Elements(values.norm.size())),
        norm(gpu, type, begin, Elements(values.norm.size())),
        partial(gpu, type, begin, partial),
        residual(gpu, type, begin, values.residual),
        weight(gpu, type, begin, values.weight) {}

  NormCall call(const ReducedType& type, u64 rows, u64 hidden) const {
    typedef u32* Pointer;
    return {type,
            {(Pointer)new_residual.address(), (Pointer)norm.address(), (Pointer)partial.address(), (Pointer)residual.address(),
             (Pointer)weight.address(), rows, hidden, nullptr}};
  }

  bool has(const NormValues& values, const std::string& name) const {
    bool right = new_residual.has(values.new_residual, name + ": the residual");
    return norm.has(values.norm, name + ": the norm") && right;
  }
};

struct AllReduceNorm : Job {
  const ReducedType& type;
  u64 rows;
  u64 hidden;
  NormValues values;
  std::vector<NormTensors*> tensors;  // of each rank

  AllReduceNorm(const Group& group, const ReducedType& type, u64 rows, u64 hidden, u64 begin)
      : type(type), rows(rows), hidden(hidden), values(type, group.size(), rows, hidden) {
    for (u64 rank = 0; rank < group.size(); rank++)
      tensors.push_back(new NormTensors(group.gpu(rank), type, begin, values, values.partials[rank]));
  }
  AllReduceNorm(const AllReduceNorm&) = delete;
  ~AllReduceNorm() override {
    for (NormTensors* one : tensors) delete one;
  }

  void enqueue(Group& group, u64 rank) override { group.enqueue(rank, tensors[rank]->call(type, rows, hidden), PATIENCE); }

  bool is_right() const override {
    bool right = true;
    for (size_t rank = 0; rank < tensors.size(); rank++) {
      right &= tensors[rank]->has(values, std::string("all_reduce_rms_norm_") + type.name + ", rank " + std::to_string(rank) +
                                              " of " + std::to_string(tensors.size()));
    }
    return right;
  }
};

const u64 NORM_SHAPES[][2] = {{1, 1}, {5, 4096}, {7, 33}, {2, 4097}, {70, 100}, {3, 9001}};  // rows and their elements

// A row of launches of one type: all algorithms, odd counts and full slots, tensors at all alignments, SUM and AVG; and
// exchanges and norms.
bool row_is_right(const std::vector<int>& gpus, const ReducedType& type) {
  Group group(gpus);
  std::vector<Job*> jobs;
  const u64 begins[] = {1, 0, 3};  // Direct all-reduces are aligned.
  for (int algorithm = 0; algorithm < (group.size() == MESH_RANKS ? 4 : 3); algorithm++) {
    u64 most = (algorithm == TWO_SHOT ? TWO_SHOT_BYTES : ONE_SHOT_BYTES) / type.size;
    for (u64 count : {u64(1), u64(7), u64(9), u64(1003), u64(20011), most - 1, most, random_up_to(most), random_up_to(most)}) {
      u64 begin = algorithm == DIRECT ? 0 : begins[jobs.size() % 3];
      jobs.push_back(new AllReduce(group, type, (Algorithm)algorithm, count, begin, jobs.size() % 2));
    }
  }
  for (auto& shape : NORM_SHAPES) {
    for (u64 begin : begins) jobs.push_back(new AllReduceNorm(group, type, shape[0], shape[1], begin));
  }
  u64 most = ONE_SHOT_BYTES / PACK;
  for (u64 packs : {u64(1), u64(9), u64(1003), EXCHANGE_BYTES / PACK, most - 1, random_up_to(most), random_up_to(most)}) {
    jobs.push_back(new Gather(group, type, packs, false));
    jobs.push_back(new Scatter(group, type, packs, jobs.size() % 4 < 2));
  }
  for (u64 packs : {u64(1), u64(33), SENT_BYTES / PACK}) jobs.push_back(new Gather(group, type, packs, true));
  for (u64 begin : begins) {
    jobs.push_back(new RowExchange(group, type, 64, 1, 0, 90, begin));
    jobs.push_back(new RowExchange(group, type, 33, 3, 4, 20, begin));
  }
  // One algorithm after the other would not show what they leave behind for each other.
  std::shuffle(jobs.begin(), jobs.end(), generator);
  group.enqueue_all(jobs);
  bool right = group.finish();
  for (Job* job : jobs) {
    if (right) right = job->is_right();
    delete job;
  }
  return right;
}

// Tells whether the kernels of all ranks of a group run at once.
bool meet(const std::vector<int>& gpus) {
  Group group(gpus);
  for (u64 rank = 0; rank < group.size(); rank++) {
    group.enter(rank, PROBE_PATIENCE);
  }
  return group.finish();
}

// Tells whether a barrier for which rank 0 names others than its peers is reported, and ends.
bool mismatch_is_reported(const std::vector<int>& gpus) {
  Group group(gpus);
  u32 two = 0b11, all = (1u << group.size()) - 1;
  if (all == two) return true;
  for (u64 rank = 0; rank < group.size(); rank++) group.meet(rank, rank == 0 ? two : all, PATIENCE);
  return !group.finish() && group.missing(0) == (2 | all << kernels::MISMATCH_SHIFT) &&
         group.missing(1) == (1 | two << kernels::MISMATCH_SHIFT);
}

// Each kernel once on each GPU, alone and with nothing to do: loads what is loaded at a first launch.
void load_kernels(int gpus) {
  for (int gpu = 0; gpu < gpus; gpu++) {
    Group alone(std::vector<int>{gpu});
    for (const ReducedType& type : TYPES) {
      for (Algorithm algorithm : {ONE_SHOT, TWO_SHOT, MESH}) {
        if (type.all_reduce[algorithm] != nullptr) alone.enqueue(0, type, algorithm, nullptr, 0, 1, PATIENCE);
      }
      alone.enqueue_gather(0, nullptr, 0, nullptr, PATIENCE);
      alone.enqueue_scatter(0, type, nullptr, 0, nullptr, 1, PATIENCE);
      // Some wait for others, or raise something, whatever there is to do; this loads a kernel, too.
      cudaFuncAttributes unused;
      for (const void* kernel : {type.all_reduce[DIRECT], (const void*)kernels::enter, (const void*)kernels::signal_peer,
                                 (const void*)kernels::wait_signals, (const void*)kernels::meet, (const void*)kernels::all_to_all_vdev_16,
                                 (const void*)kernels::all_to_all_vdev_4, (const void*)kernels::all_to_all_vdev_1}) {
        check(cudaFuncGetAttributes(&unused, kernel), "cudaFuncGetAttributes");
      }
      alone.enqueue(0, NormCall{type, {nullptr, nullptr, nullptr, nullptr, nullptr, 0, 1, nullptr}}, PATIENCE);
    }
    if (!alone.finish()) exit(WRONG);
  }
}

// reduce.cu: parts of all ranks in one memory, at equal distances, with gaps.
bool reduce_is_right(const ReducedType& type, int ranks, u64 count, u64 begin) {
  std::vector<Elements> parts;
  u64 stride = align(count * type.size, 16) + 16 * begin;
  std::vector<char> bytes(stride * (ranks - 1) + align(count * type.size, 16));
  for (int rank = 0; rank < ranks; rank++) {
    parts.push_back(random_elements(type, count));
    for (u64 i = 0; i < count; i++) memcpy(&bytes[rank * stride + i * type.size], &parts[rank][i], type.size);
  }
  use(0);
  char* memory;
  check(cudaMalloc(&memory, bytes.size()), "cudaMalloc");
  check(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  Tensor result(0, type, begin, Elements(count));
  char* address = result.address();
  float divisor = begin % 2 ? ranks : 1;
  void* arguments[] = {&address, &memory, &stride, &count, &ranks, &divisor};
  u64 packs = (count * type.size + 15) / 16;
  int blocks = std::min<u64>(MAX_REDUCE_BLOCKS, (packs + REDUCE_THREADS - 1) / REDUCE_THREADS);
  check(cudaLaunchKernel(type.reduce, dim3(blocks), dim3(REDUCE_THREADS), arguments, 0, nullptr), "reduce");
  check(cudaDeviceSynchronize(), "reduce");
  bool right = result.has(sum(type, ONE_SHOT, parts, divisor),
                          std::string("reduce_") + type.name + ", " + std::to_string(ranks) + " ranks");
  check(cudaFree(memory), "cudaFree");
  return right;
}

bool reductions_are_right(const ReducedType& type) {
  for (int ranks : {1, 2, 3, 8}) {
    for (u64 count : {1, 9, 1003, 300007}) {
      for (u64 begin : {0, 1, 3}) {
        if (!reduce_is_right(type, ranks, count, begin)) return false;
      }
    }
  }
  return true;
}

// What follows on an all-reduce: the sum lies where the new residual goes.
bool norms_are_right(const ReducedType& type) {
  for (auto& shape : NORM_SHAPES) {
    for (u64 begin : {0, 1, 3}) {
      NormValues values(type, 3, shape[0], shape[1]);
      NormTensors tensors(0, type, begin, values, values.total);
      Tensor in_place(0, type, begin, values.total);
      for (bool same : {false, true}) {
        NormCall call = tensors.call(type, shape[0], shape[1]);
        if (same) call.rows.new_residual = (u32*)(call.rows.partial = (u32*)in_place.address());
        void* arguments[] = {&call.rows, &call.epsilon};
        use(0);
        dim3 blocks(call.blocks(1 << 20)), threads(call.threads());
        check(cudaLaunchKernel(type.add_rms_norm, blocks, threads, arguments, call.packs() * 16, nullptr), "add_rms_norm");
        check(cudaDeviceSynchronize(), "add_rms_norm");
        std::string name = std::string("add_rms_norm_") + type.name;
        if (!tensors.has(values, name)) return false;
        if (same && !in_place.has(values.new_residual, name + " in place")) return false;
      }
    }
  }
  return true;
}

int main(int argc, char** argv) {
  int gpus = begin(argc, argv);
  load_kernels(gpus);
  std::vector<int> placed = placement(RANKS, gpus);
  std::string name = in_words(RANKS, gpus);
  if (meet(placed)) {
    for (const ReducedType& type : TYPES) {
      if (!row_is_right(placed, type)) return WRONG;
      printf("right: all-reduce, exchanges and norms of %s, %s\n", name.c_str(), type.name);
    }
    if (!mismatch_is_reported(placed)) return WRONG;
    printf("right: a barrier of different ranks, %s\n", name.c_str());
  } else if (RANKS <= gpus) {
    return WRONG;
  } else {
    printf("LEFT OUT: all-reduce of %s\n", name.c_str());
  }
  for (const ReducedType& type : TYPES) {
    if (!reductions_are_right(type) || !norms_are_right(type)) return WRONG;
    printf("right: reduction and norms, %s\n", type.name);
  }
  return RIGHT;
}
