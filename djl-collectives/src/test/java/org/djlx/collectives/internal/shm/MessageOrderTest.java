// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.Work;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The matching of messages and receives. */
@Timeout(60)
@Tag("slow")
class MessageOrderTest {

    private static final int ANY = -1; // source

    /** More than the tags whose queues are kept. */
    private static final int TAGS = 40;

    /** Sets up ranks, and runs code on each. */
    private static void onRanks(int worldSize, RankBody body) {
        List<ProcessGroup> groups = ProcessGroups.local(worldSize);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            body.run(group, manager);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private interface RankBody {
        void run(ProcessGroup group, NDManager manager);
    }

    private static int value(Work work) {
        work.await();
        return work.result().get(0).getInt(0);
    }

    /** Receives are issued before the messages come, or after. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void thousandsInReversedOrder(boolean receiveFirst) {
        int messages = 4_000;
        onRanks(
                2,
                (group, manager) -> {
                    boolean sends = group.rank() == 0;
                    if (sends == receiveFirst) {
                        group.barrier().await();
                    }
                    List<Work> works = new ArrayList<>();
                    for (int i = 0; i < messages; i++) {
                        NDArray tensor = manager.create(new int[] {sends ? i : -1});
                        works.add(
                                sends
                                        ? group.send(tensor, 1, i)
                                        : group.recv(tensor, 0, messages - 1 - i));
                    }
                    if (sends != receiveFirst) {
                        group.barrier().await();
                    }
                    for (int i = 0; i < messages; i++) {
                        assertEquals(sends ? i : messages - 1 - i, value(works.get(i)));
                    }
                });
    }

    /** The last of some ranks receives from all others; one thread issues all. */
    @Test
    void taggedAndAnySourceReceivesFollowTheModel() {
        int senders = 3;
        List<ProcessGroup> groups = ProcessGroups.local(senders + 1);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            Model model = new Model(groups, manager);
            Random random = new Random(7);
            for (int i = 0; i < 6_000; i++) {
                int source = random.nextInt(senders);
                int tag = random.nextInt(TAGS);
                if (random.nextBoolean()) {
                    model.send(source, tag);
                } else {
                    model.receive(random.nextInt(3) == 0 ? ANY : source, tag);
                }
            }
            model.drain();
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** A message; all have different numbers. */
    private record Message(int source, int tag, int number) {}

    /** A receive; the source may be any. */
    private record Receive(int source, int tag, Work work) {

        boolean takes(Message message) {
            return tag == message.tag() && (source == ANY || source == message.source());
        }
    }

    /** Computes the expected outcome of each call from lists, and checks it. */
    private static final class Model {

        private final List<ProcessGroup> groups;
        private final ProcessGroup receiver;
        private final NDManager manager;
        private final NDArray empty;
        private final List<Message> offered = new ArrayList<>();
        private final List<Receive> wanted = new ArrayList<>();
        private int sent;

        Model(List<ProcessGroup> groups, NDManager manager) {
            this.groups = groups;
            this.receiver = groups.get(groups.size() - 1);
            this.manager = manager;
            this.empty = manager.zeros(new Shape(0));
        }

        void send(int source, int tag) {
            Message message = new Message(source, tag, ++sent);
            ProcessGroup sender = groups.get(source);
            sender.send(manager.create(new int[] {message.number()}), receiver.rank(), tag);
            // It has arrived when a later one has.
            sender.send(empty, receiver.rank(), TAGS);
            receiver.recv(empty, source, TAGS).await();
            for (Receive receive : wanted) {
                if (receive.takes(message)) {
                    wanted.remove(receive);
                    check(message, receive);
                    return;
                }
            }
            offered.add(message);
        }

        void receive(int source, int tag) {
            NDArray tensor = manager.create(new int[] {-1});
            Work work =
                    source == ANY
                            ? receiver.recvAnySource(tensor, tag)
                            : receiver.recv(tensor, source, tag);
            Receive receive = new Receive(source, tag, work);
            for (Message message : offered) {
                if (receive.takes(message)) {
                    offered.remove(message);
                    check(message, receive);
                    return;
                }
            }
            wanted.add(receive);
        }

        void drain() {
            while (!offered.isEmpty()) {
                receive(offered.get(0).source(), offered.get(0).tag());
            }
            while (!wanted.isEmpty()) {
                send(Math.max(0, wanted.get(0).source()), wanted.get(0).tag());
            }
        }

        private static void check(Message message, Receive receive) {
            assertEquals(message.number(), value(receive.work()));
            assertEquals(message.source(), receive.work().sourceRank());
        }
    }
}
