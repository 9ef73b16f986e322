// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.nn.Block;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;

/**
 * All ranks of a job, in this JVM: they divide each batch and compute one loss, so gradients are
 * summed. One rank needs no process group.
 */
final class RanksOfJvm extends Ranks {

    private final int count;

    RanksOfJvm(DataParallelConfig settings, Device[] devices, int count) {
        super(settings, devices, count);
        this.count = count;
    }

    @Override
    void open(DataParallelTrainer trainer, Device[] devices) {
        if (count == 1) {
            add(devices[0], null, trainer.getManager());
            return;
        }
        settings.checkRanksOfOneJvm(count);
        TrainerSetup.requireOneRate(trainer.optimizer(), count);
        TrainerSetup.requireWhole(trainer.getModel().getBlock(), count);
        Device[] each = new Device[count];
        for (int rank = 0; rank < count; rank++) {
            each[rank] = devices[Math.min(rank, devices.length - 1)];
        }
        String backend = settings.backend(devices[0].isGpu());
        opened.addAll(
                ProcessGroups.local(backend, count, TrainerSetup.options(settings, backend, each)));
        for (ProcessGroup group : opened) {
            add(each[group.rank()], group, trainer.getManager());
        }
    }

    @Override
    ProcessGroup processes() {
        return null;
    }

    @Override
    ReduceOp gradientOp() {
        return ReduceOp.SUM;
    }

    @Override
    void receive(List<NDArray> arrays) {
        // All ranks have copied the arrays of one block.
    }

    @Override
    Block synchronizeStatistics(Block block) {
        return SyncBatchNorm.convert(block, true);
    }

    @Override
    String description() {
        List<Device> devices = replicas().stream().map(Replica::device).toList();
        return String.format(
                "in this JVM: devices %s, backend %s, gradients summed (one loss for all ranks)",
                devices, group().backendName());
    }
}
