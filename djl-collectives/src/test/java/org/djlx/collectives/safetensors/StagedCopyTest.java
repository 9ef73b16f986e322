// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;

/** How rows are divided into parts, and threads run, which needs no GPU. */
class StagedCopyTest {

    @Test
    void partsTogetherAreTheRows() {
        Random random = new Random(3);
        for (int round = 0; round < 2000; round++) {
            int rows = 1 + random.nextInt(9);
            int rowBytes = 1 + random.nextInt(40);
            int stride = rowBytes + (random.nextBoolean() ? 0 : random.nextInt(20));
            int most = 1 + random.nextInt(64);
            byte[] source = new byte[rows * stride];
            random.nextBytes(source);
            byte[] copied = new byte[rows * rowBytes];
            boolean[] touched = new boolean[copied.length];
            for (StagedCopy.Part part : StagedCopy.divide(0, rows, rowBytes, stride, most)) {
                assertTrue(part.rows() * part.rowBytes() <= most);
                for (int row = 0; row < part.rows(); row++) {
                    for (int i = 0; i < part.rowBytes(); i++) {
                        int to = (int) (part.offset() + row * part.rowBytes() + i);
                        assertTrue(!touched[to]);
                        touched[to] = true;
                        copied[to] = source[(int) (part.source() + row * stride + i)];
                    }
                }
            }
            assertArrayEquals(packed(source, rows, rowBytes, stride), copied);
        }
    }

    private static byte[] packed(byte[] source, int rows, int rowBytes, int stride) {
        byte[] packed = new byte[rows * rowBytes];
        for (int row = 0; row < rows; row++) {
            System.arraycopy(source, row * stride, packed, row * rowBytes, rowBytes);
        }
        return packed;
    }

    @Test
    void allThreadsEndBeforeAFailureIsThrown() {
        for (Throwable failure :
                List.of(new IllegalStateException("one"), new StackOverflowError())) {
            AtomicInteger ended = new AtomicInteger();
            Throwable thrown =
                    assertThrows(
                            failure.getClass(),
                            () -> StagedCopy.runAll(8, thread -> run(thread, failure, ended)));
            assertSame(failure, thrown);
            assertEquals(7, ended.get());
        }
    }

    private static void run(int thread, Throwable failure, AtomicInteger ended) {
        if (thread == 5) {
            if (failure instanceof Error error) {
                throw error;
            }
            throw (RuntimeException) failure;
        }
        LockSupport.parkNanos(20_000_000);
        ended.incrementAndGet();
    }
}
