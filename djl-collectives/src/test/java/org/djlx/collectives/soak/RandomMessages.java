// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.djlx.collectives.P2pOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.soak.RandomCall.Issued;
import org.djlx.collectives.soak.RandomCall.Kind;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.torch.ScalarType;

/** Random messages between ranks, of groups of two or more. */
final class RandomMessages {

    private static final int ANY_SOURCE_TAGS = 1 << 20; // Those of other messages are smaller.

    private RandomMessages() {}

    static Map<String, Kind> all() {
        Map<String, Kind> kinds = new LinkedHashMap<>();
        kinds.put("messages", call -> messages(call, false));
        kinds.put("batchedMessages", call -> messages(call, true));
        kinds.put("recvAnySource", RandomMessages::anySource);
        return kinds;
    }

    /** Several messages among random ranks; those of one tag between the same two in order. */
    private static Issued messages(RandomCall call, boolean batched) {
        int self = call.rank();
        List<P2pOp> sends = new ArrayList<>();
        List<P2pOp> receives = new ArrayList<>();
        List<Runnable> checks = new ArrayList<>();
        for (int part = call.common().nextInt(12); part >= 0; part--) {
            int message = part;
            int from = call.anyRank();
            int to = (from + 1 + call.common().nextInt(call.worldSize() - 1)) % call.worldSize();
            int tag = call.common().nextInt(3);
            ScalarType type = call.type();
            Shape shape = call.shape();
            if (self == from) {
                sends.add(P2pOp.send(call.array(type, shape, from, message).array(), to, tag));
            } else if (self == to) {
                PlacedArray output = call.output(type, shape);
                receives.add(P2pOp.recv(output.array(), from, tag));
                checks.add(
                        () ->
                                assertArrayEquals(
                                        call.values(type, shape, from, message),
                                        output.checkedValues()));
            }
        }
        boolean sendsFirst = call.own().nextBoolean();
        List<P2pOp> ops = new ArrayList<>(sendsFirst ? sends : receives);
        ops.addAll(sendsFirst ? receives : sends);
        List<Work> works =
                batched && !ops.isEmpty()
                        ? call.group().batchIsendIrecv(ops)
                        : ops.stream().map(op -> issue(call, op)).toList();
        return new Issued(works, () -> checks.forEach(Runnable::run));
    }

    private static Work issue(RandomCall call, P2pOp op) {
        return op.type() == OpType.SEND
                ? call.group().send(op.tensor(), op.peer(), op.tag())
                : call.group().recv(op.tensor(), op.peer(), op.tag());
    }

    /** One rank receives a message from each other, in whichever order they come. */
    private static Issued anySource(RandomCall call) {
        ScalarType type = call.type();
        Shape shape = call.shape();
        int receiver = call.anyRank();
        int tag = ANY_SOURCE_TAGS + (int) (call.salt() & (ANY_SOURCE_TAGS - 1));
        if (call.rank() != receiver) {
            PlacedArray input = call.array(type, shape, call.rank(), 0);
            Work work = call.group().send(input.array(), receiver, tag);
            call.release(input);
            return new Issued(work, () -> {});
        }
        List<Work> works = new ArrayList<>();
        List<PlacedArray> outputs = new ArrayList<>();
        for (int i = 1; i < call.worldSize(); i++) {
            PlacedArray output = call.output(type, shape);
            outputs.add(output);
            works.add(call.group().recvAnySource(output.array(), tag));
        }
        return new Issued(
                works,
                () -> {
                    Set<Integer> sources = new TreeSet<>();
                    for (int i = 0; i < works.size(); i++) {
                        int source = works.get(i).sourceRank();
                        sources.add(source);
                        assertArrayEquals(
                                call.values(type, shape, source, 0),
                                outputs.get(i).checkedValues());
                    }
                    assertEquals(works.size(), sources.size());
                });
    }
}
