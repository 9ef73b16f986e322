// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/**
 * One rank's part of the paged KV cache: for each layer an array of keys and one of values, of
 * shape (slots, KV heads, head size). A slot holds one token. The engine gives each sequence blocks
 * of {@link #BLOCK_TOKENS} adjacent slots; the blocks need not be adjacent. With {@link
 * KvCacheDtype#FP8} only kernels read and write it.
 *
 * <p>The cache is not memory of libtorch's allocator, which keeps GPU memory when arrays are
 * closed. On the CPU, pages take memory when they are first written.
 */
public final class KvCache implements AutoCloseable {

    /** The number of slots in a block. */
    public static final int BLOCK_TOKENS = 16;

    private final int slots;
    private final NDManager manager;
    private CudaDevice gpu; // null on the CPU
    private NativeMemory memory; // null if it could not be allocated
    private long end; // of the arrays in memory
    private final List<NDArray> keys = new ArrayList<>();
    private final List<NDArray> values = new ArrayList<>();
    private final List<NDArray> scales = new ArrayList<>(); // FP8: of keys and values of each layer

    /** Creates a cache; with 0 slots, nothing may be written to it. */
    public KvCache(ModelConfig config, int ranks, int slots, Device device) {
        this.slots = slots;
        manager = NDManager.newBaseManager(device);
        if (slots == 0) {
            return;
        }
        try {
            long bytes = byteSize(config, ranks, slots);
            if (device.isGpu()) {
                gpu = CudaDevice.open(device);
                memory = CudaMemory.allocate(gpu, bytes);
            } else {
                memory = NativeMemory.allocateZeros(bytes, false);
            }
            boolean fp8 = config.kvCacheDtype() == KvCacheDtype.FP8;
            Shape shape = new Shape(slots, WeightMap.kvHeads(config, ranks), config.headSize());
            ScalarType type = fp8 ? ScalarType.UINT8 : config.type();
            for (int layer = 0; layer < config.layers(); layer++) {
                keys.add(zeros(shape, type));
                values.add(zeros(shape, type));
                for (int i = 0; fp8 && i < 2; i++) {
                    scales.add(zeros(shape.slice(0, 2), ScalarType.FLOAT32));
                }
            }
        } catch (Throwable e) {
            close();
            throw e;
        }
    }

    /** Returns zeros. Attention multiplies masked slots by 0, so they must not contain NaN. */
    private NDArray zeros(Shape shape, ScalarType type) {
        NDArray array = Torch.view(manager, memory, end, shape, type);
        end += shape.size() * type.itemSize();
        if (gpu != null) {
            TorchInPlace.zero(array);
        }
        return array;
    }

    int slots() {
        return slots;
    }

    /** {@return the size of a rank's part in bytes} */
    public static long byteSize(ModelConfig config, int ranks, long slots) {
        int headBytes =
                config.kvCacheDtype() == KvCacheDtype.FP8
                        ? config.headSize() + Float.BYTES
                        : config.headSize() * config.type().itemSize();
        return 2L * config.layers() * slots * WeightMap.kvHeads(config, ranks) * headBytes;
    }

    /** Writes keys and values, of shape (tokens, KV heads, head size), to one slot per token. */
    void write(int layer, NDArray slots, NDArray newKeys, NDArray newValues) {
        keys.get(layer).set(new NDIndex("{}", slots), newKeys);
        values.get(layer).set(new NDIndex("{}", slots), newValues);
    }

    NDArray keys(int layer) {
        return keys.get(layer);
    }

    NDArray values(int layer) {
        return values.get(layer);
    }

    DecoderKernels.Cache addresses(int layer) {
        return new DecoderKernels.Cache(
                Torch.dataPointer(keys.get(layer)),
                Torch.dataPointer(values.get(layer)),
                scales.isEmpty() ? 0 : Torch.dataPointer(scales.get(2 * layer)),
                scales.isEmpty() ? 0 : Torch.dataPointer(scales.get(2 * layer + 1)));
    }

    /** Gathers the keys of the given slots into shape (slots…, KV heads, head size). */
    NDArray keys(NDManager manager, int layer, NDArray slots) {
        return keys.get(layer).get(manager, new NDIndex("{}", slots));
    }

    /** Gathers the values of the given slots into shape (slots…, KV heads, head size). */
    NDArray values(NDManager manager, int layer, NDArray slots) {
        return values.get(layer).get(manager, new NDIndex("{}", slots));
    }

    @Override
    public void close() {
        manager.close();
        if (memory != null) {
            memory.close();
        }
        if (gpu != null) {
            gpu.close();
        }
    }
}
