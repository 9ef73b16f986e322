// SPDX-License-Identifier: Apache-2.0
// Updates of parameters by DJL's SGD, Adam and AdamW in one pass: the formulas of optimizer/optimizer.cu, with the roundings of
// libtorch's operators on CPUs. Included by cpu_kernels.cpp, without contraction of multiplications and additions.

// first: SGD's momentum buffer, or Adam's mean. second: Adam's variance. beta1: also SGD's momentum factor. corrected: Adam's rate with bias
// correction. decoupled: 1 for AdamW.
struct Update {
  float* weight;
  const float* gradient;
  float *first, *second;
  float rate, corrected, decay, rescale, clip, beta1, beta2, epsilon;
  int decoupled;

  inline __attribute__((always_inline)) float rescaled(float x) const {
    float value = x * rescale;
    return (clip >= 0) & (value > clip) ? clip : value;
  }
};

static void sgd(const void* arguments, int64_t from, int64_t to) {
  const Update u = *(const Update*)arguments;
  float* __restrict weight = u.weight;
  for (int64_t i = from; i < to; i++) {
    float gradient = __builtin_fmaf(u.decay, weight[i], u.rescaled(u.gradient[i]));
    weight[i] -= gradient * u.rate;
  }
}

static void momentum(const void* arguments, int64_t from, int64_t to) {
  const Update u = *(const Update*)arguments;
  float *__restrict weight = u.weight, *__restrict first = u.first;
  for (int64_t i = from; i < to; i++) {
    float gradient = __builtin_fmaf(u.decay, weight[i], u.rescaled(u.gradient[i]));
    first[i] = first[i] * u.beta1 + gradient * u.rate;
    weight[i] -= first[i];
  }
}

// MKL's square root, which libtorch's operator calls and which may round down or up; null if libtorch has no MKL.
typedef void (*Sqrt)(int64_t size, const float* x, float* out, int64_t mode);
static Sqrt mkl_sqrt;
const int64_t MKL_MODE = 0x140102;  // libtorch's: VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE

static void adam(const void* arguments, int64_t from, int64_t to) {
  const int64_t block = 1024;  // elements whose arrays stay in L1
  const Update u = *(const Update*)arguments;
  float *__restrict weight = u.weight, *__restrict first = u.first, *__restrict second = u.second;
  float roots[block];
  for (int64_t begin = from; begin < to; begin += block) {
    int64_t end = to - begin < block ? to : begin + block;
    for (int64_t i = begin; i < end; i++) {
      float gradient = u.rescaled(u.gradient[i]);
      if (!u.decoupled) gradient = __builtin_fmaf(u.decay, weight[i], gradient);
      first[i] = __builtin_fmaf(1 - u.beta1, gradient, first[i] * u.beta1);
      second[i] = __builtin_fmaf((1 - u.beta2) * gradient, gradient, second[i] * u.beta2);
    }
    if (mkl_sqrt) mkl_sqrt(end - begin, second + begin, roots, MKL_MODE);
    else
      for (int64_t i = begin; i < end; i++) roots[i - begin] = __builtin_sqrtf(second[i]);
    for (int64_t i = begin; i < end; i++) {
      float decayed = u.decoupled ? weight[i] - weight[i] * u.rate * u.decay : weight[i];
      weight[i] = decayed - first[i] * u.corrected / (roots[i - begin] + u.epsilon);
    }
  }
}
