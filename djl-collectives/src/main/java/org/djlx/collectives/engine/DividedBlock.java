// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import java.util.Objects;
import org.djlx.collectives.ProcessGroup;

/**
 * A block with parameters divided among the ranks of a group, as in tensor parallelism. Its {@code
 * saveParameters} gathers the parameters: all ranks of the group call it, and each writes the same
 * data. The engine {@code PyTorch-P2P} uses the group to choose the rank that saves the model and
 * logs. Implement this interface for your own blocks; all divided blocks of one model share one
 * group.
 */
public interface DividedBlock extends Block {

    /** {@return the ranks that share the parameters} */
    ProcessGroup group();

    /**
     * {@return how many ranks of the group hold the same values of a parameter of this block
     * itself; the parameter counts once in the norm of the gradients}
     */
    default int copies(Parameter parameter) {
        return 1;
    }

    /**
     * {@return this rank's handle on the group of the first divided block among a block, which may
     * be null, and its descendants; null if each rank has all parameters}
     */
    static ProcessGroup groupOf(Block block) {
        if (block == null) {
            return null;
        }
        if (block instanceof DividedBlock divided) {
            return divided.group();
        }
        return block.getChildren().values().stream()
                .map(DividedBlock::groupOf)
                .filter(Objects::nonNull)
                .findFirst()
                .orElse(null);
    }
}
