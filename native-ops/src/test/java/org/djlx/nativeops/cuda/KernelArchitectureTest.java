// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Which kernels there are for which GPUs, by the compilers that are here; no GPU is needed. */
@Timeout(value = 30, unit = TimeUnit.MINUTES) // A minute on an idle machine.
class KernelArchitectureTest {

    /** The code of a kernel lies in a section of the cubin that is called .text.KERNEL. */
    private static final Pattern CODE = Pattern.compile("\0\\.text\\.(\\w+)(?=\0)");

    private static final String ALL_REDUCE = "all_reduce/all_reduce.cu";
    private static final String DECODER_SOURCE = "decoder/decoder.cu";
    private static final String MATMUL = "decoder/matmul.cu";
    private static final String EXPERTS = "decoder/experts.cu";

    private static final Set<String> DECODER =
            Set.of(
                    "decode_embed",
                    "decode_rotate_and_cache",
                    "decode_attention",
                    "decode_attention_late",
                    "decode_attention_cached",
                    "decode_spans_4",
                    "decode_spans_6",
                    "prefill_rotate_and_cache",
                    "prefill_gather",
                    "prefill_activate",
                    "norm_heads");

    @TempDir Path folder;

    /** Returns a cubin. */
    private interface Compiler {
        byte[] compile(String architecture, KernelSource source, List<String> options)
                throws Exception;
    }

    /**
     * Before compute capability 8.0 no instruction rounds to bfloat16. The oldest GPUs that run the
     * kernels are of sm_70, which nvcc 13 no longer knows: the oldest that this nvcc knows counts.
     */
    @ParameterizedTest
    @CsvSource({"oldest, false", "sm_80, true", "sm_90a, true"})
    @Tag("slow")
    void nvccLeavesOutWhatAGpuCannotRun(String architecture, boolean bfloat16) throws Exception {
        boolean oldest = architecture.equals("oldest");
        requireKernels(this::nvcc, oldest ? oldestArchitecture() : architecture, bfloat16);
    }

    @ParameterizedTest
    @CsvSource({"sm_75, false", "sm_80, true", "sm_90a, true"})
    @Tag("slow")
    void nvrtcLeavesOutWhatAGpuCannotRun(String architecture, boolean bfloat16) throws Exception {
        assumeTrue(
                NativeLibrary.NVRTC.isAvailable(),
                () -> NativeLibrary.NVRTC.unavailabilityCause().getMessage());
        requireKernels(KernelArchitectureTest::nvrtc, architecture, bfloat16);
    }

    /** No other check compiles them, but for what runs on sm_90a only: ci/sanitize.sh does. */
    @Test
    void everyKernelIsCompiled() throws Exception {
        Set<String> sources = new TreeSet<>();
        for (String resources : List.of("src/main/resources", "src/test/resources")) {
            Path root = Path.of(resources, "org/djlx/nativeops");
            try (Stream<Path> files = Files.walk(root)) {
                for (Path file : files.filter(f -> f.toString().endsWith(".cu")).toList()) {
                    if (!Files.readString(file).contains("\"hopper.cuh\"")) {
                        sources.add(root.relativize(file).toString());
                    }
                }
            }
        }
        assertEquals(sources, new TreeSet<>(expected(true).keySet()));
    }

    private static void requireKernels(Compiler compiler, String architecture, boolean bfloat16)
            throws Exception {
        for (Map.Entry<String, Set<String>> entry : expected(bfloat16).entrySet()) {
            assertEquals(entry.getValue(), kernels(compiler, architecture, entry.getKey()));
        }
        Set<String> all = new TreeSet<>(expected(bfloat16).get(ALL_REDUCE));
        all.addAll(names(List.of("mesh"), types(bfloat16)));
        assertEquals(all, kernels(compiler, architecture, ALL_REDUCE, "-DRANKS=8"));
        Set<String> fp8Cache = new TreeSet<>(expected(bfloat16).get(DECODER_SOURCE));
        fp8Cache.remove("decode_attention_late");
        if (fp8Cache.remove("decode_spans_6")) {
            fp8Cache.add("decode_spans_8");
        }
        assertEquals(fp8Cache, kernels(compiler, architecture, DECODER_SOURCE, "-DCACHE_BITS=8"));
        Set<String> eightRows = bfloat16 ? matmuls(8) : Set.of();
        for (int group = 32; group <= 128; group *= 2) {
            String[] options = {"-DWEIGHT_BITS=4", "-DZERO_GROUP=" + group};
            assertEquals(eightRows, kernels(compiler, architecture, MATMUL, options));
        }
        for (int rows = 8; rows <= 64; rows *= 2) {
            assertEquals(
                    bfloat16 ? experts(rows) : Set.of(),
                    kernels(compiler, architecture, EXPERTS, "-DROWS=" + rows));
        }
        for (int bits : new int[] {16, 8, 4}) {
            for (int rows = 8; rows <= (bits == 16 ? 64 : 32); rows *= 2) {
                assertEquals(
                        bfloat16 ? matmuls(rows) : Set.of(),
                        kernels(
                                compiler,
                                architecture,
                                MATMUL,
                                "-DWEIGHT_BITS=" + bits,
                                "-DROWS=" + rows));
            }
        }
    }

    private static List<String> types(boolean bfloat16) {
        List<String> types = List.of("float32", "float16", "bfloat16");
        return types.subList(0, bfloat16 ? 3 : 2);
    }

    /** The kernels by their sources. */
    private static Map<String, Set<String>> expected(boolean bfloat16) {
        List<String> types = types(bfloat16);
        Map<String, Set<String>> sources = new TreeMap<>();
        sources.put(ALL_REDUCE, names(List.of("one_shot", "two_shot", "direct"), types));
        sources.put("reduce/reduce.cu", names(List.of("reduce"), types));
        Set<String> exchange = names(List.of("reduce_scatter"), types);
        exchange.add("all_gather");
        sources.put("gathered/gathered.cu", exchange);
        Set<String> collectives = names(List.of("reduce_scatter", "sum_parts"), types);
        collectives.addAll(
                List.of("gather_packs", "gather_bytes", "exchange_packs", "exchange_bytes"));
        sources.put("collectives/collectives.cu", collectives);
        List<String> norms = List.of("all_reduce_rms_norm", "add_rms_norm");
        Set<String> normalizing = names(norms, types);
        if (bfloat16) {
            normalizing.addAll(names(norms, List.of("e4m3_float16", "e4m3_bfloat16")));
        }
        sources.put("all_reduce_rms_norm/all_reduce_rms_norm.cu", normalizing);
        sources.put(
                "all_to_all_vdev/all_to_all_vdev.cu",
                Set.of("all_to_all_vdev_1", "all_to_all_vdev_4", "all_to_all_vdev_16"));
        sources.put("optimizer/optimizer.cu", Set.of("sgd", "momentum", "adam"));
        Set<String> block =
                names(
                        List.of(
                                "rms_norm",
                                "rms_norm_gradient",
                                "rms_norm_weight_gradient",
                                "rotate",
                                "gate",
                                "gate_gradient"),
                        types);
        block.addAll(names(List.of("convert_columns"), types.subList(1, types.size())));
        sources.put("transformer_block/transformer_block.cu", block);
        sources.put(DECODER_SOURCE, bfloat16 ? DECODER : Set.of());
        sources.put(
                "decoder/sampling.cu", bfloat16 ? Set.of("decode_top", "decode_sample") : Set.of());
        sources.put("decoder/lora.cu", bfloat16 ? Set.of("lora_shrink", "lora_expand") : Set.of());
        sources.put(MATMUL, bfloat16 ? matmuls(8) : Set.of());
        sources.put(EXPERTS, bfloat16 ? experts(8) : Set.of());
        List<String> quantizing =
                List.of(
                        "quantize_fp8",
                        "activate_fp8",
                        "norm_fp8",
                        "quantize_int4",
                        "dequantize_int4");
        Set<String> quantizers = new TreeSet<>();
        if (bfloat16) {
            quantizers.addAll(names(quantizing, types.subList(1, types.size())));
            quantizers.add("pack_int4");
        }
        sources.put("quantize/quantize.cu", quantizers);
        sources.put(
                "signals/signals.cu",
                Set.of("enter", "exchange", "meet", "signal_peer", "wait_signals"));
        sources.put("scale.cu", Set.of("scale", "add"));
        return sources;
    }

    /** The kernels for up to a number of rows. */
    private static Set<String> matmuls(int rows) {
        String name = "decode_matmul_" + rows + "_";
        return IntStream.of(rows == 64 ? new int[] {4, 2, 1} : new int[] {7, 3, 2, 1})
                .mapToObj(tiles -> name + tiles)
                .collect(Collectors.toCollection(TreeSet::new));
    }

    /** The kernels of experts for up to a number of pairs of an expert. */
    private static Set<String> experts(int rows) {
        String name = "decode_expert_matmul_" + rows + "_";
        Set<String> kernels = new TreeSet<>();
        IntStream.of(rows == 64 ? new int[] {2, 1} : new int[] {3, 2})
                .forEach(tiles -> kernels.add(name + tiles));
        if (rows == 8) {
            kernels.addAll(List.of("decode_route", "combine_experts"));
        }
        return kernels;
    }

    private static Set<String> names(List<String> kernels, List<String> types) {
        Set<String> names = new TreeSet<>();
        kernels.forEach(kernel -> types.forEach(type -> names.add(kernel + "_" + type)));
        return names;
    }

    private static Set<String> kernels(
            Compiler compiler, String architecture, String name, String... options)
            throws Exception {
        KernelSource source = KernelSource.ofResource(NativeLibrary.class, name);
        byte[] cubin = compiler.compile(architecture, source, List.of(options));
        return CODE.matcher(new String(cubin, StandardCharsets.ISO_8859_1))
                .results()
                .map(match -> match.group(1))
                .collect(Collectors.toCollection(TreeSet::new));
    }

    private static byte[] nvrtc(String architecture, KernelSource source, List<String> options) {
        List<String> all = new ArrayList<>(options);
        all.addAll(List.of("--gpu-architecture=" + architecture, "--std=c++17"));
        return Nvrtc.compile(source, all);
    }

    private byte[] nvcc(String architecture, KernelSource source, List<String> options)
            throws Exception {
        Path cubin = folder.resolve("kernels.cubin");
        Path log = folder.resolve("log");
        Files.writeString(folder.resolve(source.name()), source.text());
        for (Map.Entry<String, String> header : source.headers().entrySet()) {
            Path file = folder.resolve(header.getKey());
            Files.createDirectories(file.getParent());
            Files.writeString(file, header.getValue());
        }
        List<String> command =
                new ArrayList<>(
                        List.of(
                                findNvcc(),
                                "-arch=" + architecture,
                                "-std=c++17",
                                "-I",
                                folder.toString(),
                                "-Werror",
                                "all-warnings",
                                // Half the compiler's time; the kernels and the warnings are the
                                // same.
                                "-Xcicc",
                                "-O0",
                                "-Xptxas",
                                "-O0",
                                "-cubin",
                                "-o",
                                cubin.toString(),
                                folder.resolve(source.name()).toString()));
        command.addAll(options);
        Process nvcc =
                new ProcessBuilder(command)
                        .redirectErrorStream(true)
                        .redirectOutput(log.toFile())
                        .start();
        assertEquals(0, nvcc.waitFor(), () -> readLog(log));
        return Files.readAllBytes(cubin);
    }

    private static String oldestArchitecture() throws Exception {
        Process nvcc = new ProcessBuilder(findNvcc(), "--list-gpu-arch").start();
        List<String> known = nvcc.inputReader().lines().toList();
        assertEquals(0, nvcc.waitFor());
        int oldest =
                known.stream()
                        .mapToInt(line -> Integer.parseInt(line.replaceAll("\\D", "")))
                        .filter(number -> number >= 70)
                        .min()
                        .orElseThrow();
        return "sm_" + oldest;
    }

    private static String readLog(Path log) {
        try {
            return Files.readString(log);
        } catch (IOException e) {
            return e.toString();
        }
    }

    private static String findNvcc() {
        String path =
                Arrays.stream(System.getenv("PATH").split(File.pathSeparator))
                        .map(entry -> entry + "/nvcc")
                        .filter(file -> Files.isExecutable(Path.of(file)))
                        .findFirst()
                        .orElse(null);
        assumeTrue(path != null, "there is no nvcc");
        return path;
    }
}
