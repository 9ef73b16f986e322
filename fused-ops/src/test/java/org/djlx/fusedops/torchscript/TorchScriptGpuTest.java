// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.torchscript;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.TranslateException;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.pool.RankPool;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.NativeVersions;
import org.djlx.nativeops.torch.InstalledTorch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** TorchScript models on two ranks with GPUs. */
@Tag("gpu")
@Timeout(300)
class TorchScriptGpuTest {

    private interface Body {
        void run(ScriptedMlp model, NDManager manager) throws Exception;
    }

    /** DJL's native code crashes when it loads a model with a libtorch of another version. */
    private static void requireOwnLibtorch() {
        assumeFalse(InstalledTorch.isUsed(), "models in TorchScript crash on an installed PyTorch");
        String own = Engine.getEngine("PyTorch").getVersion();
        String there = NativeVersions.query().get("libtorch");
        assumeTrue(there.equals(own), () -> "DJL is made for libtorch " + own + ", not " + there);
    }

    /** Runs code on both ranks, which may share a GPU. */
    private static void run(Body body) throws Exception {
        P2pRanks.require();
        requireOwnLibtorch();
        TorchOperators.register();
        List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", 2, P2pRanks.options().build());
        try (RankPool<ScriptedMlp.Task, Void> pool =
                RankPool.start("mlp", groups, ScriptedMlp::new)) {
            pool.submit((group, model) -> rank(group, model, body)).get();
        }
    }

    private static void rank(ProcessGroup group, ScriptedMlp model, Body body) {
        P2pRanks.run(
                group,
                () -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device())) {
                        body.run(model, manager);
                    } catch (Exception e) {
                        throw new IllegalStateException(e);
                    }
                });
    }

    @Test
    void aDividedMlpEqualsTheUndividedMlp() throws Exception {
        run(
                (model, manager) -> {
                    for (int i = 0; i < 5; i++) { // The interpreter optimises it meanwhile.
                        NDList outputs = model.call("forward", ScriptedMlp.input(manager));
                        assertEquals(manager.getDevice(), outputs.head().getDevice());
                        ScriptedMlp.check(outputs);
                    }
                });
    }

    @Test
    void reducesByOperators() throws Exception {
        double[] expected = {3, 1.5, 2, 1, 2}; // of 1 and 2, by c10d's numbers
        // All reduce ops except SUM and AVG use NCCL, which needs a GPU for each rank.
        int operators = P2pRanks.isShared() ? 2 : expected.length;
        run(
                (model, manager) -> {
                    for (int op = 0; op < operators; op++) {
                        NDArray x = manager.ones(new Shape(6));
                        double[] all = new double[6];
                        Arrays.fill(all, expected[op]);
                        NDArray number = onCpu(manager, op);
                        ScriptedMlp.check(all, model.call("reduce", x, number).head());
                    }
                });
    }

    /**
     * Returns a number that the model reads. On a GPU, reading would wait for the rank's stream.
     */
    private static NDArray onCpu(NDManager manager, int number) {
        return manager.newSubManager(Device.cpu()).create(number);
    }

    @Test
    void aRefusalLeavesTheRanks() throws Exception {
        run(
                (model, manager) -> {
                    NDArray a = manager.ones(new Shape(2, 3));
                    NDArray b = manager.ones(new Shape(4, 5));
                    String message =
                            assertThrows(
                                            IllegalArgumentException.class,
                                            () -> model.call("multiply", a, b))
                                    .getMessage();
                    assertTrue(message.contains("cuda_p2p::all_gather_matmul"), message);
                    ScriptedMlp.check(model.call("forward", ScriptedMlp.input(manager)));
                });
    }

    @Test
    void manyCallsKeepNothing() throws Exception {
        run(
                (model, manager) -> {
                    NDArray op = onCpu(manager, 0);
                    for (int i = 0; i < 10_000; i++) { // 160 GiB, if the results stayed
                        try (NDManager own = manager.newSubManager()) {
                            NDArray x = own.zeros(new Shape(4 << 20), DataType.FLOAT32);
                            model.call("reduce", x, op);
                        }
                    }
                    ScriptedMlp.check(model.call("forward", ScriptedMlp.input(manager)));
                });
    }

    /** Each rank's model on a GPU of its own, as DJL loads them. */
    @Test
    void isLoadedAndAskedByDjl() throws Exception {
        GpuTests.require(2, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        requireOwnLibtorch();
        Criteria<NDList, NDList> criteria =
                Criteria.builder()
                        .setTypes(NDList.class, NDList.class)
                        .optEngine("PyTorch-P2P")
                        .optDevice(Device.gpu(0))
                        .optModelPath(ScriptedMlp.directory(2))
                        .build();
        try (ZooModel<NDList, NDList> model = criteria.loadModel();
                Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            for (int i = 0; i < 5; i++) {
                NDList outputs = predictor.predict(new NDList(ScriptedMlp.input(manager)));
                assertEquals(Device.gpu(0), outputs.head().getDevice());
                ScriptedMlp.check(outputs);
                assertThrows(
                        TranslateException.class,
                        () -> predictor.predict(new NDList(manager.ones(new Shape(8, 7)))));
            }
        }
    }
}
