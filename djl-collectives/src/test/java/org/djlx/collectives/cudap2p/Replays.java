/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.function.ToDoubleBiFunction;
import java.util.function.UnaryOperator;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaGraph;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.CudaStreamGuard;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/** Records an operation into a CUDA graph and replays it with other inputs each time. */
public final class Replays {

    private static final int ROUNDS = 1000;

    private Replays() {}

    /**
     * Checks one rank. In a round the input of rank r has the value {@code (round % 50 + r)} in all
     * elements, so all elements of the output are the same.
     *
     * @param group the group
     * @param shape the input's shape
     * @param operation issues the operation on an input; returns its output
     * @param expected the value of the output, from the round and the number of ranks
     */
    public static void check(
            ProcessGroup group,
            Shape shape,
            UnaryOperator<NDArray> operation,
            ToDoubleBiFunction<Integer, Integer> expected) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device)) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            try {
                NDArray input = Torch.empty(manager, shape, ScalarType.FLOAT32);
                NDArray values = manager.arange(50f).add(group.rank());
                NDArray outputs = Torch.empty(manager, new Shape(ROUNDS, 2), ScalarType.FLOAT32);
                // What libtorch takes from the driver and loads, it does now.
                for (int i = 0; i < 3; i++) {
                    feed(input, values, i);
                    keep(outputs, i, operation.apply(input));
                    operation.apply(Torch.cast(input, ScalarType.FLOAT32)).close();
                }
                stream.synchronize();
                group.barrier().await(group.timeout());
                NDArray[] output = new NDArray[1];
                try (CudaGraph graph =
                        CudaGraph.capture(stream, () -> output[0] = operation.apply(input))) {
                    // A replay waits for those of the other ranks, which must need nothing of the
                    // driver any more.
                    stream.synchronize();
                    group.barrier().await(group.timeout());
                    for (int round = 0; round < ROUNDS; round++) {
                        feed(input, values, round);
                        graph.launch(stream);
                        keep(outputs, round, output[0]);
                        if (round % 50 == 49) {
                            operation.apply(Torch.cast(input, ScalarType.FLOAT32)).close();
                        }
                    }
                    float[] all = outputs.toFloatArray();
                    for (int round = 0; round < ROUNDS; round++) {
                        double want = expected.applyAsDouble(round % 50, group.worldSize());
                        for (float got : List.of(all[2 * round], all[2 * round + 1])) {
                            assertEquals(want, got, 1e-5 * Math.abs(want), "round " + round);
                        }
                    }
                    stream.synchronize();
                }
            } finally {
                guard.close();
            }
        }
    }

    private static void feed(NDArray input, NDArray values, int round) {
        Torch.copy(input, values.get(round % 50).broadcast(input.getShape()));
    }

    /** Keeps the first and the last element. */
    private static void keep(NDArray outputs, int round, NDArray output) {
        NDArray kept = outputs.get(round);
        NDArray flat = output.flatten();
        Torch.copy(kept.get("0:1"), flat.get("0:1"));
        Torch.copy(kept.get("1:2"), flat.get(flat.size() - 1 + ":"));
    }
}
