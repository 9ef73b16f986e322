/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.train;

import java.io.IOException;
import java.io.Serializable;
import java.util.Collections;
import java.util.List;
import java.util.stream.Collectors;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ProcessGroup;

/**
 * Runs code in which one rank may fail alone, such as reading a file: all ranks hear of it and
 * fail, so that none goes on and waits for one that does not.
 */
public final class Agreement {

    private record Outcome(String said, String failure) implements Serializable {}

    /** The code. */
    public interface Body {
        /** Returns what the other ranks are told; may be null. */
        public String run() throws IOException;
    }

    private Agreement() {}

    /**
     * Runs code on all ranks, which must return the same.
     *
     * @param group the ranks; null for one alone
     * @param operation what is done, for errors
     */
    public static void run(ProcessGroup group, String operation, Body body) throws IOException {
        List<String> said = exchange(group, operation, body);
        if (said.stream().distinct().count() > 1) {
            throw new IOException(
                    String.format("%s: the ranks differ; in their order: %s", operation, said));
        }
    }

    /** Runs code on all ranks, and returns what it returned on each. */
    public static List<String> exchange(ProcessGroup group, String operation, Body body)
            throws IOException {
        if (group == null) {
            return Collections.singletonList(body.run());
        }
        String own;
        try {
            own = body.run();
        } catch (IOException | RuntimeException | Error e) {
            try {
                tell(group, new Outcome(null, e.toString()));
            } catch (RuntimeException broken) {
                e.addSuppressed(broken);
            }
            throw e;
        }
        List<Outcome> all = tell(group, new Outcome(own, null));
        for (int rank = 0; rank < all.size(); rank++) {
            if (all.get(rank).failure != null) {
                throw new IOException(
                        String.format(
                                "%s: rank %d has failed: %s",
                                operation, rank, all.get(rank).failure));
            }
        }
        return all.stream().map(Outcome::said).collect(Collectors.toList()); // null is allowed
    }

    private static List<Outcome> tell(ProcessGroup group, Outcome own) {
        return new ObjectCollectives(group, Outcome.class).allGatherObject(own);
    }
}
