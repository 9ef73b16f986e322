// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;

/** Tells listeners about the calls of fused operators in this JVM. */
public final class Usage {

    private static final List<Listener> LISTENERS = new CopyOnWriteArrayList<>();

    private Usage() {}

    /** Receives each call when its path is chosen. */
    @FunctionalInterface
    public interface Listener {

        void called(String operator, Path path, FallbackReason reason, Choice choice);
    }

    public static void add(Listener listener) {
        LISTENERS.add(listener);
    }

    public static void remove(Listener listener) {
        LISTENERS.remove(listener);
    }

    /** Counts a call on its path; a call with a fallback reason counts on NCCL. */
    public static void count(OpType operator, Path path, FallbackReason reason) {
        count(operator, reason == null ? path : Path.NCCL, reason, null);
    }

    /** Counts a matmul; the reason is null unless the matmul fell back. */
    static void count(OpType operator, Choice choice, FallbackReason reason) {
        count(operator, reason == null ? choice.path() : Path.NCCL, reason, choice);
    }

    private static void count(OpType operator, Path path, FallbackReason reason, Choice choice) {
        if (!LISTENERS.isEmpty()) {
            String name = operator.toString();
            LISTENERS.forEach(listener -> listener.called(name, path, reason, choice));
        }
    }
}
