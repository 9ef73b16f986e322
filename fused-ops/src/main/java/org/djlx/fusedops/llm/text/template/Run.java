// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.Collection;

/** One rendering: its output, and the bounds of what it may cost. */
final class Run {

    static final int MAX_LENGTH = 16 << 20; // of a text, in UTF-16 units
    static final int MAX_ELEMENTS = 1_000_000; // of a list
    private static final long MAX_STEPS = 20_000_000;
    private static final int MAX_DEPTH = 150;

    StringBuilder out = new StringBuilder(); // a block that captures its text replaces it meanwhile
    int line = 1; // of the statement that is executed
    private long steps;
    private int depth;

    /** Counts a step, and throws if there were too many. */
    void step() {
        step(1);
    }

    /** Counts steps: one for an evaluation, an element, or 16 characters that are looked at. */
    void step(long count) {
        steps += count;
        if (steps > MAX_STEPS) {
            throw new TemplateError("it takes more than %d steps", MAX_STEPS);
        }
    }

    /** Counts a text that is made or searched, and returns it. */
    String text(String text) {
        length(text.length());
        return text;
    }

    /** Checks the length of a text before it is made. */
    void length(long length) {
        if (length > MAX_LENGTH) {
            throw new TemplateError("a text is longer than %d characters", MAX_LENGTH);
        }
        step(1 + (length >> 4));
    }

    /** Checks the size of a list before it is made. */
    void size(long size) {
        if (size > MAX_ELEMENTS) {
            throw new TemplateError("a list has more than %d elements", MAX_ELEMENTS);
        }
        step(1 + size);
    }

    <T extends Collection<?>> T counted(T collection) {
        size(collection.size());
        return collection;
    }

    /** Enters a macro, a recursive loop or a nested value; {@link #leave} comes after it. */
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
        length(out.length() + (long) text.length() > MAX_LENGTH ? Long.MAX_VALUE : text.length());
        out.append(text);
    }
}
