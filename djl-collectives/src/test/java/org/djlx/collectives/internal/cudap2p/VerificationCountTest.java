// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Verification compares a call once: by the hosts, and through the store only what is left. */
@Tag("gpu")
@Timeout(200)
class VerificationCountTest {

    private final AtomicInteger compared = new AtomicInteger();

    private Store counting(Store store) {
        return (Store)
                Proxy.newProxyInstance(
                        Store.class.getClassLoader(),
                        new Class<?>[] {Store.class},
                        (proxy, method, arguments) -> {
                            if (method.getName().equals("set")
                                    && ((String) arguments[0]).contains("verify/")) {
                                compared.incrementAndGet();
                            }
                            try {
                                return method.invoke(store, arguments);
                            } catch (InvocationTargetException e) {
                                throw e.getCause();
                            }
                        });
    }

    @Test
    void onlySizesOfAnAllToAllGoThroughTheStore() {
        int worldSize = P2pRanks.require();
        P2pRanks.requireNccl();
        CudaP2pOptions options = P2pRanks.verifiedOptions().build();
        try (HashStore store = new HashStore()) {
            Store counting = counting(store);
            List<CompletableFuture<ProcessGroup>> joining = new ArrayList<>();
            for (int i = 0; i < worldSize; i++) {
                int rank = i;
                CompletableFuture<ProcessGroup> joined = new CompletableFuture<>();
                joining.add(joined);
                joined.completeAsync(
                        () ->
                                ProcessGroups.init(
                                        "cuda_p2p", counting, "counted", rank, worldSize, options),
                        task -> new Thread(task).start());
            }
            List<ProcessGroup> groups = joining.stream().map(CompletableFuture::join).toList();
            try {
                ProcessGroups.run(
                        groups,
                        group -> {
                            try (NDManager manager =
                                    NDManager.newBaseManager(group.device(), "PyTorch")) {
                                NDArray large = manager.ones(new Shape(8_000_000));
                                group.allReduce(large, ReduceOp.SUM).await();
                                group.broadcast(large, 0).await();
                                group.barrier().await();
                            }
                            return null;
                        });
                assertEquals(0, compared.get());
                ProcessGroups.run(
                        groups,
                        group -> {
                            try (NDManager manager =
                                    NDManager.newBaseManager(group.device(), "PyTorch")) {
                                NDArray input = manager.ones(new Shape(worldSize));
                                group.allToAllSingle(input.duplicate(), input).await();
                                group.barrier().await();
                            }
                            return null;
                        });
                assertEquals(worldSize, compared.get());
            } finally {
                groups.forEach(ProcessGroup::destroy);
            }
        }
    }
}
