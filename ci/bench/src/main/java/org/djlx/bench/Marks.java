/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

/** Marks in the work of a rank, numbered from 0, and the time between them. */
interface Marks extends AutoCloseable {

    /** Puts a mark behind all that the rank has issued; a mark that is there already is moved. */
    void set(int mark);

    /** Waits until all that the rank has issued is done. */
    void synchronize();

    /** The microseconds from one mark to another, both of which have been passed. */
    double micros(int from, int to);

    @Override
    void close();
}
