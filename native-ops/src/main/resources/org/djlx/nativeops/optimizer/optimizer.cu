// Optimizer updates of a parameter (SGD, momentum, Adam, AdamW) in one pass over the parameter, its gradient and its state. DJL's
// optimizers call one libtorch operator for each step of the formula.
//
// Memory: arrays of `count` float32, aligned to their elements. Synchronisation: none.
//
// Invariant: results are bit-identical to DJL's (ai_djl_pytorch_jni_PyTorchLibrary_optim.cc). Each libtorch operator rounds its
// result once; an operator that adds a multiple is a fused multiply-add. The _rn intrinsics keep the compiler from fusing more.
//
// Experiments: docs/design/experiments/training.md.
#include "element.cuh"

const int OPTIMIZER_THREADS = 256;

struct Values {
  float weight;
  float gradient;
  float first;   // state: momentum, or Adam's mean
  float second;  // state: Adam's variance
};

// Rescales a gradient and clips it from above, as DJL does. clip < 0: no clipping. NaN stays NaN.
__device__ __forceinline__ float rescaled(float gradient, float rescale, float clip) {
  float value = __fmul_rn(gradient, rescale);
  return clip >= 0 && value > clip ? clip : value;
}

struct Sgd {
  static const int STATES = 0;
  float rate, decay, rescale, clip;

  __device__ void operator()(Values& v) const {
    float gradient = fmaf(decay, v.weight, rescaled(v.gradient, rescale, clip));
    v.weight = __fsub_rn(v.weight, __fmul_rn(gradient, rate));
  }
};

struct Momentum {
  static const int STATES = 1;
  float rate, decay, rescale, clip, momentum;

  __device__ void operator()(Values& v) const {
    float gradient = fmaf(decay, v.weight, rescaled(v.gradient, rescale, clip));
    v.first = __fadd_rn(__fmul_rn(v.first, momentum), __fmul_rn(gradient, rate));
    v.weight = __fsub_rn(v.weight, v.first);
  }
};

struct Adam {
  static const int STATES = 2;
  float rate, corrected, decay, rescale, clip, beta1, beta2, epsilon;
  int decoupled;  // AdamW: the weight decays directly, not through the gradient

  __device__ void operator()(Values& v) const {
    float gradient = rescaled(v.gradient, rescale, clip);
    if (decoupled) {
      v.weight = __fsub_rn(v.weight, __fmul_rn(__fmul_rn(v.weight, rate), decay));
    } else {
      gradient = fmaf(decay, v.weight, gradient);
    }
    v.first = fmaf(1 - beta1, gradient, __fmul_rn(v.first, beta1));
    v.second = fmaf(1 - beta2, __fmul_rn(gradient, gradient), __fmul_rn(v.second, beta2));
    float step = __fdiv_rn(__fmul_rn(v.first, corrected), __fadd_rn(__fsqrt_rn(v.second), epsilon));
    v.weight = __fsub_rn(v.weight, step);
  }
};

// Applies a rule to all elements, pack by pack.
template <typename Rule>
__device__ void update(const Rule& rule, float* weight, const float* gradient, float* first, float* second, u64 count) {
  const int PACK = Pack<Float32>::COUNT;
  u64 packs = pack_count<Float32>(count);
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < packs; i += (u64)gridDim.x * blockDim.x) {
    Pack<Float32> w, g, a, b;
    w.vector = load_pack<Float32>((u32*)weight, count, i);
    g.vector = load_pack<Float32>((const u32*)gradient, count, i);
    if (Rule::STATES > 0) a.vector = load_pack<Float32>((u32*)first, count, i);
    if (Rule::STATES > 1) b.vector = load_pack<Float32>((u32*)second, count, i);
#pragma unroll
    for (int k = 0; k < PACK; k++) {
      Values v;
      v.weight = Float32::load(w.elements[k]);
      v.gradient = Float32::load(g.elements[k]);
      if (Rule::STATES > 0) v.first = Float32::load(a.elements[k]);
      if (Rule::STATES > 1) v.second = Float32::load(b.elements[k]);
      rule(v);
      w.elements[k] = Float32::store(v.weight);
      if (Rule::STATES > 0) a.elements[k] = Float32::store(v.first);
      if (Rule::STATES > 1) b.elements[k] = Float32::store(v.second);
    }
    store_pack<Float32>((u32*)weight, count, i, w.vector);
    if (Rule::STATES > 0) store_pack<Float32>((u32*)first, count, i, a.vector);
    if (Rule::STATES > 1) store_pack<Float32>((u32*)second, count, i, b.vector);
  }
}

extern "C" __global__ void __launch_bounds__(OPTIMIZER_THREADS)
    sgd(float* weight, const float* gradient, u64 count, float rate, float decay, float rescale, float clip) {
  update(Sgd{rate, decay, rescale, clip}, weight, gradient, nullptr, nullptr, count);
}

extern "C" __global__ void __launch_bounds__(OPTIMIZER_THREADS) momentum(float* weight, const float* gradient, float* state, u64 count, float rate,
                                                          float decay, float rescale, float clip, float momentum) {
  update(Momentum{rate, decay, rescale, clip, momentum}, weight, gradient, state, nullptr, count);
}

extern "C" __global__ void __launch_bounds__(OPTIMIZER_THREADS)
    adam(float* weight, const float* gradient, float* mean, float* variance, u64 count, float rate, float corrected, float decay,
         float rescale, float clip, float beta1, float beta2, float epsilon, int decoupled) {
  update(Adam{rate, corrected, decay, rescale, clip, beta1, beta2, epsilon, decoupled}, weight, gradient, mean, variance, count);
}
