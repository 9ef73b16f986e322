/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.train;

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
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Updates of float32 parameters on a GPU by DJL's {@link Sgd}, {@link Adam} and {@link AdamW}, each
 * by one kernel instead of an operator for each step of the formula: SGD reads and writes a
 * parameter's bytes 3 times instead of 11 times, Adam 7 times instead of 28. Results are the same
 * to the bit, so ranks may do it either way.
 *
 * <p>The optimizers keep all that is theirs, such as learning rates, counts and states. They end by
 * calling {@code sgdUpdate} or {@code adamUpdate} of the array that they are given: what they are
 * given here stands for the parameter, and has these do it. For one thread at a time.
 */
final class FusedUpdates implements AutoCloseable {

    private static final Logger LOG = LoggerFactory.getLogger(FusedUpdates.class);

    // Others may do with a parameter what only the array itself can, such as pass it to an
    // operator.
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
                    float.class, // what gradients are multiplied by
                    float.class, // their limit
                    float.class, // momentum
                    boolean.class);
    static final Method ADAM =
            method(
                    NDArrayEx.class,
                    "adamUpdate",
                    NDList.class, // the parameter, its gradient, its mean and its variance
                    NDList.class, // the parameter
                    float.class, // learning rate
                    float.class, // the same, corrected for bias
                    float.class, // weight decay
                    float.class, // what gradients are multiplied by
                    float.class, // their limit
                    float.class, // beta1
                    float.class, // beta2
                    float.class, // epsilon
                    boolean.class,
                    boolean.class); // whether it is AdamW

    private static final int THREADS = 256;
    private static final int BLOCKS = 8; // of a multiprocessor
    private static final int PACK = 4; // elements that a thread reads at once

    private final CudaDevice device;
    private final CudaModule module;
    private final CudaKernel sgd;
    private final CudaKernel momentum;
    private final CudaKernel adam;
    private final CurrentStreams streams;
    private final int mostBlocks;
    private final KernelArguments arguments = new KernelArguments();
    private final Map<NDArray, NDArray> standIns = new IdentityHashMap<>(); // of parameters

    /**
     * Prepares updates.
     *
     * @param gpu where the parameters are
     * @return the updates, to be closed; empty on the CPU, without NVRTC, and where the kernels
     *     cannot be compiled
     */
    static Optional<FusedUpdates> open(Device gpu) {
        boolean possible =
                gpu.isGpu()
                        && NativeLibrary.CUDA_PRESETS.isAvailable()
                        && NativeLibrary.NVRTC.isAvailable();
        try {
            return possible ? Optional.of(new FusedUpdates(gpu)) : Optional.empty();
        } catch (CudaException e) {
            LOG.warn("{}: optimizers take several operators for an update", gpu, e);
            return Optional.empty();
        }
    }

    private FusedUpdates(Device gpu) {
        device = CudaDevice.open(gpu);
        boolean done = false;
        try {
            mostBlocks = BLOCKS * device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
            module =
                    new KernelCompiler(KernelCache.user())
                            .load(
                                    device,
                                    KernelSource.ofResource(
                                            NativeLibrary.class, "optimizer/optimizer.cu"));
            sgd = module.kernel("sgd");
            momentum = module.kernel("momentum");
            adam = module.kernel("adam");
            streams = new CurrentStreams(device);
            done = true;
        } finally {
            if (!done) {
                device.close();
            }
        }
    }

    /** Tells whether these are an optimizer's updates; otherwise it is to do them itself. */
    static boolean knows(Optimizer optimizer) {
        return OPTIMIZERS.contains(optimizer.getClass());
    }

    /** Returns a method; null if this version of DJL has another: then nothing is replaced. */
    private static Method method(Class<?> owner, String name, Class<?>... types) {
        try {
            return owner.getMethod(name, types);
        } catch (NoSuchMethodException e) {
            return null;
        }
    }

    /**
     * Updates a parameter, on the calling thread's current stream. What the kernels do not know,
     * such as other types, the optimizer does itself, and may set the gradient to zero.
     *
     * @param optimizer one that this {@linkplain #knows knows}
     * @param id by which it knows the parameter
     * @param parameter on this GPU; the same array each time
     * @param gradient the parameter's
     */
    void update(Optimizer optimizer, String id, NDArray parameter, NDArray gradient) {
        NDArray standIn = standIns.get(parameter);
        if (standIn == null) {
            standIn = standIn(parameter, (called, values) -> update(parameter, called, values));
            standIns.put(parameter, standIn);
        }
        optimizer.update(id, standIn, gradient);
    }

    /**
     * Tells autograd that an array was written, as it counts what operators write alone: so a
     * backward pass through what was computed before the update fails, as with DJL's. Copying an
     * array to itself counts, and does nothing.
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
     * Returns what is a parameter but for its updates.
     *
     * @param updates is given each method of {@link NDArrayEx} that is called, with its arguments,
     *     and says whether it has done what that does
     */
    static NDArray standIn(NDArray parameter, BiPredicate<Method, Object[]> updates) {
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

    /** Returns a list of an update's arrays, which begins with the parameter itself. */
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

    /** Passes the addresses of an update's arrays, and their size; if the kernels can read them. */
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

    /** Waits for the updates, and frees the kernels. */
    @Override
    public void close() {
        device.synchronize(); // Nobody may have waited for the last step.
        module.close();
        streams.close();
        device.close();
    }
}
