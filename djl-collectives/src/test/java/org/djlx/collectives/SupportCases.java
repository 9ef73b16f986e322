// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.djlx.collectives.CaseInputs.OPS;
import static org.djlx.collectives.CaseInputs.assertReduced;
import static org.djlx.collectives.CaseInputs.inputs;
import static org.djlx.collectives.CaseInputs.seed;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.djlx.collectives.ContractCases.Case;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** A backend supports what it declares, for every element type, and rejects the rest. */
final class SupportCases {

    private SupportCases() {}

    static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("declaredReductions", SupportCases::declaredReductions);
        cases.put("declaredMoves", SupportCases::declaredMoves);
        cases.put("p2pBuffersOrAnError", SupportCases::p2pBuffersOrAnError);
        return cases;
    }

    private static void p2pBuffersOrAnError(ProcessGroup group, NDManager manager) {
        if (group.isP2pAvailable()) {
            P2pBuffers buffers = group.requireP2pBuffers();
            assertSame(group.p2pBuffers().orElseThrow(), buffers);
            if (!group.device().isGpu()) {
                assertThrows(
                        UnsupportedOperationException.class,
                        () -> buffers.onGroupStream(stream -> {}));
            }
            return;
        }
        String message =
                assertThrows(IllegalStateException.class, group::requireP2pBuffers).getMessage();
        assertTrue(message.contains("'" + group.backendName() + "'"), message);
    }

    private static Support support(ProcessGroup group) {
        return Backends.get(group.backendName()).support();
    }

    private static void declaredReductions(ProcessGroup group, NDManager manager) {
        Support support = support(group);
        Shape shape = new Shape(5);
        for (ScalarType type : ScalarType.values()) {
            for (ReduceOp op : OPS) {
                if (support.supports(OpType.ALL_REDUCE, type, op)) {
                    NDArray tensor = TestArrays.random(manager, type, shape, seed(group.rank(), 1));
                    double[][] inputs = inputs(group, manager, type, shape, 1);
                    group.allReduce(tensor, op).await();
                    assertReduced(inputs, 0, tensor, op, type);
                } else {
                    NDArray tensor = Torch.empty(manager, shape, type);
                    Exception e =
                            assertThrows(
                                    IllegalArgumentException.class,
                                    () -> group.allReduce(tensor, op));
                    assertTrue(e.getMessage().contains(type.name()), e.getMessage());
                }
            }
        }
    }

    /** Bytes of every type go through as they are, from and to tensors that are not contiguous. */
    private static void declaredMoves(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        for (ScalarType type : ScalarType.values()) {
            if (!support(group).supports(OpType.ALL_GATHER, type, null)) {
                continue;
            }
            NDArray input = pattern(manager, type, group.rank());
            List<NDArray> outputs =
                    IntStream.range(0, n)
                            .mapToObj(i -> Torch.empty(manager, new Shape(3, 2), type))
                            .map(NDArray::transpose)
                            .toList();
            group.allGather(outputs, input.transpose()).await();
            for (int rank = 0; rank < n; rank++) {
                NDArray straight = Torch.empty(manager, new Shape(2, 3), type);
                Torch.copy(straight, outputs.get(rank));
                NDArray expected = Torch.empty(manager, new Shape(2, 3), type);
                Torch.copy(expected, pattern(manager, type, rank).transpose());
                assertArrayEquals(bytes(manager, expected), bytes(manager, straight), type::name);
            }
        }
    }

    /** Two columns of elements whose bytes all differ, from rank to rank as well. */
    private static NDArray pattern(NDManager manager, ScalarType type, int rank) {
        NDArray array = Torch.empty(manager, new Shape(3, 2), type);
        int count = 6 * type.itemSize();
        byte[] bytes = new byte[count];
        for (int i = 0; i < count; i++) {
            bytes[i] = (byte) (type == ScalarType.BOOL ? (i + rank) % 3 % 2 : i + 7 * rank + 1);
        }
        try (NDArray view = TestArrays.bytes(manager, array)) {
            Torch.copy(view, manager.create(bytes));
        }
        return array;
    }

    private static byte[] bytes(NDManager manager, NDArray array) {
        try (NDArray view = TestArrays.bytes(manager, array)) {
            return view.toByteArray();
        }
    }
}
