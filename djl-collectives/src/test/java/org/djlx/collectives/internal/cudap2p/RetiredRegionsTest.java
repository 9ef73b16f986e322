// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.host.NativeMemory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Memory that peers may write to outlives them; no GPU is needed. */
@Timeout(60)
class RetiredRegionsTest {

    private static List<HostSync> hosts() {
        HashStore store = new HashStore();
        BackendOptions options =
                CudaP2pOptions.builder().optTimeout(Duration.ofSeconds(30)).build();
        return IntStream.range(0, 2)
                .mapToObj(rank -> new GroupContext("retired", rank, 2, store, options, null))
                .map(context -> CompletableFuture.supplyAsync(() -> HostSync.join(context)))
                .toList()
                .stream()
                .map(CompletableFuture::join)
                .toList();
    }

    /** Rank 0 fails in the handshake while rank 1 still writes its probe to rank 0's memory. */
    @Test
    void memoryOfAFailedHandshake() throws InterruptedException {
        List<HostSync> hosts = hosts();
        List<String> freed = Collections.synchronizedList(new ArrayList<>());
        NativeMemory own = new NativeMemory(4096, 4096, Device.cpu(), () -> freed.add("own"));
        NativeMemory peer = new NativeMemory(8192, 4096, Device.cpu(), () -> freed.add("peer"));
        RegionHandshake.retire(own, new NativeMemory[] {own, peer}, 0, hosts.get(0));
        assertEquals(List.of("peer"), freed);
        RetiredRegions.free();
        assertEquals(List.of("peer"), freed);
        hosts.get(1).leave();
        while (freed.size() < 2) {
            RetiredRegions.free();
            Thread.sleep(1);
        }
        assertEquals(List.of("peer", "own"), freed);
        hosts.get(1).close();
    }

    /** Before any memory was allocated, the rank only leaves. */
    @Test
    void rankWithoutMemoryOnlyLeaves() {
        List<HostSync> hosts = hosts();
        RegionHandshake.retire(null, new NativeMemory[0], 0, null);
        RegionHandshake.retire(null, new NativeMemory[0], 0, hosts.get(0));
        assertTrue(hosts.get(1).isAlone());
        hosts.get(1).close();
    }
}
