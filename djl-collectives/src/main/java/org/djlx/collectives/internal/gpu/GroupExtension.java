// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.util.Optional;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.Operation;

/**
 * Runs operations of a {@link GpuGroup} on streams other than the group's, and publishes the
 * group's calls to the other ranks. If the extension or the group fails, both fail.
 */
public interface GroupExtension extends Watchdog.Queue {

    /** The no-op extension of a group without an extension. */
    GroupExtension NONE = new GroupExtension() {};

    /**
     * Returns whether the extension compares the signatures of collectives across ranks before
     * launch.
     */
    default boolean comparesSignatures() {
        return false;
    }

    /**
     * Returns the reason why operations cannot succeed, if one is known, given the running
     * collective that was called first, or null.
     */
    default Optional<CollectiveException> problem(Operation first) {
        return Optional.empty();
    }

    /**
     * Announces a collective to the other ranks, before it is launched. Returns the reason why it
     * must not be launched, or null; throws if the group is broken.
     */
    default CollectiveException announce(Operation operation, boolean captured) {
        return null;
    }

    /**
     * Launches on the group's stream: after the extension's operations, and while the extension
     * launches nothing.
     */
    default void launchAfterAll(Runnable launch) {
        launch.run();
    }

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
