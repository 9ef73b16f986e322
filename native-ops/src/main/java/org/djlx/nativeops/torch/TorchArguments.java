// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.engine.PtNDManager;

/**
 * The arguments of an operator of a {@link TorchLibrary}, in the order of the schema, including
 * defaults. Valid during the call, on its thread.
 */
public final class TorchArguments implements AutoCloseable {

    private final TorchSchema schema;
    private final long[] values;
    private final NDArray[] arrays; // the tensors read so far; each owns its handle
    private NDManager manager;
    private boolean closed;

    /**
     * Wraps the arguments in libtorch's form, 64 bits each. Takes ownership of the tensors'
     * handles.
     */
    TorchArguments(TorchSchema schema, long[] values) {
        this.schema = schema;
        this.values = values;
        arrays = new NDArray[values.length];
    }

    private long value(int index, TorchSchema.Type type) {
        if (closed) {
            throw new IllegalStateException(
                    "%s::%s: arguments must not be read after the call has ended"
                            .formatted(schema.namespace(), schema.name()));
        }
        if (schema.arguments().get(index) != type) {
            throw new IllegalArgumentException(
                    String.format(
                            "argument %d of %s::%s is not of type %s but %s",
                            index,
                            schema.namespace(),
                            schema.name(),
                            type.text,
                            schema.arguments().get(index).text));
        }
        return values[index];
    }

    /**
     * {@return the tensor argument of an index, from 0: the same array for each call of this
     * method; its manager is on the tensor's device and is closed after the operator's call}
     */
    public NDArray tensor(int index) {
        long handle = value(index, TorchSchema.Type.TENSOR);
        if (arrays[index] == null) {
            if (manager == null) {
                manager = NDManager.newBaseManager(Tensors.device(handle), "PyTorch");
            }
            arrays[index] = new PtNDArray((PtNDManager) manager, handle);
        }
        return arrays[index];
    }

    /** {@return an argument of the schema's type {@code int}} */
    public long integer(int index) {
        return value(index, TorchSchema.Type.INT);
    }

    /** {@return an argument of the schema's type {@code float}} */
    public double floating(int index) {
        return Double.longBitsToDouble(value(index, TorchSchema.Type.FLOAT));
    }

    /** {@return an argument of the schema's type {@code bool}} */
    public boolean bool(int index) {
        return (byte) value(index, TorchSchema.Type.BOOL) != 0; // The other bytes are undefined.
    }

    /** Closes the arrays, and deletes tensors that were not read. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        if (manager != null) {
            manager.close();
        }
        for (int i = 0; i < values.length; i++) {
            if (schema.arguments().get(i) == TorchSchema.Type.TENSOR && arrays[i] == null) {
                AotiTorch.check(AotiTensor.djlx_delete_handle(values[i]), "TorchArguments");
            }
        }
    }
}
