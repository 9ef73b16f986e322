/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.function.Supplier;
import org.djlx.collectives.NullArguments;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Null is either allowed or an {@link IllegalArgumentException}, wherever users may pass it. */
@Timeout(120)
class FusedNullArgumentsTest {

    @Test
    void neverEndInNullPointerExceptions() {
        ShmOptions options = ShmOptions.builder().optBufferSize(1 << 16).build();
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                UsageCounter counter = FusedOps.countUsage();
                ProcessGroup group = ProcessGroups.local("shm", 1, options).get(0)) {
            Supplier<NDArray> array = () -> manager.ones(new Shape(1, 1));
            NullArguments nulls =
                    new NullArguments()
                            .sample(ProcessGroup.class, () -> group)
                            .sample(NDArray.class, array)
                            .sample(
                                    "java.util.List<ai.djl.ndarray.NDArray>",
                                    () -> List.of(array.get()))
                            .sample(ReduceOp.class, () -> ReduceOp.SUM)
                            .sample(UsageCounter.class, () -> counter)
                            .sample(Object.class, Object::new)
                            .sample(
                                    GatheredMatmul.class,
                                    () -> new GatheredMatmul(array.get(), List.of(array.get())));
            assertEquals("", String.join("\n", nulls.check(FusedOps.class)));
            assertTrue(nulls.calls() > 10, "" + nulls.calls());
        }
    }
}
