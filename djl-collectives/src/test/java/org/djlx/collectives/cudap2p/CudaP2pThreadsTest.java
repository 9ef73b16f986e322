/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.cudap2p;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.function.BiConsumer;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Reductions;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.collectives.nccl.NcclOptions;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.GpuTopology;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** All-reduce between GPUs, on all GPUs of the machine, with ranks that are threads. */
@Tag("gpu")
@Timeout(300)
class CudaP2pThreadsTest {

    private static int worldSize;

    @BeforeAll
    static void requireGpus() {
        GpuTests.require(2, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        worldSize = Math.min(8, CudaDevice.count());
    }

    private static void run(
            CudaP2pOptions.Builder options, BiConsumer<ProcessGroup, NDManager> body) {
        options.optNcclOptions(NcclOptions.builder().optTimeout(Duration.ofSeconds(30)).build());
        List<ProcessGroup> groups =
                ProcessGroups.local("cuda_p2p", worldSize, options.optBufferSize(1 << 20).build());
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager =
                                NDManager.newBaseManager(group.device(), "PyTorch")) {
                            body.accept(group, manager);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void allReduceHasTheBitsOfRankOrder() {
        run(CudaP2pOptions.builder(), AllReduceCases::check);
    }

    @Test
    void stridedTensors() {
        run(
                CudaP2pOptions.builder(),
                (group, manager) -> {
                    Shape shape = new Shape(37, 5);
                    NDArray tensor =
                            TestArrays.randomStrided(
                                    manager, ScalarType.BFLOAT16, shape, group.rank());
                    List<NDArray> parts = new ArrayList<>();
                    for (int rank = 0; rank < worldSize; rank++) {
                        parts.add(TestArrays.random(manager, ScalarType.BFLOAT16, shape, rank));
                    }
                    NDArray expected = Torch.empty(manager, shape, ScalarType.BFLOAT16);
                    Reductions.reduce(expected, parts, ReduceOp.SUM);
                    group.allReduce(tensor, ReduceOp.SUM).await();
                    assertArrayEquals(TestArrays.values(expected), TestArrays.values(tensor));
                });
    }

    @Test
    void randomSizesOneAfterTheOther() {
        run(
                CudaP2pOptions.builder(),
                (group, manager) -> {
                    Random random = new Random(3);
                    for (int i = 0; i < 200; i++) {
                        long count = 1 + (long) Math.exp(random.nextDouble() * Math.log(3e6));
                        NDArray tensor = manager.ones(new Shape(count)).mul(group.rank() + i);
                        List<Work> works = new ArrayList<>();
                        for (int k = 0; k < 3; k++) {
                            works.add(group.allReduce(tensor, ReduceOp.AVG));
                        }
                        works.get(2).await();
                        float expected = i + (worldSize - 1) / 2f;
                        assertEquals(expected, tensor.max().getFloat());
                        assertEquals(expected, tensor.min().getFloat());
                        tensor.close();
                    }
                });
    }

    @Test
    void graphsOfAllReduces() {
        for (long count : new long[] {1000, 500_000}) {
            run(
                    CudaP2pOptions.builder(),
                    (group, manager) ->
                            Replays.check(
                                    group,
                                    new Shape(count),
                                    input -> {
                                        group.allReduce(input, ReduceOp.SUM).blockCurrentStream();
                                        return Torch.alias(manager, input);
                                    },
                                    (value, ranks) -> ranks * value + ranks * (ranks - 1) / 2.0));
        }
    }

    @Test
    void hybridCubeMesh() {
        Assumptions.assumeTrue(worldSize == 8, "a hybrid cube mesh has eight GPUs");
        run(
                CudaP2pOptions.builder().optTopology(GpuTopology.Kind.HYBRID_CUBE_MESH),
                (group, manager) -> {
                    for (ScalarType type : AllReduceCases.TYPES) {
                        for (long count : new long[] {1, 1000, 65_000}) {
                            NDArray tensor =
                                    AllReduceCases.input(manager, type, count, group.rank(), count);
                            List<NDArray> parts = new ArrayList<>();
                            for (int rank = 0; rank < 8; rank++) {
                                parts.add(
                                        Torch.cast(
                                                AllReduceCases.input(
                                                        manager, type, count, rank, count),
                                                ScalarType.FLOAT32));
                            }
                            // The lower four, the upper four, then both, in float32.
                            NDArray lower =
                                    Torch.empty(manager, new Shape(count), ScalarType.FLOAT32);
                            NDArray upper =
                                    Torch.empty(manager, new Shape(count), ScalarType.FLOAT32);
                            Reductions.reduce(lower, parts.subList(0, 4), ReduceOp.SUM);
                            Reductions.reduce(upper, parts.subList(4, 8), ReduceOp.SUM);
                            NDArray expected = Torch.cast(lower.add(upper), type);
                            group.allReduce(tensor, ReduceOp.SUM).await();
                            assertArrayEquals(
                                    TestArrays.values(expected), TestArrays.values(tensor));
                        }
                    }
                    assertTrue(group.flightRecorder().dump().toJson().contains("mesh"));
                });
    }
}
