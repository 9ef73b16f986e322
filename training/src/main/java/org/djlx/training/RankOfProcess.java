// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.SyncBatchNorm;

/** One rank of several processes, or of several trainers: it has its own batches and its loss. */
final class RankOfProcess extends Ranks {

    private final DataParallelConfig settings;

    RankOfProcess(DataParallelConfig settings) {
        super(1, settings.computeType());
        this.settings = settings;
    }

    @Override
    public void open(NDManager manager, Block block, Optimizer optimizer, Device[] devices) {
        if (settings.ranks() != null && settings.ranks() > 1) {
            throw new IllegalArgumentException(
                    String.format(
                            "newTrainer: %d ranks in this JVM are not possible, because this JVM is"
                                    + " one rank of several processes; set optRanks(1)",
                            settings.ranks()));
        }
        ProcessGroup group = settings.group();
        if (group == null) {
            String backend = settings.backend(devices[0].isGpu());
            group = ProcessGroups.init(backend, new BackendOptions(settings.timeout()));
            opened.add(group);
        }
        add(group.device(), group, manager);
    }

    @Override
    public ProcessGroup processes() {
        return group();
    }

    @Override
    public ReduceOp gradientOp() {
        return settings.lossWeight().isPresent() ? ReduceOp.SUM : settings.reduction().op();
    }

    @Override
    public void receive(List<NDArray> arrays) {
        each(
                replica ->
                        arrays.stream()
                                .map(array -> replica.group().broadcast(array, 0))
                                .toList()
                                .forEach(Work::await));
    }

    @Override
    public Block synchronizeStatistics(Block block) {
        return SyncBatchNorm.convert(block, false);
    }

    @Override
    public String description() {
        return String.format(
                "with a trainer each: this rank's device %s, backend %s, gradient reduction %s (one"
                        + " loss per rank)",
                group().device(), group().backendName(), settings.reduction());
    }
}
