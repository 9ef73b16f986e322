/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import java.util.function.IntSupplier;

/**
 * Something that lives in a GPU's context, which it keeps until it is closed. Closing is safe for
 * use by several threads; using while another thread closes is not.
 */
abstract class CudaResource implements AutoCloseable {

    private final CudaDevice device;
    private volatile boolean closed;

    /** Keeps the device's context; the constructor of a subclass goes on with {@link #create}. */
    CudaResource(CudaDevice device) {
        if (device == null) {
            throw new IllegalArgumentException("the device is null");
        }
        device.retain();
        this.device = device;
    }

    /** Makes the call that creates the native object; if it fails, so does the constructor. */
    final void create(String function, IntSupplier call) {
        try {
            device.call(function, call);
        } catch (CudaException e) {
            closed = true;
            device.release();
            throw e;
        }
    }

    /** Destroys the native object. Runs once. */
    abstract void destroy();

    /**
     * Returns the GPU.
     *
     * @return the GPU to which this belongs
     */
    public final CudaDevice device() {
        return device;
    }

    /** Makes a call on the open native object, and checks its result. */
    final void call(String function, IntSupplier call) {
        requireOpen();
        device.call(function, call);
    }

    final void requireOpen() {
        if (closed) {
            throw new IllegalStateException(this + " is closed");
        }
    }

    final boolean isClosed() {
        return closed;
    }

    /** Frees what is held; does nothing when called again. */
    @Override
    public final void close() {
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
        }
        try {
            destroy();
        } finally {
            device.release();
        }
    }

    @Override
    public String toString() {
        return "a " + getClass().getSimpleName() + " of " + device;
    }
}
