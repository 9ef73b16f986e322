// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.CaseInputs;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.collectives.soak.RandomCall.Issued;
import org.djlx.collectives.soak.RandomCall.Kind;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.torch.ScalarType;

/** Random calls of operations that reduce. */
final class RandomReductions {

    private RandomReductions() {}

    static Map<String, Kind> all() {
        Map<String, Kind> kinds = new LinkedHashMap<>();
        kinds.put("allReduce", RandomReductions::allReduce);
        kinds.put("reduce", RandomReductions::reduce);
        kinds.put("reduceScatter", RandomReductions::reduceScatter);
        kinds.put("reduceScatterTensor", RandomReductions::reduceScatterTensor);
        kinds.put("reduceScatterInPlace", RandomReductions::reduceScatterInPlace);
        kinds.put("allReduceCoalesced", RandomReductions::allReduceCoalesced);
        kinds.put("reduceScatterCoalesced", RandomReductions::reduceScatterCoalesced);
        return kinds;
    }

    /** Compares a result; {@code from} is its place in the ranks' inputs. */
    private static void check(
            double[][] inputs, int from, PlacedArray result, ReduceOp op, ScalarType type) {
        result.checkedValues();
        CaseInputs.assertReduced(inputs, from, result.array(), op, type);
    }

    private static Issued allReduce(RandomCall call) {
        ReduceOp op = call.op();
        ScalarType type = call.type(OpType.ALL_REDUCE, op);
        Shape shape = call.shape();
        PlacedArray tensor = call.array(type, shape, call.rank(), 0);
        Work work = call.group().allReduce(tensor.array(), op);
        return new Issued(work, () -> check(call.values(type, shape, 0), 0, tensor, op, type));
    }

    private static Issued reduce(RandomCall call) {
        ReduceOp op = call.op();
        ScalarType type = call.type(OpType.REDUCE, op);
        Shape shape = call.shape();
        int root = call.anyRank();
        PlacedArray tensor = call.array(type, shape, call.rank(), 0);
        Work work = call.group().reduce(tensor.array(), root, op);
        return new Issued(
                work,
                () -> {
                    if (call.rank() == root) {
                        check(call.values(type, shape, 0), 0, tensor, op, type);
                    } else {
                        assertArrayEquals(
                                call.values(type, shape, call.rank(), 0), tensor.checkedValues());
                    }
                });
    }

    private static Issued reduceScatter(RandomCall call) {
        ReduceOp op = call.op();
        ScalarType type = call.type(OpType.REDUCE_SCATTER, op);
        Shape shape = call.shape();
        List<NDArray> inputs = new ArrayList<>();
        for (int part = 0; part < call.worldSize(); part++) {
            inputs.add(call.array(type, shape, call.rank(), part).array());
        }
        PlacedArray output = call.output(type, shape);
        Work work = call.group().reduceScatter(output.array(), inputs, op);
        return new Issued(
                work, () -> check(call.values(type, shape, call.rank()), 0, output, op, type));
    }

    private static Shape whole(RandomCall call, Shape part) {
        return new Shape(call.worldSize()).addAll(part);
    }

    private static Issued reduceScatterTensor(RandomCall call) {
        ReduceOp op = call.op();
        ScalarType type = call.type(OpType.REDUCE_SCATTER_TENSOR, op);
        Shape shape = call.shape();
        Shape whole = whole(call, shape);
        PlacedArray input = call.array(type, whole, call.rank(), 0);
        PlacedArray output = call.output(type, shape);
        Work work = call.group().reduceScatterTensor(output.array(), input.array(), op);
        call.release(input);
        int from = call.rank() * (int) shape.size();
        return new Issued(work, () -> check(call.values(type, whole, 0), from, output, op, type));
    }

    /** The output is this rank's part of the input; the others' parts stay as they are. */
    private static Issued reduceScatterInPlace(RandomCall call) {
        ReduceOp op = call.op();
        ScalarType type = call.type(OpType.REDUCE_SCATTER_TENSOR, op);
        int count = 1 + (int) call.shape().size();
        Shape whole = new Shape((long) call.worldSize() * count);
        NDArray input =
                TestArrays.of(
                        call.manager(), type, whole, call.values(type, whole, call.rank(), 0));
        int from = call.rank() * count;
        NDArray part = input.get(from + ":" + (from + count));
        Work work = call.group().reduceScatterTensor(part, input, op);
        return new Issued(
                work,
                () -> {
                    double[][] inputs = call.values(type, whole, 0);
                    CaseInputs.assertReduced(inputs, from, part, op, type);
                    double[] after = TestArrays.values(input);
                    for (int i = 0; i < after.length; i++) {
                        if (i / count != call.rank()) {
                            assertEquals(inputs[call.rank()][i], after[i], "another rank's part");
                        }
                    }
                });
    }

    private static Issued allReduceCoalesced(RandomCall call) {
        ReduceOp op = call.op();
        List<PlacedArray> tensors = new ArrayList<>();
        List<Runnable> checks = new ArrayList<>();
        for (int i = 1 + call.common().nextInt(8); i > 0; i--) {
            ScalarType type = call.type(OpType.ALL_REDUCE, op);
            Shape shape = call.shape();
            int part = i;
            PlacedArray tensor = call.array(type, shape, call.rank(), part);
            tensors.add(tensor);
            checks.add(() -> check(call.values(type, shape, part), 0, tensor, op, type));
        }
        Work work =
                call.group()
                        .allReduceCoalesced(tensors.stream().map(PlacedArray::array).toList(), op);
        return new Issued(work, () -> checks.forEach(Runnable::run));
    }

    private static Issued reduceScatterCoalesced(RandomCall call) {
        ReduceOp op = call.op();
        List<NDArray> outputs = new ArrayList<>();
        List<NDArray> inputs = new ArrayList<>();
        List<Runnable> checks = new ArrayList<>();
        for (int i = 1 + call.common().nextInt(8); i > 0; i--) {
            ScalarType type = call.type(OpType.REDUCE_SCATTER_TENSOR, op);
            Shape shape = call.shape();
            Shape whole = whole(call, shape);
            int part = i;
            PlacedArray output = call.output(type, shape);
            inputs.add(call.array(type, whole, call.rank(), part).array());
            outputs.add(output.array());
            int from = call.rank() * (int) shape.size();
            checks.add(() -> check(call.values(type, whole, part), from, output, op, type));
        }
        Work work = call.group().reduceScatterCoalesced(outputs, inputs, op);
        return new Issued(work, () -> checks.forEach(Runnable::run));
    }
}
