// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.internal.NDArrayEx;
import ai.djl.training.optimizer.Adam;
import ai.djl.training.optimizer.AdamW;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.IdentityHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.BiPredicate;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaException;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Runs the updates of DJL's {@link Sgd}, {@link Adam} and {@link AdamW} on float32 parameters as
 * one kernel each. SGD then reads and writes a parameter 3 times instead of 11, Adam 7 times
 * instead of 28. The results have the same bits as DJL's, so ranks may mix the kernels and DJL's
 * operators.
 *
 * <p>The optimizers keep their learning rates, counts and states. At the end of an update, an
 * optimizer calls {@code sgdUpdate} or {@code adamUpdate} on its parameter. This class passes a
 * proxy of the parameter, which launches the kernel instead. Not thread-safe.
 */
abstract class FusedUpdates implements AutoCloseable {

    private static final Logger LOG = LoggerFactory.getLogger(FusedUpdates.class);

    // Exact classes: a subclass may pass the parameter to an operator, which needs the array
    // itself.
    private static final Set<Class<?>> OPTIMIZERS = Set.of(Sgd.class, Adam.class, AdamW.class);
    private static final Method INTERNAL = method(NDArray.class, "getNDArrayInternal");
    static final Method SGD =
            method(
                    NDArrayEx.class,
                    "sgdUpdate",
                    NDList.class, // the parameter, its gradient, and its state if there is momentum
                    NDList.class, // the parameter
                    float.class, // learning rate
                    float.class, // weight decay
                    float.class, // gradient scale
                    float.class, // gradient clip
                    float.class, // momentum
                    boolean.class);
    static final Method ADAM =
            method(
                    NDArrayEx.class,
                    "adamUpdate",
                    NDList.class, // the parameter, its gradient, its mean and its variance
                    NDList.class, // the parameter
                    float.class, // learning rate
                    float.class, // learning rate with bias correction
                    float.class, // weight decay
                    float.class, // gradient scale
                    float.class, // gradient clip
                    float.class, // beta1
                    float.class, // beta2
                    float.class, // epsilon
                    boolean.class,
                    boolean.class); // whether it is AdamW

    private final Device device;
    private final Map<NDArray, NDArray> proxies = new IdentityHashMap<>(); // by parameter

    FusedUpdates(Device device) {
        this.device = device;
    }

    /**
     * Loads a device's kernels, to be closed by the caller. Empty if there are none: on the CPU
     * without {@link NativeLibrary#CPU_KERNELS}, on a GPU without the CUDA presets or NVRTC, or if
     * the kernels cannot be compiled.
     */
    static Optional<FusedUpdates> open(Device device) {
        try {
            if (!device.isGpu()) {
                return NativeLibrary.CPU_KERNELS.isAvailable()
                        ? Optional.of(new CpuUpdates(device))
                        : Optional.empty();
            }
            return NativeLibrary.CUDA_PRESETS.isAvailable() && NativeLibrary.NVRTC.isAvailable()
                    ? Optional.of(new GpuUpdates(device))
                    : Optional.empty();
        } catch (CudaException e) {
            LOG.warn(
                    "{}: optimizer kernels are not available, DJL's operators are used", device, e);
            return Optional.empty();
        }
    }

    /**
     * Updates a parameter that is not empty.
     *
     * @param addresses the addresses of the parameter, its gradient, and its optimizer states: no
     *     state for SGD, one for SGD with momentum, two for Adam
     * @param values the learning rate; for Adam the rate with bias correction; weight decay,
     *     gradient scale and gradient clip; then momentum, or Adam's beta1, beta2 and epsilon
     */
    abstract void launch(long[] addresses, long size, float[] values, boolean adamW);

    @Override
    public void close() {}

    static boolean knows(Optimizer optimizer) {
        return OPTIMIZERS.contains(optimizer.getClass());
    }

    /** Returns a method; null if this version of DJL lacks it. DJL's operators then run. */
    private static Method method(Class<?> owner, String name, Class<?>... types) {
        try {
            return owner.getMethod(name, types);
        } catch (NoSuchMethodException e) {
            return null;
        }
    }

    /**
     * Updates a parameter, on a GPU on the calling thread's current stream. If the kernels do not
     * support the update, for example because of its type, DJL's operators run; these may set the
     * gradient to zero.
     */
    void update(Optimizer optimizer, String id, NDArray parameter, NDArray gradient) {
        NDArray proxy = proxies.get(parameter);
        if (proxy == null) {
            proxy = proxy(parameter, (called, values) -> update(parameter, called, values));
            proxies.put(parameter, proxy);
        }
        optimizer.update(id, proxy, gradient);
    }

    /**
     * Increments an array's version in autograd, which does not see writes by our kernels. A
     * backward pass through values computed before the update then fails, as with DJL's own
     * updates. Copying an array to itself increments the version and copies nothing.
     */
    static void written(NDArray array) {
        Torch.copy(array, array);
    }

    private boolean update(NDArray parameter, Method called, Object[] values) {
        if (called.equals(SGD)) {
            boolean plain = (float) values[6] == 0;
            return run(parameter, values, plain ? 2 : 3, plain ? 6 : 7, false);
        }
        return called.equals(ADAM) && run(parameter, values, 4, 10, (boolean) values[11]);
    }

    /**
     * Runs a kernel on the first {@code count} arrays with the floats up to {@code end}. Returns
     * false if the kernels do not support these arrays.
     */
    private boolean run(NDArray parameter, Object[] values, int count, int end, boolean adamW) {
        long[] sizes = Torch.sizes(parameter);
        long[] addresses = new long[count];
        NDList arrays = withParameter((NDList) values[0], parameter);
        for (int i = 0; i < count; i++) {
            TensorInfo info = Torch.info(arrays.get(i));
            if (info.type() != ScalarType.FLOAT32
                    || !info.isContiguous()
                    || !Arrays.equals(info.sizes(), sizes)
                    || !arrays.get(i).getDevice().equals(device)) {
                return false;
            }
            addresses[i] = info.address();
        }
        float[] floats = new float[end - 2];
        for (int i = 2; i < end; i++) {
            floats[i - 2] = (float) values[i];
        }
        if (parameter.size() > 0) {
            launch(addresses, parameter.size(), floats, adamW);
            written(parameter);
        }
        return true;
    }

    /**
     * Returns a proxy of a parameter that intercepts its updates. {@code updates} gets each {@link
     * NDArrayEx} method and its arguments, and returns false to have DJL's method run.
     */
    static NDArray proxy(NDArray parameter, BiPredicate<Method, Object[]> updates) {
        NDArrayEx own = parameter.getNDArrayInternal();
        InvocationHandler calls =
                (proxy, called, values) -> {
                    if (updates.test(called, values)) {
                        return null;
                    }
                    for (int i = 0; values != null && i < values.length; i++) {
                        if (values[i] instanceof NDList list) {
                            values[i] = withParameter(list, parameter);
                        }
                    }
                    return call(called, own, values);
                };
        NDArrayEx internal =
                (NDArrayEx)
                        Proxy.newProxyInstance(
                                NDArrayEx.class.getClassLoader(),
                                new Class<?>[] {NDArrayEx.class},
                                calls);
        return (NDArray)
                Proxy.newProxyInstance(
                        NDArray.class.getClassLoader(),
                        new Class<?>[] {NDArray.class},
                        (proxy, called, values) ->
                                called.equals(INTERNAL)
                                        ? internal
                                        : call(called, parameter, values));
    }

    private static Object call(Method method, Object target, Object[] values) throws Throwable {
        try {
            return method.invoke(target, values);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    private static NDList withParameter(NDList list, NDArray parameter) {
        NDList own = new NDList(list);
        own.set(0, parameter);
        return own;
    }
}
