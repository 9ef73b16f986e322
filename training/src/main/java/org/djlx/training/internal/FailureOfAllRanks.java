// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.engine.EngineException;

/**
 * A failure that all ranks find out at the same point of a pass, so that none waits for another.
 * The trainer can go on, as after an error of DJL's own engine.
 */
final class FailureOfAllRanks extends EngineException {

    private static final long serialVersionUID = 1L;

    FailureOfAllRanks(String message) {
        super(message);
    }
}
