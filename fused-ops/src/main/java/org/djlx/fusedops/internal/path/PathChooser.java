// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import java.util.EnumSet;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.CostModel;
import org.djlx.fusedops.cost.Machine;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.cost.Workload;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.nativeops.cuda.GpuRates;

/**
 * Decides the path of all-gather + matmul and of matmul + reduce-scatter, from values that all
 * ranks know, where {@link Fallbacks} have no reason for NCCL. The first rule that applies decides:
 *
 * <ol>
 *   <li>a forced path, if it is possible here
 *   <li>one rank: PIPELINED, a matmul without communication
 *   <li>on CPUs: the size of a part
 *   <li>the fastest path of a {@linkplain PathMeasurement measurement}, if no path is forced
 *   <li>the path that the {@link CostModel} predicts to be the fastest. The model uses the measured
 *       rates of the GPUs and links; for GPUs of several kinds, the rates of H200s and the measured
 *       rate of the links. If a path is forced, only FUSED and PIPELINED are compared
 * </ol>
 */
public final class PathChooser {

    private final ProcessGroup group;
    private final Compute compute;
    private final MatmulPlan.Operator<?> operator;
    private final Workload work;
    private final Workload agreed;
    private final Function<Workload, Set<Path>> possible;

    /**
     * Prepares a choice.
     *
     * @param group the group, which has P2P buffers
     * @param agreed sizes that are the same on all ranks
     * @param possible returns the paths other than NCCL that are possible for given sizes
     */
    PathChooser(
            ProcessGroup group,
            Compute compute,
            MatmulPlan.Operator<?> operator,
            Workload agreed,
            Function<Workload, Set<Path>> possible) {
        this.group = group;
        this.compute = compute;
        this.operator = operator;
        this.work = operator.workload();
        this.agreed = agreed;
        this.possible = possible;
    }

    /** Chooses a path for a call, which may be recorded into a graph. */
    Choice choose(boolean recorded) {
        Set<Path> here = possible.apply(work);
        for (Path path : here) {
            if (Fallbacks.isForced(path)) {
                return new Choice(path, "forced");
            }
        }
        if (work.ranks() == 1) {
            return new Choice(Path.PIPELINED, "no other rank");
        }
        if (!group.device().isGpu()) {
            boolean small = here.contains(Path.GATHERED) && Pipeline.isSmall(work.partBytes());
            return new Choice(
                    small ? Path.GATHERED : Path.PIPELINED,
                    work.partBytes() + " bytes from rank to rank");
        }
        // If a path is forced but not possible here, other ranks may still take it.
        boolean noneForced = isNoneForced();
        if (noneForced) {
            Optional<Choice> measured = measured(here, recorded);
            if (measured.isPresent()) {
                return measured.get();
            }
        }
        int processors = multiprocessors();
        boolean mayBeNccl = noneForced && mayBeNccl(processors);
        P2pBuffers buffers = group.requireP2pBuffers();
        return new CostModel(machine(buffers.gpuRates(), buffers.linkRate(), processors))
                .withBufferSize(buffers.bufferSize())
                .choose(
                        work,
                        agreed,
                        each -> paths(possible.apply(each), noneForced, mayBeNccl),
                        recorded);
    }

    private static boolean isNoneForced() {
        return Stream.of(Path.values()).noneMatch(Fallbacks::isForced);
    }

    /** Ranks that share a GPU report a part of its SMs each; NCCL does not run between them. */
    private boolean mayBeNccl(int processors) {
        return processors == compute.multiprocessors();
    }

    private Optional<Choice> measured(Set<Path> here, boolean recorded) {
        return GroupPlans.of(group)
                .measured(PathMeasurement.Key.of(operator))
                .map(paths -> paths.fastest(recorded))
                .map(choice -> new Choice(matching(choice.path(), here), choice.why()));
    }

    /**
     * Returns the path with which this rank joins ranks on a given path: PIPELINED, which matches
     * FUSED, if FUSED is not possible here.
     */
    static Path matching(Path path, Set<Path> here) {
        return path == Path.FUSED && !here.contains(path) ? Path.PIPELINED : path;
    }

    /** Returns the paths that can be chosen, the same on all ranks; empty if there is no choice. */
    Set<Path> candidates() {
        return isNoneForced() && work.ranks() > 1 && group.device().isGpu()
                ? paths(possible.apply(agreed), true, mayBeNccl(multiprocessors()))
                : Set.of();
    }

    /**
     * Returns the machine of each rank.
     *
     * @param links the rate of the links, in GB/s; empty if unknown
     * @param processors the SMs of each rank, which may be a part of a GPU's; 0 if GPUs differ
     */
    static Machine machine(Optional<GpuRates> rates, OptionalDouble links, int processors) {
        Machine machine =
                processors == 0
                        ? Machine.H200
                        : rates.map(Machine::of)
                                .orElse(Machine.H200)
                                .withMultiprocessors(processors);
        return links.isPresent() ? machine.withLinks(links.getAsDouble()) : machine;
    }

    private static Set<Path> paths(Set<Path> possible, boolean mayBeGathered, boolean mayBeNccl) {
        Set<Path> all = EnumSet.copyOf(possible);
        if (!mayBeGathered) {
            all.remove(Path.GATHERED);
        }
        if (mayBeNccl) {
            all.add(Path.NCCL);
        }
        return all;
    }

    /** Returns the SMs of each rank; 0 if the ranks' GPUs are of several kinds. */
    private int multiprocessors() {
        return group.p2pBuffers()
                .orElseThrow()
                .kernelSignals()
                .map(KernelSignals::blocks)
                .orElse(0);
    }
}
