/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

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
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Which kernels there are for which GPUs, by the compilers that are here; no GPU is needed. */
@Timeout(300)
class KernelArchitectureTest {

    /** The code of a kernel lies in a section of the cubin that is called .text.KERNEL. */
    private static final Pattern CODE = Pattern.compile("\0\\.text\\.(\\w+)(?=\0)");

    @TempDir Path folder;

    /** Returns a cubin. */
    private interface Compiler {
        byte[] compile(String architecture, KernelSource source, List<String> options)
                throws Exception;
    }

    /** Before compute capability 8.0 no instruction rounds to bfloat16. */
    @ParameterizedTest
    @CsvSource({"sm_75, false", "sm_80, true", "sm_90a, true"})
    void nvccLeavesOutWhatAGpuCannotRun(String architecture, boolean bfloat16) throws Exception {
        requireKernels(this::nvcc, architecture, bfloat16);
    }

    @ParameterizedTest
    @CsvSource({"sm_75, false", "sm_80, true", "sm_90a, true"})
    void nvrtcLeavesOutWhatAGpuCannotRun(String architecture, boolean bfloat16) throws Exception {
        assumeTrue(
                NativeLibrary.NVRTC.isAvailable(),
                () -> NativeLibrary.NVRTC.unavailabilityCause().getMessage());
        requireKernels(KernelArchitectureTest::nvrtc, architecture, bfloat16);
    }

    private static void requireKernels(Compiler compiler, String architecture, boolean bfloat16)
            throws Exception {
        List<String> types = new ArrayList<>(List.of("float32", "float16"));
        if (bfloat16) {
            types.add("bfloat16");
        }
        Set<String> allReduce = names(List.of("one_shot", "two_shot", "direct"), types);
        allReduce.add("barrier");
        String source = "all_reduce/all_reduce.cu";
        assertEquals(allReduce, kernels(compiler, architecture, source));
        allReduce.addAll(names(List.of("mesh"), types));
        assertEquals(allReduce, kernels(compiler, architecture, source, "-DRANKS=8"));
        assertEquals(
                names(List.of("reduce"), types),
                kernels(compiler, architecture, "reduce/reduce.cu"));
        Set<String> exchange = names(List.of("scatter"), types);
        exchange.add("gather");
        assertEquals(exchange, kernels(compiler, architecture, "scatter_gather/scatter_gather.cu"));
        assertEquals(
                names(List.of("all_reduce_rms_norm", "add_rms_norm"), types),
                kernels(compiler, architecture, "all_reduce_rms_norm/all_reduce_rms_norm.cu"));
        assertEquals(
                Set.of("sgd", "momentum", "adam"),
                kernels(compiler, architecture, "optimizer/optimizer.cu"));
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
        block.addAll(names(List.of("place"), types.subList(1, types.size())));
        assertEquals(
                block, kernels(compiler, architecture, "transformer_block/transformer_block.cu"));
        assertEquals(
                bfloat16 ? llamaKernels() : Set.of(),
                kernels(compiler, architecture, "llama/llama.cu"));
    }

    private static Set<String> llamaKernels() {
        Set<String> names = new TreeSet<>();
        for (String rows : List.of("8", "16", "32", "64")) {
            for (String stripes : List.of(rows.equals("64") ? "4" : "7", "2", "1")) {
                names.add("decode_product_" + rows + "_" + stripes);
            }
        }
        names.addAll(List.of("decode_embed", "decode_rotate", "decode_best", "decode_choose"));
        names.addAll(
                List.of("decode_attention", "decode_attention_late", "decode_attention_placed"));
        names.addAll(List.of("prompt_rotate", "prompt_activate"));
        return names;
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
