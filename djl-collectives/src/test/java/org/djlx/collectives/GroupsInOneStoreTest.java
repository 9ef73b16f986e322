// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Groups that share a store do not interfere, and a clash of names is detected. */
@Timeout(60)
class GroupsInOneStoreTest {

    private static final BackendOptions OPTIONS = new BackendOptions(Duration.ofMinutes(10));

    private final Store store = new HashStore();

    @AfterEach
    void close() {
        store.close();
    }

    private static <T> FutureTask<T> start(Callable<T> body) {
        FutureTask<T> task = new FutureTask<>(body);
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
        return task;
    }

    /** A view of the store in which something happens after each key that is set. */
    private Store afterSet(Runnable action) {
        return (Store)
                Proxy.newProxyInstance(
                        Store.class.getClassLoader(),
                        new Class<?>[] {Store.class},
                        (proxy, method, arguments) -> {
                            Object result = method.invoke(store, arguments);
                            if (method.getName().equals("set")) {
                                action.run();
                            }
                            return result;
                        });
    }

    /** A view of a store that writes down which keys are set. */
    private static Store recording(Store store, Set<String> keys) {
        return (Store)
                Proxy.newProxyInstance(
                        Store.class.getClassLoader(),
                        new Class<?>[] {Store.class},
                        (proxy, method, arguments) -> {
                            if (method.getName().equals("set")) {
                                keys.add((String) arguments[0]);
                            }
                            try {
                                return method.invoke(store, arguments);
                            } catch (InvocationTargetException e) {
                                throw e.getCause();
                            }
                        });
    }

    private Set<String> keysOf(String name, boolean withSubGroup) {
        Set<String> keys = ConcurrentHashMap.newKeySet();
        Store recording = recording(store, keys);
        List<CompletableFuture<Void>> ranks = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            int rank = i;
            ranks.add(
                    CompletableFuture.runAsync(
                            () -> {
                                try (ProcessGroup group =
                                        ProcessGroups.init(
                                                "shm", recording, name, rank, 2, OPTIONS)) {
                                    if (withSubGroup) {
                                        group.newGroup(List.of(0, 1));
                                    }
                                    group.barrier().await();
                                }
                            },
                            task -> new Thread(task).start()));
        }
        ranks.forEach(CompletableFuture::join);
        return keys;
    }

    @Test
    void groupNamesNeverShareKeys() {
        Set<String> seen = new HashSet<>(keysOf("g", true));
        assertFalse(seen.isEmpty());
        for (String name : List.of("g/group0", "g%2Fgroup0", "g%252Fgroup0", "g/segment", "%")) {
            for (String key : keysOf(name, false)) {
                assertTrue(seen.add(key), name + " has the key " + key + " of another group");
            }
        }
    }

    private GroupContext context(String name, int rank, int worldSize) {
        return new GroupContext(name, rank, worldSize, store, OPTIONS, null);
    }

    private static List<byte[]> exchange(GroupContext context, String key) {
        return context.exchange(key, new byte[] {(byte) context.rank()});
    }

    private static void assertMismatch(FutureTask<?> task, String... texts) throws Exception {
        Throwable e = assertThrows(ExecutionException.class, task::get).getCause();
        assertEquals(CollectiveMismatchException.class, e.getClass(), e.toString());
        for (String text : texts) {
            assertTrue(e.getMessage().contains(text), e.getMessage());
        }
    }

    @Test
    void groupsWithTheSameKeysFail() throws Exception {
        FutureTask<?> first = start(() -> exchange(context("a", 0, 2), "k"));
        FutureTask<?> second = start(() -> exchange(context("b", 1, 2), "k"));
        assertMismatch(first, "'a'", "'b'", "another name");
        assertMismatch(second, "'a'", "'b'", "another name");
    }

    @Test
    void ranksMustAgreeOnTheWorldSize() throws Exception {
        FutureTask<?> first = start(() -> exchange(context("g", 0, 2), "k"));
        // This one also waits for a rank 2 that will never come.
        FutureTask<?> second = start(() -> exchange(context("g", 1, 3), "k"));
        assertMismatch(first, "'g'", "world size 3, this rank 2;");
        assertMismatch(second, "'g'", "world size 2, this rank 3;");
    }

    @Test
    void staleValuesOfAnEarlierGroupAreDetected() throws Exception {
        // An earlier group of the same name got no further.
        GroupContext late = context("g", 1, 2);
        BackendOptions impatient = new BackendOptions(Duration.ofMillis(1));
        assertThrows(
                CollectiveTimeoutException.class,
                () -> exchange(new GroupContext("g", 0, 2, store, impatient, null), "first"));
        // Rank 1 takes its value for that of rank 0, which comes only now.
        exchange(late, "first");
        FutureTask<?> one = start(() -> exchange(late, "second"));
        GroupContext zero = context("g", 0, 2);
        FutureTask<?> other =
                start(
                        () -> {
                            exchange(zero, "first");
                            return exchange(zero, "second");
                        });
        assertMismatch(one, "same name");
        assertMismatch(other, "same name");
    }

    @Test
    void duplicateRankIsDetected() throws Exception {
        byte[] others;
        try (Store elsewhere = new HashStore()) {
            GroupContext other = new GroupContext("g", 0, 1, elsewhere, OPTIONS, null);
            elsewhere.add("k/0/read", -1); // The key stays.
            exchange(other, "k");
            others = elsewhere.get("k/0");
        }
        GroupContext one =
                new GroupContext(
                        "g", 0, 1, afterSet(() -> store.set("k/0", others)), OPTIONS, null);
        assertMismatch(start(() -> exchange(one, "k")), "already has rank 0");
    }
}
