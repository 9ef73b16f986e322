// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Support;

/** Creates {@code shm} backends. Accepts {@link ShmOptions} or plain options. */
public final class ShmBackendFactory implements BackendFactory {

    /** Constructor for {@link java.util.ServiceLoader}. */
    public ShmBackendFactory() {}

    @Override
    public String name() {
        return ShmBackend.NAME;
    }

    @Override
    public Support support() {
        return ShmBackend.SUPPORT;
    }

    @Override
    public Backend create(GroupContext context) {
        return ShmBackend.create(context);
    }
}
