// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.plan;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.djlx.samples.CommandTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class PlanCommandTest extends CommandTest {

    private static String run(String args) {
        return output(0, (Object[]) args.split(" "));
    }

    private static String line(String text, String start) {
        return text.lines()
                .filter(line -> line.startsWith(start))
                .findFirst()
                .orElseThrow(() -> new AssertionError("no line " + start + ":\n" + text));
    }

    @Test
    void predictionsAreShownBesideMeasuredTimes() {
        String text = run("plan --ranks 2 --shape 512,8192,8192 --op ag");
        assertTrue(
                text.startsWith("allGatherMatmul 512, 8192, 8192, bfloat16: 2 ranks, h200"), text);
        assertTrue(text.contains("4.0 MiB into each GPU, 0.03 TFLOP of each GPU"), text);
        assertTrue(
                line(text, "fused").matches("fused( +\\d+\\.\\d){3} +1\\.\\d\\d +87\\.5 81\\.7"),
                text);
        assertTrue(
                line(text, "gathered").matches("gathered .* 68\\.1 61\\.2 67\\.1 61\\.8  yes"),
                text);
        assertTrue(
                line(text, "pipelined").matches("pipelined .* 72\\.5 75\\.1 73\\.1 72\\.1 66\\.8"),
                text);
        assertTrue(line(text, "nccl").contains("94.0 94.4 88.2 84.4 87.0"), text);
        assertTrue(line(text, "eager:").contains("gathered: predicted us on h200 with"), text);
        assertEquals(line(text, "limit").split(" +")[1], line(text, "matmul").split(" +")[1]);
    }

    @Test
    void bothOperatorsAreShown() {
        String text = run("plan --shape 8192,8192,8192");
        assertTrue(text.contains("allGatherMatmul 8192"), text);
        assertTrue(text.contains("\nmatmulReduceScatter 8192"), text);
    }

    /** With few columns on each of 8 GPUs, communication is the limit. */
    @Test
    void takesBytesAsTheLimitWhenTheyTakeLonger() {
        String text = run("plan --ranks 8 --shape 8192,1024,8192 --op ag --dtype float16");
        double limit = Double.parseDouble(line(text, "limit").split(" +")[1]);
        double matmul = Double.parseDouble(line(text, "matmul").split(" +")[1]);
        assertTrue(limit > 5 * matmul, text);
    }

    @Test
    void usesNcclAloneForMoreRanksThanAHostHas() {
        String text = run("plan --ranks 16 --shape 8192,8192,8192 --op rs --dtype float32");
        assertTrue(line(text, "fused").endsWith("impossible"), text);
        assertTrue(line(text, "nccl").endsWith("yes"), text);
        assertTrue(text.contains("Extrapolated: the group has several hosts"), text);
        assertTrue(text.contains("is from a data sheet"), text);
    }

    @Test
    void putsReplicasOnFurtherHosts() {
        String text = run("plan --ranks 8 --shape 16384,28672,8192 --op ag --hosts 4");
        assertTrue(text.contains("4 replicas on 4 hosts, 32 GPUs: 56 MiB of gradients"), text);
        assertTrue(text.contains("Predicted for P2P buffers of 512 MiB"), text);
        assertTrue(text.contains("256 MiB FUSED is not possible"), text);
        String faster =
                run("plan --ranks 8 --shape 16384,28672,8192 --op ag --hosts 4 --network-rate 100");
        assertTrue(faster.contains("across 100 GB/s"), faster);
    }

    @Test
    void printsARowForEachOfSeveralCombinations() {
        List<String> lines =
                run("plan --ranks 4,8 --hosts 1,128 --shape 8192,28672,8192 --op rs")
                        .lines()
                        .toList();
        assertEquals(6, lines.size());
        assertEquals("Fitted to measurements on H200s.", lines.get(5));
        assertTrue(lines.get(0).startsWith("operator"), lines::toString);
        assertTrue(lines.get(4).contains("1024"), lines::toString);
        String markdown = run("plan --shape 64,8192,8192 --markdown --op rs");
        assertTrue(markdown.startsWith("| operator | M, N, K |"), markdown);
        assertEquals(3, markdown.lines().count());
    }

    /** A prediction says for which machine it is. */
    @Test
    void machinesAreNamed() {
        String plan = "plan --ranks 2 --shape 4096,8192,8192 --op ag";
        String h200 = run(plan);
        assertTrue(h200.contains("\nFitted to measurements on H200s.\n"), h200);
        String h100 = run(plan + " --machine h100");
        assertTrue(h100.contains(": 2 ranks, h100\n"), h100);
        assertTrue(
                h100.contains(
                        "\nMatmuls and memory as measured on h100; links, NCCL and host as on"
                                + " H200s.\n"),
                h100);
        assertTrue(line(h100, "fused").split(" +").length < line(h200, "fused").split(" +").length);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = ';',
            value = {
                "plan; --shape",
                "plan --shape 1,2; --shape must be M,N,K",
                "plan --shape 0,8,8; --shape must be M,N,K",
                "plan --shape 8x8x8; --shape must be M,N,K",
                "plan --shape 8,8,8 --dtype int8; --dtype must be one of float64, float32, float16,"
                        + " bfloat16, not int8",
                "plan --shape 8,8,8 --machine a100; --machine must be h200, h100 or this",
                "plan --shape 8,8,8 --ranks 0; --ranks must be from 1 to 1024, not 0",
                "plan --shape 8,8,8 --ranks 2,x; --ranks must be a number, not 'x'",
                "plan --shape 8,8,8 --ranks 3; the number of ranks, 3",
                "plan --shape 8,8,8 --hosts 0; --hosts must be from 1 to 1024, not 0",
                "plan --shape 32,32,32 --ranks 16 --hosts 3; which do not divide 3",
                "plan --shape 8,8,8 --network-rate 0; the rate must be greater than 0"
            })
    void badArgumentsAreNamed(String args, String message) {
        assertEquals(2, run((Object[]) args.split(" ")));
        assertTrue(err.toString().contains(message), err::toString);
        assertEquals(2, err.toString().lines().count(), err::toString);
    }
}
