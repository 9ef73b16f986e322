// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static ai.djl.ndarray.types.DataType.INT64;
import static org.djlx.fusedops.FusedOpsErrorsTest.assertRejected;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.params.provider.Arguments.arguments;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(300)
class VariableAllToAllTest {

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 4, 8})
    void movesRows(int worldSize) {
        List<VdevCase> grid = VdevCase.grid();
        LocalRanks.run(worldSize, group -> grid.forEach(one -> one.check(group)));
    }

    /** Splits of this many experts fit into one call. */
    @Test
    void manyExperts() {
        VdevCase most = new VdevCase(ScalarType.FLOAT32, new Shape(4), 512, 4, 2, 3);
        LocalRanks.run(2, most::check);
    }

    /** A call's arrays on one rank; the defaults are right. */
    private static final class Call {

        private final ProcessGroup group;
        private final NDManager manager;
        private NDArray input;
        private NDArray output;
        private NDArray splits;
        private NDArray outSplits;

        Call(ProcessGroup group, NDManager manager) {
            this.group = group;
            this.manager = manager;
            input = manager.full(new Shape(6, 2), group.rank() + 1f);
            output = manager.zeros(new Shape(8, 2));
            splits = manager.create(new long[] {1, 2, 0, 3});
            outSplits = manager.zeros(new Shape(2, 4), INT64);
        }

        void dispatch(int align) {
            VariableAllToAll.allToAllVdev2d(group, output, input, splits, outSplits, align).await();
        }

        void combine(NDArray inSplitsOffsets) {
            VariableAllToAll.allToAllVdev2dOffset(group, output, input, inSplitsOffsets, outSplits)
                    .await();
        }

        void run() {
            VariableAllToAll.allToAllVdev(group, output, input, splits, outSplits).await();
        }

        NDArray longs(long... values) {
            return manager.create(values);
        }
    }

    private interface Misuse {
        void run(Call call);
    }

    /** Every rank throws the error, and the group works afterwards. */
    private static void assertAllRefuse(Misuse misuse, String text) {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        Call wrong = new Call(group, manager);
                        assertRejected(() -> misuse.run(wrong), text);
                        assertEquals(
                                0, wrong.output.toType(DataType.FLOAT32, false).sum().getFloat());
                        Call right = new Call(group, manager);
                        right.dispatch(0);
                        long[] expected =
                                group.rank() == 0
                                        ? new long[] {1, 1, 2, 2, 0, 1, 2, 4}
                                        : new long[] {0, 0, 3, 3, 0, 0, 0, 3};
                        assertArrayEquals(expected, right.outSplits.toLongArray());
                    }
                });
    }

    /** A rank's splits, or splits and offsets on the way back, and what is wrong with them. */
    static Stream<Arguments> wrongSplits() {
        return Stream.of(
                arguments(
                        1,
                        new long[] {1, -2, 0, 3},
                        "allToAllVdev2d: rank 1: split 1 is -2, but must be from 0 to 6"),
                arguments(
                        0,
                        new long[] {1, 2, 7, 0},
                        "rank 0: split 2 is 7, but must be from 0 to 6"),
                arguments(
                        1,
                        new long[] {1, 2, 2, 3},
                        "rank 1: the splits add up to 8 rows, but the input has 6"),
                arguments(
                        1,
                        new long[] {1, 2, 0, 3, 0, 1, 9, 4},
                        "rank 1: offset 3 is 4, but must be from 0 to 3"),
                arguments(
                        0,
                        new long[] {1, 2, 0, 3, 0, -1, 9, 3},
                        "rank 0: offset 1 is -1, but must be from 0 to 4"));
    }

    @ParameterizedTest
    @MethodSource("wrongSplits")
    void wrongSplitsAreRefusedOnAllRanks(int wrong, long[] values, String text) {
        assertAllRefuse(
                call -> {
                    boolean isWrong = call.group.rank() == wrong;
                    if (values.length > 4) {
                        long[] all = isWrong ? values : new long[] {1, 2, 0, 3, 0, 1, 9, 3};
                        call.combine(call.longs(all).reshape(2, 4));
                        return;
                    }
                    if (isWrong) {
                        call.splits = call.longs(values);
                    }
                    call.dispatch(0);
                },
                text);
    }

    @Test
    void hugeSplitsDoNotOverflow() {
        assertAllRefuse(
                call -> {
                    call.splits = call.longs(Long.MAX_VALUE, Long.MAX_VALUE);
                    call.outSplits = call.manager.zeros(new Shape(2, 2), INT64);
                    call.run();
                },
                "allToAllVdev: rank 0: split 0 is 9223372036854775807, but must be from 0 to 6");
    }

    @Test
    void outputsThatAreTooSmallAreRefusedOnAllRanks() {
        assertAllRefuse(
                call -> {
                    if (call.group.rank() == 1) {
                        call.output = call.manager.zeros(new Shape(5, 2));
                    }
                    call.dispatch(0);
                },
                "rank 1: the received rows and their padding take 6 rows, but the output has 5");
        // Two experts with 2 and 4 rows.
        assertAllRefuse(
                call -> call.dispatch(5),
                "rank 0: the received rows and their padding take 10 rows, but the output has 8");
    }

    @Test
    void alignmentsMustBeEqual() {
        assertAllRefuse(
                call -> call.dispatch(call.group.rank()),
                "majorAlign is 0 on rank 0, but 1 on rank 1");
    }

    /** What is changed before a call, and the error. */
    static Stream<Arguments> wrongArguments() {
        return Stream.of(
                change(call -> call.splits = null, "inSplits is null"),
                change(
                        call -> call.output = call.manager.zeros(new Shape(8, 3)),
                        "the same sizes after the first dimension"),
                change(
                        call -> call.output = call.manager.zeros(new Shape(8, 2), DataType.INT32),
                        "INT32"),
                change(
                        call -> call.output = call.manager.zeros(new Shape(2, 8)).swapAxes(0, 1),
                        "output is not contiguous"),
                change(call -> call.input = call.output, "the output and the input overlap"),
                change(call -> call.input = call.manager.create(1f), "must have a first dimension"),
                change(
                        call -> call.splits = call.manager.zeros(new Shape(4), DataType.INT32),
                        "must be INT64"),
                change(
                        call -> call.splits = call.manager.zeros(new Shape(3), INT64),
                        "inSplits has shape (3), but must have (4)"),
                change(
                        call -> call.outSplits = call.manager.zeros(new Shape(2, 3), INT64),
                        "outSplitsOffsets has shape (2, 3), but must have (2, a multiple of 2)"),
                change(
                        call -> call.outSplits = call.manager.zeros(new Shape(2, 1026), INT64),
                        "at most 1024 splits"),
                change(
                        call -> call.splits = call.outSplits.get(0),
                        "outSplitsOffsets and inSplits overlap"));
    }

    private static Arguments change(Misuse change, String text) {
        return arguments(change, text);
    }

    @ParameterizedTest
    @MethodSource("wrongArguments")
    void wrongArgumentsAreRefusedBeforeAnythingIsSent(Misuse change, String text) {
        assertAllRefuse(
                call -> {
                    change.run(call);
                    call.dispatch(0);
                },
                text);
    }

    @Test
    void wrongFormsAreRefusedBeforeAnythingIsSent() {
        assertAllRefuse(call -> call.dispatch(-1), "majorAlign is -1");
        assertAllRefuse(Call::run, "must have (2, 2)");
        assertAllRefuse(call -> call.combine(call.splits), "inSplitsOffsets has shape (4)");
    }

    @Test
    void inputsThatRequireGradientsAreRefused() {
        LocalRanks.run(
                1,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch");
                            GradientScope scope = GradientScope.open()) {
                        Call call = new Call(group, manager);
                        NDArray leaf = call.input;
                        leaf.setRequiresGradient(true);
                        call.input = leaf.mul(2);
                        assertRejected(() -> call.dispatch(0), "requires a gradient");
                        call.input = call.input.stopGradient();
                        call.dispatch(0);
                        assertEquals(24, call.output.sum().getFloat());
                        assertEquals(scope, GradientScope.current().orElseThrow());
                    }
                });
    }

    @Test
    void callsAreCounted() {
        try (UsageCounter usage = FusedOps.countUsage()) {
            LocalRanks.run(2, new VdevCase(ScalarType.INT8, new Shape(2), 0, 0, 3, 1)::check);
            assertEquals(2, usage.fallbacks("allToAllVdev", FallbackReason.NO_P2P_BUFFERS));
        }
    }
}
