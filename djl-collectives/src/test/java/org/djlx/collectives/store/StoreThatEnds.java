// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import org.djlx.collectives.spi.GroupContext;

/** Ends a rank while its group is created, after it has read all values in the store. */
public final class StoreThatEnds {

    private StoreThatEnds() {}

    /** A context whose store runs a callback before it counts the readers of a key's values. */
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
