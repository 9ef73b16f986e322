// Runs the kernels of all_reduce.cu and reduce.cu as AllReduceKernels and fused-ops' RankOrderReducer do, without a
// JVM, so that compute-sanitizer can watch them. ci/sanitize.sh builds and runs it.
//
//   kernels [GPUS]    on the first GPUS GPUs, 2 unless told; 1 will do, but then nothing goes from GPU to GPU
//
// Ranks are streams, dealt out to the GPUs in turn. A group gets a row of launches, of all algorithms and sizes, and
// nothing waits for the GPUs before the last is enqueued. Then every tensor is compared, to the bit, with a sum in rank
// order computed here, and what lies around it with what was there.
//
// Kernels that wait for each other must run at once: nothing is allocated, and no kernel comes to a GPU for the first
// time, between the launches of a row; a GPU has a multiprocessor for every block of its ranks. If the kernels of one
// GPU run one after the other all the same, as a tool may want it, groups with more ranks than GPUs are left out.
//
// Exit status: 0 if all that ran is right, 1 if not, 2 if it cannot run here. What was left out is printed.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

// In a namespace, as names such as `raise` are taken on the host.
namespace kernels {
#include "all_reduce/all_reduce.cu"
#include "reduce/reduce.cu"
}  // namespace kernels

using kernels::Control;
using kernels::Launch;
using kernels::Status;
using kernels::u16;
using kernels::u32;
using kernels::u64;

enum Exit { RIGHT, WRONG, UNABLE };
enum Algorithm { ONE_SHOT, TWO_SHOT, MESH };

const char* const ALGORITHMS[] = {"one_shot", "two_shot", "mesh"};
const int THREADS = 512;
const int MAX_REDUCE_BLOCKS = 528;
const int MESH_RANKS = 8;
const u64 PATIENCE = 60'000'000'000;       // ns; kernels are slow when they are watched
const u64 PROBE_PATIENCE = 5'000'000'000;  // ns
const u64 ONE_SHOT_BYTES = 256 << 10;      // the largest tensors; CudaP2pOptions has 10 MiB for two-shot
const u64 TWO_SHOT_BYTES = 1 << 20;

// What the Java host takes for granted.
static_assert((sizeof(Control) + 4095) / 4096 * 4096 == 8192, "CONTROL of RegionLayout");
static_assert(sizeof(Launch) == (kernels::MAX_RANKS + 7) * sizeof(u64), "the struct of AllReduceKernels");
static_assert(offsetof(Status, stop) == 0 && offsetof(Status, missing) == 4, "the words of WaitStatus");

float load_float32(u32 bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

u32 store_float32(float value) {
  u32 bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

float load_float16(u32 bits) { return __half2float(__half(__half_raw{(u16)bits})); }

u32 store_float16(float value) { return __half_raw(__float2half_rn(value)).x; }

float load_bfloat16(u32 bits) { return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{(u16)bits})); }

u32 store_bfloat16(float value) { return __nv_bfloat16_raw(__float2bfloat16_rn(value)).x; }

struct Type {
  const char* name;
  u64 size;
  float (*load)(u32 bits);
  u32 (*store)(float value);
  const void* all_reduce[3];  // the kernel of each algorithm
  const void* reduce;
};

#define TYPE(name, size)                                                                                      \
  {                                                                                                           \
    #name, size, load_##name, store_##name,                                                                   \
        {(const void*)kernels::one_shot_##name, (const void*)kernels::two_shot_##name,                        \
         (const void*)kernels::mesh_##name},                                                                  \
        (const void*)kernels::reduce_##name                                                                   \
  }

const Type TYPES[] = {TYPE(float32, 4), TYPE(float16, 2), TYPE(bfloat16, 2)};

typedef std::vector<u32> Elements;  // the bits of each

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  exit(WRONG);
}

void use(int gpu) { check(cudaSetDevice(gpu), "cudaSetDevice"); }

u64 align(u64 bytes, u64 to) { return (bytes + to - 1) / to * to; }

// A tensor on a GPU, with as many elements before it and behind it as its distance from an alignment of 16 bytes. With
// no distance its allocation ends where it ends, so that memcheck sees what goes beyond.
class Tensor {
 public:
  Tensor(int gpu, const Type& type, u64 begin, const Elements& elements)
      : type(type), begin(begin), count(elements.size()) {
    use(gpu);
    check(cudaMalloc(&memory, (count + 2 * begin) * type.size), "cudaMalloc");
    Elements all(count + 2 * begin, MARGIN);
    std::copy(elements.begin(), elements.end(), all.begin() + begin);
    std::vector<char> bytes(all.size() * type.size);
    for (u64 i = 0; i < all.size(); i++) memcpy(&bytes[i * type.size], &all[i], type.size);
    check(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  Tensor(const Tensor&) = delete;
  ~Tensor() { check(cudaFree(memory), "cudaFree"); }

  char* address() const { return memory + begin * type.size; }

  // Tells whether it has these elements, and what is around it has not changed; says where not.
  bool has(const Elements& expected, const std::string& name) const {
    std::vector<char> bytes((count + 2 * begin) * type.size);
    check(cudaMemcpy(bytes.data(), memory, bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (u64 i = 0; i < count + 2 * begin; i++) {
      u32 is = 0;
      memcpy(&is, &bytes[i * type.size], type.size);
      bool inside = i >= begin && i < begin + count;
      u32 wanted = inside ? expected[i - begin] : MARGIN;
      if (is != wanted) {
        printf("WRONG %s: element %lld of %llu is %x, not %x\n", name.c_str(), (long long)(i - begin), count, is,
               wanted);
        return false;
      }
    }
    return true;
  }

 private:
  static const u32 MARGIN = 0x3c3c;

  const Type& type;
  const u64 begin;
  const u64 count;
  char* memory;
};

std::mt19937 generator(1);

// Of both signs and many sizes, none of them large: sums are finite. In float16 some are subnormal.
Elements random_elements(const Type& type, u64 count) {
  Elements elements(count);
  for (u32& element : elements) {
    u32 bits = generator();
    float value = ((int)(bits & 0xffffff) - 0x800000) / float(0x400000);
    element = type.store(ldexpf(value, -(int)(bits >> 28)));
  }
  return elements;
}

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

// How a rank's region is divided; as RegionLayout does, without signals and P2P buffer.
struct Layout {
  u64 slots[3];   // the size of a slot for each algorithm
  u64 begins[3];  // where its halves begin
  u64 halves[3];  // their size
  u64 size;

  explicit Layout(u64 ranks) {
    u64 two_shot = align((TWO_SHOT_BYTES + ranks - 1) / ranks + 16, 4096);
    slots[ONE_SHOT] = ONE_SHOT_BYTES;
    slots[MESH] = 2 * ONE_SHOT_BYTES;
    slots[TWO_SHOT] = two_shot;
    halves[TWO_SHOT] = halves[MESH] = std::max((ranks + 1) * slots[MESH], 2 * ranks * two_shot);
    halves[ONE_SHOT] = (ranks - 1) * slots[ONE_SHOT];
    begins[TWO_SHOT] = begins[MESH] = align(sizeof(Control), 4096);
    begins[ONE_SHOT] = begins[MESH] + 2 * halves[MESH];
    size = begins[ONE_SHOT] + 2 * halves[ONE_SHOT];
  }
};

struct Rank {
  int gpu;
  cudaStream_t stream;
  char* region;
  Status* status;
};

class Group {
 public:
  explicit Group(const std::vector<int>& gpus) : layout(gpus.size()), ranks(gpus.size()) {
    max_blocks = kernels::MAX_BLOCKS;
    for (size_t i = 0; i < gpus.size(); i++) {
      Rank& rank = ranks[i];
      rank.gpu = gpus[i];
      use(rank.gpu);
      check(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), "cudaStreamCreate");
      check(cudaMalloc(&rank.region, layout.size), "cudaMalloc");
      check(cudaMemset(rank.region, 0, layout.size), "cudaMemset");
      check(cudaMemset(rank.region + layout.begins[ONE_SHOT], 0xff, 2 * layout.halves[ONE_SHOT]), "cudaMemset");
      check(cudaDeviceSynchronize(), "cudaMemset");
      check(cudaHostAlloc(&rank.status, 4096, cudaHostAllocPortable), "cudaHostAlloc");
      memset(rank.status, 0, 4096);
      int processors;
      check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, rank.gpu), "cudaDeviceGetAttribute");
      int neighbours = std::count(gpus.begin(), gpus.end(), rank.gpu);
      max_blocks = std::min(max_blocks, processors / neighbours);
    }
  }
  Group(const Group&) = delete;
  ~Group() {
    for (Rank& rank : ranks) {
      use(rank.gpu);
      check(cudaStreamDestroy(rank.stream), "cudaStreamDestroy");
      check(cudaFree(rank.region), "cudaFree");
      check(cudaFreeHost(rank.status), "cudaFreeHost");
    }
  }

  u64 size() const { return ranks.size(); }
  int gpu(u64 rank) const { return ranks[rank].gpu; }

  void enqueue(u64 rank, const Type& type, Algorithm algorithm, char* address, u64 count, float divisor, u64 timeout) {
    // A group of one, which only loads the kernel, is its own four and its own relay.
    u32 four = size() == 1 ? 1 : rank < 4 ? 0x0f : 0xf0;
    u32 relay = size() == 1 ? 0 : rank ^ 4;
    u32 linked = algorithm == MESH ? four | 1 << relay : ~0u;
    Launch launch = {};
    for (u64 peer = 0; peer < size(); peer++)
      if (linked >> peer & 1) launch.peers.region[peer] = ranks[peer].region;
    launch.status = ranks[rank].status;
    launch.timeout = timeout;
    launch.begin = layout.begins[algorithm];
    launch.half_bytes = layout.halves[algorithm];
    launch.slot_bytes = layout.slots[algorithm];
    launch.rank = rank;
    launch.ranks = size();
    void* arguments[] = {&address, &count, &launch, &divisor, &four, &relay};  // the last two are for the mesh alone
    u64 packs = (count * type.size + 15) / 16;
    u64 work = algorithm == TWO_SHOT ? (packs + size() - 1) / size() : packs;
    int threads = algorithm == ONE_SHOT ? 256 : THREADS;
    u64 blocks = std::clamp<u64>((work + threads - 1) / threads, 1, max_blocks);
    use(ranks[rank].gpu);
    check(cudaLaunchKernel(type.all_reduce[algorithm], dim3(blocks), dim3(threads), arguments, 0, ranks[rank].stream),
          ALGORITHMS[algorithm]);
  }

  // Waits until all launches have ended. Returns false if a rank waited for another in vain, and names them.
  bool finish() {
    for (Rank& rank : ranks) {
      cudaError_t state;
      while ((state = cudaStreamQuery(rank.stream)) == cudaErrorNotReady) {
        if (missed()) {
          for (Rank& each : ranks) each.status->stop = 1;
        }
        usleep(1000);
      }
      check(state, "the kernels");
    }
    for (u64 rank = 0; rank < size(); rank++) {
      u32 missing = ranks[rank].status->missing;
      if (missing != 0) printf("rank %llu of %llu waited in vain for rank %u\n", rank, size(), missing - 1);
    }
    return !missed();
  }

 private:
  bool missed() const {
    return std::any_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.status->missing != 0; });
  }

  const Layout layout;
  std::vector<Rank> ranks;
  int max_blocks;
};

// One all-reduce: its tensors, and what they must become.
struct Job {
  const Type& type;
  Algorithm algorithm;
  u64 count;
  u64 begin;
  float divisor;
  std::vector<Tensor*> tensors;  // of each rank
  Elements expected;

  Job(const Group& group, const Type& type, Algorithm algorithm, u64 count, u64 begin, bool average)
      : type(type), algorithm(algorithm), count(count), begin(begin), divisor(average ? group.size() : 1) {
    std::vector<Elements> inputs;
    for (u64 rank = 0; rank < group.size(); rank++) {
      inputs.push_back(random_elements(type, count));
      tensors.push_back(new Tensor(group.gpu(rank), type, begin, inputs.back()));
    }
    expected = sum(type, algorithm, inputs, divisor);
  }
  Job(const Job&) = delete;
  ~Job() {
    for (Tensor* tensor : tensors) delete tensor;
  }

  bool is_right() const {
    bool right = true;
    for (size_t rank = 0; rank < tensors.size(); rank++) {
      std::string name = std::string(ALGORITHMS[algorithm]) + "_" + type.name + ", rank " + std::to_string(rank) +
                         " of " + std::to_string(tensors.size()) + ", from element " + std::to_string(begin);
      right &= tensors[rank]->has(expected, name);
    }
    return right;
  }
};

// A row of launches of one type: all algorithms, odd counts and full slots, tensors at all alignments, SUM and AVG.
bool row_is_right(const std::vector<int>& gpus, const Type& type) {
  Group group(gpus);
  std::vector<Job*> jobs;
  for (int algorithm = 0; algorithm < (group.size() == MESH_RANKS ? 3 : 2); algorithm++) {
    u64 most = (algorithm == TWO_SHOT ? TWO_SHOT_BYTES : ONE_SHOT_BYTES) / type.size;
    for (u64 count : {u64(1), u64(7), u64(9), u64(1003), u64(20011), most - 1, most}) {
      const u64 begins[] = {1, 0, 3};
      u64 begin = begins[jobs.size() % 3];
      jobs.push_back(new Job(group, type, (Algorithm)algorithm, count, begin, jobs.size() % 2));
    }
  }
  // One algorithm after the other would not show what they leave behind for each other.
  std::shuffle(jobs.begin(), jobs.end(), generator);
  u64 first = 0;  // Who arrives first changes.
  for (Job* job : jobs) {
    for (u64 i = 0; i < group.size(); i++) {
      u64 rank = (first + i) % group.size();
      group.enqueue(rank, type, job->algorithm, job->tensors[rank]->address(), job->count, job->divisor, PATIENCE);
    }
    first++;
  }
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
    group.enqueue(rank, TYPES[0], TWO_SHOT, nullptr, 0, 1, PROBE_PATIENCE);
  }
  return group.finish();
}

// Each kernel once on each GPU, alone and with nothing to do: loads what is loaded at a first launch.
void load_kernels(int gpus) {
  for (int gpu = 0; gpu < gpus; gpu++) {
    Group alone(std::vector<int>{gpu});
    for (const Type& type : TYPES) {
      for (Algorithm algorithm : {ONE_SHOT, TWO_SHOT, MESH}) alone.enqueue(0, type, algorithm, nullptr, 0, 1, PATIENCE);
    }
    if (!alone.finish()) exit(WRONG);
  }
}

// reduce.cu: parts of all ranks in one memory, at equal distances, with gaps.
bool reduce_is_right(const Type& type, int ranks, u64 count, u64 begin) {
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
  int blocks = std::min<u64>(MAX_REDUCE_BLOCKS, (packs + THREADS - 1) / THREADS);
  check(cudaLaunchKernel(type.reduce, dim3(blocks), dim3(THREADS), arguments, 0, nullptr), "reduce");
  check(cudaDeviceSynchronize(), "reduce");
  bool right = result.has(sum(type, ONE_SHOT, parts, divisor),
                          std::string("reduce_") + type.name + ", " + std::to_string(ranks) + " ranks");
  check(cudaFree(memory), "cudaFree");
  return right;
}

bool reductions_are_right(const Type& type) {
  for (int ranks : {1, 2, 3, 8}) {
    for (u64 count : {1, 9, 1003, 300007}) {
      for (u64 begin : {0, 1, 3}) {
        if (!reduce_is_right(type, ranks, count, begin)) return false;
      }
    }
  }
  return true;
}

// Lets the first GPUs write into each other's memory; ends the program where they cannot.
void connect(int gpus) {
  int there = 0;
  cudaError_t error = cudaGetDeviceCount(&there);
  if (error != cudaSuccess || there < gpus) {
    printf("needs %d GPUs, has %d%s%s\n", gpus, there, error == cudaSuccess ? "" : ": ",
           error == cudaSuccess ? "" : cudaGetErrorString(error));
    exit(UNABLE);
  }
  for (int gpu = 0; gpu < gpus; gpu++) {
    for (int peer = 0; peer < gpus; peer++) {
      if (peer == gpu) continue;
      int can = 0;
      check(cudaDeviceCanAccessPeer(&can, gpu, peer), "cudaDeviceCanAccessPeer");
      if (!can) {
        printf("GPU %d cannot access GPU %d\n", gpu, peer);
        exit(UNABLE);
      }
      use(gpu);
      check(cudaDeviceEnablePeerAccess(peer, 0), "cudaDeviceEnablePeerAccess");
    }
  }
}

int main(int argc, char** argv) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  // A stream each has a queue of its own; else a kernel may stand behind one that waits for it.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  int gpus = argc > 1 ? atoi(argv[1]) : 2;
  if (gpus < 1 || gpus > kernels::MAX_RANKS) {
    printf("usage: kernels [GPUS], 1 to %d\n", kernels::MAX_RANKS);
    return UNABLE;
  }
  connect(gpus);
  load_kernels(gpus);
  for (int ranks : {2, 3, MESH_RANKS}) {
    std::vector<int> placement;
    for (int rank = 0; rank < ranks; rank++) placement.push_back(rank % gpus);
    std::string name = std::to_string(ranks) + " ranks on " + std::to_string(std::min(ranks, gpus)) + " GPUs";
    if (!meet(placement)) {
      if (ranks <= gpus) return WRONG;
      printf("LEFT OUT: all-reduce of %s\n", name.c_str());
      continue;
    }
    for (const Type& type : TYPES) {
      if (!row_is_right(placement, type)) return WRONG;
      printf("right: all-reduce of %s, %s\n", name.c_str(), type.name);
    }
  }
  for (const Type& type : TYPES) {
    if (!reductions_are_right(type)) return WRONG;
    printf("right: reduction, %s\n", type.name);
  }
  return RIGHT;
}
