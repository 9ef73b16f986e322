// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.util.function.IntSupplier;
import org.djlx.nativeops.host.Required;

/**
 * A native object in a GPU's context. Retains the context until the object is closed. Closing is
 * thread-safe, but must not happen while another thread uses the object.
 */
abstract class CudaResource implements AutoCloseable {

    private final CudaDevice device;
    private volatile boolean closed;

    /** Retains the device's context. The constructor of a subclass then calls {@link #create}. */
    CudaResource(CudaDevice device) {
        Required.argument("the device", device);
        device.retain();
        this.device = device;
    }

    /** Creates the native object. If the call fails, releases the context and throws. */
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

    public final CudaDevice device() {
        return device;
    }

    /** Calls the driver, if this is open, and checks its result. */
    final void call(String function, IntSupplier call) {
        requireOpen();
        device.call(function, call);
    }

    final void requireOpen() {
        if (closed) {
            throw new IllegalStateException(this + " is closed");
        }
    }

    /** Destroys the native object and releases the context. Idempotent. */
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
