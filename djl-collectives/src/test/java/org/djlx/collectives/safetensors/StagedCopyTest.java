// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** How rows are divided and filled into pieces, which needs no GPU. */
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
            StagedCopy.divide(
                    0,
                    rows,
                    rowBytes,
                    stride,
                    most,
                    (from, count, bytes, offset) -> {
                        assertTrue(count * bytes <= most);
                        for (int row = 0; row < count; row++) {
                            for (int i = 0; i < bytes; i++) {
                                int to = (int) (offset + row * bytes + i);
                                assertTrue(!touched[to]);
                                touched[to] = true;
                                copied[to] = source[(int) (from + row * stride + i)];
                            }
                        }
                    });
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
    void severalThreadsFillAPiece() {
        int[][] cases = {{1, 5_000_001, 5_000_001}, {3000, 1003, 2005}, {3, 1_500_000, 1_600_000}};
        Random random = new Random(4);
        for (int[] sizes : cases) {
            byte[] bytes = new byte[sizes[0] * sizes[2]];
            random.nextBytes(bytes);
            byte[] filled = new byte[sizes[0] * sizes[1]];
            try (Memory source = new Memory(bytes.length);
                    Memory piece = new Memory(filled.length)) {
                source.write(0, bytes, 0, bytes.length);
                StagedCopy.fill(
                        Pointer.nativeValue(piece),
                        Pointer.nativeValue(source),
                        sizes[0],
                        sizes[1],
                        sizes[2]);
                piece.read(0, filled, 0, filled.length);
            }
            assertArrayEquals(packed(bytes, sizes[0], sizes[1], sizes[2]), filled);
        }
    }
}
