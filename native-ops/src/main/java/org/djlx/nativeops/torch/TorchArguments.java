/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.engine.PtNDManager;

/**
 * What an operator of a {@link TorchLibrary} is called with, in the schema's order; arguments that
 * the caller left out have their defaults. Valid during the call, on its thread.
 */
public final class TorchArguments implements AutoCloseable {

    private final TorchSchema schema;
    private final long[] values;
    private final NDArray[] arrays; // those of tensors that were asked for, which own their handles
    private NDManager manager;
    private boolean closed;

    /**
     * Takes the arguments as libtorch passes them: 64 bits each.
     *
     * @param schema the operator's
     * @param values of a tensor a handle, which is from now on this object's to delete
     */
    TorchArguments(TorchSchema schema, long[] values) {
        this.schema = schema;
        this.values = values;
        arrays = new NDArray[values.length];
    }

    private long value(int index, TorchSchema.Type type) {
        if (closed) {
            throw new IllegalStateException(
                    schema.namespace() + "::" + schema.name() + ": the call has ended");
        }
        if (schema.arguments().get(index) != type) {
            throw new IllegalArgumentException(
                    String.format(
                            "argument %d of %s::%s is no %s but %s",
                            index,
                            schema.namespace(),
                            schema.name(),
                            type.text,
                            schema.arguments().get(index).text));
        }
        return values[index];
    }

    /**
     * Returns a tensor.
     *
     * @param index where it stands, from 0
     * @return the array, the same for each call; closed after the operator's call, as is all else
     *     in its manager, which is on its device
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

    /**
     * Returns an {@code int} of the schema.
     *
     * @param index where it stands, from 0
     * @return the number
     */
    public long integer(int index) {
        return value(index, TorchSchema.Type.INT);
    }

    /**
     * Returns a {@code float} of the schema.
     *
     * @param index where it stands, from 0
     * @return the number
     */
    public double floating(int index) {
        return Double.longBitsToDouble(value(index, TorchSchema.Type.FLOAT));
    }

    /**
     * Returns a {@code bool} of the schema.
     *
     * @param index where it stands, from 0
     * @return the truth value
     */
    public boolean bool(int index) {
        return (byte) value(index, TorchSchema.Type.BOOL) != 0; // The other bytes are not set.
    }

    /** Closes the arrays and deletes the tensors that were not asked for. */
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
                AotiTorch.check(
                        AotiTorch.aoti_torch_delete_tensor_object(values[i]), "TorchArguments");
            }
        }
    }
}
