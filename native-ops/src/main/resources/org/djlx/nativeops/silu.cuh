// SiLU, the activation of gated MLPs: silu(x) = x sigmoid(x).
#pragma once
#include "element.cuh"

// With the fast exponential, for inference.
__device__ __forceinline__ float silu_fast(float x) { return x / (1 + __expf(-x)); }

// With the accurate exponential, for training; the gradient uses the same sigmoid.
__device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
