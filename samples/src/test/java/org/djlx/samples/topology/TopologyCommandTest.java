// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.topology;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.util.List;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.GpuLink;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.samples.CommandTest;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

class TopologyCommandTest extends CommandTest {

    @Test
    void saysWhyThereIsNone() {
        Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        assumeTrue(cause != null, "there are GPUs");
        assertEquals(1, run("topology"));
        assertEquals(
                "error: no GPU can be used: " + cause.getMessage(),
                err.toString().lines().findFirst().orElseThrow());
        assertEquals("", out.toString());
    }

    @Test
    @Tag("gpu")
    void showsTheGpusOfThisHost() {
        Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        assumeTrue(cause == null, () -> cause.getMessage());
        assertEquals(0, run("topology"), err::toString);
        String last = "GPU" + (CudaDevice.count() - 1);
        assertTrue(out.toString().lines().filter(l -> l.startsWith(last)).count() >= 2);
        assertTrue(out.toString().contains("\nkind: "), out::toString);
    }

    @Test
    void showsMatrixAndKind() {
        GpuLink self = GpuLink.of(GpuLink.Kind.SELF);
        GpuLink link = new GpuLink(GpuLink.Kind.NVSWITCH, 18);
        GpuTopology topology = new GpuTopology(new GpuLink[][] {{self, link}, {link, self}});
        assertEquals(
                """
                GPU0  one
                GPU1  two

                      GPU0  GPU1
                GPU0  X     NV18
                GPU1  NV18  X

                kind: fully connected nvlink - every two GPUs are one GPU or linked by NVLink (NV18 X)
                """,
                TopologyCommand.text(List.of("one", "two"), topology));
    }
}
