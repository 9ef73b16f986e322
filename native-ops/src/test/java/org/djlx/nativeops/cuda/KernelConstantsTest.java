// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Constants and structs that are read from CUDA sources; a compiler agrees with them. */
@Timeout(value = 30, unit = TimeUnit.MINUTES) // Seconds on an idle machine.
class KernelConstantsTest {

    private static final String TEXT =
            """
            const int WARP = 32;
            const int WIDE = 4 * WARP + (WARP << 1) % 5;  // const int OTHER = 1;
            const int STAGES = TILE_N == 256 ? 3 : TILE_N >= 128 && !SMALL ? 5 : 0x7;
            struct alignas(64) Map {
              u64 opaque[16];
            };
            template <typename T>
            struct Arguments {
              const typename T::Bits* x;  // a pointer
              u32 count;
              char* peers[WARP][2];
              volatile u16 half;
              float factor;
              Map map;
              double last;
            };
            TABLE(8, 7, 3)
            TABLE(16, 2, 10)
            """;

    @TempDir Path folder;

    private static KernelConstants constants(String... options) {
        return new KernelConstants(new KernelSource("test.cu", TEXT, Map.of()), options);
    }

    @Test
    void evaluatesConstantsWithTheOptionsMacros() {
        assertEquals(32, constants().value("WARP"));
        assertEquals(132, constants().value("WIDE"));
        assertEquals(3, constants("-DTILE_N=256", "-DSMALL=0").value("STAGES"));
        assertEquals(5, constants("-DTILE_N=128", "-DSMALL=0").value("STAGES"));
        assertEquals(7, constants("-DTILE_N=128", "-DSMALL=1").value("STAGES"));
    }

    /** As a compiler has it. */
    @Test
    void aMacroWithoutAValueIsOne() {
        assertEquals(7, constants("-DTILE_N=128", "-DSMALL").value("STAGES"));
    }

    @ParameterizedTest
    @ValueSource(
            strings = {"~1", "6 & 3", "8 >> 1", "6 ^ 3", "1.5", "1u", "sizeof(int)", "(1", "1 ? 2"})
    void unknownSyntaxIsRefused(String expression) {
        String text = "const int VALUE = " + expression + ";\n";
        KernelConstants constants =
                new KernelConstants(new KernelSource("test.cu", text, Map.of()));
        assertThrows(IllegalArgumentException.class, () -> constants.value("VALUE"));
    }

    @Test
    void structsAreLaidOut() {
        KernelConstants.Layout layout = constants().struct("Arguments");
        assertEquals(
                List.of("x", "count", "peers", "half", "factor", "map", "last"),
                List.copyOf(layout.offsets().keySet()));
        assertEquals(0, layout.offset("x"));
        assertEquals(8, layout.offset("count"));
        assertEquals(16, layout.offset("peers"));
        assertEquals(528, layout.offset("half"));
        assertEquals(532, layout.offset("factor"));
        assertEquals(576, layout.offset("map"));
        assertEquals(704, layout.offset("last"));
        assertEquals(768, layout.byteSize());
        assertEquals(64, layout.alignment());
    }

    @Test
    void readsTheArgumentsOfMacroCalls() {
        List<int[]> calls = constants().calls("TABLE");
        assertEquals(2, calls.size());
        assertArrayEquals(new int[] {8, 7, 3}, calls.get(0));
        assertArrayEquals(new int[] {16, 2, 10}, calls.get(1));
    }

    @Test
    void missingDefinitionIsNamed() {
        for (String name : List.of("OTHER", "STAGES")) {
            Exception e =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> constants("-DSMALL=0").value(name));
            assertTrue(e.getMessage().startsWith("test.cu has 0 definitions of "), e.getMessage());
        }
        assertThrows(IllegalArgumentException.class, () -> constants().struct("Other"));
        KernelConstants.Layout layout = constants().struct("Map");
        assertThrows(IllegalArgumentException.class, () -> layout.offset("other"));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            textBlock =
                    """
                    all_reduce/all_reduce.cu | -DRANKS=8 | Launch Control Status | MAX_THREADS MESH_THREADS MAX_BLOCKS
                    all_reduce/all_reduce.cu | -DRANKS=2 | Launch Control | MAX_THREADS
                    signals/signals.cu | -DRANKS=2 | Entered Status | MAX_RANKS
                    gathered/gathered.cu | -DRANKS=2 | Launch | GATHERED_THREADS
                    reduce/reduce.cu | -DRANKS=2 | | REDUCE_THREADS
                    optimizer/optimizer.cu | -DRANKS=2 | | OPTIMIZER_THREADS
                    quantize/quantize.cu | -DZERO_GROUP=32 | Quantized Normed | SET SET_BYTES ROW_THREADS NORM_THREADS GROUP_THREADS WARP
                    all_reduce_rms_norm/all_reduce_rms_norm.cu | -DRANKS=2 | Rows Launch | NORM_THREADS WARP
                    all_to_all_vdev/all_to_all_vdev.cu | -DRANKS=2 | VdevLaunch Status | MAX_SPLITS VDEV_THREADS VDEV_STAGES
                    transformer_block/transformer_block.cu | -DRANKS=2 | Norm NormGradient WeightGradient Gate GateGradient Columns Heads Rotation | MAX_THREADS PART_WARPS WARP
                    decoder/decoder.cu | -DTYPE=Bfloat16 -DHEAD_SIZE=128 -DGROUP_SIZE=4 -DBLOCK_TOKENS=16 | Embedding Rotation Gathering HeadNorms Activation Attention | ATTENTION_WARPS CHUNK SAMPLED
                    decoder/matmul.cu | -DTYPE=Bfloat16 -DSHARED_BYTES=232448 | Matmul | MATMUL_WARPS WARP
                    decoder/experts.cu | -DTYPE=Bfloat16 -DROWS=8 | Route ExpertChunk ExpertMatmul Combination | ROUTE_WARPS MAX_EXPERTS MAX_CHOSEN MAX_PAIRS MATMUL_WARPS WARP
                    decoder/wide_experts.cu | -DTYPE=Bfloat16 | WideRoute WideChunk ExpertTiles Combination | ROUTE_WARPS MAX_EXPERTS WARP THREADS BOX_BYTES RING_BYTES_64 RING_BYTES_128
                    decoder/chain.cu | -DTYPE=Bfloat16 -DWEIGHT_BITS=16 -DZERO_GROUP=0 | Link Chain | STAGE_BYTES X_BYTES X_PAD
                    decoder/chain.cu | -DTYPE=Float16 -DWEIGHT_BITS=8 -DZERO_GROUP=0 | Link Chain | STAGE_BYTES X_BYTES X_PAD
                    decoder/chain.cu | -DTYPE=Bfloat16 -DWEIGHT_BITS=4 -DZERO_GROUP=64 | Link Chain | MAX_LINKS CONSUMERS SEGMENT SCALES STAGE_BYTES MAX_STAGES SUM_BYTES X_BYTES X_PAD WARP
                    decoder/wide_matmul.cu | -DTYPE=Bfloat16 | WideMatmul | THREADS BOX_BYTES
                    decoder/sampling.cu | -DTYPE=Bfloat16 | Top Logits Edit Most SamplingParameters Sampling | TOP_BLOCKS MAX_TOP_LOGPROBS TOP_THREADS SAMPLE_THREADS SAMPLE_CLUSTER CLUSTER_THREADS
                    fused_matmul/fused_matmul.cu | -DTILE_N=256 -DTYPE=Bfloat16 -DTRANSPOSED=0 -DSCATTER=0 -DGATED=0 | Launch | SHARED_BYTES STAGES RING TILE_M HALF_M STEP_BYTES PUSH_BYTES FUSED_THREADS MAX_RIGHTS
                    fused_matmul/fused_matmul.cu | -DTILE_N=128 -DTYPE=Float16 -DTRANSPOSED=1 -DSCATTER=0 -DGATED=1 | Launch | SHARED_BYTES STAGES RING OUT_N
                    fused_matmul/fused_matmul.cu | -DTILE_N=64 -DTYPE=Float16 -DTRANSPOSED=1 -DSCATTER=1 -DGATED=0 | Launch | SHARED_BYTES STAGES RING
                    fused_matmul/fused_matmul.cu | -DTILE_N=128 -DTYPE=Bfloat16 -DTRANSPOSED=1 -DSCATTER=1 -DGATED=0 -DSCALED=1 | Launch | SHARED_BYTES STAGES BLOCK_K
                    """)
    void layoutsAndConstantsAreThoseOfACompiler(
            String file, String options, String structs, String values) throws Exception {
        KernelSource source = KernelSource.ofResource(NativeLibrary.class, file);
        KernelConstants constants = new KernelConstants(source, options.split(" "));
        StringBuilder text = new StringBuilder(source.text()).append('\n');
        for (String value : values.split(" ")) {
            text.append(assertion(value, constants.value(value)));
        }
        for (String struct : structs == null ? new String[0] : structs.split(" ")) {
            KernelConstants.Layout layout = constants.struct(struct);
            String type = isTemplate(source, struct) ? struct + "<Float16>" : struct;
            String alias = "Laid" + struct;
            text.append("typedef ").append(type).append(' ').append(alias).append(";\n");
            text.append(assertion("sizeof(" + alias + ")", layout.byteSize()));
            text.append(assertion("alignof(" + alias + ")", layout.alignment()));
            Map<String, Integer> offsets = new LinkedHashMap<>(layout.offsets());
            layout.members().forEach((member, of) -> offsets.put(member, of.offset()));
            offsets.forEach(
                    (member, offset) ->
                            text.append(
                                    assertion(
                                            "__builtin_offsetof(" + alias + ", " + member + ")",
                                            offset)));
        }
        compile(source, text.toString(), options.split(" "));
    }

    private static String assertion(String expression, int value) {
        return String.format("static_assert(%s == %d, \"%s\");%n", expression, value, expression);
    }

    private static boolean isTemplate(KernelSource source, String struct) {
        return source.text().contains("template <typename T>\nstruct " + struct + " {");
    }

    private void compile(KernelSource source, String text, String... options) throws Exception {
        String nvcc =
                Arrays.stream(System.getenv("PATH").split(File.pathSeparator))
                        .map(entry -> entry + "/nvcc")
                        .filter(file -> Files.isExecutable(Path.of(file)))
                        .findFirst()
                        .orElse(null);
        assumeTrue(nvcc != null, "there is no nvcc");
        Path file = folder.resolve(source.name());
        Files.writeString(file, text);
        for (Map.Entry<String, String> header : source.headers().entrySet()) {
            Path path = folder.resolve(header.getKey());
            Files.createDirectories(path.getParent());
            Files.writeString(path, header.getValue());
        }
        Path log = folder.resolve("log");
        List<String> command =
                new ArrayList<>(
                        List.of(nvcc, "-arch=compute_90a", "-std=c++17", "-I", folder.toString()));
        command.addAll(List.of(options));
        command.addAll(List.of("-Xcicc", "-O0")); // assertions need no optimizer
        command.addAll(List.of("-ptx", "-o", folder.resolve("out.ptx").toString()));
        command.add(file.toString());
        Process process =
                new ProcessBuilder(command)
                        .redirectErrorStream(true)
                        .redirectOutput(log.toFile())
                        .start();
        assertEquals(0, process.waitFor(), Files.readString(log));
    }
}
