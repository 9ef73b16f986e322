// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import java.io.FileInputStream;
import java.io.IOException;

/** All that is left of something that a process needs; taken and given back at once. */
final class Hoard {

    /** What is taken. */
    enum Kind {
        HEAP,
        DESCRIPTORS,
        THREADS
    }

    private static final int[] BLOCKS = {1 << 20, 1 << 14, 1 << 8};

    private final Kind kind;
    // Guarded by this; there before anything runs out.
    private final Object[] taken = new Object[1 << 18];
    private int count;
    private boolean released;

    Hoard(Kind kind) {
        this.kind = kind;
    }

    /** Takes until there is no more. */
    synchronized void take() {
        released = false;
        try {
            switch (kind) {
                case HEAP -> takeHeap();
                case DESCRIPTORS -> {
                    while (true) {
                        add(new FileInputStream("/dev/null"));
                    }
                }
                default -> {
                    while (true) {
                        Thread thread = new Thread(this::awaitRelease, "hoarded");
                        thread.start();
                        add(thread);
                    }
                }
            }
        } catch (IOException | OutOfMemoryError e) {
            // There is no more.
        }
    }

    private void takeHeap() {
        for (int size : BLOCKS) {
            try {
                while (true) {
                    add(new byte[size]);
                }
            } catch (OutOfMemoryError e) {
                // But maybe of smaller ones.
            }
        }
    }

    private void add(Object one) {
        taken[count] = one;
        count++;
    }

    private synchronized void awaitRelease() {
        while (!released) {
            try {
                wait();
            } catch (InterruptedException e) {
                return;
            }
        }
    }

    /** Gives all back. */
    void release() {
        synchronized (this) {
            released = true;
            notifyAll();
        }
        for (int i = 0; i < count; i++) {
            Object one = taken[i];
            taken[i] = null;
            try {
                if (one instanceof Thread thread) {
                    thread.join();
                } else if (one instanceof FileInputStream file) {
                    file.close();
                }
            } catch (IOException | InterruptedException e) {
                throw new AssertionError(e);
            }
        }
        count = 0;
    }
}
