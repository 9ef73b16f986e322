// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

import java.util.Optional;

/** Implemented by a {@link org.djlx.collectives.spi.Backend} whose groups have symmetric memory. */
public interface P2pBackend {

    /** {@return the group's symmetric memory; empty on all ranks if the group has none} */
    Optional<P2pBuffers> p2pBuffers();
}
