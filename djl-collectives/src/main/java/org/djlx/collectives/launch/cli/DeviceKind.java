// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

/** The devices that a command's ranks run on. */
public enum DeviceKind {
    cpu("shm"),

    gpu("cuda_p2p");

    private final String backend;

    DeviceKind(String backend) {
        this.backend = backend;
    }

    /** Returns the backend of groups on these devices. */
    public String backend() {
        return backend;
    }
}
