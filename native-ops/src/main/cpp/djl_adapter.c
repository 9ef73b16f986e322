// Lets DJL's native code for libtorch 2.7.1 run on a newer libtorch. DJL loads this library in place of its own, which it needs.
//
// DJL's library calls libtorch's C++ functions. Libtorch after 2.7.1 has more virtual functions in TensorImpl, which move others to new
// places in the vtable, and no longer exports one function. Therefore this library
// - defines the natives of PyTorchLibrary that call those virtual functions, by libtorch's stable C ABI. The JVM finds a native in this
//   library first, and all others in DJL's.
// - defines the missing function.
//
// Built with jni.h only: what it calls is resolved when it is loaded, after libtorch (org.djlx.nativeops.torch.InstalledTorch).
#include <jni.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void* Tensor;
typedef int32_t Error;  // 0: none

Error aoti_torch_get_data_ptr(Tensor, void**);
Error aoti_torch_get_dim(Tensor, int64_t*);
Error aoti_torch_get_numel(Tensor, int64_t*);
Error aoti_torch_get_sizes(Tensor, int64_t**);
Error aoti_torch_get_strides(Tensor, int64_t**);
Error aoti_torch_get_dtype(Tensor, int32_t*);
Error aoti_torch_copy_(Tensor to, Tensor from, int32_t non_blocking);
Error aoti_torch_delete_tensor_object(Tensor);
Error aoti_torch_new_tensor_handle(Tensor, Tensor* handle);
Error aoti_torch_empty_strided(int64_t dimensions, const int64_t* sizes, const int64_t* strides, int32_t type, int32_t device_type,
                               int32_t device, Tensor*);
Error aoti_torch_create_tensor_from_blob_v2(void* data, int64_t dimensions, const int64_t* sizes, const int64_t* strides, int64_t offset,
                                            int32_t type, int32_t device_type, int32_t device, Tensor*, int32_t layout,
                                            const uint8_t* metadata, int64_t metadata_size);

// Natives of DJL's library.
jlong Java_ai_djl_pytorch_jni_PyTorchLibrary_torchSlice(JNIEnv*, jobject, jlong, jlong, jlong, jlong, jlong);
jlong Java_ai_djl_pytorch_jni_PyTorchLibrary_torchToContiguous(JNIEnv*, jobject, jlong);

enum { MAX_DIMENSIONS = 64, CPU = 0, CUDA = 1, STRIDED = 0 };

// Throws DJL's exception if `error` is not 0 and no exception is pending. Returns whether `error` is 0.
static bool check(JNIEnv* env, Error error, const char* message) {
  if (error == 0) return true;
  if (!(*env)->ExceptionCheck(env)) {
    jclass type = (*env)->FindClass(env, "ai/djl/engine/EngineException");
    if (type != NULL) (*env)->ThrowNew(env, type, message);
  }
  return false;
}

// Bytes of an element of c10::ScalarType; 0 for types that DJL does not know.
static int64_t item_size(int32_t type) {
  static const int8_t sizes[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2};
  if (type >= 23 && type <= 26) return 1;  // float8
  return type >= 0 && type < (int32_t)sizeof sizes ? sizes[type] : 0;
}

// Returns the bytes of a dense tensor; -1 with an exception if libtorch fails.
static int64_t byte_size(JNIEnv* env, Tensor tensor) {
  int64_t elements = 0;
  int32_t type = 0;
  if (!check(env, aoti_torch_get_numel(tensor, &elements), "cannot read the number of elements") ||
      !check(env, aoti_torch_get_dtype(tensor, &type), "cannot read the element type") ||
      !check(env, item_size(type) == 0, "the bytes of this element type are not known")) {
    return -1;
  }
  return elements * item_size(type);
}

static void dense_strides(int64_t dimensions, const int64_t* sizes, int64_t* strides) {
  int64_t stride = 1;
  for (int64_t i = dimensions - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= sizes[i];
  }
}

// Returns a dense tensor over memory of the host that the caller keeps owning; NULL with an exception on failure.
static Tensor tensor_over(JNIEnv* env, void* data, int64_t dimensions, const int64_t* sizes, int32_t type) {
  int64_t strides[MAX_DIMENSIONS];
  Tensor tensor = NULL;
  if (!check(env, dimensions > MAX_DIMENSIONS, "more than 64 dimensions")) return NULL;
  dense_strides(dimensions, sizes, strides);
  Error error = aoti_torch_create_tensor_from_blob_v2(data, dimensions, sizes, strides, 0, type, CPU, 0, &tensor, STRIDED, NULL, 0);
  return check(env, error, "cannot create a tensor over a buffer") ? tensor : NULL;
}

JNIEXPORT jboolean JNICALL Java_ai_djl_pytorch_jni_PyTorchLibrary_torchIsContiguous(JNIEnv* env, jobject library, jlong handle) {
  (void)library;
  int64_t dimensions = 0, expected = 1;
  int64_t *sizes = NULL, *strides = NULL;
  if (!check(env, aoti_torch_get_dim((Tensor)handle, &dimensions), "cannot read the dimensions") ||
      !check(env, aoti_torch_get_sizes((Tensor)handle, &sizes), "cannot read the sizes") ||
      !check(env, aoti_torch_get_strides((Tensor)handle, &strides), "cannot read the strides")) {
    return JNI_FALSE;
  }
  for (int64_t i = 0; i < dimensions; i++) {
    if (sizes[i] == 0) return JNI_TRUE;
  }
  for (int64_t i = dimensions - 1; i >= 0; i--) {
    if (sizes[i] == 1) continue;
    if (strides[i] != expected) return JNI_FALSE;
    expected *= sizes[i];
  }
  return JNI_TRUE;
}

JNIEXPORT jbyteArray JNICALL Java_ai_djl_pytorch_jni_PyTorchLibrary_torchDataPtr(JNIEnv* env, jobject library, jlong handle) {
  Tensor dense = NULL;
  if (!Java_ai_djl_pytorch_jni_PyTorchLibrary_torchIsContiguous(env, library, handle)) {
    if ((*env)->ExceptionCheck(env)) return NULL;
    dense = (Tensor)Java_ai_djl_pytorch_jni_PyTorchLibrary_torchToContiguous(env, library, handle);
    if (dense == NULL) return NULL;
  }
  Tensor tensor = dense != NULL ? dense : (Tensor)handle;
  jbyteArray bytes = NULL;
  void* data = NULL;
  int64_t size = byte_size(env, tensor);
  if (size >= 0 && check(env, size > INT32_MAX, "an array has at most 2 GiB") &&
      check(env, aoti_torch_get_data_ptr(tensor, &data), "cannot read the address")) {
    bytes = (*env)->NewByteArray(env, (jsize)size);
    if (bytes != NULL) (*env)->SetByteArrayRegion(env, bytes, 0, (jsize)size, data);
  }
  if (dense != NULL) aoti_torch_delete_tensor_object(dense);
  return bytes;
}

JNIEXPORT jobject JNICALL Java_ai_djl_pytorch_jni_PyTorchLibrary_torchDirectByteBuffer(JNIEnv* env, jobject library, jlong handle) {
  (void)library;
  void* data = NULL;
  int64_t size = byte_size(env, (Tensor)handle);
  if (size < 0 || !check(env, aoti_torch_get_data_ptr((Tensor)handle, &data), "cannot read the address")) return NULL;
  return (*env)->NewDirectByteBuffer(env, data, size);
}

JNIEXPORT void JNICALL Java_ai_djl_pytorch_jni_PyTorchLibrary_torchSet(JNIEnv* env, jobject library, jlong handle, jobject buffer) {
  (void)library;
  int64_t dimensions = 0;
  int64_t* sizes = NULL;
  int32_t type = 0;
  if (!check(env, aoti_torch_get_dim((Tensor)handle, &dimensions), "cannot read the dimensions") ||
      !check(env, aoti_torch_get_sizes((Tensor)handle, &sizes), "cannot read the sizes") ||
      !check(env, aoti_torch_get_dtype((Tensor)handle, &type), "cannot read the element type")) {
    return;
  }
  Tensor source = tensor_over(env, (*env)->GetDirectBufferAddress(env, buffer), dimensions, sizes, type);
  if (source == NULL) return;
  check(env, aoti_torch_copy_((Tensor)handle, source, 0), "cannot copy a buffer to the tensor");
  aoti_torch_delete_tensor_object(source);
}

// Returns a copy on a GPU; NULL with an exception on failure.
static Tensor on_gpu(JNIEnv* env, Tensor source, int64_t dimensions, const int64_t* sizes, int32_t type, int32_t device) {
  int64_t strides[MAX_DIMENSIONS];
  Tensor copy = NULL;
  dense_strides(dimensions, sizes, strides);
  Error error = aoti_torch_empty_strided(dimensions, sizes, strides, type, CUDA, device, &copy);
  if (!check(env, error, "cannot create a tensor on the GPU")) return NULL;
  if (check(env, aoti_torch_copy_(copy, source, 0), "cannot copy a buffer to the GPU")) return copy;
  aoti_torch_delete_tensor_object(copy);
  return NULL;
}

JNIEXPORT jlong JNICALL Java_ai_djl_pytorch_jni_PyTorchLibrary_torchFromBlob(JNIEnv* env, jobject library, jobject buffer, jlongArray shape,
                                                                             jint data_type, jint layout, jintArray device,
                                                                             jboolean gradient) {
  (void)library, (void)layout, (void)gradient;  // DJL passes neither another layout nor a gradient
  static const int32_t types[] = {6, 7, 5, 0, 3, 1, 4, 11, 9};  // c10::ScalarType, in the order of DJL's data types
  if (!check(env, data_type < 0 || data_type >= (jint)(sizeof types / sizeof *types), "an unknown data type")) return 0;
  jsize dimensions = (*env)->GetArrayLength(env, shape);
  jlong* sizes = (*env)->GetLongArrayElements(env, shape, NULL);
  jint* place = (*env)->GetIntArrayElements(env, device, NULL);
  Tensor tensor = NULL;
  if (sizes != NULL && place != NULL) {
    tensor = tensor_over(env, (*env)->GetDirectBufferAddress(env, buffer), dimensions, (const int64_t*)sizes, types[data_type]);
    if (tensor != NULL && place[0] == CUDA) {
      Tensor copy = on_gpu(env, tensor, dimensions, (const int64_t*)sizes, types[data_type], place[1]);
      aoti_torch_delete_tensor_object(tensor);
      tensor = copy;
    }
  }
  if (sizes != NULL) (*env)->ReleaseLongArrayElements(env, shape, sizes, JNI_ABORT);
  if (place != NULL) (*env)->ReleaseIntArrayElements(env, device, place, JNI_ABORT);
  return (jlong)tensor;
}

JNIEXPORT jlong JNICALL Java_ai_djl_pytorch_jni_PyTorchLibrary_torchIndex(JNIEnv* env, jobject library, jlong handle, jlongArray min,
                                                                          jlongArray max, jlongArray step) {
  jsize dimensions = (*env)->GetArrayLength(env, min);
  jlong begin[MAX_DIMENSIONS], end[MAX_DIMENSIONS], steps[MAX_DIMENSIONS], tensor = handle;
  if (!check(env, dimensions > MAX_DIMENSIONS, "more than 64 dimensions")) return 0;
  if (dimensions == 0) {
    Tensor alias = NULL;
    check(env, aoti_torch_new_tensor_handle((Tensor)handle, &alias), "cannot make another handle");
    return (jlong)alias;
  }
  (*env)->GetLongArrayRegion(env, min, 0, dimensions, begin);
  (*env)->GetLongArrayRegion(env, max, 0, dimensions, end);
  (*env)->GetLongArrayRegion(env, step, 0, dimensions, steps);
  for (jsize i = 0; i < dimensions && !(*env)->ExceptionCheck(env); i++) {
    jlong next = Java_ai_djl_pytorch_jni_PyTorchLibrary_torchSlice(env, library, tensor, i, begin[i], end[i], steps[i]);
    if (tensor != handle) aoti_torch_delete_tensor_object((Tensor)tensor);
    tensor = next;
  }
  return tensor;
}

// c10::SymBool c10::SymInt::sym_ne(const c10::SymInt&) const, of plain integers.
struct SymBool {
  bool value;
  void* node;
};

JNIEXPORT struct SymBool* _ZNK3c106SymInt6sym_neERKS0_(struct SymBool* result, const int64_t* one, const int64_t* other) {
  result->value = *one != *other;
  result->node = NULL;
  return result;
}
