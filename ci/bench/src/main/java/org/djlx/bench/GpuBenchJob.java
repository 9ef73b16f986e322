// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDManager;
import java.time.Duration;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.DoubleConsumer;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.TcpStore;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.nccl.NcclWindow;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;

/**
 * Runs the ranks of a GPU benchmark, which are threads or processes. All threads of a process share
 * the job.
 *
 * @param threads the number of ranks of this process
 * @param gpus the number of GPUs of all ranks
 * @param storeOfThreads the store of the ranks if all are threads of this process
 */
record GpuBenchJob(
        List<GpuBenchCase> cases, int rounds, int threads, int gpus, Store storeOfThreads) {

    private static final String THIS_HOST = "127.0.0.1";
    private static final Duration TIMEOUT = Duration.ofMinutes(2);

    /**
     * Runs one rank; returns whether all results are correct. {@code began} gets the seconds that
     * the slowest rank took to create its group, {@code rows} each row of all ranks, while the
     * other ranks wait.
     */
    boolean run(Meeting meeting, DoubleConsumer began, BiConsumer<GpuBenchCase, GpuBenchRow> rows) {
        int worldSize = meeting.control().worldSize();
        meeting.await(); // Starting PyTorch on rank 0 may take longer than the measured group's
        // timeout.
        if (threads == worldSize) {
            return run(meeting, storeOfThreads, began, rows);
        }
        try (Store store = storeOfProcesses(meeting)) {
            boolean correct = run(meeting, store, began, rows);
            meeting.await(); // Rank 0 serves the store until all ranks are done.
            return correct;
        }
    }

    static Store storeOfProcesses(Meeting meeting) {
        boolean server = meeting.rank() == 0;
        TcpStore own = server ? store(0, true) : null;
        String port = meeting.exchange(server ? Integer.toString(own.port()) : "").get(0);
        return server ? own : store(Integer.parseInt(port), false);
    }

    private static TcpStore store(int port, boolean server) {
        return TcpStore.builder()
                .setHost(THIS_HOST)
                .setPort(port)
                .optServer(server)
                .optBindAddress(THIS_HOST)
                .build();
    }

    private boolean run(
            Meeting meeting,
            Store store,
            DoubleConsumer began,
            BiConsumer<GpuBenchCase, GpuBenchRow> rows) {
        int worldSize = meeting.control().worldSize();
        boolean shared = gpus < worldSize;
        try (ProcessGroup ours = group(meeting, store, options(shared), began);
                CudaDevice device = CudaDevice.open(ours.device());
                CudaStream stream = CudaStream.create(device);
                Lane lane = new CudaLane(device, stream);
                NcclBaseline baseline =
                        shared
                                ? null
                                : NcclBaseline.create(device, stream, meeting, hasWindows())) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(device.device(), stream.handle());
            boolean done = false;
            try {
                boolean correct = true;
                for (GpuBenchCase wanted : cases) {
                    try (NDManager manager = NDManager.newBaseManager(device.device(), "PyTorch")) {
                        BenchRank rank = new BenchRank(ours, baseline, manager, meeting, lane);
                        GpuBenchRow row =
                                wanted.measure(rank, gpus, threads, rounds).merged(meeting);
                        correct &= row.correct();
                        rows.accept(wanted, row);
                    }
                    meeting.await(); // Until then PyTorch uses the GPUs.
                }
                done = true;
                return correct;
            } finally {
                if (!done && baseline != null) {
                    baseline.abort(); // close() would wait for the other ranks.
                }
                guard.close();
            }
        }
    }

    private static ProcessGroup group(
            Meeting meeting, Store store, CudaP2pOptions options, DoubleConsumer began) {
        int worldSize = meeting.control().worldSize();
        meeting.await();
        long start = System.nanoTime();
        ProcessGroup group =
                ProcessGroups.init("cuda_p2p", store, "bench", meeting.rank(), worldSize, options);
        String own = Long.toString(System.nanoTime() - start);
        began.accept(
                meeting.exchange(own).stream()
                        .mapToDouble(nanos -> Long.parseLong(nanos) / 1e9)
                        .max()
                        .orElseThrow());
        return group;
    }

    /**
     * Returns whether NCCL windows are safe here: with NVLS on, NCCL maps them for multicast, which
     * can take a host out of service.
     */
    private static boolean hasWindows() {
        return "0".equals(System.getenv("NCCL_NVLS_ENABLE"))
                && NcclWindow.unavailabilityCause().isEmpty();
    }

    private static CudaP2pOptions options(boolean shared) {
        return CudaP2pOptions.builder()
                .optBufferSize(2L << 30)
                .optTimeout(TIMEOUT)
                .optSharedGpus(shared)
                .build();
    }
}
