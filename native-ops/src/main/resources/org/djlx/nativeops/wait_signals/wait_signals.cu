// Lets a stream wait for signals of other ranks; a launch of one block with a thread for each rank.
//
// The driver's own means, cuStreamWaitValue32, has no deadline, and cannot be ended by the host: streams share hardware
// queues, in which a wait holds up whatever comes behind it, and that may be the very write that would end it.
#include "signal.cuh"

// words:   of this rank, one for each rank that raises it, `distance` bytes apart
// ranks:   a bit for each rank to wait for
// If one does not come, what follows on the stream runs on what is not there; the host knows from the status.
extern "C" __global__ void wait_signals(const char* words, u64 distance, u32 ranks, u32 epoch, Status* status, u64 timeout) {
  u32 peer = threadIdx.x;
  if (ranks >> peer & 1) wait((const u32*)(words + peer * distance), epoch, status, timeout, peer);
}
