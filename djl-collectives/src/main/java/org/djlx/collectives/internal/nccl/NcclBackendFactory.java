// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Support;

/** Creates {@code nccl} backends from {@link NcclOptions} or plain {@link BackendOptions}. */
public final class NcclBackendFactory implements BackendFactory {

    private static final String CUDA_P2P = "cuda_p2p";

    public NcclBackendFactory() {}

    @Override
    public String name() {
        return NcclBackend.NAME;
    }

    @Override
    public Support support() {
        return NcclBackend.SUPPORT;
    }

    @Override
    public Backend create(GroupContext context) {
        NcclOptions options = options(context.options());
        if (options.isIntraNodeComm()) {
            return Backends.get(CUDA_P2P).create(context); // By name: cuda_p2p builds on nccl.
        }
        NcclBackend backend = NcclBackend.create(context, options);
        backend.connectEarly();
        return backend;
    }

    static NcclOptions options(BackendOptions options) {
        if (options instanceof NcclOptions ncclOptions) {
            return ncclOptions;
        }
        if (options.getClass() != BackendOptions.class) {
            throw new IllegalArgumentException(
                    "backend '%s' takes NcclOptions or BackendOptions, not %s"
                            .formatted(NcclBackend.NAME, options.getClass().getSimpleName()));
        }
        return NcclOptions.builder().optCommon(options).build();
    }
}
