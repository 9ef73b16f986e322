// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** Opens the first GPU and a stream before each test; skips the test without a GPU. */
abstract class StreamFixture {

    CudaDevice device;
    CudaStream stream;

    @BeforeEach
    void open() {
        Gpus.require(1);
        device = Gpus.open(0);
        stream = CudaStream.create(device);
    }

    @AfterEach
    void close() {
        if (device != null) {
            stream.close();
            device.close();
        }
    }
}
