// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.sun.jna.ptr.PointerByReference;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.nativeops.cuda.Gpus;
import org.djlx.nativeops.host.NativeMemory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("gpu")
class TorchCudaTest {

    private static final Device GPU = Device.gpu(0);
    private static final int NON_BLOCKING = 1;

    private NDManager manager;
    private NDManager host;

    @BeforeEach
    void open() {
        Gpus.require(1);
        manager = NDManager.newBaseManager(GPU, "PyTorch");
        host = NDManager.newBaseManager(Device.cpu(), "PyTorch");
    }

    @AfterEach
    void close() {
        if (manager != null) {
            manager.close();
            host.close();
        }
    }

    private NDArray matrix(ScalarType type, int rows, int columns) {
        return Torch.cast(manager.arange((float) rows * columns).reshape(rows, columns), type);
    }

    private float[] values(NDArray array) {
        NDArray copy = Torch.empty(host, new Shape(Torch.sizes(array)), ScalarType.FLOAT32);
        Torch.copy(copy, array);
        return copy.toFloatArray();
    }

    @Test
    void viewsKeepTheirMemoryOnTheGpu() {
        NDArray array = matrix(ScalarType.BFLOAT16, 4, 8);
        assertEquals(GPU, Torch.device(array));
        assertEquals(ScalarType.BFLOAT16, Torch.scalarType(array));
        AtomicInteger freed = new AtomicInteger();
        NativeMemory memory =
                new NativeMemory(Torch.dataPointer(array), 64, GPU, freed::incrementAndGet);
        NDArray view = Torch.view(host, memory, 16, new Shape(2, 8), ScalarType.BFLOAT16);
        memory.close();
        assertEquals(GPU, Torch.device(view));
        assertEquals(memory.address() + 16, Torch.dataPointer(view));
        assertArrayEquals(
                new float[] {8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23},
                values(view));
        assertEquals(0, freed.get());
        view.close();
        assertEquals(1, freed.get());
    }

    @Test
    void multipliesAsTheCpuDoes() {
        // Small integers: exact in every type, so that the order of the sums does not matter.
        for (ScalarType type :
                new ScalarType[] {
                    ScalarType.FLOAT64, ScalarType.FLOAT32, ScalarType.FLOAT16, ScalarType.BFLOAT16
                }) {
            NDArray a = Torch.cast(matrix(ScalarType.FLOAT32, 3, 5).mod(4), type);
            NDArray b = Torch.cast(matrix(ScalarType.FLOAT32, 2, 5).mod(3), type).transpose();
            NDArray out = Torch.empty(manager, new Shape(2, 3), type).transpose();
            Torch.mmOut(out, a, b);
            float[] expected = new float[6];
            for (int i = 0; i < 3; i++) {
                for (int j = 0; j < 2; j++) {
                    for (int k = 0; k < 5; k++) {
                        expected[2 * i + j] += (5 * i + k) % 4 * ((5 * j + k) % 3);
                    }
                }
            }
            assertArrayEquals(expected, values(out), type::name);
        }
    }

    @Test
    void attentionOfLastIsCausal() {
        int[][][] lengths = {
            {{1}, {300}},
            {{70}, {70}},
            {{70}, {300}},
            {{200}, {201}},
            {{70, 5, 1, 130}, {70, 5, 1, 130}}, // beginnings
            {{1, 70, 33, 200}, {300, 70, 34, 201}},
            {{1, 1}, {20, 30}}
        };
        for (int[][] each : lengths) {
            for (ScalarType type : new ScalarType[] {ScalarType.FLOAT16, ScalarType.BFLOAT16}) {
                checkPackedAttention(each[0], each[1], -1, 0, type);
                checkPackedAttention(each[0], each[1], 19, 0, type);
            }
        }
    }

    @Test
    void attentionWithinSeesBothDirections() {
        for (int[] each : new int[][] {{1}, {70}, {70, 5, 1, 130}, {300, 300}}) {
            for (ScalarType type : new ScalarType[] {ScalarType.FLOAT16, ScalarType.BFLOAT16}) {
                checkPackedAttention(each, each, -1, -1, type);
                checkPackedAttention(each, each, 20, 20, type);
            }
        }
    }

    /**
     * Against float64, with 2 heads of queries for each of 3 of keys; {@code before} and {@code
     * after} its own key, a query attends to so many others, -1 for all.
     */
    private void checkPackedAttention(
            int[] queries, int[] keys, int before, int after, ScalarType type) {
        int size = 32;
        int allQueries = Arrays.stream(queries).sum();
        int allKeys = Arrays.stream(keys).sum();
        NDArray query = random(1, new Shape(1, 6, allQueries, size), type);
        NDArray key = random(2, new Shape(1, allKeys, 3, size), type).transpose(0, 2, 1, 3);
        NDArray value = random(3, new Shape(1, 3, allKeys, size), type);
        PackedSequences packed = new PackedSequences(manager, queries, keys);
        NDArray output =
                after == 0
                        ? Torch.attentionOfLast(query, key, value, packed, before + 1)
                        : Torch.attentionWithin(query, key, value, packed, after);
        assertEquals(query.getShape(), output.getShape());
        float[] q = values(query);
        float[] k = values(key);
        float[] v = values(value);
        float[] actual = values(output);
        float[] expected = new float[actual.length];
        for (int head = 0; head < 6; head++) {
            int firstQuery = head * allQueries;
            int firstKey = head / 2 * allKeys;
            for (int of = 0; of < queries.length; of++) {
                for (int i = 0; i < queries[of]; i++) {
                    int row = (firstQuery + i) * size;
                    double[] sums = new double[size];
                    double all = 0;
                    int own = keys[of] - queries[of] + i;
                    int first = before < 0 ? 0 : Math.max(0, own - before);
                    int last = after < 0 ? keys[of] - 1 : Math.min(keys[of] - 1, own + after);
                    for (int j = first; j <= last; j++) {
                        int other = (firstKey + j) * size;
                        double score = 0;
                        for (int e = 0; e < size; e++) {
                            score += (double) q[row + e] * k[other + e];
                        }
                        double share = Math.exp(score / Math.sqrt(size));
                        all += share;
                        for (int e = 0; e < size; e++) {
                            sums[e] += share * v[other + e];
                        }
                    }
                    for (int e = 0; e < size; e++) {
                        expected[row + e] = (float) (sums[e] / all);
                    }
                }
                firstQuery += queries[of];
                firstKey += keys[of];
            }
        }
        float rounding = type == ScalarType.FLOAT16 ? 1f / (1 << 11) : 1f / (1 << 8);
        String text = Arrays.toString(queries) + " of " + Arrays.toString(keys);
        assertArrayEquals(
                expected, actual, 2 * rounding, text + ", " + before + ", " + after + ", " + type);
    }

    private NDArray random(int seed, Shape shape, ScalarType type) {
        Random random = new Random(seed);
        float[] values = new float[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = 2 * random.nextFloat() - 1;
        }
        return Torch.cast(manager.create(values, shape), type);
    }

    @Test
    void inPlaceOperatorsTakeOtherTypes() {
        NDArray acc = manager.create(new float[] {1, 8, 3});
        NDArray other = Torch.cast(manager.create(new float[] {4, 2, 6}), ScalarType.BFLOAT16);
        TorchInPlace.add(acc, other);
        assertArrayEquals(new float[] {5, 10, 9}, values(acc));
        TorchInPlace.mul(acc, other);
        assertArrayEquals(new float[] {20, 20, 54}, values(acc));
        TorchInPlace.div(acc, 4);
        assertArrayEquals(new float[] {5, 5, 13.5f}, values(acc));
        TorchInPlace.max(acc, other);
        assertArrayEquals(new float[] {5, 5, 13.5f}, values(acc));
        TorchInPlace.min(acc, other);
        assertArrayEquals(new float[] {4, 2, 6}, values(acc));
    }

    @Test
    void devicesMustAgree() {
        NDArray onGpu = manager.zeros(new Shape(2, 2));
        NDArray onHost = host.zeros(new Shape(2, 2));
        var e = assertThrows(IllegalArgumentException.class, () -> TorchInPlace.add(onGpu, onHost));
        assertEquals("the devices differ: acc is on gpu(0), other on cpu()", e.getMessage());
        assertThrows(IllegalArgumentException.class, () -> Torch.mmOut(onGpu, onGpu, onHost));
        assertThrows(IllegalArgumentException.class, () -> Torch.mmOut(onHost, onGpu, onGpu));
    }

    @Test
    void streamGuardsNest() throws InterruptedException {
        manager.zeros(new Shape(1));
        long before = Torch.currentCudaStream(GPU);
        long stream = newStream();
        assertNotEquals(before, stream);
        CudaStreamGuard guard = Torch.cudaStreamGuard(GPU, stream);
        assertEquals(stream, Torch.currentCudaStream(GPU));
        CudaStreamGuard inner = Torch.cudaStreamGuard(GPU, 0);
        assertEquals(0, Torch.currentCudaStream(GPU));
        inner.close();
        assertEquals(stream, Torch.currentCudaStream(GPU));
        Throwable[] failure = new Throwable[1];
        Thread other =
                new Thread(
                        () -> failure[0] = assertThrows(IllegalStateException.class, guard::close));
        other.start();
        other.join();
        assertTrue(failure[0].getMessage().contains(other.getName()), failure[0].getMessage());
        assertEquals(stream, Torch.currentCudaStream(GPU));
        guard.close();
        guard.close();
        assertEquals(before, Torch.currentCudaStream(GPU));
    }

    /** Creates a stream in the context that libtorch made current; it lives until the JVM ends. */
    private static long newStream() {
        PointerByReference stream = new PointerByReference();
        int result =
                com.sun.jna.NativeLibrary.getInstance("libcuda.so.1")
                        .getFunction("cuStreamCreate")
                        .invokeInt(new Object[] {stream, NON_BLOCKING});
        assertEquals(0, result);
        return com.sun.jna.Pointer.nativeValue(stream.getValue());
    }
}
