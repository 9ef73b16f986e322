// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import java.util.Map;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Support;

/** Creates {@code mpi} backends from plain {@link BackendOptions}. */
public final class MpiBackendFactory implements BackendFactory {

    /** Constructor for {@link java.util.ServiceLoader}. */
    public MpiBackendFactory() {}

    @Override
    public String name() {
        return MpiBackend.NAME;
    }

    @Override
    public Support support() {
        return MpiBackend.SUPPORT;
    }

    @Override
    public Map<String, String> environment(Map<String, String> environment) {
        return MpiEnvironment.complete(environment);
    }

    @Override
    public Backend create(GroupContext context) {
        return MpiBackend.create(context);
    }
}
