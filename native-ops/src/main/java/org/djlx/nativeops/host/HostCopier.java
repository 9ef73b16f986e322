/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.host;

import com.sun.jna.Pointer;

/**
 * Copies numbers between Java arrays and addresses of this process, without allocating anything.
 * Addresses are not checked. For one thread at a time.
 */
public final class HostCopier {

    private final Cursor cursor = new Cursor();

    /** Creates a copier. */
    public HostCopier() {}

    /** A pointer that moves: JNA's cost 24 bytes each. */
    private static final class Cursor extends Pointer {

        private Cursor() {
            super(0);
        }

        private Pointer to(long address) {
            peer = address;
            return this;
        }
    }

    /**
     * Reads floats.
     *
     * @param address the first float's address
     * @param array where they go, from the start
     * @param count how many
     */
    public void read(long address, float[] array, int count) {
        cursor.to(address).read(0, array, 0, count);
    }

    /**
     * Reads doubles.
     *
     * @param address the first double's address
     * @param array where they go, from the start
     * @param count how many
     */
    public void read(long address, double[] array, int count) {
        cursor.to(address).read(0, array, 0, count);
    }

    /**
     * Reads longs.
     *
     * @param address the first long's address
     * @param array where they go, from the start
     * @param count how many
     */
    public void read(long address, long[] array, int count) {
        cursor.to(address).read(0, array, 0, count);
    }

    /**
     * Writes floats.
     *
     * @param address where the first float goes
     * @param array the floats, from the start
     * @param count how many
     */
    public void write(long address, float[] array, int count) {
        cursor.to(address).write(0, array, 0, count);
    }

    /**
     * Writes doubles.
     *
     * @param address where the first double goes
     * @param array the doubles, from the start
     * @param count how many
     */
    public void write(long address, double[] array, int count) {
        cursor.to(address).write(0, array, 0, count);
    }
}
