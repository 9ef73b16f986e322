// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.IntConsumer;
import java.util.function.IntFunction;
import java.util.stream.IntStream;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.FileStore;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.LimitedStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.TcpStore;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Groups leave nothing in the store that their ranks have met in. */
@Timeout(120)
class GroupKeysTest {

    private static final int RANKS = 3;
    private static final BackendOptions OPTIONS = new BackendOptions(Duration.ofSeconds(60));

    /** Runs code on a thread for each rank. */
    private static void onRanks(IntConsumer body) {
        List<CompletableFuture<Void>> ranks = new ArrayList<>();
        for (int i = 0; i < RANKS; i++) {
            int rank = i;
            ranks.add(
                    CompletableFuture.runAsync(
                            () -> body.accept(rank), task -> new Thread(task).start()));
        }
        ranks.forEach(CompletableFuture::join);
    }

    /** Creates a group and sub-groups, looks at the store once they are there, destroys them. */
    private static void comeAndGo(IntFunction<Store> handles) {
        onRanks(
                rank -> {
                    Store store = handles.apply(rank);
                    try (ProcessGroup group =
                            ProcessGroups.init("shm", store, "main", rank, RANKS, OPTIONS)) {
                        assertEquals(0, store.numKeys());
                        for (int i = 0; i < 5; i++) {
                            group.newGroup(List.of(2, 0)).destroy();
                            group.split(rank % 2, 0).destroy();
                        }
                        assertEquals(0, store.numKeys());
                        // None creates the next group before all have counted.
                        group.barrier().await();
                    }
                });
    }

    @Test
    void inAHashStore() {
        try (Store store = new HashStore()) {
            comeAndGo(rank -> store);
        }
    }

    @Test
    void inATcpStoreWithRoomForOneGroup() {
        try (TcpStore server =
                LimitedStore.maxKeys(
                                TcpStore.builder().setHost("localhost").setPort(0).optServer(true),
                                2 * (RANKS + 1))
                        .build()) {
            TcpStore.Builder client =
                    TcpStore.builder().setHost("localhost").setPort(server.port());
            List<Store> handles = new ArrayList<>();
            IntStream.range(0, RANKS).forEach(rank -> handles.add(client.build()));
            comeAndGo(handles::get);
            handles.forEach(Store::close);
        }
    }

    @Test
    void inAFileStore(@TempDir Path directory) {
        List<Store> handles = new ArrayList<>();
        IntStream.range(0, RANKS)
                .forEach(rank -> handles.add(new FileStore(directory.resolve("store"), RANKS)));
        comeAndGo(handles::get);
        handles.forEach(Store::close);
    }

    /** Not every store can: the groups work all the same, and leave their keys. */
    @Test
    void groupKeysMayStayInAStoreWithoutDelete() {
        try (Store store = new HashStore()) {
            Store keeping = keeping(store);
            onRanks(
                    rank -> {
                        GroupContext context =
                                new GroupContext("g", rank, RANKS, keeping, OPTIONS, null);
                        List<byte[]> values = context.exchange("k", new byte[] {(byte) rank});
                        for (int peer = 0; peer < RANKS; peer++) {
                            assertArrayEquals(new byte[] {(byte) peer}, values.get(peer));
                        }
                    });
            assertEquals(RANKS + 1, store.numKeys());
        }
    }

    private static Store keeping(Store store) {
        return (Store)
                Proxy.newProxyInstance(
                        Store.class.getClassLoader(),
                        new Class<?>[] {Store.class},
                        (proxy, method, arguments) -> {
                            if (method.getName().equals("delete")) {
                                throw new UnsupportedOperationException("delete");
                            }
                            try {
                                return method.invoke(store, arguments);
                            } catch (InvocationTargetException e) {
                                throw e.getCause();
                            }
                        });
    }
}
