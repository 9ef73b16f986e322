// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * Reads and writes the bytes of arrays on any device and of any type; DJL itself supports only the
 * types of {@code DataType}. Copies in pieces, so a large array needs little additional memory.
 */
public final class ArrayBytes {

    private static final long PIECE = 64L << 20;

    /** Consumes or produces the next bytes. */
    public interface Piece {
        void accept(ByteBuffer bytes) throws IOException;
    }

    private ArrayBytes() {}

    /** Reads all bytes of an array, in row-major order, with a temporary manager on its device. */
    public static void read(NDManager temporary, NDArray array, Piece piece) throws IOException {
        try (NDManager manager = temporary.newSubManager()) {
            NDArray contiguous = array;
            if (!Torch.isContiguous(array)) {
                contiguous = NoGradient.get(() -> Torch.cast(array, Torch.scalarType(array)));
                contiguous.attach(manager);
            }
            TensorInfo info = Torch.info(contiguous);
            for (long begin = 0; begin < info.byteSize(); begin += PIECE) {
                try (NDArray view = view(manager, contiguous, begin, info)) {
                    piece.accept(view.toByteBuffer());
                }
            }
        }
    }

    /** Fills an array, with a temporary manager on its device. */
    public static void write(NDManager temporary, NDArray array, Piece piece) throws IOException {
        try (NDManager manager = temporary.newSubManager()) {
            boolean inPlace = Torch.isContiguous(array);
            NDArray contiguous =
                    inPlace
                            ? array
                            : Torch.empty(manager, array.getShape(), Torch.scalarType(array));
            TensorInfo info = Torch.info(contiguous);
            for (long begin = 0; begin < info.byteSize(); begin += PIECE) {
                try (NDArray view = view(manager, contiguous, begin, info)) {
                    ByteBuffer bytes = ByteBuffer.allocate(Math.toIntExact(view.size()));
                    piece.accept(bytes);
                    try (NDArray read =
                            manager.create(bytes.rewind(), view.getShape(), DataType.INT8)) {
                        NoGradient.run(() -> Torch.copy(view, read));
                    }
                }
            }
            if (!inPlace) {
                NoGradient.run(() -> Torch.copy(array, contiguous));
            }
        }
    }

    private static NDArray view(NDManager manager, NDArray array, long begin, TensorInfo info) {
        NativeMemory memory =
                new NativeMemory(info.address(), info.byteSize(), array.getDevice(), () -> {});
        Shape shape = new Shape(Math.min(PIECE, info.byteSize() - begin));
        return Torch.view(manager, memory, begin, shape, ScalarType.INT8);
    }
}
