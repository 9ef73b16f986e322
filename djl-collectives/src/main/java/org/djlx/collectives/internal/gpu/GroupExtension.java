// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.util.Optional;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.Operation;

/**
 * Runs operations of a {@link GpuGroup} on other streams than the group's, and shares the group's
 * calls with the other ranks. The extension fails with the group, and the group with it.
 */
public interface GroupExtension extends Watchdog.Queue {

    /** The extension of a group that has none. */
    GroupExtension NONE = new GroupExtension() {};

    /**
     * Returns whether the extension compares the signatures of collectives with other ranks' before
     * they are launched.
     */
    default boolean comparesSignatures() {
        return false;
    }

    /**
     * Returns the reason why operations cannot succeed, if one is known.
     *
     * @param first the running collective that was called first; null if there is none
     */
    default Optional<CollectiveException> problem(Operation first) {
        return Optional.empty();
    }

    /**
     * Announces a collective to the other ranks, before it is launched.
     *
     * @param captured whether the caller's stream is being captured into a graph
     * @return the reason why the operation must not be launched, or null
     * @throws CollectiveException if the group is broken
     */
    default CollectiveException announce(Operation operation, boolean captured) {
        return null;
    }

    /** Lets the group's stream wait for the extension's operations, before it is used. */
    default void join() {}

    /** Returns why an operation failed; null if it succeeded. Called after its kernel has ended. */
    default CollectiveException failureOf(Operation operation) {
        return null;
    }

    @Override
    default Optional<String> error() {
        return Optional.empty();
    }

    @Override
    default boolean breakWith(CollectiveException reason) {
        return false;
    }

    @Override
    default void abort() {}
}
