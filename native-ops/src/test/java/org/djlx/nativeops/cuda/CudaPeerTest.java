// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.djlx.nativeops.host.NativeMemory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Tag("gpu")
@Timeout(120)
class CudaPeerTest {

    private static final int COUNT = 1 << 20;
    private static final long BYTES = (long) COUNT * Integer.BYTES;

    private CudaDevice one;
    private CudaDevice two;

    @BeforeEach
    void open() {
        Gpus.require(2);
        one = Gpus.open(0);
        two = Gpus.open(1);
        for (int again = 0; again < 2; again++) {
            one.enablePeerAccess(two);
            two.enablePeerAccess(one);
        }
    }

    @AfterEach
    void close() {
        if (one != null) {
            one.close();
            two.close();
        }
    }

    @Test
    void copiesToAndFromAPeer() {
        assertTrue(one.canAccessPeer(two));
        assertTrue(two.canAccessPeer(one));
        try (NativeMemory here = CudaMemory.allocate(one, BYTES);
                NativeMemory there = CudaMemory.allocate(two, BYTES);
                CudaStream stream = CudaStream.create(one)) {
            Gpus.write(one, here.address(), Gpus.range(1, COUNT));
            stream.copyAsync(there.address(), here.address(), BYTES);
            stream.synchronize();
            assertArrayEquals(Gpus.range(1, COUNT), Gpus.read(two, there.address(), COUNT));
            Gpus.write(two, there.address(), Gpus.range(-7, COUNT));
            stream.copyAsync(here.address(), there.address(), BYTES);
            stream.synchronize();
            assertArrayEquals(Gpus.range(-7, COUNT), Gpus.read(one, here.address(), COUNT));
        }
    }

    /** Each GPU pushes data and raises the flag on its peer, a hundred times there and back. */
    @Test
    void flagsOnPeersOrderData() {
        try (NativeMemory here = CudaMemory.allocate(one, BYTES);
                NativeMemory there = CudaMemory.allocate(two, BYTES);
                NativeMemory flags = CudaMemory.allocate(one, 4);
                NativeMemory flagsThere = CudaMemory.allocate(two, 4);
                CudaStream mine = CudaStream.create(one);
                CudaStream theirs = CudaStream.create(two)) {
            Gpus.write(one, flags.address(), 0);
            Gpus.write(two, flagsThere.address(), 0);
            Gpus.write(one, here.address(), Gpus.range(0, COUNT));
            for (int epoch = 1; epoch <= 100; epoch++) {
                Gpus.waitValue32(theirs, flagsThere.address(), epoch);
                // Proves that what came is passed on: one word is changed at each turn.
                theirs.writeValue32(there.address() + 4L * epoch, -epoch);
                theirs.copyAsync(here.address(), there.address(), BYTES);
                theirs.writeValue32(flags.address(), epoch);
                mine.copyAsync(there.address(), here.address(), BYTES);
                mine.writeValue32(flagsThere.address(), epoch);
                Gpus.waitValue32(mine, flags.address(), epoch);
            }
            mine.synchronize();
            int[] expected = Gpus.range(0, COUNT);
            for (int epoch = 1; epoch <= 100; epoch++) {
                expected[epoch] = -epoch;
            }
            assertArrayEquals(expected, Gpus.read(one, here.address(), COUNT));
        }
    }

    @Test
    void eventOfOneGpuOrdersAStreamOfTheOther() {
        try (NativeMemory there = CudaMemory.allocate(two, 8);
                CudaStream mine = CudaStream.create(one);
                CudaStream theirs = CudaStream.create(two);
                CudaEvent event = CudaEvent.create(one);
                HostFlag flag = new HostFlag(one)) {
            flag.holdUp(mine);
            mine.writeValue32(there.address(), 1);
            event.record(mine);
            theirs.waitEvent(event);
            theirs.writeValue32(there.address(), 2);
            assertEquals(false, theirs.query());
            flag.raise();
            theirs.synchronize();
            assertEquals(2, Gpus.read(two, there.address(), 1)[0]);
        }
    }

    @Test
    void topologyComesFromNvml() {
        GpuTopology topology = GpuTopology.query(List.of(one, two));
        System.out.println(topology);
        assertEquals(2, topology.size());
        assertEquals(topology.link(0, 1), GpuTopology.query(List.of(two, one)).link(0, 1));
        boolean nvLink = topology.link(0, 1).isNvLink();
        assertEquals(
                nvLink ? GpuTopology.Kind.FULLY_CONNECTED_NVLINK : GpuTopology.Kind.OTHER,
                topology.kind());
        if (one.name().contains("H200")) {
            assertEquals(new GpuLink(GpuLink.Kind.NVSWITCH, 18), topology.link(0, 1));
        }
        assertEquals("X", topology.link(0, 0).label());
    }
}
