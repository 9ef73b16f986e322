// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.OpType;
import org.djlx.nativeops.host.Durations;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * A barrier made of messages, so that rank 0 can name the missing ranks. Every other rank sends
 * rank 0 an empty message. Rank 0 answers the ranks that reported with the list of missing ranks.
 * The tags contain the barrier's number, so a late message does not count for the next barrier.
 */
final class MonitoredBarrier {

    // The state of a rank in rank 0's answer; 0 for a rank that has reported.
    private static final byte LATE = 1;
    private static final byte GONE = 2; // It has died or left, or the group is broken.

    private final RankGroup group;
    private final int number;
    private final NDManager manager;

    private MonitoredBarrier(RankGroup group, int number, NDManager manager) {
        this.group = group;
        this.number = number;
        this.manager = manager;
    }

    static void run(RankGroup group, int number, boolean waitAllRanks) {
        group.state().backend().checkSupported(OpType.SEND);
        group.state().backend().checkSupported(OpType.RECV);
        try (NDManager manager =
                NDManager.newBaseManager(group.state().backend().device(), "PyTorch")) {
            MonitoredBarrier barrier = new MonitoredBarrier(group, number, manager);
            if (group.rank() == 0) {
                barrier.monitor(waitAllRanks);
            } else {
                barrier.report();
            }
        }
    }

    // Two negative tags per barrier; they repeat after 2³⁰ barriers.
    private int arrivalTag() {
        return -1 - 2 * (number & (1 << 30) - 1);
    }

    private int answerTag() {
        return arrivalTag() - 1;
    }

    private NDArray nothing() {
        return Torch.empty(manager, new Shape(0), ScalarType.UINT8);
    }

    private void monitor(boolean waitAllRanks) {
        List<Work> arrivals = new ArrayList<>();
        for (int peer = 1; peer < group.worldSize(); peer++) {
            arrivals.add(group.issueMessage(OpType.RECV, nothing(), peer, arrivalTag()));
        }
        List<CollectiveException> failures = new ArrayList<>();
        byte[] states = new byte[group.worldSize()];
        for (int peer = 1; peer < group.worldSize(); peer++) {
            try {
                HostWait.await(group, arrivals.get(peer - 1));
            } catch (CollectiveException e) {
                if (Thread.currentThread().isInterrupted()) {
                    throw e;
                }
                states[peer] = e instanceof CollectiveTimeoutException ? LATE : GONE;
                failures.add(e);
                if (!waitAllRanks) {
                    break;
                }
            }
        }
        answer(arrivals, states);
        if (!failures.isEmpty()) {
            CollectiveTimeoutException failure = failure(states);
            failures.forEach(failure::addSuppressed);
            throw failure;
        }
    }

    private void answer(List<Work> arrivals, byte[] states) {
        NDArray answer = manager.create(states);
        List<Work> answers = new ArrayList<>();
        for (int peer = 1; peer < group.worldSize(); peer++) {
            if (arrivals.get(peer - 1).isSuccess()) {
                try {
                    answers.add(group.issueMessage(OpType.SEND, answer, peer, answerTag()));
                } catch (CollectiveException e) {
                    break; // The group is broken; the peer detects it too.
                }
            }
        }
        for (Work work : answers) {
            try {
                HostWait.await(work);
            } catch (CollectiveException e) {
                // The peer's own barrier fails; the peer has reported, so it is not missing.
                continue;
            }
        }
    }

    private void report() {
        NDArray answer = Torch.empty(manager, new Shape(group.worldSize()), ScalarType.INT8);
        try {
            HostWait.await(group.issueMessage(OpType.SEND, nothing(), 0, arrivalTag()));
            // Rank 0 has started its barrier by now, so it answers within one timeout.
            Duration timeout = group.timeout().multipliedBy(2);
            HostWait.await(
                    group.withTimeout(timeout).issueMessage(OpType.RECV, answer, 0, answerTag()));
        } catch (CollectiveTimeoutException e) {
            throw new CollectiveTimeoutException(
                    String.format(
                            "monitoredBarrier of group '%s' failed on rank %d: rank 0 did not"
                                    + " answer within %s",
                            group.name(), group.rank(), Durations.text(group.timeout())),
                    List.of(0),
                    e);
        }
        byte[] states = answer.toByteArray();
        if (!ranksWith(states, LATE, GONE).isEmpty()) {
            throw failure(states);
        }
    }

    private static List<Integer> ranksWith(byte[] states, byte one, byte other) {
        return IntStream.range(0, states.length)
                .filter(peer -> states[peer] == one || states[peer] == other)
                .boxed()
                .toList();
    }

    private CollectiveTimeoutException failure(byte[] states) {
        List<Integer> missing = ranksWith(states, LATE, GONE);
        List<Integer> gone = ranksWith(states, GONE, GONE);
        return new CollectiveTimeoutException(
                String.format(
                        "monitoredBarrier of group '%s' failed: ranks %s of %d did not reach it%s",
                        group.name(),
                        missing,
                        group.worldSize(),
                        gone.isEmpty()
                                ? " within " + Durations.text(group.timeout())
                                : "; ranks " + gone + " have left, died or failed"),
                missing);
    }
}
