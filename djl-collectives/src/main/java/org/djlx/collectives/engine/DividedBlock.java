/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import ai.djl.nn.Block;
import org.djlx.collectives.ProcessGroup;

/**
 * A block of whose parameters the ranks of a group have parts, as in tensor parallelism. Its {@code
 * saveParameters} collects them, so that all ranks of the group call it, and each writes the same.
 * By this {@link P2pEngine} knows which rank saves a model with such a block, and logs. For blocks
 * of your own; those of one model have one group.
 */
public interface DividedBlock extends Block {

    /**
     * Returns the ranks that share the parameters.
     *
     * @return this rank's handle
     */
    ProcessGroup group();
}
