// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Launchers that reach each other by a network only. */
@Tag("slow")
@Timeout(240)
class TwoHostsTest {

    @TempDir private Path directory;

    @BeforeEach
    void requireNamespaces() throws Exception {
        TwoHosts.require(directory);
    }

    @Test
    void ranksOfTwoHostsAreOneJob() throws Exception {
        try (TwoHosts hosts =
                TwoHosts.launch(directory, RankProbe.class.getName(), "environment")) {
            for (int host = 0; host < 2; host++) {
                int code = hosts.await(host);
                assertEquals(0, code, hosts.output(host));
                String rank = "[" + host + "] ";
                assertTrue(hosts.output(host).contains(rank + "RANK=" + host + "\n"));
                assertTrue(hosts.output(host).contains(rank + "WORLD_SIZE=2\n"));
                assertTrue(hosts.output(host).contains(rank + "MASTER_ADDR=10.77.0.1\n"));
            }
        }
    }

    /** The other launcher neither sees that its processes end nor hears from them. */
    @Test
    void aKilledHostEndsTheJob() throws Exception {
        try (TwoHosts hosts = TwoHosts.launch(directory, RankProbe.class.getName(), "sleep")) {
            for (int host = 0; host < 2; host++) {
                while (!hosts.output(host).contains("pid")) {
                    Thread.sleep(20);
                }
            }
            hosts.kill(1);
            int code = hosts.await(0);
            assertNotEquals(0, code, hosts.output(0));
            assertTrue(hosts.output(0).contains("has died or left"), hosts.output(0));
        }
    }
}
