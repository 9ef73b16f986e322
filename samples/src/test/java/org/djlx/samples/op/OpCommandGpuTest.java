// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** {@code op} on two GPUs. */
@Tag("gpu")
class OpCommandGpuTest {

    abstract static class GpuCases extends OpCases {

        GpuCases(String backend) {
            super(backend, 2);
        }

        @BeforeEach
        void requireGpus() {
            Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
            assumeTrue(cause == null, () -> cause.getMessage());
            assumeTrue(CudaDevice.count() >= ranks(), "there is one GPU only");
        }
    }

    @Nested
    class OnNccl extends GpuCases {
        OnNccl() {
            super("nccl");
        }
    }

    @Nested
    class OnCudaP2p extends GpuCases {
        OnCudaP2p() {
            super("cuda_p2p");
        }

        @Test
        void sixteenBitsInProcesses() {
            write("in-0.npz", array(new Shape(1000), i -> i % 8));
            write("in-1.npz", array(new Shape(1000), i -> 1));
            runs(
                    "allReduce --processes --dtype bfloat16 --input in-{rank}.npz --output"
                            + " out-{rank}.npz");
            for (int rank = 0; rank < 2; rank++) {
                check(read("out-" + rank + ".npz").get(0), new Shape(1000), i -> i % 8 + 1);
            }
        }
    }
}
