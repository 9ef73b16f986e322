/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.store;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import org.djlx.collectives.spi.GroupContext;

/** Ends a rank while its group is created: where it has read what all ranks say in the store. */
public final class StoreThatEnds {

    private StoreThatEnds() {}

    /** A context whose store runs something before it counts who has read the values of a key. */
    public static GroupContext at(String key, GroupContext context, Runnable end) {
        Store store = context.store();
        Store ending =
                (Store)
                        Proxy.newProxyInstance(
                                Store.class.getClassLoader(),
                                new Class<?>[] {Store.class},
                                (proxy, method, arguments) -> {
                                    if (method.getName().equals("add")
                                            && arguments[0].toString().startsWith(key)) {
                                        end.run();
                                    }
                                    try {
                                        return method.invoke(store, arguments);
                                    } catch (InvocationTargetException e) {
                                        throw e.getCause();
                                    }
                                });
        return new GroupContext(
                context.name(),
                context.rank(),
                context.worldSize(),
                ending,
                context.options(),
                context.device());
    }
}
