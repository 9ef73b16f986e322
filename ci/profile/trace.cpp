// Writes when each kernel, copy and fill of a program ran on which GPU, one a line: device, stream, start and end in ns, name.
// CUDA loads it into any program:
//
//   g++ -O2 -shared -fPIC -I$CUDA/include ci/profile/trace.cpp -o trace.so -L$CUDA/lib64 -Wl,-rpath,$CUDA/lib64 -lcupti
//   CUDA_INJECTION64_PATH=$PWD/trace.so GPU_TRACE=trace.csv java ...
//   python3 ci/profile/kernels.py trace.csv
//
// A traced launch takes the host some microseconds more.
#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <mutex>

namespace {

const size_t BUFFER = 8 << 20;
const unsigned FLUSH_MS = 200;

std::mutex lock;
FILE* file;

void check(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = "unknown";
  cuptiGetResultString(result, &text);
  fprintf(stderr, "trace: %s failed: %s\n", call, text);
  exit(1);
}

void write(unsigned device, unsigned stream, unsigned long long start, unsigned long long end, const char* name) {
  fprintf(file, "%u,%u,%llu,%llu,%s\n", device, stream, start, end, name);
}

void CUPTIAPI provide(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = (uint8_t*)aligned_alloc(8, BUFFER);
  *size = BUFFER;
  *most = 0;
}

void CUPTIAPI take(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  std::lock_guard<std::mutex> guard(lock);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      auto* kernel = (CUpti_ActivityKernel9*)record;
      write(kernel->deviceId, kernel->streamId, kernel->start, kernel->end, kernel->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      auto* copy = (CUpti_ActivityMemcpy6*)record;
      write(copy->deviceId, copy->streamId, copy->start, copy->end, "copy");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY2) {
      auto* copy = (CUpti_ActivityMemcpyPtoP4*)record;
      write(copy->deviceId, copy->streamId, copy->start, copy->end, "copy between GPUs");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      auto* fill = (CUpti_ActivityMemset4*)record;
      write(fill->deviceId, fill->streamId, fill->start, fill->end, "fill");
    }
  }
  fflush(file);
  free(buffer);
}

void finish() { cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); }

}  // namespace

extern "C" int InitializeInjection() {
  const char* path = getenv("GPU_TRACE");
  file = path == nullptr ? nullptr : fopen(path, "w");
  if (file == nullptr) {
    fprintf(stderr, "trace: GPU_TRACE does not name a file that can be written\n");
    return 0;
  }
  check(cuptiActivityRegisterCallbacks(provide, take), "cuptiActivityRegisterCallbacks");
  for (CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2,
                                  CUPTI_ACTIVITY_KIND_MEMSET}) {
    check(cuptiActivityEnable(kind), "cuptiActivityEnable");
  }
  check(cuptiActivityFlushPeriod(FLUSH_MS), "cuptiActivityFlushPeriod");
  atexit(finish);
  return 1;
}
