// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.Device;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.NativeVersions;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelSource;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Times of paths that processes of this machine have measured, in the folder of the {@link
 * KernelCache}. A file holds the times of one operator with its sizes; its name depends on these
 * and on the machine. Processes may write it at the same time: the last one counts.
 *
 * @param machine everything else on which times depend
 */
record PathCache(KernelCache files, String machine) {

    private static final Logger logger = LoggerFactory.getLogger(PathCache.class);

    /** A hash of the kernels of the paths and of the versions of the libraries. */
    private static final class Versions {
        static final String DIGITS =
                KernelCache.name(
                        "",
                        NativeVersions.query()
                                + Stream.of(
                                                "fused_matmul/fused_matmul.cu",
                                                "gathered/gathered.cu",
                                                "signals/signals.cu",
                                                "reduce/reduce.cu",
                                                "collectives/collectives.cu")
                                        .map(
                                                name ->
                                                        KernelSource.ofResource(
                                                                NativeLibrary.class, name))
                                        .map(KernelSource::toString)
                                        .collect(Collectors.joining()));
    }

    /**
     * Returns the cache of a GPU: times depend on its kind, place and driver, and on the kernels.
     */
    static PathCache of(Device gpu) {
        try (CudaDevice device = CudaDevice.open(gpu)) {
            String machine = String.join(" ", device.name(), device.pciBusId(), Versions.DIGITS);
            return new PathCache(KernelCache.user(), machine);
        }
    }

    /**
     * Returns the times of an operator; empty if no process has measured it, or if the file has
     * another content, which is logged.
     *
     * @param operator the operator with its sizes
     * @param count the number of times
     */
    Optional<float[]> find(String operator, int count) {
        String name = name(operator);
        return files.find(name).flatMap(content -> parsed(name, content, count));
    }

    private static Optional<float[]> parsed(String name, byte[] content, int count) {
        try {
            String[] words = new String(content, StandardCharsets.UTF_8).split(" ");
            float[] times = new float[words.length];
            for (int i = 0; i < times.length; i++) {
                times[i] = Float.parseFloat(words[i]);
            }
            if (times.length == count && IntStream.range(0, count).allMatch(i -> times[i] > 0)) {
                return Optional.of(times);
            }
        } catch (NumberFormatException e) {
            logger.debug("{} has no numbers", name, e);
        }
        logger.warn(
                "{} in the kernels' cache has no {} times of paths: measured again", name, count);
        return Optional.empty();
    }

    /** Keeps the times of an operator for later processes. */
    void keep(String operator, float[] times) {
        String text =
                IntStream.range(0, times.length)
                        .mapToObj(i -> Float.toString(times[i]))
                        .collect(Collectors.joining(" "));
        files.put(name(operator), text.getBytes(StandardCharsets.UTF_8));
    }

    private String name(String operator) {
        return KernelCache.name("paths-", operator + " " + machine);
    }
}
