// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import java.util.List;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.internal.cudap2p.RegionHandshake.RankInfo;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.host.NativeMemory;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Probes of peer memory, and what is done if they fail. */
class PeerProbeTest {

    private static final String PROBLEM = "rank 1: what rank 0 wrote to rank 1 did not arrive";

    @Test
    @Tag("gpu")
    void probeDetectsALostWord() {
        GpuTests.require(1, NativeLibrary.NVRTC);
        try (CudaDevice device = CudaDevice.open(Device.gpu(0));
                CudaStream stream = CudaStream.create(device);
                NativeMemory memory = CudaMemory.allocate(device, PeerProbe.BYTES);
                PeerProbe probe = new PeerProbe(device)) {
            for (long offset : new long[] {0, PeerProbe.BYTES / 2 - 1, PeerProbe.BYTES - 1}) {
                probe.write(memory.address(), 77);
                probe.check(memory.address(), 77, "unused");
                stream.memsetAsync(memory.address() + offset, (byte) 0xee, 1);
                stream.synchronize();
                String message =
                        assertThrows(
                                        EngineException.class,
                                        () -> probe.check(memory.address(), 77, "lost"))
                                .getMessage();
                assertEquals("lost: 16 of 65536 bytes are wrong", message);
            }
        }
    }

    private static RankInfo rank(String ncclP2pDisable) {
        RankInfo info = new RankInfo();
        info.ncclP2pDisable = ncclP2pDisable;
        return info;
    }

    @Test
    void brokenPeerAccessIsRefusedUnlessNcclAvoidsIt() {
        List<RankInfo> without = List.of(rank("1"), rank("1"));
        assertEquals(PROBLEM, RegionHandshake.brokenAccess("g", without, PROBLEM));
        for (String other : new String[] {null, "0"}) {
            List<RankInfo> mixed = List.of(rank("1"), rank(other));
            String message =
                    assertThrows(
                                    EngineException.class,
                                    () -> RegionHandshake.brokenAccess("g", mixed, PROBLEM))
                            .getMessage();
            assertTrue(message.startsWith("cannot create group 'g': " + PROBLEM), message);
            assertTrue(message.contains("set NCCL_P2P_DISABLE=1 in the environment"), message);
        }
    }
}
