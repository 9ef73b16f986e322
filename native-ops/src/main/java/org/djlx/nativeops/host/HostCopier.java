// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import com.sun.jna.Pointer;

/**
 * Copies numbers between Java arrays and native addresses, without allocation. Addresses are not
 * checked. Not thread-safe.
 */
public final class HostCopier {

    private final Cursor cursor = new Cursor();

    public HostCopier() {}

    /** A reusable pointer. A JNA pointer would be a new object for each address. */
    private static final class Cursor extends Pointer {

        private Cursor() {
            super(0);
        }

        private Pointer to(long address) {
            peer = address;
            return this;
        }
    }

    /** Reads floats to an array, from index 0. */
    public void read(long address, float[] array, int count) {
        cursor.to(address).read(0, array, 0, count);
    }

    public void write(long address, int[] array, int count) {
        cursor.to(address).write(0, array, 0, count);
    }

    public void write(long address, float[] array, int count) {
        cursor.to(address).write(0, array, 0, count);
    }
}
