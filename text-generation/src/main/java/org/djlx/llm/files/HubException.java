// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import java.io.IOException;
import java.time.Duration;

/** An answer of a hub, or a connection to it, that cannot be used. */
final class HubException extends IOException {

    private static final long serialVersionUID = 1L;

    private final boolean temporary;
    private final transient Duration wait;

    private HubException(String message, boolean temporary, Duration wait, Throwable cause) {
        super(message, cause);
        this.temporary = temporary;
        this.wait = wait;
    }

    /** A failure that another attempt would meet, too. */
    static HubException lasting(String message) {
        return new HubException(message, false, null, null);
    }

    /**
     * A failure that may be over in a while.
     *
     * @param wait how long the hub asks to wait; null if it does not say
     */
    static HubException temporary(String message, Duration wait, Throwable cause) {
        return new HubException(message, true, wait, cause);
    }

    boolean isTemporary() {
        return temporary;
    }

    Duration waitOr(Duration usual) {
        return wait == null ? usual : wait;
    }
}
