// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.io.Serializable;
import java.util.Collections;
import java.util.List;
import java.util.stream.Collectors;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.host.FailureText;
import org.djlx.nativeops.host.Required;

/**
 * Runs code that may fail on one rank only, such as reading a file. If one rank fails, all ranks
 * fail. No rank waits for a rank that has stopped.
 */
public final class Agreement {

    private record Outcome(String result, String failure) implements Serializable {}

    /** The code to run on each rank. */
    public interface Body {
        /** Runs the code; returns the value that the ranks exchange, or null. */
        String run() throws IOException;
    }

    private Agreement() {}

    /**
     * Runs code on all ranks and checks that it returned the same value on each.
     *
     * @param group the ranks; null if there is only one
     * @throws IOException if the code failed on any rank, or the values differ
     */
    public static void run(ProcessGroup group, String operation, Body body) throws IOException {
        List<String> results = exchange(group, operation, body);
        if (results.stream().distinct().count() > 1) {
            throw new IOException(
                    String.format(
                            "%s: the ranks returned different values; in rank order: %s",
                            operation, results));
        }
    }

    /**
     * Runs code on all ranks and gathers the values that it returned.
     *
     * @param group the ranks; null if there is only one
     * @return the values, in rank order
     * @throws IOException if the code failed on any rank
     */
    public static List<String> exchange(ProcessGroup group, String operation, Body body)
            throws IOException {
        Required.argument("Agreement: the code", body);
        if (group == null) {
            return Collections.singletonList(body.run());
        }
        String own;
        try {
            own = body.run();
        } catch (IOException | RuntimeException | Error e) {
            try {
                gather(group, new Outcome(null, FailureText.of(e)));
            } catch (RuntimeException broken) {
                e.addSuppressed(broken);
            }
            throw e;
        }
        List<Outcome> all = gather(group, new Outcome(own, null));
        for (int rank = 0; rank < all.size(); rank++) {
            if (all.get(rank).failure != null) {
                throw new IOException(
                        String.format(
                                "%s: rank %d failed: %s", operation, rank, all.get(rank).failure));
            }
        }
        return all.stream().map(Outcome::result).collect(Collectors.toList()); // null is allowed
    }

    /**
     * Tells all ranks of a group, null if there is only one, whether a condition holds on any of
     * them, by a small all-reduce; the manager is on the group's device.
     */
    public static boolean any(ProcessGroup group, NDManager manager, boolean own) {
        if (group == null) {
            return own;
        }
        Required.argument("any: manager", manager);
        try (NDArray flag = manager.create(new int[] {own ? 1 : 0})) {
            group.allReduce(flag, ReduceOp.MAX).await();
            CurrentStreams.await(group.device());
            return flag.toIntArray()[0] > 0;
        }
    }

    private static List<Outcome> gather(ProcessGroup group, Outcome own) {
        return new ObjectCollectives(group, Outcome.class).allGatherObject(own);
    }
}
