// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.samples.Main;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;

/** {@code train} on two GPUs. */
@Tag("gpu")
@Timeout(300)
class TrainCommandGpuTest {

    @TempDir private Path folder;
    private Path text;

    @BeforeEach
    void requireGpus() throws IOException {
        for (NativeLibrary library :
                List.of(NativeLibrary.CUDA_PRESETS, NativeLibrary.NCCL, NativeLibrary.NVRTC)) {
            Throwable cause = library.unavailabilityCause();
            assumeTrue(cause == null, () -> cause.getMessage());
        }
        assumeTrue(CudaDevice.count() >= 2, "there is one GPU only");
        text = folder.resolve("text.txt");
        Files.writeString(text, "The quick brown fox jumps over the lazy dog. ".repeat(20));
    }

    /** Trains for 8 steps; returns what the command printed. */
    private String train(String... more) {
        StringWriter out = new StringWriter();
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(out, true));
        String[] args = {"train", "--text", text.toString(), "--batch", "4", "--steps", "8"};
        List<String> all = new ArrayList<>(List.of(args));
        all.addAll(List.of(more));
        assertEquals(0, root.execute(all.toArray(String[]::new)), out::toString);
        return out.toString();
    }

    @Test
    void learnsAsOnTheCpu() {
        String onCpu = train("--data-parallel", "2");
        String onGpus = train("--data-parallel", "2", "--device", "gpu");
        List<Float> expected = TrainCommandCase.losses(onCpu);
        List<Float> actual = TrainCommandCase.losses(onGpus);
        assertEquals(8, expected.size(), onCpu);
        assertEquals(8, actual.size(), onGpus);
        for (int i = 0; i < expected.size(); i++) {
            assertEquals(expected.get(i), actual.get(i), 0.005f, onCpu + onGpus);
        }
    }

    /** The ranks print to this JVM's stdout. */
    @Test
    void learnsInProcesses() {
        train("--device", "gpu", "--tensor-parallel", "2", "--dtype", "bfloat16", "--processes");
    }
}
