// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import ai.djl.engine.Engine;
import ai.djl.engine.EngineProvider;
import org.djlx.collectives.launch.TorchThreads;
import org.djlx.nativeops.ContextLoader;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Provides {@link P2pEngine} to DJL through {@link java.util.ServiceLoader}. */
public final class P2pEngineProvider implements EngineProvider {

    private static final Logger LOG = LoggerFactory.getLogger(P2pEngineProvider.class);

    private static P2pEngine engine; // null before it is first needed

    /** Creates a provider; DJL does once, when it loads the engines. */
    public P2pEngineProvider() {
        String ranks = System.getProperty("org.djlx.ranks");
        if (ranks != null) {
            LOG.info(
                    "org.djlx.ranks is {}: only models of the engine {} train on several ranks",
                    ranks,
                    P2pEngine.NAME);
        }
    }

    @Override
    public String getEngineName() {
        return P2pEngine.NAME;
    }

    @Override
    public int getEngineRank() {
        return P2pEngine.RANK;
    }

    @Override
    public Engine getEngine() {
        return engine();
    }

    /** Creates the engine when it is first needed. */
    private static synchronized Engine engine() {
        if (engine == null) {
            TorchThreads.chooseFirst(Math.max(1, Integer.getInteger("org.djlx.ranks", 1)));
            engine = new P2pEngine(ContextLoader.pytorch());
        }
        return engine;
    }
}
