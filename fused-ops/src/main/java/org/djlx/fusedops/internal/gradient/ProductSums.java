// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.gradient;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CublasLt;
import org.djlx.nativeops.cuda.CublasLtMatmul;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Multiplies 16-bit matrices and adds the product to a float32 matrix, by cuBLASLt on one GPU,
 * without rounding to 16 bits. Used for gradients of weights. Not thread-safe. Work is enqueued on
 * the calling thread's current stream.
 */
public final class ProductSums implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(ProductSums.class);

    private static final int MAX_PLANS = 64; // a model has a few
    private static final int MAX_ALIGNMENT = 16; // in bytes; cuBLASLt does not use more

    private record Key(
            ScalarType type, MatrixLayout out, MatrixLayout a, MatrixLayout b, int alignment) {}

    private final CudaDevice device;
    private final CurrentStreams streams;
    private final CublasLt cublas;
    private final Map<Key, Optional<CublasLtMatmul>> plans = new LinkedHashMap<>(16, 0.75f, true);

    private ProductSums(Device gpu) {
        device = CudaDevice.open(gpu);
        try {
            streams = new CurrentStreams(device);
            cublas = CublasLt.create(device);
        } catch (Throwable e) {
            device.close();
            throw e;
        }
    }

    /** The attachment of a group; its {@code sums} are null without cuBLASLt. */
    private record Attached(ProductSums sums) implements AutoCloseable {

        static Attached open(Device gpu) {
            Throwable cause = NativeLibrary.CUBLASLT.unavailabilityCause();
            if (cause != null) {
                logger.warn(
                        "{}: cuBLASLt is not available: gradients of converted weights are rounded"
                                + " to 16 bits",
                        gpu,
                        cause);
            }
            return new Attached(cause == null ? new ProductSums(gpu) : null);
        }

        @Override
        public void close() {
            if (sums != null) {
                sums.close();
            }
        }
    }

    /**
     * Returns the instance of a group, which is closed with the group; empty on the CPU and without
     * cuBLASLt.
     */
    public static Optional<ProductSums> of(ProcessGroup group) {
        Device device = group.device();
        return device.isGpu()
                ? Optional.ofNullable(
                        group.attachment(Attached.class, () -> Attached.open(device)).sums)
                : Optional.empty();
    }

    /**
     * Multiplies, if cuBLASLt supports the matrices: on the GPU, of one 16-bit type, not empty,
     * with contiguous rows or columns.
     *
     * @param sum the float32 matrix to add the product to, which must not overlap an operand; null
     *     for a new matrix in the manager of {@code a}
     * @return the sum; empty if the matrices are not supported and nothing was computed
     */
    public Optional<NDArray> multiply(NDArray sum, NDArray a, NDArray b) {
        TensorInfo left = Torch.info(a);
        TensorInfo right = Torch.info(b);
        ScalarType type = left.type();
        if ((type != ScalarType.FLOAT16 && type != ScalarType.BFLOAT16)
                || right.type() != type
                || left.count() == 0
                || right.count() == 0
                || !isHere(a)
                || !isHere(b)
                || sum != null && !isHere(sum)
                || sum != null && Torch.scalarType(sum) != ScalarType.FLOAT32) {
            return Optional.empty();
        }
        NDArray out = sum;
        if (sum == null) {
            Shape shape = new Shape(left.sizes()[0], right.sizes()[1]);
            out = Torch.empty(a.getManager(), shape, ScalarType.FLOAT32);
        }
        TensorInfo result = Torch.info(out);
        long addresses = result.address() | left.address() | right.address();
        int alignment = (int) Long.lowestOneBit(addresses | MAX_ALIGNMENT);
        Key key = new Key(type, layout(result), layout(left), layout(right), alignment);
        CublasLtMatmul plan = plan(key).orElse(null);
        if (plan == null) {
            if (sum == null) {
                out.close();
            }
            return Optional.empty();
        }
        CudaStream stream = streams.get();
        if (sum == null) {
            plan.run(stream, result.address(), left.address(), right.address());
        } else {
            plan.add(stream, result.address(), left.address(), right.address());
        }
        if (stream.isCapturing()) {
            stream.keepAlive(out, a, b);
        }
        return Optional.of(out);
    }

    private boolean isHere(NDArray array) {
        return Torch.device(array).equals(device.device());
    }

    private static MatrixLayout layout(TensorInfo matrix) {
        return new MatrixLayout(
                matrix.sizes()[0], matrix.sizes()[1], matrix.strides()[0], matrix.strides()[1]);
    }

    /** Returns the plan of a key. Also remembers keys without a plan. */
    private Optional<CublasLtMatmul> plan(Key key) {
        Optional<CublasLtMatmul> plan = plans.get(key);
        if (plan == null) {
            plan = cublas.plan(key.type, ScalarType.FLOAT32, key.out, key.a, key.b, key.alignment);
            plans.put(key, plan);
            if (plans.size() > MAX_PLANS) {
                plans.remove(plans.keySet().iterator().next()).ifPresent(CublasLtMatmul::close);
            }
        }
        return plan;
    }

    /** Waits for enqueued work, and frees the plans. */
    @Override
    public void close() {
        device.synchronize();
        plans.values().forEach(plan -> plan.ifPresent(CublasLtMatmul::close));
        plans.clear();
        cublas.close();
        streams.close();
        device.close();
    }
}
