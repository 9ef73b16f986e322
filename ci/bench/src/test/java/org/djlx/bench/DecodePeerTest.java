// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.djlx.llm.files.LlamaDirectory;
import org.djlx.llm.model.ModelConfig;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Reads the answers of a peer, here a shell script. */
@Timeout(60)
class DecodePeerTest {

    @TempDir private Path folder;

    private DecodePeer.Result run(String... lines) throws IOException {
        Path script = Files.write(folder.resolve("peer.sh"), List.of(lines));
        ModelConfig config =
                LlamaDirectory.config(96, 128, 48, 3, 8, 4, 99, 500, false, ScalarType.FLOAT32);
        return DecodePeer.run(
                "sh", script, DecodePeer.arguments(config, 2, 5, new int[] {1, 8}, 7));
    }

    @Test
    void keepsFiguresByBatchAndMethod() throws IOException {
        Path arguments = folder.resolve("arguments");
        DecodePeer.Result result =
                run(
                        "echo \"$@\" > '" + arguments + "'",
                        "echo '{\"torch\": \"2.11.0\"}'",
                        "echo '{\"batch\": 1, \"method\": \"nccl\", \"micros\": 4.5}'",
                        "echo '{\"batch\": 1, \"method\": \"oneShot\", \"note\": \"no\"}'",
                        "echo '{\"batch\": 8, \"method\": \"nccl\", \"micros\": 5.5}'",
                        "echo '{\"batch\": 8, \"method\": \"oneShot\", \"micros\": 5}'",
                        "echo '{\"prompt\": 7, \"matmulMicros\": 70}'",
                        "echo '{\"done\": true}'");
        assertEquals("2.11.0", result.torch());
        assertEquals(
                Map.of(1, Map.of("nccl", 4.5), 8, Map.of("nccl", 5.5, "oneShot", 5.0)),
                result.stepMicros());
        assertEquals(70, result.matmulMicros());
        assertEquals(
                List.of("{\"batch\":1,\"method\":\"oneShot\",\"note\":\"no\"}"), result.notes());
        assertEquals(
                "--ranks 2 --layers 3 --hidden 128 --inner 48 --heads 8 --kv-heads 4 --head-size 16"
                        + " --vocabulary 96 --theta 500.0 --context 5 --batches 1,8 --prompt 7",
                Files.readString(arguments).strip());
    }

    @Test
    void keepsFiguresFromBeforeAFailure() throws IOException {
        DecodePeer.Result result =
                run(
                        "echo '{\"torch\": \"2.11.0\"}'",
                        "echo '{\"batch\": 1, \"method\": \"nccl\", \"micros\": 4.5}'",
                        "echo '{\"error\": \"rank 1 has ended\"}'");
        assertEquals(Map.of(1, Map.of("nccl", 4.5)), result.stepMicros());
        assertEquals(List.of("rank 1 has ended"), result.notes());
    }

    @Test
    void saysWhyPyTorchIsMissing() throws IOException {
        DecodePeer.Result result = run("echo '{\"error\": \"No module named torch\"}'");
        assertEquals("No module named torch", result.torch());
        assertEquals(Map.of(), result.stepMicros());
    }
}
