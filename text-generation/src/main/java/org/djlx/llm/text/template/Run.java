// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

/** One rendering: its output, and the bounds of its steps, memory and depth. */
final class Run {

    static final int MAX_LENGTH = 16 << 20; // of a text, in UTF-16 units
    private static final int MAX_ELEMENTS = 1_000_000; // of a list
    private static final long MAX_STEPS = 20_000_000;
    private static final long MAX_MEMORY = 128 << 20; // bytes of all texts and lists together
    private static final int MAX_DEPTH = 150;
    static final int OBJECT = 48; // bytes, about
    static final int ELEMENT = 24;

    StringBuilder out = new StringBuilder(); // replaced while the output of a block is captured
    int line = 1; // of the statement that is executed
    private long steps;
    private long memory;
    private int depth;

    void step() {
        step(1);
    }

    /** Counts steps: an evaluation, an element, or 16 characters that are read, is one. */
    void step(long count) {
        steps += count;
        if (steps > MAX_STEPS) {
            throw new TemplateError("it takes more than %d steps", MAX_STEPS);
        }
    }

    String read(String text) {
        step(1 + (text.length() >> 3));
        return text;
    }

    String created(String text) {
        requireLength(text.length());
        return text;
    }

    /** Counts a text by its length, before it is created. */
    void requireLength(long length) {
        if (length > MAX_LENGTH) {
            throw new TemplateError("a text is longer than %d characters", MAX_LENGTH);
        }
        step(1 + (length >> 4));
        allocate(OBJECT + length * Character.BYTES);
    }

    /** Counts a list or dictionary by its size, before it is created. */
    void requireSize(long size) {
        if (size > MAX_ELEMENTS) {
            throw new TemplateError("a list has more than %d elements", MAX_ELEMENTS);
        }
        step(1 + size);
        allocate(OBJECT + size * ELEMENT);
    }

    /** Counts one more element of a list that grows to this size. */
    void requireElement(int size) {
        step();
        allocate(ELEMENT);
        if (size > MAX_ELEMENTS) {
            requireSize(size);
        }
    }

    /** Counts memory that is taken, in bytes. */
    void allocate(long bytes) {
        memory += bytes;
        if (memory > MAX_MEMORY) {
            throw new TemplateError(
                    "its texts and lists take more than %d MiB of memory", MAX_MEMORY >> 20);
        }
    }

    /** Enters a macro or a nested value. Call {@link #leave} afterwards. */
    void enter() {
        step();
        if (++depth > MAX_DEPTH) {
            depth--;
            throw new TemplateError("macros or values are nested more than %d deep", MAX_DEPTH);
        }
    }

    void leave() {
        depth--;
    }

    /** Appends to a text whose length is bounded. */
    void append(StringBuilder to, String text) {
        boolean fits = to.length() + (long) text.length() <= MAX_LENGTH;
        requireLength(fits ? text.length() : Long.MAX_VALUE);
        to.append(text);
    }
}
