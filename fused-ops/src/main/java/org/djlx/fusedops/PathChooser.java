/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import java.util.EnumSet;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.CostModel;
import org.djlx.fusedops.cost.Machine;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.cost.Workload;
import org.djlx.fusedops.internal.Compute;
import org.djlx.fusedops.internal.Pipeline;

/**
 * Chooses the path of an operator by what all ranks know: sizes, what is forced, and how many
 * multiprocessors each has. On GPUs the cost model says which is the fastest; those that nobody has
 * measured count as H200s of as many multiprocessors, and GPUs of several kinds as H200s.
 */
final class PathChooser {

    private final ProcessGroup group;
    private final Compute compute;
    private final Workload work;
    private final Function<Workload, Set<Path>> possible;

    /**
     * Prepares a choice.
     *
     * @param group the group, which has P2P buffers
     * @param compute what computes on its device
     * @param work the operator
     * @param possible the paths that are possible besides the plain one, for certain sizes
     */
    PathChooser(
            ProcessGroup group,
            Compute compute,
            Workload work,
            Function<Workload, Set<Path>> possible) {
        this.group = group;
        this.compute = compute;
        this.work = work;
        this.possible = possible;
    }

    /**
     * Chooses.
     *
     * @param recorded whether the call is recorded into a graph
     */
    Choice choose(boolean recorded) {
        Set<Path> here = possible.apply(work);
        for (Path path : here) {
            if (FusedOps.isForced(path)) {
                return new Choice(path, "forced");
            }
        }
        if (work.ranks() == 1) {
            return new Choice(Path.PIPELINED, "no other rank"); // Nothing is sent, nor copied.
        }
        if (!group.device().isGpu()) {
            // Nothing but the size of a copy has been measured there.
            boolean small = here.contains(Path.GATHERED) && Pipeline.isSmall(work.partBytes());
            return new Choice(
                    small ? Path.GATHERED : Path.PIPELINED,
                    work.partBytes() + " bytes from rank to rank");
        }
        int processors = multiprocessors();
        // Another rank may take the path that is forced and is not possible here.
        boolean mayBeAny = Stream.of(Path.values()).noneMatch(FusedOps::isForced);
        // NCCL does not run between ranks that share a GPU, of which each has a part then.
        boolean mayBePlain = mayBeAny && processors == compute.multiprocessors();
        Machine machine =
                processors == 0 ? Machine.H200 : Machine.H200.withMultiprocessors(processors);
        return new CostModel(machine)
                .choose(work, each -> paths(possible.apply(each), mayBeAny, mayBePlain), recorded);
    }

    private static Set<Path> paths(Set<Path> possible, boolean mayBeWhole, boolean mayBePlain) {
        Set<Path> all = EnumSet.copyOf(possible);
        if (!mayBeWhole) {
            all.remove(Path.GATHERED);
        }
        if (mayBePlain) {
            all.add(Path.NCCL);
        }
        return all;
    }

    /** As many as each rank has; 0 where their GPUs are of several kinds. */
    private int multiprocessors() {
        return group.p2pBuffers()
                .orElseThrow()
                .kernelSignals()
                .map(KernelSignals::blocks)
                .orElse(0);
    }
}
