// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** How members of a sub-group meet, as seen by a rank that is none. */
@Timeout(60)
class SubGroupsTest {

    /** A store that takes its time over the keys of sub-groups. */
    private static Store slow(Store store, AtomicBoolean met) {
        return (Store)
                Proxy.newProxyInstance(
                        Store.class.getClassLoader(),
                        new Class<?>[] {Store.class},
                        (proxy, method, arguments) -> {
                            boolean meets =
                                    method.getName().equals("set")
                                            && ((String) arguments[0]).contains("group0");
                            if (meets) {
                                Thread.sleep(300);
                            }
                            try {
                                return method.invoke(store, arguments);
                            } catch (InvocationTargetException e) {
                                throw e.getCause();
                            } finally {
                                met.set(met.get() || meets);
                            }
                        });
    }

    /** It may be the one that serves the store, and be done as soon as the call returns. */
    @Test
    void nonMembersStayUntilTheMembersHaveMet() {
        AtomicBoolean met = new AtomicBoolean();
        BackendOptions options = new BackendOptions(Duration.ofSeconds(30));
        try (Store store = new HashStore()) {
            Store slow = slow(store, met);
            List<CompletableFuture<Void>> ranks = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                int rank = i;
                ranks.add(
                        CompletableFuture.runAsync(
                                () -> {
                                    Store own = rank == 2 ? slow : store;
                                    ProcessGroup group =
                                            ProcessGroups.init("shm", own, "g", rank, 3, options);
                                    ProcessGroup part = group.newGroup(List.of(1, 2));
                                    assertEquals(rank > 0, part.isMember());
                                    assertTrue(met.get(), "rank " + rank + " was too early");
                                    if (part.isMember()) {
                                        part.barrier().await();
                                    }
                                    group.barrier().await();
                                    group.destroy();
                                },
                                task -> new Thread(task).start()));
            }
            ranks.forEach(CompletableFuture::join);
        }
    }
}
