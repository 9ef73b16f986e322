// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.EnumSet;
import java.util.Set;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;

/** A backend's supported combinations, and the errors derived from them. */
class SupportTest {

    private static final Support SUPPORT =
            Support.builder()
                    .addMoves(Set.of(ScalarType.FLOAT32), OpType.BROADCAST)
                    .addReductions(
                            EnumSet.of(ScalarType.FLOAT32, ScalarType.INT32, ScalarType.BOOL),
                            EnumSet.of(ReduceOp.Kind.SUM, ReduceOp.Kind.AVG, ReduceOp.Kind.BAND),
                            OpType.ALL_REDUCE)
                    .addPlain(OpType.BARRIER)
                    .build();

    /** Declares, and does nothing. */
    private static final class Declaring extends Backend {

        @Override
        public String name() {
            return "declaring";
        }

        @Override
        public Support support() {
            return SUPPORT;
        }

        @Override
        public Device device() {
            return Device.cpu();
        }

        @Override
        public void close() {}
    }

    @Test
    void supportsOnlyWhatIsDeclared() {
        assertTrue(SUPPORT.supports(OpType.BARRIER));
        assertFalse(SUPPORT.supports(OpType.SEND));
        assertTrue(SUPPORT.supports(OpType.BROADCAST, ScalarType.FLOAT32, null));
        assertFalse(SUPPORT.supports(OpType.BROADCAST, ScalarType.INT32, null));
        assertTrue(SUPPORT.supports(OpType.ALL_REDUCE, ScalarType.INT32, ReduceOp.SUM));
        assertFalse(SUPPORT.supports(OpType.ALL_REDUCE, ScalarType.INT32, ReduceOp.MAX));
        assertEquals(
                EnumSet.of(ScalarType.FLOAT32),
                SUPPORT.types(OpType.ALL_REDUCE, ReduceOp.Kind.AVG));
        assertEquals(
                EnumSet.of(ScalarType.INT32, ScalarType.BOOL),
                SUPPORT.types(OpType.ALL_REDUCE, ReduceOp.Kind.BAND));
    }

    @Test
    void errorsSayWhatIsPossible() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch");
                Backend backend = new Declaring()) {
            NDArray floats = manager.ones(new Shape(1));
            NDArray ints = TestArrays.of(manager, ScalarType.INT32, new Shape(1), 1);
            backend.check(OpType.ALL_REDUCE, floats, Torch.scalarType(floats), ReduceOp.AVG);
            assertMessage(
                    IllegalArgumentException.class,
                    () -> backend.check(OpType.BROADCAST, ints, Torch.scalarType(ints), null),
                    "broadcast: backend 'declaring' does not support INT32; supported types:"
                            + " [FLOAT32]");
            assertMessage(
                    IllegalArgumentException.class,
                    () ->
                            backend.check(
                                    OpType.ALL_REDUCE, ints, Torch.scalarType(ints), ReduceOp.AVG),
                    "allReduce: AVG is not defined for INT32; supported types: [FLOAT32]");
            assertMessage(
                    IllegalArgumentException.class,
                    () ->
                            backend.check(
                                    OpType.ALL_REDUCE, ints, Torch.scalarType(ints), ReduceOp.MIN),
                    "allReduce: backend 'declaring' does not support INT32 with MIN; supported"
                            + " types: []");
            assertMessage(
                    UnsupportedOperationException.class,
                    () -> backend.check(OpType.SEND, floats, Torch.scalarType(floats), null),
                    "backend 'declaring' does not support send");
        }
    }

    private static void assertMessage(
            Class<? extends Exception> type, Runnable call, String message) {
        assertEquals(message, assertThrows(type, call::run).getMessage());
    }

    @Test
    void reduceOpsAreValues() {
        assertEquals(ReduceOp.premulSum(0.5), ReduceOp.premulSum(0.5));
        assertEquals(ReduceOp.premulSum(0.5).hashCode(), ReduceOp.premulSum(0.5).hashCode());
        assertNotEquals(ReduceOp.premulSum(0.5), ReduceOp.premulSum(0.25));
        assertNotEquals(ReduceOp.premulSum(1), ReduceOp.SUM);
        assertEquals("PREMUL_SUM(0.5)", ReduceOp.premulSum(0.5).toString());
        assertEquals("BXOR", ReduceOp.BXOR.toString());
    }
}
