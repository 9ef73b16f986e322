// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.Device;
import java.time.Duration;
import java.util.Map;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Assumptions;

/**
 * Ranks of {@code cuda_p2p} for tests: one for each GPU, up to 8. Where there is one GPU only, two
 * share it, or as many as the system property {@code test.gpu.ranks} says.
 */
public final class P2pRanks {

    private P2pRanks() {}

    /** Returns the number of ranks; skips the test if there is no GPU. */
    public static int require() {
        GpuTests.require(1, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        return isShared()
                ? Integer.getInteger("test.gpu.ranks", 2)
                : Math.min(RegionLayout.MAX_RANKS, CudaDevice.count());
    }

    /** Skips the tests, with the cause, unless so many ranks share a GPU or have one each. */
    public static void require(int ranks) {
        require();
        GpuTests.require(isShared() ? 1 : ranks);
    }

    /** Skips the test if ranks share a GPU, because NCCL cannot run then. */
    public static void requireNccl() {
        requireOwnGpus("NCCL needs a GPU for each rank");
    }

    /** Skips the test, with the cause, where ranks share a GPU. */
    public static void requireOwnGpus(String cause) {
        Assumptions.assumeFalse(isShared(), cause);
    }

    /** Tells whether ranks share a GPU, and so cannot use NCCL. */
    public static boolean isShared() {
        return CudaDevice.count() == 1;
    }

    /** The one-shot limit of these options: small, so that tests cover all algorithms. */
    static final long ONE_SHOT_BYTES = 1 << 20;

    /** Options with a short timeout. */
    public static CudaP2pOptions.Builder options() {
        return options(new Device[0]);
    }

    /** As {@link #options()}, with direct all-reduces wherever possible. */
    static CudaP2pOptions.Builder directOptions() {
        return options().optOneShotBytes(0).optTwoShotBytes(0).optDirect(true);
    }

    /** As {@link #options()}, with calls compared before they run. */
    public static CudaP2pOptions.Builder verifiedOptions() {
        return options(NcclOptions.builder().optDebug(DebugLevel.DETAIL));
    }

    /** As {@link #options()}, with waits of the host, and with collectives by copies. */
    static CudaP2pOptions.Builder copiesOptions() {
        return options(NcclOptions.builder().optBlockingWait(true))
                .optTimeout(Duration.ofSeconds(10))
                .optCopyEngines(true);
    }

    /** Options with a short timeout, for a rank on some GPU, or for all ranks on these. */
    static CudaP2pOptions.Builder options(Device... devices) {
        return options(NcclOptions.builder().optDevices(devices));
    }

    /** Options for eight ranks with links of a test; ranks share GPUs if there are fewer. */
    static CudaP2pOptions.Builder unlinkedOptions() {
        NcclOptions.Builder nccl = NcclOptions.builder().optTimeout(Duration.ofSeconds(30));
        return CudaP2pOptions.builder()
                .optNcclOptions(nccl.build())
                .optSharedGpus(CudaDevice.count() < RegionLayout.MAX_RANKS);
    }

    private static CudaP2pOptions.Builder options(NcclOptions.Builder nccl) {
        CudaP2pOptions.Builder options =
                CudaP2pOptions.builder()
                        .optOneShotBytes(ONE_SHOT_BYTES)
                        .optNcclOptions(nccl.optTimeout(Duration.ofSeconds(30)).build());
        return options.optSharedGpus(isShared());
    }

    /**
     * Returns the environment of a process, in addition to what a launcher sets. A process of one
     * rank need not load all kernels when it starts, as ranks of one process on a GPU do.
     */
    public static Map<String, String> environment() {
        return isShared() ? Map.of("LOCAL_RANK", "0", "CUDA_MODULE_LOADING", "LAZY") : Map.of();
    }

    /** Runs the code of a rank that is a thread: on a stream of its own, if it shares a GPU. */
    public static void run(ProcessGroup group, Runnable body) {
        if (!isShared()) {
            body.run();
            return;
        }
        runOnStream(group, body);
    }

    /** Runs the code of a rank that is a thread, on a stream of its own. */
    static void runOnStream(ProcessGroup group, Runnable body) {
        try (CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device)) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            try {
                body.run();
            } finally {
                guard.close();
                stream.synchronize();
            }
        }
    }
}
