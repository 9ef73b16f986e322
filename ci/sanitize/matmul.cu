// Runs the kernel of fused_matmul.cu as FusedMatmul of fused-ops does, without a JVM, so that compute-sanitizer
// can watch it. ci/sanitize.sh builds it for Hopper GPUs, once for each way to compile the kernel, and runs it.
//
//   matmul [GPUS [SEED]]    on the first GPUS GPUs, 2 unless told; 1 will do, but then nothing goes from GPU to GPU
//
// Ranks are streams, dealt out to the GPUs in turn. Three groups, each of another random number of ranks, get a row of launches
// of several shapes, with kernels between them that stand for cuBLAS's; nothing waits for the GPUs before the last is enqueued. Elements are small integers, of which sums are exact: results are compared to the bit, but
// for those that gates are activated for, and what lies around them with what was there.
//
// Kernels that wait for each other must run at once, as in kernels.cu; groups with more ranks than GPUs are left out where a
// tool runs the kernels of a GPU one after the other.
//
// Exit status: 0 if all that ran is right, 1 if not, 2 if it cannot run here. What was left out is printed.
#include <cuda.h>

#include <memory>
#include <numeric>
#include <type_traits>

#include "common.cuh"

namespace kernels {
#include "fused_matmul/fused_matmul.cu"
}  // namespace kernels

using kernels::Launch;
using kernels::TILE_M;

const bool FLOAT16 = std::is_same<kernels::TYPE, kernels::Float16>::value;
const Type ELEMENTS = FLOAT16 ? Type ELEMENT(float16, 2) : Type ELEMENT(bfloat16, 2);
const Type FLOAT8 = ELEMENT(float8, 1);
const Type FLOAT32 = ELEMENT(float32, 4);
const Type& OPERANDS = SCALED ? FLOAT8 : ELEMENTS;
const u64 ITEM = 2;  // bytes of an element of the products
const u64 UNIT = 16 / kernels::ITEM;  // elements of A; K is a multiple
const int THREADS = kernels::FUSED_THREADS;
const u64 LINE = 64;        // from a rank's signal to the next one's, in bytes
const u64 FLAGS = 4096;     // of each rank
const u64 WORDS = kernels::MAX_RANKS * FLAGS * sizeof(u64);  // bytes of signals or flags
const u64 ENTERED = kernels::MAX_RANKS * LINE;
const u64 COUNTERS = 64 * sizeof(u32);
const u64 BUFFER = 16 << 20;

// The sizes of an operator: of a rank's shard or part, and what it is multiplied with.
struct Sizes {
  u64 rows;
  u64 inner;
  std::vector<u64> columns;  // of the products
  u64 pushers;
  bool whole;  // whether the gathered A is wanted

  u64 tiles_of_part() const {
    u64 across = 0;
    for (u64 n : columns) across += (n + kernels::OUT_N - 1) / kernels::OUT_N;
    return (rows + TILE_M - 1) / TILE_M * across;
  }
  // Whether columns of B that lie side by side are loaded as one.
  bool grouped() const {
    return !TRANSPOSED && std::all_of(columns.begin(), columns.end(), [](u64 n) { return n % kernels::BOX_COLUMNS == 0; });
  }
  u64 box_rows() const { return std::min<u64>(TILE_M, align(rows, 8)); }
};

// A matrix of small integers, row by row.
struct Matrix {
  u64 rows, columns;
  std::vector<float> values;

  Matrix(u64 rows, u64 columns) : rows(rows), columns(columns), values(rows * columns) {
    for (float& value : values) value = (int)(generator() % 5) - 2;
  }

  Elements elements(bool transposed = false) const {
    Elements bits(values.size());
    for (u64 i = 0; i < values.size(); i++) {
      u64 place = transposed ? i % columns * rows + i / columns : i;
      bits[place] = OPERANDS.store(values[i]);
    }
    return bits;
  }

  // Rows of the product with another, not rounded.
  std::vector<float> times(const Matrix& other, u64 first, u64 count) const {
    std::vector<float> product(count * other.columns);
    for (u64 i = 0; i < count; i++) {
      for (u64 k = 0; k < columns; k++) {
        float a = values[(first + i) * columns + k];
        for (u64 j = 0; j < other.columns; j++) product[i * other.columns + j] += a * other.values[k * other.columns + j];
      }
    }
    return product;
  }
};

// Describes a tensor as TensorMap of native-ops does: dimensions from the innermost, strides of all but that in bytes.
void describe(kernels::TensorMap& map, const Type& of, void* address, std::vector<u64> sizes, std::vector<u64> strides,
              std::vector<u32> box) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
          "cudaGetDriverEntryPointByVersion");
    return (decltype(&cuTensorMapEncodeTiled))function;
  }();
  const u32 steps[] = {1, 1, 1};
  CUtensorMapDataType type = of.size == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                             : FLOAT16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                          : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  CUresult result = encode((CUtensorMap*)&map, type, sizes.size(), address, (const cuuint64_t*)sizes.data(),
                           (const cuuint64_t*)strides.data(), box.data(), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fprintf(stderr, "cuTensorMapEncodeTiled: error %d\n", result);
    exit(WRONG);
  }
}

// A rank's region: | signals or flags | which operation ranks have entered | counters | buffer: a slot for each rank |
class Group {
 public:
  explicit Group(const std::vector<int>& gpus) : ranks(gpus.size()), blocks(blocks_of_each(gpus)) {
    for (size_t i = 0; i < gpus.size(); i++) ranks[i].open(gpus[i], WORDS + ENTERED + COUNTERS + BUFFER);
  }
  Group(const Group&) = delete;
  ~Group() {
    for (Rank& rank : ranks) rank.close();
  }

  u64 size() const { return ranks.size(); }
  int gpu(u64 rank) const { return ranks[rank].gpu; }
  bool finish() { return ::finish(ranks); }

  // Enqueues jobs for all ranks.
  template <typename Jobs>
  void enqueue_all(const Jobs& jobs) {
    ::enqueue_all(ranks, jobs, [this](auto& job, u64 rank) { job.enqueue(*this, rank, PATIENCE); });
  }

  char* slot(u64 on, u64 source, u64 slot_bytes) const {
    return ranks[on].region + WORDS + ENTERED + COUNTERS + source * slot_bytes;
  }

  // Enqueues what has been described, after all that is the same for both operators is filled in.
  void enqueue(u64 rank, const Sizes& sizes, Launch& launch, u64 slot_bytes, u64 timeout) {
    for (size_t i = 0; i < sizes.columns.size(); i++) launch.columns[i] = sizes.columns[i];
    launch.rights = sizes.columns.size();
    launch.grouped = sizes.grouped();
    launch.rows = sizes.rows;
    launch.inner = sizes.inner;
    launch.left_bytes = sizes.box_rows() * kernels::STEP_BYTES;
    launch.rank = rank;
    launch.ranks = size();
    launch.factor = 1;
    launch.own_delay = SCATTER ? std::min<u64>(blocks, sizes.tiles_of_part()) : 0;
    launch.pull = SCATTER && size() == 2;
    launch.pushers = SCATTER ? 0 : std::min<u64>(blocks, sizes.pushers);
    launch.status = ranks[rank].status;
    launch.timeout = timeout;
    launch.counters = (u32*)(ranks[rank].region + WORDS + ENTERED);
    launch.entered_distance = LINE;
    launch.rank_distance = SCATTER ? FLAGS * sizeof(u64) : LINE;
    launch.slot_bytes = slot_bytes;
    for (u64 peer = 0; peer < size(); peer++) {
      launch.entered[peer] = ranks[peer].region + WORDS;
      launch.signals[peer] = ranks[peer].region;
      launch.slots[peer] = slot(peer, 0, slot_bytes);
    }
    u64 grid = std::min<u64>(blocks, std::max<u64>(launch.pushers, size() * sizes.tiles_of_part()));
    void* arguments[] = {&launch};
    use(ranks[rank].gpu);
    check(cudaLaunchKernel((const void*)kernels::fused_matmul, dim3(grid), dim3(THREADS), arguments, kernels::SHARED_BYTES,
                           ranks[rank].stream),
          "fused_matmul");
  }

 private:
  std::vector<Rank> ranks;
  const int blocks;
};

typedef std::unique_ptr<Tensor> Placed;

// With 16 bytes around a tensor, as tensor maps want it.
Placed place(int gpu, const Type& type, const Elements& elements) {
  return Placed(new Tensor(gpu, type, 16 / type.size, elements));
}

// Powers of two, so that scaled products are exact.
std::vector<float> random_scales(u64 count) {
  std::vector<float> scales(count);
  for (float& scale : scales) scale = ldexpf(1, (int)(generator() % 4) - 2);
  return scales;
}

Placed place(int gpu, const std::vector<float>& scales) {
  Elements bits;
  for (float scale : scales) bits.push_back(store_float32(scale));
  return place(gpu, FLOAT32, bits);
}

// One operator of a group: its tensors, and what they must become.
struct Job {
  const Sizes sizes;
  std::vector<Placed> lefts;                // of each rank
  std::vector<std::vector<Placed>> rights;  // of each rank
  std::vector<std::vector<Placed>> outs;    // of each rank: the products, or its part of the sum
  std::vector<Placed> wholes;               // of each rank, where they are wanted
  const u64 scale_step = generator() % 2;   // 1: each row and column has a scale
  std::vector<std::vector<float>> row_scales;  // of each rank; gather: the same on all ranks
  std::vector<std::vector<float>> column_scales;  // of each rank, for all its Bs
  std::vector<Placed> row_scales_placed, column_scales_placed;
  std::vector<std::vector<Elements>> expected;
  Elements whole;

  Job(const Group& group, const Sizes& sizes) : sizes(sizes) {
    u64 ranks = group.size();
    std::vector<Matrix> as;
    std::vector<std::vector<Matrix>> bs(ranks);
    for (u64 rank = 0; rank < ranks; rank++) {
      int gpu = group.gpu(rank);
      as.emplace_back(sizes.rows * (SCATTER ? ranks : 1), sizes.inner);
      lefts.push_back(place(gpu, OPERANDS, as.back().elements()));
      bool own_scales = SCATTER || rank == 0;
      row_scales.push_back(own_scales ? random_scales(ranks * sizes.rows) : row_scales[0]);
      column_scales.push_back(random_scales(*std::max_element(sizes.columns.begin(), sizes.columns.end())));
      row_scales_placed.push_back(place(gpu, row_scales.back()));
      column_scales_placed.push_back(place(gpu, column_scales.back()));
      rights.emplace_back();
      outs.emplace_back();
      for (u64 n : sizes.columns) {
        bs[rank].emplace_back(sizes.inner, GATED ? 2 * n : n);
        rights.back().push_back(place(gpu, OPERANDS, bs[rank].back().elements(TRANSPOSED)));
        outs.back().push_back(place(gpu, ELEMENTS, Elements(sizes.rows * n * (SCATTER ? 1 : ranks))));
      }
      if (sizes.whole) wholes.push_back(place(gpu, OPERANDS, Elements(ranks * sizes.rows * sizes.inner)));
      Elements shard = as.back().elements();
      whole.insert(whole.end(), shard.begin(), shard.end());
    }
    for (u64 rank = 0; rank < ranks; rank++) {
      expected.emplace_back();
      for (size_t i = 0; i < sizes.columns.size(); i++) {
        expected.back().push_back(SCATTER ? part(as, bs, rank) : product(as, bs[rank][i], rank));
      }
    }
  }

  // Multiplies rows of a product, from row `first` of all rows on, by their scales and those of the columns.
  void scale(std::vector<float>& values, u64 rank, u64 first, u64 width) const {
    for (u64 i = 0; SCALED && i < values.size(); i++) {
      values[i] *= row_scales[rank][scale_step * (first + i / width)] * column_scales[rank][scale_step * (i % width)];
    }
  }

  Elements product(const std::vector<Matrix>& as, const Matrix& b, u64 rank) const {
    Elements all;
    for (u64 source = 0; source < as.size(); source++) {
      std::vector<float> values = as[source].times(b, 0, sizes.rows);
      scale(values, rank, source * sizes.rows, b.columns);
      for (u64 i = 0; i < values.size(); i++) {
        u64 width = b.columns / 2;
        if (!GATED) all.push_back(ELEMENTS.store(values[i]));
        if (!GATED || i % b.columns >= width) continue;
        all.push_back(ELEMENTS.store(values[i] / (1 + expf(-values[i])) * values[i + width]));
      }
    }
    return all;
  }

  // The others' parts are rounded, as they are sent.
  Elements part(const std::vector<Matrix>& as, const std::vector<std::vector<Matrix>>& bs, u64 rank) const {
    std::vector<float> sums(sizes.rows * sizes.columns[0], -0.0f);
    for (u64 source = 0; source < as.size(); source++) {
      std::vector<float> part = as[source].times(bs[source][0], rank * sizes.rows, sizes.rows);
      scale(part, source, rank * sizes.rows, sizes.columns[0]);
      for (u64 i = 0; i < sums.size(); i++) sums[i] += source == rank ? part[i] : ELEMENTS.load(ELEMENTS.store(part[i]));
    }
    Elements all;
    for (float sum : sums) all.push_back(ELEMENTS.store(sum));
    return all;
  }

  void enqueue(Group& group, u64 rank, u64 timeout) const {
    const u32 BOX = kernels::BOX_COLUMNS, STEP = kernels::BLOCK_K, HALF_TILE = kernels::HALF_M;
    u64 ranks = group.size(), rows = sizes.rows, inner = sizes.inner, n = sizes.columns[0];
    u64 slot_bytes = align(rows * (SCATTER ? n * ITEM : inner * kernels::ITEM), 256);
    u64 row_bytes = inner * kernels::ITEM;
    u32 box_rows = sizes.box_rows();
    Launch launch = {};
    char* left = lefts[rank]->address();
    char* arrived = group.slot(rank, 0, slot_bytes);
    if (SCATTER) {
      describe(launch.left, OPERANDS, left, {inner, rows, ranks}, {row_bytes, rows * row_bytes}, {STEP, box_rows, 1});
      describe(launch.arrived, ELEMENTS, arrived, {n, rows, ranks}, {n * ITEM, slot_bytes}, {BOX, HALF_TILE, 1});
    } else {
      describe(launch.left, OPERANDS, left, {inner, rows}, {row_bytes}, {STEP, box_rows});
      describe(launch.arrived, OPERANDS, arrived, {inner, rows, ranks}, {row_bytes, slot_bytes}, {STEP, box_rows, 1});
    }
    for (size_t i = 0; i < sizes.columns.size(); i++) {
      u64 width = sizes.columns[i];
      char* right = rights[rank][i]->address();
      if (TRANSPOSED) {
        describe(launch.right[i], OPERANDS, right, {inner, GATED ? 2 * width : width}, {row_bytes}, {STEP, kernels::OUT_N});
      } else if (sizes.grouped()) {
        describe(launch.right[i], OPERANDS, right, {BOX, inner, width / BOX}, {width * ITEM, BOX * ITEM}, {BOX, BOX, TILE_N / BOX});
      } else {
        describe(launch.right[i], OPERANDS, right, {width, inner}, {width * ITEM}, {BOX, BOX});
      }
      if (!SCATTER) {
        describe(launch.out[i], ELEMENTS, outs[rank][i]->address(), {width, rows, ranks}, {width * ITEM, rows * width * ITEM},
                 {BOX, HALF_TILE, 1});
      }
    }
    for (u64 peer = 0; SCATTER && peer < ranks; peer++) {
      char* to = peer == rank ? outs[rank][0]->address() : group.slot(peer, rank, slot_bytes);
      describe(launch.out[peer], ELEMENTS, to, {n, rows}, {n * ITEM}, {BOX, HALF_TILE});
    }
    launch.row_scales = (const float*)row_scales_placed[rank]->address();
    for (const float*& scales : launch.column_scales) scales = (const float*)column_scales_placed[rank]->address();
    launch.scale_step = scale_step;
    launch.shard = left;
    launch.gathered = sizes.whole ? wholes[rank]->address() : nullptr;
    group.enqueue(rank, sizes, launch, slot_bytes, timeout);
  }

  bool is_right() const {
    bool right = true;
    for (size_t rank = 0; rank < outs.size(); rank++) {
      std::string name = std::to_string(sizes.rows) + " rows, " + std::to_string(sizes.inner) + " inner, rank " +
                         std::to_string(rank) + " of " + std::to_string(outs.size());
      for (size_t i = 0; i < outs[rank].size(); i++) right &= outs[rank][i]->has(expected[rank][i], name, GATED);
      if (sizes.whole) right &= wholes[rank]->has(whole, name + ": the gathered A");
    }
    return right;
  }
};

// Tiles that are full and not, one and many; all that a block pushes at once, and less.
std::vector<Sizes> shapes() {
  if (SCATTER) {
    return {{1, UNIT, {8}, 0, false},         {5, 16, {16}, 0, false},          {128, 64, {256}, 0, false},
            {200, 17 * UNIT, {520}, 0, false}, {33, 129 * UNIT, {32}, 0, false}};
  }
  if (GATED) return {{8, 8, {8}, 1, false}, {128, 64, {128}, 1, true}, {200, 136, {264}, 2, true}, {33, 1032, {40}, 8, false}};
  return {{8, UNIT, {8}, 1, false},
          {1, 16, {8, 72, 8, 264}, 8, true},
          {128, 64, {256}, 1, true},
          {200, 17 * UNIT, {264, 520}, 4, false},
          {200, 17 * UNIT, {264}, 2, true},
          {33, 129 * UNIT, {40}, 8, true}};
}

Sizes random_sizes() {
  u64 unit = 8;  // elements, of which the kernel wants whole multiples
  std::vector<u64> columns(SCATTER || GATED ? 1 : random_up_to(3));
  for (u64& n : columns) n = unit * random_up_to(40);
  return {random_up_to(300), UNIT * random_up_to(20), columns, SCATTER ? 0 : random_up_to(8), !SCATTER && generator() % 2 == 0};
}

// A row of launches, each shape several times, and random ones.
bool row_is_right(const std::vector<int>& gpus) {
  Group group(gpus);
  std::vector<std::unique_ptr<Job>> jobs;
  for (int time = 0; time < 2; time++) {
    for (const Sizes& sizes : shapes()) jobs.emplace_back(new Job(group, sizes));
    for (int i = 0; i < 3; i++) jobs.emplace_back(new Job(group, random_sizes()));
  }
  std::shuffle(jobs.begin(), jobs.end(), generator);
  group.enqueue_all(jobs);
  if (!group.finish()) return false;
  return std::all_of(jobs.begin(), jobs.end(), [](auto& job) { return job->is_right(); });
}

// Tells whether the kernels of all ranks of a group run at once, and are right then.
bool meet(const std::vector<int>& gpus, u64 timeout) {
  Group group(gpus);
  Job job(group, shapes()[0]);
  for (u64 rank = 0; rank < group.size(); rank++) job.enqueue(group, rank, timeout);
  return group.finish() && job.is_right();
}

int main(int argc, char** argv) {
  int gpus = begin(argc, argv);
  for (int gpu = 0; gpu < gpus; gpu++) {
    use(gpu);
    const void* kernel = (const void*)kernels::fused_matmul;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kernels::SHARED_BYTES), "cudaFuncSetAttribute");
    if (!meet({gpu}, PATIENCE)) return WRONG;  // Loads what is loaded at a first launch.
  }
  std::vector<int> numbers(kernels::MAX_RANKS - 1);
  std::iota(numbers.begin(), numbers.end(), 2);
  std::shuffle(numbers.begin(), numbers.end(), generator);
  numbers.resize(3);
  for (int ranks : numbers) {
    std::vector<int> placed = placement(ranks, gpus);
    std::string name = in_words(ranks, gpus);
    if (!meet(placed, PROBE_PATIENCE)) {
      if (ranks <= gpus) return WRONG;
      printf("LEFT OUT: %s of %s\n", SCATTER ? "matmul + reduce-scatter" : "all-gather + matmul", name.c_str());
      continue;
    }
    if (!row_is_right(placed)) return WRONG;
    printf("right: %s of %s\n", SCATTER ? "matmul + reduce-scatter" : "all-gather + matmul", name.c_str());
  }
  return RIGHT;
}
