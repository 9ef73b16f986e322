// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.Collection;

/** One rendering: its output, and the bounds of its size, steps and depth. */
final class Run {

    static final int MAX_LENGTH = 16 << 20; // of a text, in UTF-16 units
    static final int MAX_ELEMENTS = 1_000_000; // of a list
    private static final long MAX_STEPS = 20_000_000;
    private static final int MAX_DEPTH = 150;

    StringBuilder out = new StringBuilder(); // replaced while the output of a block is captured
    int line = 1; // of the statement that is executed
    private long steps;
    private int depth;

    /** Counts a step, and throws if there were too many. */
    void step() {
        step(1);
    }

    /** Counts steps. A step is an evaluation, an element, or 16 characters that are read. */
    void step(long count) {
        steps += count;
        if (steps > MAX_STEPS) {
            throw new TemplateError("it takes more than %d steps", MAX_STEPS);
        }
    }

    /** Counts and checks a text that is created or searched, and returns it. */
    String counted(String text) {
        requireLength(text.length());
        return text;
    }

    /** Counts and checks a text by its length, before it is created. */
    void requireLength(long length) {
        if (length > MAX_LENGTH) {
            throw new TemplateError("a text is longer than %d characters", MAX_LENGTH);
        }
        step(1 + (length >> 4));
    }

    /** Counts and checks a list by its size, before it is created. */
    void requireSize(long size) {
        if (size > MAX_ELEMENTS) {
            throw new TemplateError("a list has more than %d elements", MAX_ELEMENTS);
        }
        step(1 + size);
    }

    /** Counts and checks a collection, and returns it. */
    <T extends Collection<?>> T counted(T collection) {
        requireSize(collection.size());
        return collection;
    }

    /** Enters a macro, a recursive loop or a nested value. Call {@link #leave} afterwards. */
    void enter() {
        step();
        if (++depth > MAX_DEPTH) {
            depth--;
            throw new TemplateError(
                    "macros, loops or values are nested more than %d deep", MAX_DEPTH);
        }
    }

    void leave() {
        depth--;
    }

    void print(String text) {
        append(out, text);
    }

    /** Appends to a text whose length is bounded. */
    void append(StringBuilder to, String text) {
        boolean fits = to.length() + (long) text.length() <= MAX_LENGTH;
        requireLength(fits ? text.length() : Long.MAX_VALUE);
        to.append(text);
    }
}
