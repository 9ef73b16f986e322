// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import ai.djl.engine.Engine;
import ai.djl.engine.EngineException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.ServiceLoader;

/**
 * Lookups that do not depend on the caller's context class loader. DJL finds its engines and native
 * libraries by the context class loader, and only once. A server's worker thread may have one that
 * does not see this library, such as the temporary workers of DJL Serving.
 */
public final class ContextLoader {

    private static volatile boolean isLoaded; // libtorch, by loadLibtorch

    private ContextLoader() {}

    @FunctionalInterface
    public interface Call<T, E extends Exception> {

        T run() throws E;
    }

    /**
     * Calls with a context class loader that sees a class: the thread's own if it does, otherwise
     * the class's loader. Threads that the call creates inherit it.
     */
    public static <T, E extends Exception> T of(Class<?> type, Call<T, E> call) throws E {
        Thread thread = Thread.currentThread();
        ClassLoader before = thread.getContextClassLoader();
        if (sees(before, type)) {
            return call.run();
        }
        thread.setContextClassLoader(type.getClassLoader());
        try {
            return call.run();
        } finally {
            thread.setContextClassLoader(before);
        }
    }

    /**
     * Returns the providers of a service, by {@link ServiceLoader}: those that the service's class
     * loader sees, then those that only the context class loader sees.
     *
     * @return one provider of each class
     */
    public static <T> List<T> providers(Class<T> service) {
        Map<Class<?>, T> found = new LinkedHashMap<>();
        ServiceLoader.load(service, service.getClassLoader())
                .forEach(provider -> found.put(provider.getClass(), provider));
        ClassLoader context = Thread.currentThread().getContextClassLoader();
        if (sees(context, service)) {
            ServiceLoader.load(service, context)
                    .forEach(provider -> found.putIfAbsent(provider.getClass(), provider));
        }
        return new ArrayList<>(found.values());
    }

    /**
     * Loads libtorch unless this class has: for methods of DJL's JniUtils, which do not load it.
     *
     * @throws EngineException as {@link #pytorch} does
     */
    public static void loadLibtorch() {
        if (!isLoaded) {
            pytorch();
            isLoaded = true;
        }
    }

    /**
     * {@return DJL's PyTorch engine} The first call loads libtorch.
     *
     * @throws EngineException if libtorch cannot be loaded; the message says why, and what to add
     */
    public static Engine pytorch() {
        try {
            return of(ContextLoader.class, () -> Engine.getEngine("PyTorch"));
        } catch (RuntimeException | LinkageError e) {
            Throwable last = e;
            while (last.getCause() != null) {
                last = last.getCause();
            }
            throw new EngineException(
                    ("DJL's PyTorch engine cannot load libtorch (%s%s). DJL downloads what the"
                         + " class path lacks: without access to its server add"
                         + " ai.djl.pytorch:pytorch-engine, ai.djl.pytorch:pytorch-jni:2.7.1-0.36.0"
                         + " and ai.djl.pytorch:pytorch-native-cpu:linux-x86_64:2.7.1, for CPUs")
                            .formatted(last == e ? "" : e.getMessage() + ": ", last),
                    e);
        }
    }

    /** Returns whether a class loader has the class itself, not another copy or none. */
    private static boolean sees(ClassLoader loader, Class<?> type) {
        try {
            return loader != null && Class.forName(type.getName(), false, loader) == type;
        } catch (ClassNotFoundException e) {
            return false;
        }
    }
}
