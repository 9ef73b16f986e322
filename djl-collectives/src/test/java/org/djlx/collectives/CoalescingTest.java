// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The agreed arguments of coalesced operations. */
@Timeout(60)
class CoalescingTest {

    private static List<NDArray> ones(NDManager manager, int... sizes) {
        return Arrays.stream(sizes).mapToObj(size -> manager.ones(new Shape(size))).toList();
    }

    /** As many elements, and sizes for which sums of products with powers of 31 are equal. */
    @Test
    void hashDistinguishesShapesWithEqualPolynomials() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            List<NDArray> tensors =
                                    group.rank() == 0
                                            ? ones(manager, 1, 33, 1)
                                            : ones(manager, 2, 1, 32);
                            Work work = group.allReduceCoalesced(tensors, ReduceOp.SUM);
                            assertThrows(CollectiveMismatchException.class, work::await);
                            assertArrayEquals(
                                    new double[] {1}, TestArrays.values(tensors.get(group.rank())));
                            group.barrier().await();
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Fewer tensors on one rank: the next operation is the next one on all. */
    @Test
    void ranksStayInStepAfterDifferentNumbersOfTensors() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            List<NDArray> tensors =
                                    group.rank() == 0
                                            ? ones(manager, 2, 2)
                                            : ones(manager, 1, 1, 2);
                            Work work = group.allReduceCoalesced(tensors, ReduceOp.SUM);
                            assertThrows(CollectiveMismatchException.class, work::await);
                            NDArray next = manager.ones(new Shape(3));
                            group.allReduce(next, ReduceOp.SUM).await();
                            assertArrayEquals(new double[] {2, 2, 2}, TestArrays.values(next));
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
