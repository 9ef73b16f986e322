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
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;
import org.djlx.training.internal.SyncBatchNorm;

/**
 * All ranks of a job, in this JVM: they divide each batch and compute one loss, so gradients are
 * summed. One rank needs no process group.
 */
final class RanksOfJvm extends Ranks {

    private final DataParallelConfig settings;
    private final int count;

    RanksOfJvm(DataParallelConfig settings, int count) {
        super(count, settings.computeType());
        this.settings = settings;
        this.count = count;
    }

    @Override
    public void open(NDManager manager, Block block, Optimizer optimizer, Device[] devices) {
        if (count == 1) {
            add(devices[0], null, manager);
            return;
        }
        settings.checkRanksOfOneJvm(count);
        TrainerSetup.shareRates(optimizer);
        TrainerSetup.requireWhole(block, count);
        Device[] each = new Device[count];
        for (int rank = 0; rank < count; rank++) {
            each[rank] = devices[Math.min(rank, devices.length - 1)];
        }
        String backend = settings.backend(devices[0].isGpu());
        opened.addAll(
                ProcessGroups.local(backend, count, TrainerSetup.options(settings, backend, each)));
        for (ProcessGroup group : opened) {
            add(each[group.rank()], group, manager);
        }
    }

    @Override
    public ProcessGroup processes() {
        return null;
    }

    @Override
    public ReduceOp gradientOp() {
        return ReduceOp.SUM;
    }

    @Override
    public void receive(List<NDArray> arrays) {
        // All ranks have copied the arrays of one block.
    }

    @Override
    public Block synchronizeStatistics(Block block) {
        return SyncBatchNorm.convert(block, true);
    }

    @Override
    public String description() {
        List<Device> devices = replicas().stream().map(Replica::device).toList();
        return String.format(
                "in this JVM: devices %s, backend %s, gradients summed (one loss for all ranks)",
                devices, group().backendName());
    }
}
