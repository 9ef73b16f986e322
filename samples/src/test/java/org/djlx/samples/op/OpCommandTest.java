// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** {@code op} on the CPU: its operations, options, and ranks that are processes. */
class OpCommandTest extends OpCases {

    OpCommandTest() {
        super("shm", 3);
    }

    @ParameterizedTest
    @CsvSource({"BAND, 4", "BOR, 7", "BXOR, 7"})
    void bits(String op, int expected) {
        int[] values = {6, 5, 4};
        for (int rank = 0; rank < ranks(); rank++) {
            write("in-" + rank + ".npz", op().manager().create(new int[] {values[rank]}));
        }
        runs("allReduce --reduce " + op + " --input in-{rank}.npz --output out-{rank}.npz");
        NDArray result = read("out-2.npz").get(0);
        assertEquals(DataType.INT32, result.getDataType());
        assertEquals(expected, result.getInt(0));
    }

    @ParameterizedTest
    @EnumSource(
            value = DataType.class,
            names = {"FLOAT64", "FLOAT32", "FLOAT16", "INT64", "INT32", "INT8", "UINT8", "BOOLEAN"})
    void typesAreKept(DataType type) {
        Shape shape = new Shape(2, 2);
        double[] values = type == DataType.BOOLEAN ? new double[] {0, 1, 1, 0} : null;
        NDArray array = array(shape, i -> values == null ? 3 * i : values[i]);
        write("in.npz", array.toType(type, false));
        runs("broadcast --input in.npz --output out-{rank}.npz");
        NDArray result = read("out-2.npz").get(0);
        assertEquals(type, result.getDataType());
        check(result, shape, i -> values == null ? 3 * i : values[i]);
    }

    @ParameterizedTest
    @CsvSource({
        "float64, FLOAT64, 0.1",
        "float32, FLOAT32, 0.10000000149011612",
        "float16, FLOAT16, 0.0999755859375",
        "bfloat16, FLOAT32, 0.10009765625",
        "int64, INT64, 0",
        "int32, INT32, 0",
        "int8, INT8, 0",
        "uint8, UINT8, 0",
        "bool, BOOLEAN, 1"
    })
    void typesAreConverted(String dtype, DataType type, double expected) {
        write("in.npz", op().manager().create(new double[] {0.1}));
        runs("broadcast --input in.npz --output out-{rank}.npz --dtype " + dtype);
        NDArray result = read("out-2.npz").get(0);
        assertEquals(type, result.getDataType());
        assertEquals(expected, result.toType(DataType.FLOAT64, false).getDouble(0));
        assertTrue(op().out().contains(" " + dtype + " "), op()::out);
    }

    @Test
    void emptyArrays() {
        write("in.npz", op().manager().create(new Shape(0, 3)));
        runs("allGatherIntoTensor --input in.npz --output out-{rank}.npz");
        assertEquals(new Shape(0, 3), read("out-1.npz").get(0).getShape());
    }

    /** Rows of the table, with one blank between cells. */
    private List<String> rows() {
        List<String> lines = op().out().lines().map(line -> line.replaceAll(" +", " ")).toList();
        return lines.subList(2, lines.size());
    }

    @Test
    void saysWhatEachRankHasComputed() {
        for (int rank = 0; rank < ranks(); rank++) {
            int self = rank;
            write("in-" + rank + ".npz", array(new Shape(2, 3), i -> self + i / 2.0));
        }
        runs("allReduce --input in-{rank}.npz");
        List<String> rows = rows();
        assertEquals(3, rows.size(), op()::out);
        assertEquals("2 arr_0 (2, 3) float32 3.0 4.5 6.0 7.5 ... -", rows.get(2).strip());
    }

    @ParameterizedTest
    @CsvSource({
        "float64, 0.1 1.0",
        "float32, 0.1 1.0",
        "bfloat16, 0.100097656 1.0",
        "int64, 0 1",
        "uint8, 0 1",
        "bool, 1 1"
    })
    void saysTheFirstValuesOfEveryType(String dtype, String values) {
        write("in.npz", op().manager().create(new double[] {0.1, 1}));
        runs("broadcast --input in.npz --dtype " + dtype);
        assertEquals("1 arr_0 (2) " + dtype + " " + values + " -", rows().get(1).strip());
    }

    @Test
    void saysThatAResultIsEmpty() {
        write("in.npz", op().manager().create(new Shape(0, 3)));
        runs("allGatherIntoTensor --input in.npz");
        assertEquals("0 arr_0 (0, 3) float32 -", rows().get(0).strip());
    }

    @Test
    void namedArrays() {
        NDArray x = array(new Shape(1), i -> 1);
        NDArray y = array(new Shape(1), i -> 2);
        NDArray z = array(new Shape(1), i -> 3);
        x.setName("x");
        y.setName("y");
        z.setName("z");
        write("in.npz", x, y, z);
        runs("broadcast --array y --input in.npz --output y-{rank}.npz");
        check(read("y-2.npz").get(0), new Shape(1), i -> 2);
        runs("reduceScatter --array z --array x --array x --input in.npz --output r-{rank}.npz");
        check(read("r-0.npz").get(0), new Shape(1), i -> 9);
        check(read("r-1.npz").get(0), new Shape(1), i -> 3);
    }

    @Test
    void theInputMayBeReplaced() {
        for (int rank = 0; rank < ranks(); rank++) {
            write("x-" + rank + ".npz", array(new Shape(2), i -> i + 1));
        }
        runs("allReduce --input x-{rank}.npz --output x-{rank}.npz");
        check(read("x-1.npz").get(0), new Shape(2), i -> 3 * i + 3);
    }

    @Test
    @Tag("slow")
    void ranksMayBeProcesses() {
        for (int rank = 0; rank < ranks(); rank++) {
            int self = rank;
            write("in-" + rank + ".npz", array(new Shape(4), i -> value(self, i)));
        }
        runs("allReduce --processes --input in-{rank}.npz --output out-{rank}.npz");
        for (int rank = 0; rank < ranks(); rank++) {
            NDList results = read("out-" + rank + ".npz");
            check(results.get(0), new Shape(4), i -> value(0, i) + value(1, i) + value(2, i));
        }
    }

    @Test
    @Tag("slow")
    void oneProcessThatCannotReadEndsTheJob() {
        write("in-0.npz", array(new Shape(4), i -> 1));
        write("in-2.npz", array(new Shape(4), i -> 1));
        assertEquals(
                2, op().run("allReduce", "--processes", "--input", "in-{rank}.npz"), op()::err);
    }

    @ParameterizedTest
    @ValueSource(strings = {"nccl", "cuda_p2p"})
    void saysWhyThereIsNoGpu(String backend) {
        Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        assumeTrue(cause != null, "there are GPUs");
        assertEquals(1, op().run("barrier", "--backend", backend));
        assertTrue(
                op().err().startsWith("error: no GPU can be used: " + cause.getMessage()),
                op()::err);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "",
                "send --input in.npz",
                "allReduce",
                "allReduce --input in.npz --ranks 0",
                "allReduce --input in.npz --backend none",
                "allReduce --input in.npz --dtype float8",
                "allReduce --input in.npz --reduce TOTAL",
                "allReduce --input in.npz --reduce PREMUL_SUM",
                "allReduce --input in.npz --factor 2",
                "allReduce --input in.npz --root 1",
                "allReduce --input in.npz --dim 1",
                "allReduce --input in.npz --b in.npz",
                "allReduce --input in.npz --split-b 0",
                "allReduce --input in-{rank}.npz --split 0",
                "allReduce --input in.npz --output out.npz",
                "allReduce --input in.npz --output missing/{rank}.npz",
                "allReduce --input missing.npz",
                "allReduce --input in-{rank}.npz",
                "allReduce --processes --input in.npz --output out.npz",
                "reduce --input in.npz --root 3",
                "reduce --input in.npz --root -1",
                "barrier --input in.npz",
                "barrier --output out-{rank}.npz",
                "allGather --reduce SUM --input in.npz",
                "allGatherMatmul --input in.npz",
                "allGatherMatmul --input in.npz --b missing.npz"
            })
    void badArgumentsGiveOneErrorAndAHint(String args) {
        write("in.npz", array(new Shape(3, 3), i -> i));
        write("in-0.npz", array(new Shape(3, 3), i -> i));
        assertEquals(2, args.isEmpty() ? op().run() : op().run(args.split(" ")), op()::err);
        assertEquals(2, op().err().lines().count(), op()::err);
        assertTrue(op().err().startsWith("error: "), op()::err);
        assertEquals("", op().out());
    }
}
