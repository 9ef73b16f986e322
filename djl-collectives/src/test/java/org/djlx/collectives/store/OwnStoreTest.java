// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import static org.djlx.collectives.store.StoreContractTest.LONG;
import static org.djlx.collectives.store.StoreContractTest.SHORT;
import static org.djlx.collectives.store.StoreContractTest.assertMissing;
import static org.djlx.collectives.store.StoreContractTest.bytes;
import static org.djlx.collectives.store.StoreContractTest.text;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.BackendOptions;
import org.junit.jupiter.api.Test;

/** A user's store that implements the five methods without a default. */
class OwnStoreTest {

    private final Store store = new OwnStore();

    @Test
    void otherMethodsAreMadeOfTheFive() {
        store.multiSet(List.of("a", "b"), List.of(bytes("1"), bytes("2")));
        assertEquals("1", text(store.get("a")));
        assertEquals("2", text(store.multiGet(List.of("a", "b"), LONG).get(1)));
        store.waitFor(List.of("a", "b"), Duration.ZERO);
        assertTrue(store.check(List.of("a", "b")));
        assertFalse(store.check(List.of("a", "c")));
        assertMissing(List.of("c", "d"), () -> store.waitFor(List.of("c", "a", "d", "c"), SHORT));
        assertThrows(IllegalArgumentException.class, () -> store.multiSet(List.of("a"), List.of()));
        assertEquals(Duration.ofMinutes(5), store.timeout());
        Store handle = store.newHandle();
        assertEquals("1", text(handle.get("a")));
        handle.close();
        store.close();
    }

    @Test
    void methodsWithoutADefaultNameTheStoreAndTheMethod() {
        for (Runnable call :
                List.<Runnable>of(
                        () -> store.append("k", bytes("1")),
                        store::numKeys,
                        store::listKeys,
                        () -> store.queuePush("q", bytes("1")),
                        () -> store.queuePop("q"),
                        () -> store.queueLength("q"))) {
            String message =
                    assertThrows(UnsupportedOperationException.class, call::run).getMessage();
            assertTrue(message.contains("OwnStore does not implement "), message);
        }
    }

    @Test
    void processGroupNeedsNoMore() throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<Float>> sums = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            int rank = i;
            sums.add(threads.submit(() -> sumInSubGroup(rank)));
        }
        for (Future<Float> sum : sums) {
            assertEquals(3, sum.get(60, TimeUnit.SECONDS));
        }
        threads.shutdown();
    }

    private float sumInSubGroup(int rank) {
        BackendOptions options = new BackendOptions(LONG);
        try (ProcessGroup group = ProcessGroups.init("shm", store, "own", rank, 2, options);
                ProcessGroup sub = group.newGroup(List.of(0, 1));
                NDManager manager = NDManager.newBaseManager()) {
            NDArray tensor = manager.create(new float[] {rank + 1});
            sub.allReduce(tensor, ReduceOp.SUM, false);
            return tensor.getFloat();
        }
    }

    /** Five methods. */
    public static final class OwnStore implements Store {

        private final Store values = new HashStore();

        @Override
        public void set(String key, byte[] value) {
            values.set(key, value);
        }

        @Override
        public byte[] get(String key, Duration timeout) {
            return values.get(key, timeout);
        }

        @Override
        public long add(String key, long amount) {
            return values.add(key, amount);
        }

        @Override
        public byte[] compareSet(String key, byte[] expected, byte[] desired) {
            return values.compareSet(key, expected, desired);
        }

        @Override
        public boolean delete(String key) {
            return values.delete(key);
        }
    }
}
