// SPDX-License-Identifier: Apache-2.0
// Calls of libtorch's stable C ABI, several by one call from Java: a call from Java costs 60 to 300 ns, a call here a few ns.
// Called by org.djlx.nativeops.torch.AotiTensor.
#include <stdint.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

// The functions of libtorch, in the order of AotiTorch.FUNCTIONS. A handle is an at::Tensor, whose only member points to its
// TensorImpl.
static struct Functions {
  int (*dtype)(void** handle, int32_t* result);
  int (*address)(void** handle, int64_t* result);
  int (*dimensions)(void** handle, int64_t* result);
  int (*sizes)(void** handle, const int64_t** result);
  int (*strides)(void** handle, const int64_t** result);
  int (*device_type)(void** handle, int32_t* result);
  int (*device_index)(void** handle, int32_t* result);
  bool (*requires_gradient)(void* tensor_impl);
  int (*empty)(int64_t dimensions, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
               int32_t device, void*** result);
  int (*new_handle)(void** handle, void*** result);
  int (*delete_handle)(void** handle);
  int (*call_dispatcher)(const char* name, const char* overload, uint64_t* stack);
} libtorch;

EXPORT void djlx_bind(const Functions* functions) { libtorch = *functions; }

// Writes for each tensor: dtype, address, 1 if it requires a gradient, device type, device index, dimensions, sizes, strides. Returns
// the number of words; -1 if libtorch refuses a tensor, -2 if there is no room.
const int64_t ROOM = 16 * (6 + 2 * 64);  // words; Java: Scratch

EXPORT int djlx_read_tensors(int64_t count, void** const* handles, int64_t* words) {
  int64_t* next = words;
  for (int64_t i = 0; i < count; i++) {
    void** handle = handles[i];
    int32_t dtype, device_type, device;
    int64_t address, dimensions;
    const int64_t *sizes, *strides;
    if (libtorch.dtype(handle, &dtype) || libtorch.address(handle, &address) || libtorch.device_type(handle, &device_type) ||
        libtorch.device_index(handle, &device) || libtorch.dimensions(handle, &dimensions) || libtorch.sizes(handle, &sizes) ||
        libtorch.strides(handle, &strides))
      return -1;
    if (next - words + 6 + 2 * dimensions > ROOM) return -2;
    next[0] = dtype;
    next[1] = address;
    next[2] = libtorch.requires_gradient(*handle);
    next[3] = device_type;
    next[4] = device;
    next[5] = dimensions;
    next += 6;
    for (int64_t k = 0; k < dimensions; k++) next[k] = sizes[k], next[dimensions + k] = strides[k];
    next += 2 * dimensions;
  }
  return next - words;
}

// Creates a tensor from dtype, device type, device index, dimensions, sizes, strides. Results: its handle and its address.
EXPORT int djlx_empty(const int64_t* of, int64_t* results) {
  void** handle;
  if (libtorch.empty(of[3], of + 4, of + 4 + of[3], of[0], of[1], of[2], &handle)) return 1;
  results[0] = (int64_t)handle;
  return libtorch.address(handle, results + 1);
}

EXPORT int djlx_new_handle(void** handle, void*** result) { return libtorch.new_handle(handle, result); }
EXPORT int djlx_delete_handle(void** handle) { return libtorch.delete_handle(handle); }
EXPORT int djlx_current_stream(int (*get)(int32_t device, void** result), int64_t device, void** result) { return get(device, result); }
EXPORT int djlx_call_dispatcher(const char* name, const char* overload, uint64_t* stack) {
  return libtorch.call_dispatcher(name, overload, stack);
}
