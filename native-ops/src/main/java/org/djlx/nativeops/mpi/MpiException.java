// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.mpi;

import ai.djl.engine.EngineException;

/** A failed call of MPI. */
public class MpiException extends EngineException {

    private static final long serialVersionUID = 1L;

    public MpiException(String call, String reason) {
        super(call + " failed: " + reason);
    }
}
