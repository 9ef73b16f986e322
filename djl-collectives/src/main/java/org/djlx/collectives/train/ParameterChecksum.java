// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.train;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.zip.CRC32C;
import org.djlx.collectives.internal.host.ArrayBytes;

/** A CRC-32C over the bytes of arrays, on any device and of any type. */
final class ParameterChecksum {

    private final CRC32C crc = new CRC32C();

    /** Adds an array's bytes. The temporary manager is on the array's device. */
    void add(NDManager temporary, NDArray array) {
        try {
            ArrayBytes.read(temporary, array, crc::update);
        } catch (IOException e) {
            throw new UncheckedIOException(e); // Not thrown: updating a checksum does no I/O.
        }
    }

    long value() {
        return crc.getValue();
    }
}
