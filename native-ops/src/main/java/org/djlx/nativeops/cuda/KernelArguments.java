// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Map;

/**
 * The arguments of a kernel, in the order of its parameters. Reuse the object for many launches:
 * {@code arguments.clear().add(pointer).add(count)}. Too many arguments or bytes are an {@link
 * IllegalArgumentException}. Not thread-safe.
 *
 * <pre>
 *   0             8 * {@value #MAX_COUNT}            (bytes)
 *   | addresses   | values, each at a multiple of 8
 * </pre>
 */
public final class KernelArguments {

    public static final int MAX_COUNT = 64;

    private static final int MAX_BYTES = 4096;

    private static final int VALUES = MAX_COUNT * Long.BYTES;

    /** After arguments that have no members. */
    private static final KernelConstants.Layout NO_STRUCT =
            new KernelConstants.Layout("an argument that is no struct", 0, 1, Map.of(), Map.of());

    private final Memory memory = new Memory(VALUES + MAX_BYTES);
    private final long address = Pointer.nativeValue(memory);
    // The words of the memory. A write is a native call: launches mostly repeat the words.
    private final long[] words = new long[(VALUES + MAX_BYTES) / Long.BYTES];
    private final int[] sizes = new int[MAX_COUNT];

    /**
     * A pointer that {@link CudaKernel} caches; null until set. An Object, because its class is in
     * the CUDA presets.
     */
    Object pointers;

    private int count;
    private int end = VALUES;
    private KernelConstants.Layout struct = NO_STRUCT; // whose members are being put
    private int structOffset;
    private final BitSet members = new BitSet(); // those that were put, by offset

    public KernelArguments() {
        memory.clear();
    }

    private void put(int offset, long word) {
        if (words[offset / Long.BYTES] != word) {
            words[offset / Long.BYTES] = word;
            memory.setLong(offset, word);
        }
    }

    public KernelArguments clear() {
        count = 0;
        end = VALUES;
        struct = NO_STRUCT;
        return this;
    }

    /** Adds a 32-bit integer. */
    public KernelArguments add(int value) {
        put(next(Integer.BYTES), value);
        return this;
    }

    /** Adds a 64-bit integer or a pointer. */
    public KernelArguments add(long value) {
        put(next(Long.BYTES), value);
        return this;
    }

    /** Adds a float. */
    public KernelArguments add(float value) {
        put(next(Float.BYTES), Float.floatToRawIntBits(value));
        return this;
    }

    /** Adds a double. */
    public KernelArguments add(double value) {
        put(next(Double.BYTES), Double.doubleToRawLongBits(value));
        return this;
    }

    /**
     * Adds a struct of one or more 64-bit members, such as an array of pointers, passed by value.
     */
    public KernelArguments addStruct(long... members) {
        if (members.length == 0) {
            throw new IllegalArgumentException("the struct has no members");
        }
        int offset = next(members.length * Long.BYTES);
        int begin = offset / Long.BYTES;
        int differs =
                Arrays.mismatch(words, begin, begin + members.length, members, 0, members.length);
        if (differs >= 0) {
            System.arraycopy(members, 0, words, begin, members.length);
            memory.write(offset, members, 0, members.length);
        }
        return this;
    }

    /**
     * Adds a struct, passed by value. Its members follow, all of them, in any order: {@code
     * arguments.addStruct(layout).put("rows", rows).put("x", address)}.
     */
    public KernelArguments addStruct(KernelConstants.Layout layout) {
        int offset = next(layout.byteSize());
        struct = layout;
        structOffset = offset;
        members.clear();
        return this;
    }

    /**
     * Puts a member of the last struct: an integer or a pointer.
     *
     * @param member its name; {@code inner.x} for the member {@code x} of {@code inner}
     * @throws IllegalArgumentException if the last argument is not a struct with such a member, or
     *     the member is a float, or too small for the value
     */
    public KernelArguments put(String member, long value) {
        KernelConstants.Member of = member(member);
        if (of.type().equals("float")) {
            throw new IllegalArgumentException(
                    "%s of %s is a float, not an integer".formatted(member, struct.name()));
        }
        if (of.byteSize() == Integer.BYTES) {
            if (value != (int) value) {
                throw new IllegalArgumentException(
                        "%s of %s has 32 bits, too few for %d"
                                .formatted(member, struct.name(), value));
            }
            putHalf(structOffset + of.offset(), (int) value);
        } else {
            put(structOffset + of.offset(), value);
        }
        members.set(of.offset());
        return this;
    }

    /** Puts a float member of the last struct, as {@link #put(String, long)}. */
    public KernelArguments put(String member, float value) {
        KernelConstants.Member of = member(member);
        if (!of.type().equals("float")) {
            throw new IllegalArgumentException(
                    "%s of %s is of type %s, not a float"
                            .formatted(member, struct.name(), of.type()));
        }
        putHalf(structOffset + of.offset(), Float.floatToRawIntBits(value));
        members.set(of.offset());
        return this;
    }

    private KernelConstants.Member member(String name) {
        KernelConstants.Member member = struct.members().get(name);
        if (member == null || members.get(member.offset())) {
            throw new IllegalArgumentException(
                    "%s is put twice, or is no member of %s".formatted(name, struct.name()));
        }
        return member;
    }

    /** Puts one half of a word, little endian. */
    private void putHalf(int offset, int value) {
        int shift = offset % Long.BYTES * Byte.SIZE;
        int start = offset / Long.BYTES * Long.BYTES;
        long other = words[start / Long.BYTES] & ~(0xffffffffL << shift);
        put(start, other | (value & 0xffffffffL) << shift);
    }

    private void endStruct() {
        if (members.cardinality() < struct.members().size()) {
            List<String> missing =
                    struct.members().entrySet().stream()
                            .filter(member -> !members.get(member.getValue().offset()))
                            .map(Map.Entry::getKey)
                            .toList();
            throw new IllegalArgumentException(
                    "members of %s are missing: %s".formatted(struct.name(), missing));
        }
        struct = NO_STRUCT;
    }

    /**
     * Adds a struct by reference. Its content at the time of the launch is passed by value.
     *
     * @param struct the struct; must be reachable until the launch
     * @throws IllegalArgumentException if there are too many arguments
     */
    public KernelArguments add(KernelStruct struct) {
        endStruct();
        if (count == MAX_COUNT) {
            throw tooMany();
        }
        put(count * Long.BYTES, struct.address(0, struct.byteSize()));
        sizes[count] = struct.byteSize();
        count++;
        return this;
    }

    private static IllegalArgumentException tooMany() {
        return new IllegalArgumentException(
                "a kernel takes at most %s arguments with at most %s bytes in total"
                        .formatted(MAX_COUNT, MAX_BYTES));
    }

    private int next(int size) {
        endStruct();
        int offset = end;
        int next = offset + (size + Long.BYTES - 1) / Long.BYTES * Long.BYTES;
        if (count == MAX_COUNT || next > VALUES + MAX_BYTES) {
            throw tooMany();
        }
        put(count * Long.BYTES, address + offset);
        sizes[count] = size;
        count++;
        end = next;
        return offset;
    }

    long address() {
        return address;
    }

    /** Checks the arguments against a kernel's parameters, if those are known. */
    void requireSizes(int[] parameterSizes, String kernel) {
        endStruct();
        if (parameterSizes == null) {
            return;
        }
        if (count != parameterSizes.length) {
            throw new IllegalArgumentException(
                    kernel + " takes " + parameterSizes.length + " arguments, not " + count);
        }
        for (int i = 0; i < count; i++) {
            if (sizes[i] != parameterSizes[i]) {
                throw new IllegalArgumentException(
                        String.format(
                                "argument %d of %s must have %d bytes, not %d",
                                i, kernel, parameterSizes[i], sizes[i]));
            }
        }
    }
}
