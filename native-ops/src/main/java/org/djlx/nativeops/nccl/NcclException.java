// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import ai.djl.engine.EngineException;

/** A failed call of NCCL. */
public class NcclException extends EngineException {

    private static final long serialVersionUID = 1L;

    public NcclException(String call, String reason) {
        super(call + " failed: " + reason);
    }
}
