// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi;

import java.util.Map;
import org.djlx.collectives.CollectiveException;

/**
 * Creates backends. Found by {@link java.util.ServiceLoader} or registered with {@link
 * Backends#register}.
 */
public interface BackendFactory {

    /** {@return the backend's name, such as {@code shm}} */
    String name();

    /**
     * {@return the operations, element types and reductions that the backend supports; the same on
     * every rank}
     */
    Support support();

    /**
     * Completes the environment from which {@link org.djlx.collectives.ProcessGroups#init(String)}
     * reads this process's rank. A backend whose launcher does not set torchrun's variables, such
     * as mpirun, adds them.
     *
     * @return the environment to use; the same unless the backend overrides it
     */
    default Map<String, String> environment(Map<String, String> environment) {
        return environment;
    }

    /**
     * Creates the backend of one rank. All ranks of the group call it; it returns when the group is
     * usable.
     *
     * @throws IllegalArgumentException if the backend does not accept this class of options
     * @throws CollectiveException if not all ranks call it within the timeout
     */
    Backend create(GroupContext context);
}
