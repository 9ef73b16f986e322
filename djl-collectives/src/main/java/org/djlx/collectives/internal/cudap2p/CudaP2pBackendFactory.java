// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.util.List;
import java.util.function.Function;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.internal.nccl.NcclBackendFactory;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.cuda.GpuTopology;

/**
 * Creates {@code cuda_p2p} backends from {@link CudaP2pOptions}, {@link NcclOptions} or plain
 * {@link BackendOptions}.
 */
public final class CudaP2pBackendFactory implements BackendFactory {

    private final Function<List<String>, GpuTopology> topology;

    public CudaP2pBackendFactory() {
        this(GpuTopology::queryBus);
    }

    /**
     * Creates a factory with a topology of its own, for tests.
     *
     * @param topology finds the links of GPUs from their PCI bus ids, in the order of the ranks;
     *     called on rank 0, unless the options have a topology
     */
    CudaP2pBackendFactory(Function<List<String>, GpuTopology> topology) {
        this.topology = topology;
    }

    @Override
    public String name() {
        return CudaP2pBackend.NAME;
    }

    @Override
    public Support support() {
        return new NcclBackendFactory().support();
    }

    @Override
    public Backend create(GroupContext context) {
        return CudaP2pBackend.create(context, options(context.options()), topology);
    }

    static CudaP2pOptions options(BackendOptions options) {
        if (options instanceof CudaP2pOptions p2pOptions) {
            return p2pOptions;
        }
        if (options instanceof NcclOptions ncclOptions) {
            return CudaP2pOptions.builder().optNcclOptions(ncclOptions).build();
        }
        if (options.getClass() != BackendOptions.class) {
            throw new IllegalArgumentException(
                    "backend '%s' takes CudaP2pOptions, NcclOptions or BackendOptions, not %s"
                            .formatted(CudaP2pBackend.NAME, options.getClass().getSimpleName()));
        }
        return CudaP2pOptions.builder().optCommon(options).build();
    }
}
