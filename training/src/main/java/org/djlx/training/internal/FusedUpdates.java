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
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaException;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
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
final class FusedUpdates implements AutoCloseable {

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

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "optimizer/optimizer.cu");
    private static final int THREADS = new KernelConstants(SOURCE).value("OPTIMIZER_THREADS");
    private static final int BLOCKS = 8; // per SM
    private static final int PACK = 4; // elements per thread and load

    private final CudaDevice device;
    private final CudaModule module;
    private final CudaKernel sgd;
    private final CudaKernel momentum;
    private final CudaKernel adam;
    private final CurrentStreams streams;
    private final int mostBlocks;
    private final KernelArguments arguments = new KernelArguments();
    private final Map<NDArray, NDArray> proxies = new IdentityHashMap<>(); // by parameter

    /**
     * Compiles and loads the kernels, to be closed by the caller. Empty on the CPU, without the
     * CUDA presets or NVRTC, or if the kernels cannot be compiled.
     */
    static Optional<FusedUpdates> open(Device gpu) {
        boolean possible =
                gpu.isGpu()
                        && NativeLibrary.CUDA_PRESETS.isAvailable()
                        && NativeLibrary.NVRTC.isAvailable();
        try {
            return possible ? Optional.of(new FusedUpdates(gpu)) : Optional.empty();
        } catch (CudaException e) {
            LOG.warn("{}: optimizer kernels are not available, DJL's operators are used", gpu, e);
            return Optional.empty();
        }
    }

    private FusedUpdates(Device gpu) {
        device = CudaDevice.open(gpu);
        try {
            mostBlocks = BLOCKS * device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
            module = new KernelCompiler(KernelCache.user()).load(device, SOURCE);
            sgd = module.kernel("sgd");
            momentum = module.kernel("momentum");
            adam = module.kernel("adam");
            streams = new CurrentStreams(device);
        } catch (Throwable e) {
            device.close();
            throw e;
        }
    }

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
     * Updates a parameter, on the calling thread's current stream. If the kernels do not support
     * the update, for example because of its type, DJL's operators run; these may set the gradient
     * to zero.
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
            return sgd(parameter, values);
        }
        return called.equals(ADAM) && adam(parameter, values);
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

    private boolean sgd(NDArray parameter, Object[] values) {
        boolean plain = (float) values[6] == 0;
        if (!begin(parameter, (NDList) values[0], plain ? 2 : 3)) {
            return false;
        }
        addFloats(values, 2, plain ? 6 : 7);
        launch(plain ? sgd : momentum, parameter);
        return true;
    }

    private boolean adam(NDArray parameter, Object[] values) {
        if (!begin(parameter, (NDList) values[0], 4)) {
            return false;
        }
        addFloats(values, 2, 10);
        arguments.add((boolean) values[11] ? 1 : 0);
        launch(adam, parameter);
        return true;
    }

    /**
     * Adds the addresses and the size of an update's arrays to the kernel's arguments; returns
     * false if the kernels do not support these arrays.
     */
    private boolean begin(NDArray parameter, NDList arrays, int count) {
        long[] sizes = Torch.sizes(parameter);
        arguments.clear();
        for (NDArray array : withParameter(arrays, parameter).subList(0, count)) {
            TensorInfo info = Torch.info(array);
            if (info.type() != ScalarType.FLOAT32
                    || !info.isContiguous()
                    || !Arrays.equals(info.sizes(), sizes)
                    || !array.getDevice().equals(device.device())) {
                return false;
            }
            arguments.add(info.address());
        }
        arguments.add(parameter.size());
        return true;
    }

    private void addFloats(Object[] values, int from, int to) {
        for (int i = from; i < to; i++) {
            arguments.add((float) values[i]);
        }
    }

    private void launch(CudaKernel kernel, NDArray parameter) {
        long packs = (parameter.size() + PACK - 1) / PACK;
        int blocks = (int) Math.min(mostBlocks, (packs + THREADS - 1) / THREADS);
        if (blocks > 0) {
            kernel.launch(streams.get(), LaunchSize.of(blocks, THREADS), arguments);
            written(parameter);
        }
    }

    @Override
    public void close() {
        device.synchronize(); // The last step may still run.
        module.close();
        streams.close();
        device.close();
    }
}
