// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import java.util.concurrent.atomic.AtomicBoolean;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.TestLog;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.HashStore;
import org.junit.jupiter.api.Test;

/** The warning that advises to start NCCL with the group. */
class EagerStartAdviceTest {

    private final AtomicBoolean warned = new AtomicBoolean();

    private void advise(NcclOptions options, Device ofParent) {
        GroupContext context =
                new GroupContext("messages", 0, 2, new HashStore(), options, ofParent);
        PairMessages.adviseEagerStart(context, options, warned);
    }

    @Test
    void warnsOnceAndNamesTheOption() {
        try (TestLog log = new TestLog(PairMessages.class)) {
            NcclOptions lazy = NcclOptions.builder().build();
            advise(lazy, Device.gpu(0)); // A sub-group is created eagerly, on its parent's GPUs.
            advise(NcclOptions.builder().optDevices(Device.gpu(0)).build(), null);
            assertEquals(0, log.count(""));
            advise(lazy, null);
            advise(lazy, null);
            assertEquals(1, log.count("NcclOptions.Builder.optDevices"));
            assertEquals(1, log.count(""));
        }
    }
}
