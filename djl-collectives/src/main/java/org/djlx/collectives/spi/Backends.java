// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.nativeops.ContextLoader;

/**
 * The available backends: first backends registered with {@link #register}, then backends found by
 * {@link java.util.ServiceLoader}.
 */
public final class Backends {

    private static final Map<String, BackendFactory> REGISTERED = new ConcurrentHashMap<>();

    private Backends() {}

    /**
     * Registers a backend for this JVM, under the name that {@code ProcessGroups.init} takes. It
     * replaces a backend of the same name.
     */
    public static void register(String name, BackendFactory factory) {
        if (name == null || factory == null) {
            throw new IllegalArgumentException(
                    "register: null argument: name " + name + ", factory " + factory);
        }
        REGISTERED.put(name, factory);
    }

    /** {@return a backend's factory} */
    public static BackendFactory get(String name) {
        if (name == null) {
            throw new IllegalArgumentException(
                    "the backend's name is null; available backends: " + names());
        }
        BackendFactory registered = REGISTERED.get(name);
        if (registered != null) {
            return registered;
        }
        for (BackendFactory factory : ContextLoader.providers(BackendFactory.class)) {
            if (factory.name().equals(name)) {
                return factory;
            }
        }
        throw new IllegalArgumentException(
                ("there is no backend '%s'; available backends: %s; instead of gloo use shm on one"
                                + " host or mpi; a backend's jar must be on the class path, such as"
                                + " org.djlx:mpi-backend for mpi")
                        .formatted(name, names()));
    }

    /** {@return the names of all backends, sorted} */
    public static Set<String> names() {
        Set<String> names = new TreeSet<>(REGISTERED.keySet());
        for (BackendFactory factory : ContextLoader.providers(BackendFactory.class)) {
            names.add(factory.name());
        }
        return names;
    }
}
