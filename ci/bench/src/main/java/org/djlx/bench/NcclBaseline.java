// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import java.util.Base64;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.nccl.NcclCommunicator;
import org.djlx.nativeops.nccl.NcclConfig;
import org.djlx.nativeops.nccl.NcclGroup;
import org.djlx.nativeops.nccl.NcclWindow;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * NCCL, called directly on the rank's stream, without a process group: as fast as possible, and
 * recordable into graphs.
 */
record NcclBaseline(NcclCommunicator nccl, CudaStream stream, boolean windows) implements Baseline {

    private static final int SUM = NcclCommunicator.Op.SUM.ordinal();

    /**
     * Creates the baseline of a rank, on a stream that the caller owns; all ranks call this
     * together, with the same {@code windows}.
     */
    static NcclBaseline create(
            CudaDevice device, CudaStream stream, Meeting meeting, boolean windows) {
        String own =
                meeting.rank() == 0
                        ? Base64.getEncoder().encodeToString(NcclCommunicator.uniqueId())
                        : "";
        byte[] id = Base64.getDecoder().decode(meeting.exchange(own).get(0));
        return new NcclBaseline(
                NcclCommunicator.create(
                        device,
                        id,
                        meeting.rank(),
                        meeting.control().worldSize(),
                        NcclConfig.DEFAULT),
                stream,
                windows);
    }

    @Override
    public void allReduce(NDArray tensor) {
        long address = Torch.dataPointer(tensor);
        nccl.allReduce(address, address, tensor.size(), ScalarType.BFLOAT16, SUM, stream);
    }

    @Override
    public void allGather(NDArray all, NDArray part) {
        nccl.allGather(
                Torch.dataPointer(part),
                Torch.dataPointer(all),
                part.size(),
                ScalarType.BFLOAT16,
                stream);
    }

    @Override
    public void reduceScatter(NDArray part, NDArray all) {
        nccl.reduceScatter(
                Torch.dataPointer(all),
                Torch.dataPointer(part),
                part.size(),
                ScalarType.BFLOAT16,
                SUM,
                stream);
    }

    @Override
    public void allToAll(NDArray outputs, NDArray inputs) {
        long send = Torch.dataPointer(inputs);
        long recv = Torch.dataPointer(outputs);
        int ranks = (int) inputs.getShape().get(0);
        long count = inputs.size() / ranks;
        NcclGroup.run(
                () -> {
                    for (int peer = 0; peer < ranks; peer++) {
                        long offset = ScalarType.BFLOAT16.byteSize(peer, count);
                        nccl.send(send + offset, count, ScalarType.BFLOAT16, peer, stream);
                        nccl.recv(recv + offset, count, ScalarType.BFLOAT16, peer, stream);
                    }
                });
    }

    @Override
    public void broadcast(NDArray tensor) {
        long address = Torch.dataPointer(tensor);
        nccl.broadcast(address, address, tensor.size(), ScalarType.BFLOAT16, 0, stream);
    }

    @Override
    public Window window(long byteSize) {
        if (!windows) {
            return null;
        }
        NcclWindow window = NcclWindow.create(nccl, byteSize);
        return new Window(window.memory(), window::close);
    }

    /**
     * Aborts operations that wait for other ranks. Afterwards only {@link #close()} may be called.
     */
    void abort() {
        nccl.abort();
    }

    @Override
    public void close() {
        nccl.close();
    }
}
