// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.time.Duration;
import java.util.List;
import org.djlx.collectives.internal.shm.ShmBackendFactory;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendFactory;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Support;
import org.djlx.collectives.store.StoreThatEnds;

/**
 * One rank of {@link NewGroupFailureTest}: rank 2 dies while it creates a sub-group. With an
 * argument, it dies just before it announces, under a store key with this prefix, that it has read
 * the values of the others; without one, before it sets any value.
 */
public final class NewGroupVictimMain {

    private static final Runnable HALT = () -> Runtime.getRuntime().halt(9);

    private NewGroupVictimMain() {}

    public static void main(String[] args) {
        BackendFactory shm = new ShmBackendFactory();
        Backends.register(
                "shm",
                new BackendFactory() {
                    @Override
                    public String name() {
                        return shm.name();
                    }

                    @Override
                    public Support support() {
                        return shm.support();
                    }

                    @Override
                    public Backend create(GroupContext context) {
                        if (context.name().endsWith(".part") && context.rank() == 1) {
                            if (args.length == 0) {
                                Runtime.getRuntime().halt(9);
                            }
                            return shm.create(StoreThatEnds.at(args[0] + "/", context, HALT));
                        }
                        return shm.create(context);
                    }
                });
        BackendOptions options = new BackendOptions(Duration.ofMinutes(10));
        try (ProcessGroup group = ProcessGroups.init("shm", options)) {
            try {
                group.newGroup(List.of(0, 2), "part");
            } catch (CollectiveException e) {
                System.out.println("failed: " + e.getMessage());
            }
        }
    }
}
