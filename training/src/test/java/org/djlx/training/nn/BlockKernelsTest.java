// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;

import org.junit.jupiter.api.Test;

class BlockKernelsTest {

    /** Initializing the launcher reads the constants of the CUDA source. */
    @Test
    void launcherFindsItsConstants() {
        assertDoesNotThrow(() -> Class.forName(BlockKernels.class.getName()));
    }
}
