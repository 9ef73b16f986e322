// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.soak.RandomCall.Issued;
import org.djlx.collectives.soak.RandomCall.Kind;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.function.Executable;

/** Calls that move nothing, calls that go wrong, and an operation of one's own. */
final class RandomOthers {

    private static final OpType PUT = new OpType("soakPut");
    private static final int CHANNEL = 1;

    private RandomOthers() {}

    static Map<String, Kind> all() {
        Map<String, Kind> kinds = new LinkedHashMap<>();
        kinds.put("barrier", call -> new Issued(call.group().barrier(), () -> {}));
        kinds.put("monitoredBarrier", RandomOthers::monitoredBarrier);
        kinds.put("wrongArguments", RandomOthers::wrongArguments);
        kinds.put("mismatch", RandomOthers::mismatch);
        kinds.put("execute", RandomOthers::execute);
        return kinds;
    }

    private static Issued monitoredBarrier(RandomCall call) {
        call.group().monitoredBarrier(call.group().timeout(), call.common().nextBoolean());
        return new Issued(List.of(), () -> {});
    }

    /** Of this rank alone: nothing is sent, so the others do not notice. */
    private static Issued wrongArguments(RandomCall call) {
        ProcessGroup group = call.group();
        int n = group.worldSize();
        NDArray tensor = call.manager().ones(new Shape(3));
        List<Executable> wrong =
                List.of(
                        () -> group.allReduce(tensor, ReduceOp.BAND),
                        () -> group.broadcast(tensor, n),
                        () -> group.reduce(tensor, -1, ReduceOp.SUM),
                        () -> group.allGather(List.of(), tensor),
                        () -> group.allGatherIntoTensor(tensor, tensor.get("1:")),
                        () -> group.reduceScatterTensor(tensor, tensor.get("1:"), ReduceOp.SUM),
                        () -> group.send(tensor, group.rank(), 0),
                        () -> group.allToAllSingle(tensor, tensor.add(1), new long[n], null));
        Executable one = wrong.get(call.own().nextInt(wrong.size()));
        assertThrows(IllegalArgumentException.class, one);
        return new Issued(List.of(), () -> {});
    }

    /** One rank calls something else: all learn it, nothing is changed, the group goes on. */
    private static Issued mismatch(RandomCall call) {
        ProcessGroup group = call.group();
        int odd = call.anyRank();
        int count = 1 + (int) call.shape().size();
        int which = call.common().nextInt(6);
        boolean other = call.rank() == odd;
        ScalarType type = other && which == 0 ? ScalarType.INT32 : ScalarType.FLOAT32;
        Shape shape = new Shape(other && which == 1 ? count + 1 : count);
        PlacedArray tensor = call.array(type, shape, call.rank(), 0);
        Work work =
                switch (other ? which : 0) {
                    case 2 -> group.allReduce(tensor.array(), ReduceOp.MAX);
                    case 3 -> group.reduce(tensor.array(), 0, ReduceOp.SUM);
                    case 4 -> group.broadcast(tensor.array(), odd);
                    case 5 -> group.barrier();
                    default -> group.allReduce(tensor.array(), ReduceOp.SUM);
                };
        return new Issued(
                List.of(),
                () -> {
                    CollectiveException e = assertThrows(CollectiveException.class, work::await);
                    if (!(e instanceof CollectiveMismatchException)) {
                        throw e; // Something else has broken the group.
                    }
                    String message = e.getMessage();
                    assertTrue(message.contains("rank " + odd + " called "), message);
                    assertArrayEquals(
                            call.values(type, shape, call.rank(), 0), tensor.checkedValues());
                });
    }

    /** Every rank writes a number into the P2P buffer of each. */
    private static Issued execute(RandomCall call) {
        ProcessGroup group = call.group();
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        int n = group.worldSize();
        int number = call.common().nextInt(1 << 20);
        NDArray output = call.manager().zeros(new Shape(n));
        NDArray sent = call.manager().full(new Shape(1), (float) (number + group.rank()));
        Work work =
                group.execute(
                        PUT,
                        new Operation.Agreed(null, new long[0], null, number),
                        operation -> {
                            // Views do not wait for the ranks whose memory they are of.
                            buffers.intraNodeBarrier(operation);
                            long epoch = buffers.epoch(operation);
                            long half = buffers.half(epoch);
                            for (int peer = 0; peer < n; peer++) {
                                long place = half + (long) group.rank() * Float.BYTES;
                                Torch.copy(view(call, buffers, peer, 1, place), sent);
                                buffers.putSignal(peer, CHANNEL, epoch);
                            }
                            for (int peer = 0; peer < n; peer++) {
                                buffers.waitSignal(operation, peer, CHANNEL, epoch);
                            }
                            Torch.copy(output, view(call, buffers, group.rank(), n, half));
                        });
        return new Issued(
                work,
                () -> {
                    double[] wanted = new double[n];
                    for (int rank = 0; rank < n; rank++) {
                        wanted[rank] = number + rank;
                    }
                    assertArrayEquals(wanted, TestArrays.values(output));
                });
    }

    private static NDArray view(
            RandomCall call, P2pBuffers buffers, int rank, int count, long place) {
        return buffers.p2pBuffer(call.manager(), rank, new Shape(count), ScalarType.FLOAT32, place);
    }
}
