/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.samples.Gpus;
import org.djlx.samples.Ranks;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** The ranks of commands that run on GPUs if there are some, otherwise on the CPU. */
final class DeviceRanks {

    private static final int RANKS_ON_CPU = 2;

    @Spec(Spec.Target.MIXEE)
    private CommandSpec spec;

    @Option(
            names = "--ranks",
            paramLabel = "N",
            description = "Number of ranks; all GPUs, or 2 on the CPU, if not given.")
    private Integer ranks;

    /** How many GPUs this process can use; on the CPU, 0. */
    int gpus() {
        return NativeLibrary.CUDA.isAvailable() ? CudaDevice.count() : 0;
    }

    /** How many ranks there are, each with a GPU of its own where there are some. */
    int count() {
        Ranks.check(spec, "--ranks", ranks, false);
        int gpus = gpus();
        if (gpus == 0) {
            return ranks != null ? ranks : RANKS_ON_CPU;
        }
        int count = ranks != null ? ranks : gpus;
        Gpus.require(count);
        return count;
    }

    /** For example {@code 2 ranks on GPUs}. */
    String text() {
        return Ranks.count(count()) + " on " + (gpus() > 0 ? "GPUs" : "the CPU");
    }
}
