// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * One assertion of PyTorch's tests, in our words.
 *
 * @param test file and name of PyTorch's test
 * @param says what PyTorch's test asserts
 * @param difference what happens here instead; empty if the same happens
 * @param body asserts what happens here
 */
record Expectation<B>(String test, String says, Optional<Difference> difference, B body) {

    /**
     * How this project differs from PyTorch.
     *
     * @param here what happens here, which the body asserts
     */
    record Difference(String here, String why) {}

    /** The expectations of one file of PyTorch's tests. */
    static final class Table<B> {

        private final List<Expectation<B>> rows;
        private final String file;

        private Table(String file, List<Expectation<B>> rows) {
            this.file = file;
            this.rows = rows;
        }

        /** Starts a table; {@link #file} continues it with another file. */
        static <B> Table<B> of(String file) {
            return new Table<>(file, new ArrayList<>());
        }

        Table<B> file(String next) {
            return new Table<>(next, rows);
        }

        Table<B> agrees(String test, String says, B body) {
            return add(test, says, Optional.empty(), body);
        }

        Table<B> differs(String test, String says, String here, String why, B body) {
            return add(test, says, Optional.of(new Difference(here, why)), body);
        }

        private Table<B> add(String test, String says, Optional<Difference> difference, B body) {
            rows.add(new Expectation<>(file + " " + test, says, difference, body));
            return this;
        }

        List<Expectation<B>> rows() {
            return List.copyOf(rows);
        }
    }
}
