// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.cpu.HostCollectives;
import org.djlx.collectives.internal.cpu.HostTensor;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.spi.Operation;

/** The collectives of one rank through shared memory. */
record ShmCollectives(Rendezvous rendezvous, ShmReductions reductions, ShmMoves moves)
        implements HostCollectives {

    @Override
    public void barrier(Operation operation) {
        moves.barrier(operation);
    }

    @Override
    public void broadcast(Operation operation, HostTensor tensor, int root) {
        moves.broadcast(operation, tensor, root);
    }

    @Override
    public void allReduce(Operation operation, HostTensor tensor, ReduceOp op) {
        reductions.allReduce(operation, tensor, op);
    }

    @Override
    public void allReduce(Operation operation, List<HostTensor> tensors, ReduceOp op) {
        reductions.allReduce(operation, tensors, op);
    }

    @Override
    public void reduce(Operation operation, HostTensor tensor, int root, ReduceOp op) {
        reductions.reduce(operation, tensor, root, op);
    }

    @Override
    public void allGather(Operation operation, long[] outputs, HostTensor input) {
        moves.allGather(operation, outputs, input);
    }

    @Override
    public void allGather(Operation operation, List<long[]> outputs, List<HostTensor> inputs) {
        moves.allGather(operation, outputs, inputs);
    }

    @Override
    public void gather(Operation operation, long[] outputs, HostTensor input, int root) {
        moves.gather(operation, outputs, input, root);
    }

    @Override
    public void scatter(Operation operation, HostTensor output, long[] inputs, int root) {
        moves.scatter(operation, output, inputs, root);
    }

    @Override
    public void reduceScatter(Operation operation, HostTensor output, long[] inputs, ReduceOp op) {
        reductions.reduceScatter(operation, output, inputs, op);
    }

    @Override
    public void reduceScatter(
            Operation operation, List<HostTensor> outputs, List<long[]> inputs, ReduceOp op) {
        reductions.reduceScatter(operation, outputs, inputs, op);
    }

    @Override
    public void allToAll(Operation operation, Extent[] outputs, Extent[] inputs) {
        moves.allToAll(operation, outputs, inputs);
    }

    @Override
    public void begin(Operation operation) {
        rendezvous.begin(operation);
    }
}
