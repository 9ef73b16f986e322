// From logits to the next token of each row.
//
//   decode_top     per row, over this rank's part of the vocabulary: highest logit, the first token with it, sum of exponentials
//   decode_sample  merges the ranks' results of decode_top; then takes the most probable token, or samples one. On request it
//                  edits the logits first (penalties, biases, allowed tokens), and lists the highest logits
//
// Memory: logits in rows; results in arrays of Top, one per row and rank. An all-reduce between the two kernels gathers the ranks'
// results, because each rank writes zeros for its peers.
// Synchronisation: in decode_top, each block of a row increments `blocks_ended`; in decode_sample, the blocks of a row are a cluster.
#include "decoder/common.cuh"

#ifdef HAS_BFLOAT16

struct Top {
  float highest;  // logit
  float sum;      // of exp(logit - highest)
  float token;    // exact in float32: fewer than 2^24 tokens
  float logit;    // of the sampled token; set by decode_sample
};

const float NO_TOKEN = 1 << 30;
const float LARGEST = 3.402823466e38f;

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

struct Logits {
  Top* top;            // (ranks, rows): this rank's results, zeros for the others
  const Bits* logits;  // (rows, width), rows `stride` elements apart
  Top* parts;          // (rows, TOP_BLOCKS)
  u32* blocks_ended;   // of each row; 0 before and after a launch
  u64 first;           // token of the first logit
  u64 width;
  u64 stride;
  u64 rank;
  u64 ranks;
};

// Merges the results of two sets of tokens. Of equal logits the lower token wins.
__device__ __forceinline__ Top merge(const Top& a, const Top& b) {
  float highest = fmaxf(a.highest, b.highest);
  float sum = a.sum * __expf(a.highest - highest) + b.sum * __expf(b.highest - highest);
  bool first = a.highest > b.highest || (a.highest == b.highest && a.token < b.token);
  return Top{highest, sum, first ? a.token : b.token, 0};
}

// Merges the results of a warp. All lanes get the merged result.
__device__ __forceinline__ Top warp_top(Top top) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    Top other = {__shfl_xor_sync(~0u, top.highest, distance), __shfl_xor_sync(~0u, top.sum, distance),
                  __shfl_xor_sync(~0u, top.token, distance), 0};
    top = merge(top, other);
  }
  return top;
}

const int TOP_BLOCKS = 16;  // per row
const int TOP_THREADS = 256;

extern "C" __global__ void __launch_bounds__(TOP_THREADS) decode_top(const __grid_constant__ Logits args) {
  launch_dependents();
  __shared__ Top warp_tops[TOP_THREADS / WARP];
  wait_for_primary();
  // Step 1: each thread goes through its packs of the row.
  u32 row = blockIdx.y;
  const Bits* logits = args.logits + row * args.stride;
  Top top = {LOWEST, 0, NO_TOKEN, 0};
  for (u64 i = blockIdx.x * TOP_THREADS + threadIdx.x; i * PACK < args.width; i += TOP_BLOCKS * TOP_THREADS) {
    Pack<T> elements;
    elements.vector = load_pack<T>(logits, args.width, i);
    Top own = {LOWEST, 0, NO_TOKEN, 0};
#pragma unroll
    for (int e = 0; e < PACK; e++) {
      float value = T::load(elements.elements[e]);
      if (i * PACK + e < args.width && value > own.highest) {
        own.highest = value;
        own.token = args.first + i * PACK + e;
      }
    }
#pragma unroll
    for (int e = 0; e < PACK; e++) {
      if (i * PACK + e < args.width) own.sum += __expf(T::load(elements.elements[e]) - own.highest);
    }
    top = merge(top, own);
  }
  // Step 2: merge the threads of the block.
  top = warp_top(top);
  if (threadIdx.x % WARP == 0) warp_tops[threadIdx.x / WARP] = top;
  __syncthreads();
  if (threadIdx.x >= WARP) return;
  top = warp_top(threadIdx.x < TOP_THREADS / WARP ? warp_tops[threadIdx.x] : Top{LOWEST, 0, NO_TOKEN, 0});
  // Step 3: the last block of the row merges the blocks.
  bool last = false;
  if (threadIdx.x == 0) {
    args.parts[row * TOP_BLOCKS + blockIdx.x] = top;
    __threadfence();
    last = atomicAdd(&args.blocks_ended[row], 1) == TOP_BLOCKS - 1;
    if (last) args.blocks_ended[row] = 0;
    __threadfence();
  }
  if (!__shfl_sync(~0u, last, 0)) return;
  top = Top{LOWEST, 0, NO_TOKEN, 0};
  if (threadIdx.x < TOP_BLOCKS) {
    const Top* part = args.parts + row * TOP_BLOCKS + threadIdx.x;
    top = Top{__ldcg(&part->highest), __ldcg(&part->sum), __ldcg(&part->token), 0};
  }
  top = warp_top(top);
  if (threadIdx.x < args.ranks) args.top[threadIdx.x * gridDim.y + row] = threadIdx.x == args.rank ? top : Top{};
}

// ---------------------------------------------------------------------------------------------------------------------------
// Sampling. Weights are integers, so their sums do not depend on the order of addition.

// A token whose logit changes before sampling. LogitEdits.java has the same three members.
struct Edit {
  int token;
  int count;   // how often the token was generated; with IN_PROMPT added if the prompt has it
  float bias;  // -infinity: the token is not sampled
};

const int IN_PROMPT = 1 << 30;

// Parameters of one row; Decoder.java writes them by member name.
struct SamplingParameters {
  double scale;  // log2(e) / temperature: the weight of a token is 2^(scale * (logit - highest)); 0: greedy
  double top_p;  // keep the fewest tokens whose share of all weights is at least this; 1: all
  u64 random;
  u64 top_k;     // keep this many of the highest logits, and logits equal to the lowest of them; 0: all
  double min_p;  // keep the tokens whose weight is at least this share of the highest weight, before top_k; 0: all
  const Edit* edits;   // of distinct tokens, in pinned host memory; null: the logits are not edited
  const u32* allowed;  // a bit of each token, in pinned host memory; null: all are allowed
  u32 edit_count;
  int given;           // report this token instead of a sampled one; -1: none
  u32 most;            // list this many of the highest logits
  float repetition;    // penalties, see penalized()
  float frequency;
  float presence;
};

// An entry of the list of highest logits.
struct Most {
  int token;
  float logit;
};

const int MAX_TOP_LOGPROBS = 20;

struct Sampling {
  Top* top;           // of each row; pinned host memory
  const Top* parts;   // (ranks, rows): results of decode_top
  int* sampled;       // token of each sequence
  const int* slots;  // of each row: the index of its sequence in `sampled`; -1: do not sample
  const SamplingParameters* parameters;
  const Bits* logits;  // (rows, width) of all ranks, rows `stride` elements apart; not needed for plain greedy rows
  u64 width;
  u64 stride;
  u64 ranks;
  u64 rows;
  const int* tokens;  // input token of each row. SAMPLED: `edits` does not count it yet
  Most* most;         // (rows, MAX_TOP_LOGPROBS), in no order; pinned host memory
  u32* edited;        // (rows, width) in float32, rows `edited_stride` elements apart; needed only for rows with edits
  u64 edited_stride;
};

// From Hopper on, a cluster samples a row; before, a block of as many threads as are allowed. A block has contiguous packs of the row.
const int SAMPLE_CLUSTER = 8;
const int CLUSTER_THREADS = 256;
const int SAMPLE_THREADS = 1024;
#if __CUDA_ARCH__ >= 900
#define SAMPLE_CLUSTER_DIMS __cluster_dims__(SAMPLE_CLUSTER, 1, 1)
const bool CLUSTERS = true;
#else
#define SAMPLE_CLUSTER_DIMS
const bool CLUSTERS = false;
#endif
const int BLOCKS = CLUSTERS ? SAMPLE_CLUSTER : 1, THREADS = CLUSTERS ? CLUSTER_THREADS : SAMPLE_THREADS;
const int KEY_GROUPS = 16384 / BLOCKS;  // groups of a block's packs; shared memory keeps the highest key of each
const int TRIED = 3;                    // keys that a pass tries
const float WEIGHT = 1ull << 40;    // of the highest logit

// Keys have the order of the logits. key() and logit_of() are inverse.
template <typename E>
struct Keys {
  static const int BITS = 8 * sizeof(typename E::Bits);
  static const u32 SIGN = 1u << (BITS - 1);
  static const u32 MASK = 2 * (SIGN - 1) + 1;
  static const u32 END = BITS == 16 ? 1u << 16 : MASK;  // above the key of every number
  static const int SHIFT = BITS - 16;                   // the keys of groups have 16 bits

  static __device__ __forceinline__ u32 key(u32 logit) { return (logit & SIGN ? ~logit : logit | SIGN) & MASK; }
  static __device__ __forceinline__ typename E::Bits logit_of(u32 key) { return key & SIGN ? key & ~SIGN : ~key; }
};

struct SamplingShared {
  unsigned short group_keys[KEY_GROUPS];  // highest key of each group; later passes skip groups without kept tokens
  u64 warp_sums[TRIED][THREADS / WARP];
  u64 block_sums[2][TRIED];  // used in turn
  Top warp_tops[THREADS / WARP];
  Top top;       // of the block
  bool counted;  // whether an edit has counted the token that the host does not know yet
};

// The logits of a row with elements of type E, and the passes of its blocks over them.
template <typename E>
struct Row {
  typedef typename E::Bits Bits;
  typedef Keys<E> K;
  static const int COUNT = Pack<E>::COUNT;

  const Bits* logits;
  u64 width;
  float highest;
  float scale;
  SamplingShared& shared;
  mutable u32 turn = 0;  // of block_sums

  __device__ __forceinline__ u64 block_packs() const { return (pack_count<E>(width) + BLOCKS - 1) / BLOCKS; }

  // The packs of this block: from first() to before end().
  __device__ __forceinline__ u64 first() const { return blockIdx.x * block_packs(); }
  __device__ __forceinline__ u64 end() const { return min(first() + block_packs(), pack_count<E>(width)); }

  __device__ __forceinline__ u32 group_packs() const { return (block_packs() + KEY_GROUPS - 1) / KEY_GROUPS; }

  __device__ __forceinline__ u64 weight(Bits logit) const {
    return (u64)(exp2f((E::load(logit) - highest) * scale) * WEIGHT);
  }

  // Calls visit(index, logit, key) for each element of some packs of the block with a key of at least `low`.
  template <typename Visit>
  __device__ __forceinline__ void visit(u32 low, u64 begin, u64 end, u64 distance, Visit visit) const {
    u32 each = group_packs();
    for (u64 i = begin; i < end; i += distance) {
      if (shared.group_keys[(u32)(i - first()) / each] < low >> K::SHIFT) continue;
      Pack<E> pack;
      pack.vector = load_pack<E>(logits, width, i);
#pragma unroll
      for (int e = 0; e < COUNT; e++) {
        u32 at = K::key(pack.elements[e]);
        if (i * COUNT + e < width && at >= low) visit(i * COUNT + e, pack.elements[e], at);
      }
    }
  }

  // As above, for this thread's share of the block's packs.
  template <typename Visit>
  __device__ __forceinline__ void visit(u32 low, Visit visit_element) const {
    visit(low, first() + threadIdx.x, end(), THREADS, visit_element);
  }

  // As above, for contiguous packs: the elements of the threads are in token order.
  template <typename Visit>
  __device__ __forceinline__ void visit_in_order(u32 low, Visit visit_element) const {
    u64 each = (block_packs() + THREADS - 1) / THREADS;
    u64 begin = min(first() + threadIdx.x * each, end());
    visit(low, begin, min(begin + each, end()), 1, visit_element);
  }

  __device__ __noinline__ void find_group_keys() const {
    cluster_barrier();  // edited logits are there
    __syncthreads();    // the keys of another row have been read
    u32 each = group_packs();
    for (u32 group = threadIdx.x; first() + group * each < end(); group += THREADS) {
      u32 group_key = 0;
      u64 begin = first() + (u64)group * each;
      for (u64 i = begin; i < min(begin + each, end()); i++) {
        Pack<E> pack;
        pack.vector = load_pack<E>(logits, width, i);
#pragma unroll
        for (int e = 0; e < COUNT; e++) group_key = max(group_key, i * COUNT + e < width ? K::key(pack.elements[e]) : 0);
      }
      shared.group_keys[group] = group_key >> K::SHIFT;
    }
    __syncthreads();
  }

  // Replaces values by their exclusive prefix sums over the threads of the row's blocks; `all` are the totals.
  template <int N>
  __device__ __forceinline__ void sum_before(u64 (&values)[N], u64 (&all)[N]) const {
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u64 sums[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
      sums[n] = values[n];
#pragma unroll
      for (int distance = 1; distance < WARP; distance *= 2) {
        u64 other = __shfl_up_sync(~0u, sums[n], distance);
        if (lane >= distance) sums[n] += other;
      }
    }
    __syncthreads();  // the previous call's sums have been read
#pragma unroll
    for (int n = 0; n < N; n++)
      if (lane == WARP - 1) shared.warp_sums[n][warp] = sums[n];
    __syncthreads();
    u64* block_sums = shared.block_sums[turn++ % 2];
#pragma unroll
    for (int n = 0; n < N; n++) {
      u64 total = 0, before = sums[n] - values[n];
      for (u32 w = 0; w < THREADS / WARP; w++) {
        if (w < warp) before += shared.warp_sums[n][w];
        total += shared.warp_sums[n][w];
      }
      values[n] = before;
      all[n] = total;
      if (BLOCKS > 1 && threadIdx.x == 0) block_sums[n] = total;
    }
    if (BLOCKS == 1) return;
    cluster_barrier();
#pragma unroll
    for (int n = 0; n < N; n++) {
      all[n] = 0;
#pragma unroll
      for (u32 block = 0; block < BLOCKS; block++) {
        u64 sum = of_block(block_sums, block)[n];
        if (block < blockIdx.x) values[n] += sum;
        all[n] += sum;
      }
    }
  }

  __device__ __forceinline__ u64 sum_before(u64 value, u64& all) const {
    u64 values[1] = {value}, totals[1];
    sum_before(values, totals);
    all = totals[0];
    return values[0];
  }

  // Returns the highest key for which the number, or the weight, of all elements with at least this key is `wanted` or more; `above`
  // is that of elements with higher keys. The one for `low` must be `wanted` or more. Narrows the range from `low` on.
  __device__ __noinline__ u32 highest_key(u32 low, u64 wanted, u64& above, bool weighs) const {
    u32 high = K::END;  // from this key on, the sum, `above`, is less than `wanted`
    above = 0;
    while (high - low > 1) {
      u32 from = low, to = high, step = max(1u, (high - low) / (TRIED + 1));
      u64 sums[TRIED] = {}, all[TRIED];
      visit(from + step, [&](u64, Bits logit, u32 at) {
        if (at >= to) return;
        u64 size = weighs ? weight(logit) : 1;
#pragma unroll
        for (int t = 0; t < TRIED; t++) sums[t] += at >= from + (t + 1) * step ? size : 0;
      });
      sum_before(sums, all);
      u64 before = above;
#pragma unroll
      for (int t = 0; t < TRIED; t++) {
        u32 tried = from + (t + 1) * step;
        if (tried >= high) continue;
        if (before + all[t] < wanted) {
          high = tried;
          above = before + all[t];
        } else {
          low = tried;
        }
      }
    }
    return low;
  }

  // Returns the lowest key whose weight is at least a share of the highest weight.
  __device__ u32 lowest_key(double share) const {
    u64 wanted = (u64)ceil(share * (double)WEIGHT);
    u32 low = K::key(E::store(-infinity())), high = K::key(E::store(highest));
    while (low < high) {
      u32 middle = low + (high - low) / 2;
      if (weight(K::logit_of(middle)) < wanted) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Lists the `count` highest logits; of equal ones the first tokens.
  __device__ __noinline__ void list(u32 count, Most* most) const {
    if (count > width) count = width;
    u64 all_above, counts[2] = {}, all[2];
    u32 lowest = highest_key(0, count, all_above, false);
    visit_in_order(lowest, [&](u64, Bits, u32 at) {
      counts[0] += at != lowest;
      counts[1] += at == lowest;
    });
    sum_before(counts, all);
    u64 next = counts[0], next_equal = all_above + counts[1];
    visit_in_order(lowest, [&](u64 token, Bits logit, u32 at) {
      u64 place = at == lowest ? next_equal++ : next++;
      if (place < count) most[place] = Most{(int)token, E::load(logit)};
    });
  }

  // Samples from the tokens that min-p, top-k and top-p keep. One thread calls store(token).
  template <typename Store>
  __device__ __noinline__ void sample(const SamplingParameters& parameters, Store store) const {
    // Step 1: find the lowest key that is kept.
    u32 lowest_kept = parameters.min_p > 0 ? lowest_key(parameters.min_p) : 0;
    u64 above;
    if (parameters.top_k > 0 && parameters.top_k < width) {
      u32 kept = highest_key(0, parameters.top_k, above, false);
      lowest_kept = max(lowest_kept, kept);
    }
    u64 kept_equal = ~0ull;  // of the tokens with the key `lowest_kept`, only this many are kept, the first ones
    if (parameters.top_p < 1) {
      u64 sum = 0, all;
      visit(lowest_kept, [&](u64, Bits logit, u32) { sum += weight(logit); });
      sum_before(sum, all);
      u64 wanted = max(1ull, (u64)ceil(parameters.top_p * (double)all));
      lowest_kept = highest_key(lowest_kept, wanted, above, true);
      u64 each = max(1ull, weight(K::logit_of(lowest_kept)));
      kept_equal = (wanted - above + each - 1) / each;
    }
    // Step 2: sample from the kept tokens in token order.
    u64 equals = 0, own = 0, all;
    visit_in_order(lowest_kept, [&](u64, Bits, u32 at) { equals += at == lowest_kept; });
    u64 equals_before = sum_before(equals, all), equals_seen = equals_before;
    auto kept = [&](Bits logit, u32 at) { return at == lowest_kept && equals_seen++ >= kept_equal ? 0 : weight(logit); };
    visit_in_order(lowest_kept, [&](u64, Bits logit, u32 at) { own += kept(logit, at); });
    u64 before = sum_before(own, all);
    u64 left = __umul64hi(all, parameters.random);
    if (left < before || left - before >= own) return;
    left -= before;
    equals_seen = equals_before;
    bool found = false;
    visit_in_order(lowest_kept, [&](u64 token, Bits logit, u32 at) {
      u64 weight = kept(logit, at);
      if (!found && left < weight) {
        found = true;
        store(token);
      }
      left -= found ? 0 : weight;
    });
  }
};

// The logit of a token after its bias and the penalties. The repetition penalty divides a positive logit, and multiplies a
// negative one, if the token is in the prompt or was generated; the others count generated tokens only.
__device__ __forceinline__ float penalized(float logit, int count, float bias, const SamplingParameters& parameters) {
  if (bias == -infinity()) return bias;
  logit += bias;
  if (count != 0 && parameters.repetition != 1) {
    logit = logit > 0 ? logit / parameters.repetition : logit * parameters.repetition;
    logit = fminf(fmaxf(logit, -LARGEST), LARGEST);
  }
  int generated = count & ~IN_PROMPT;
  return logit - parameters.frequency * generated - (generated > 0 ? parameters.presence : 0);
}

// Writes the edited logits of a row in float32. Returns its most probable token and that token's edited logit; no token if none is
// allowed. `unknown` is a generated token that the edits do not count yet; -1: none.
__device__ Top edit(const Row<T>& row, const SamplingParameters& parameters, int unknown, u32* edited) {
  SamplingShared& shared = row.shared;
  if (threadIdx.x == 0) shared.counted = false;
  // Step 1: widen the block's logits.
  for (u64 i = row.first() + threadIdx.x; i < row.end(); i += THREADS) {
    FloatPack<T> pack;
    pack.set(load_pack<T>(row.logits, row.width, i));
#pragma unroll
    for (int e = 0; e < PACK; e++) {
      u64 token = i * PACK + e;
      if (token >= row.width) continue;
      bool allowed = !parameters.allowed || parameters.allowed[token / 32] >> token % 32 & 1;
      edited[token] = Float32::store(allowed ? pack.values[e] : -infinity());
    }
  }
  __syncthreads();
  // Step 2: edit them.
  u64 first = row.first() * PACK, end = min(row.end() * PACK, row.width);
  auto is_here = [&](int token) { return token >= first && token < end; };  // a negative one is not
  auto change = [&](int token, int count, float bias) {
    edited[token] = Float32::store(penalized(Float32::load(edited[token]), count, bias, parameters));
  };
  for (u32 i = threadIdx.x; i < parameters.edit_count; i += THREADS) {
    Edit one = parameters.edits[i];
    if (!is_here(one.token)) continue;
    if (one.token == unknown) shared.counted = true;
    change(one.token, one.count + (one.token == unknown), one.bias);
  }
  __syncthreads();
  if (threadIdx.x == 0 && is_here(unknown) && !shared.counted) change(unknown, 1, 0);
  __syncthreads();
  // Step 3: find the highest logit, first within each warp.
  Top top = {LOWEST, 0, NO_TOKEN, 0};
  for (u64 token = first + threadIdx.x; token < end; token += THREADS) {
    float logit = Float32::load(edited[token]);
    if (logit > top.highest) top = Top{logit, 0, (float)token, 0};
  }
  top = warp_top(top);
  if (threadIdx.x % WARP == 0) shared.warp_tops[threadIdx.x / WARP] = top;
  __syncthreads();
  top = warp_top(shared.warp_tops[threadIdx.x % (THREADS / WARP)]);
  if (threadIdx.x == 0) shared.top = top;
  cluster_barrier();
  for (u32 block = 0; BLOCKS > 1 && block < BLOCKS; block++) top = merge(top, *of_block(&shared.top, block));
  return top;
}

// Samples a row; see decode_sample.
__device__ __forceinline__ void sample_row(const Sampling& args, SamplingShared& shared) {
  u32 index = blockIdx.y;
  bool is_first = blockIdx.x == 0 && threadIdx.x == 0;  // of the row's threads
  // Step 1: merge the ranks' results. A plain greedy row stores the most probable token.
  Top top = args.parts[index];
  for (u64 rank = 1; rank < args.ranks; rank++) top = merge(top, args.parts[rank * args.rows + index]);
  int slot = args.slots[index];
  const SamplingParameters& parameters = args.parameters[index];
  bool edits = parameters.edits != nullptr, plain = !edits && parameters.given < 0 && parameters.most == 0;
  bool sampling = slot >= 0 && top.sum > 0;  // the sum is NaN if a logit is NaN
  int unknown = edits && sampling && args.tokens[index] == SAMPLED ? args.sampled[slot] : -1;
  auto store = [&](float token, float logit) {
    args.top[index] = Top{top.highest, top.sum, token, logit};
    if (slot >= 0 && parameters.given < 0) args.sampled[slot] = (int)token;
  };
  Row<T> row = {args.logits + index * args.stride, args.width, top.highest, (float)parameters.scale, shared};
  auto store_sampled = [&](u64 token) { store(token, T::load(row.logits[token])); };
  if (!sampling || (plain && parameters.scale == 0)) {
    if (is_first) store(top.token, top.highest);
    return;
  }
  // Step 2: what is reported of the unedited logits.
  if (parameters.most > 0 || (!edits && parameters.given < 0)) row.find_group_keys();
  if (parameters.most > 0) row.list(parameters.most, args.most + index * MAX_TOP_LOGPROBS);
  if (parameters.given >= 0 || (!edits && parameters.scale == 0)) {
    if (is_first) store_sampled(parameters.given >= 0 ? parameters.given : (u64)top.token);
    return;
  }
  // Step 3: sample.
  if (!edits) {
    row.sample(parameters, store_sampled);
    return;
  }
  u32* edited = args.edited + index * args.edited_stride;
  Top best = edit(row, parameters, unknown, edited);  // All blocks have read `unknown` when it returns.
  if (best.token == NO_TOKEN || parameters.scale == 0) {
    if (is_first && best.token == NO_TOKEN) store(top.token, top.highest);
    if (is_first && best.token != NO_TOKEN) store_sampled((u64)best.token);
    return;
  }
  Row<Float32> wide = {edited, args.width, best.highest, (float)parameters.scale, shared};
  wide.find_group_keys();
  wide.sample(parameters, store_sampled);
}

// BLOCKS blocks per row.
extern "C" __global__ void SAMPLE_CLUSTER_DIMS __launch_bounds__(THREADS) decode_sample(const __grid_constant__ Sampling args) {
  __shared__ SamplingShared shared;
  sample_row(args, shared);
  cluster_barrier();  // The shared memory of all blocks has been read.
}

#endif
