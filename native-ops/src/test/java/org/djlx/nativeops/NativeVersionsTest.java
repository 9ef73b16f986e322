// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

class NativeVersionsTest {

    @Test
    void versionsContainLibtorch() {
        String version = NativeVersions.query().get("libtorch");
        assertTrue(version.matches("2\\.\\d+\\.\\d+( as DJL is configured)?"), version);
    }

    @Test
    void abiVersionIsFormatted() {
        assertEquals("2.11.0", NativeVersions.libtorchVersion(0x020b_0000_0000_0000L));
    }

    @Test
    @Tag("gpu")
    void versionsContainDriverCudaAndNcclOnGpus() {
        for (NativeLibrary library : NativeLibrary.values()) {
            assumeTrue(library.isAvailable(), () -> String.valueOf(library.unavailabilityCause()));
        }
        Map<String, String> versions = NativeVersions.query();
        assertTrue(versions.get("driver").matches("\\d+(\\.\\d+)+"), versions::toString);
        assertTrue(versions.get("cuda").matches("1[2-9]\\.\\d"), versions::toString);
        assertTrue(versions.get("nccl").matches("2(\\.\\d+){2}"), versions::toString);
    }
}
