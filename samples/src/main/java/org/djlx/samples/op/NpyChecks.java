// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Checks the bytes of an .npy array before DJL decodes them. DJL cannot read every array that NumPy
 * writes, and PyTorch lacks some types that DJL reads.
 *
 * <pre>
 *   6 bytes        magic
 *   2 bytes        version
 *   2 or 4 bytes   length of the header, little-endian; 2 bytes in version 1
 *   the header     a Python dictionary, in text
 *   the elements
 * </pre>
 */
final class NpyChecks {

    private static final byte[] MAGIC = {(byte) 0x93, 'N', 'U', 'M', 'P', 'Y'};
    private static final int VERSION_END = 8;
    private static final Pattern HEADER =
            Pattern.compile(
                    "\\{'descr': '([^']*)', 'fortran_order': (True|False), 'shape':"
                            + " \\(([\\d, ]*)\\), *\\}");
    private static final Map<String, Integer> ITEM_SIZES =
            Map.of("<f8", 8, "<f4", 4, "<f2", 2, "<i8", 8, "<i4", 4, "|i1", 1, "|u1", 1, "|b1", 1);

    private NpyChecks() {}

    /**
     * Checks that DJL can decode the array.
     *
     * @throws IllegalArgumentException if DJL cannot; the message gives the reason
     */
    static void requireReadable(byte[] npy) {
        if (npy.length < VERSION_END || !Arrays.equals(Arrays.copyOf(npy, MAGIC.length), MAGIC)) {
            throw new IllegalArgumentException("it is not in .npy format");
        }
        int sizeBytes = npy[MAGIC.length] == 1 ? Short.BYTES : Integer.BYTES;
        long begin = VERSION_END + sizeBytes;
        long end = begin + littleEndian(npy, VERSION_END, sizeBytes);
        if (end > npy.length) {
            throw new IllegalArgumentException("its header is truncated");
        }
        String header =
                new String(npy, (int) begin, (int) (end - begin), StandardCharsets.UTF_8).trim();
        Matcher matcher = HEADER.matcher(header);
        if (!matcher.matches()) {
            throw new IllegalArgumentException("it is no plain array: " + header);
        }
        Integer itemSize = ITEM_SIZES.get(matcher.group(1));
        if (itemSize == null) {
            throw new IllegalArgumentException(
                    String.format(
                            "its type is '%s'; save it as float16, float32, float64, int8, uint8,"
                                    + " int32, int64 or bool, little-endian",
                            matcher.group(1)));
        }
        if (matcher.group(2).equals("True")) {
            throw new IllegalArgumentException(
                    "it is in Fortran order; save numpy.ascontiguousarray of it");
        }
        requireSize(matcher.group(3), itemSize, npy.length - end);
    }

    private static long littleEndian(byte[] bytes, int offset, int count) {
        long value = 0;
        for (int i = Math.min(count, bytes.length - offset) - 1; i >= 0; i--) {
            value = value << Byte.SIZE | (bytes[offset + i] & 0xff);
        }
        return value;
    }

    private static void requireSize(String shape, int itemSize, long bytes) {
        // Double precision: the product of a damaged shape could overflow integers.
        double wanted = itemSize;
        for (String size : shape.split("[, ]+")) {
            wanted *= size.isEmpty() ? 1 : Double.parseDouble(size);
        }
        if (wanted != bytes) {
            throw new IllegalArgumentException(
                    String.format(
                            "its shape (%s) takes %.0f bytes, but it has %d",
                            shape, wanted, bytes));
        }
    }
}
