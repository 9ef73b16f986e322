// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.IntFunction;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.cpu.MessageMatcher.Offer;

/**
 * The running messages of one rank, to and from all peers. They run concurrently, independent of
 * the operations in the {@link OpQueue}.
 */
final class MessageQueue implements MessageDriver.Engine, AutoCloseable {

    private final PeerStates peers;
    private final int rank;
    private final int worldSize;
    private final String name;
    private final MessageDriver driver;
    private final MessageFailures failures;

    private final ReentrantLock lock = new ReentrantLock();
    // Guarded by lock.
    private final MessageMatcher matcher;
    private final List<MessagePump> pumps = new ArrayList<>(); // by rank; null for this rank
    private final Set<Transfer> pending = new LinkedHashSet<>();
    private ArrayList<Transfer> ended = new ArrayList<>();
    private long lastNumber;
    private boolean closed;
    private volatile int pendingCount;
    private volatile int unpostedCount;

    /** Creates the queue of one rank, with the channel to each peer. */
    MessageQueue(String name, PeerStates peers, IntFunction<MessageChannel> channels) {
        this.name = name;
        this.peers = peers;
        rank = peers.rank();
        worldSize = peers.worldSize();
        failures = new MessageFailures(peers);
        matcher = new MessageMatcher(worldSize);
        for (int peer = 0; peer < worldSize; peer++) {
            pumps.add(
                    peer == rank
                            ? null
                            : new MessagePump(
                                    peer, channels.apply(peer), matcher, failures, this::end));
        }
        driver = new MessageDriver(this, name, peers.spins());
    }

    void submit(Transfer transfer) {
        try {
            locked(
                    () -> {
                        CollectiveException obstacle = peers.obstacle(transfer.operation());
                        if (obstacle != null) {
                            end(transfer, obstacle);
                            return;
                        }
                        pending.add(transfer);
                        transfer.operation().started();
                        pendingCount = pending.size();
                        begin(transfer);
                        passAll();
                    });
            if (hasPending()) {
                driver.wake();
            }
        } catch (RuntimeException | Error e) {
            fail(e);
            locked(() -> end(transfer));
        }
    }

    private void begin(Transfer transfer) {
        if (transfer.sends()) {
            transfer.bind(rank, ++lastNumber);
            pumps.get(transfer.peer()).offer(transfer);
            return;
        }
        Offer offer = matcher.want(transfer);
        if (offer != null) {
            pumps.get(offer.source()).answer(offer.letter(), transfer);
        }
    }

    @Override
    public boolean pass() {
        boolean[] moved = new boolean[1];
        locked(() -> moved[0] = passAll());
        return moved[0];
    }

    private boolean passAll() {
        boolean moved = false;
        int letters = 0;
        for (int peer = 0; peer < worldSize && !closed; peer++) {
            if (peer == rank) {
                continue;
            }
            MessagePump pump = pumps.get(peer);
            if (pump.pass()) {
                peers.ring(peer);
                moved = true;
            }
            letters += pump.unposted();
        }
        unpostedCount = letters;
        return moved;
    }

    /** Ends a message. The caller holds the lock; the work completes after the lock is released. */
    private void end(Transfer transfer, CollectiveException reason) {
        if (transfer.hasEnded()) {
            return;
        }
        ended.ensureCapacity(ended.size() + 1); // Allocates before any state changes.
        pending.remove(transfer);
        pendingCount = pending.size();
        transfer.end(reason);
        ended.add(transfer);
    }

    private void locked(Runnable action) {
        List<Transfer> completed = List.of();
        lock.lock();
        try {
            action.run();
        } finally {
            try {
                if (!ended.isEmpty()) {
                    ArrayList<Transfer> next = new ArrayList<>();
                    completed = ended;
                    ended = next;
                }
            } finally {
                lock.unlock();
            }
            // Outside the lock: dependent actions may submit messages.
            completed.forEach(Transfer::complete);
        }
    }

    @Override
    public void fail(Throwable cause) {
        peers.fail(GroupErrors.failed(name, cause));
        locked(this::endAll);
    }

    /** Ends all messages, because the group is broken or being destroyed. */
    private void endAll() {
        // Before the tensors are freed: peers still send data of accepted messages.
        for (MessagePump pump : pumps) {
            if (pump != null) {
                pump.forgetAll();
            }
        }
        matcher.forgetAll();
        unpostedCount = 0;
        while (!pending.isEmpty()) {
            end(pending.iterator().next());
        }
    }

    /** Ends a message because the group is broken or being destroyed. */
    private void end(Transfer transfer) {
        CollectiveException reason;
        try {
            reason = peers.obstacle(transfer.operation());
        } catch (RuntimeException | Error e) {
            reason = GroupErrors.failed(transfer.operation(), e);
        }
        end(transfer, reason);
    }

    @Override
    public boolean hasPending() {
        // Waiting letters must be posted even if their message has ended here.
        return pendingCount > 0 || unpostedCount > 0;
    }

    @Override
    public void sleep() {
        int value = peers.prepareSleep();
        try {
            if (!pass() && !closed) {
                peers.sleep(value, nanosLeft());
            }
        } finally {
            // A dependent action of a message that ended in the pass may have destroyed the group.
            if (!closed) {
                peers.endSleep();
            }
        }
    }

    private long nanosLeft() {
        lock.lock();
        try {
            return MessageFailures.nanosLeft(pending);
        } finally {
            lock.unlock();
        }
    }

    @Override
    public boolean check() {
        // Read the states first: a rank may send and then leave.
        String[] ends = failures.ends(involved());
        while (pass()) {
            // Process everything that the ranks did before their states were read.
            continue;
        }
        int before = pendingCount;
        locked(
                () -> {
                    for (Transfer transfer : List.copyOf(pending)) {
                        CollectiveException reason = failures.reasonToEnd(transfer, ends);
                        if (reason != null) {
                            abandon(transfer);
                            end(transfer, reason);
                        }
                    }
                    for (int peer = 0; peer < worldSize; peer++) {
                        if (peer != rank && ends[peer] != null) {
                            pumps.get(peer).dropLetters();
                        }
                    }
                });
        return pass() || pendingCount < before;
    }

    /** Returns, by rank, whether there are running messages or waiting letters. */
    private boolean[] involved() {
        boolean[] involved = new boolean[worldSize];
        lock.lock();
        try {
            for (int peer = 0; peer < worldSize; peer++) {
                involved[peer] = peer != rank && pumps.get(peer).unposted() > 0;
            }
            for (Transfer transfer : pending) {
                failures.peersOf(transfer).forEach(peer -> involved[peer] = true);
            }
        } finally {
            lock.unlock();
        }
        return involved;
    }

    private void abandon(Transfer transfer) {
        if (transfer.isBound()) {
            pumps.get(transfer.peer()).abandon(transfer);
        } else {
            matcher.forget(transfer);
        }
    }

    /** Waits until a message has ended. Drives all messages while it waits. */
    void await(Transfer transfer) {
        while (!transfer.isCompleted()) {
            if (!driver.driveUntil(transfer) || Thread.currentThread().isInterrupted()) {
                transfer.awaitFuture(TimeUnit.SECONDS.toNanos(1)); // Then tries to drive again.
            }
        }
    }

    void expedite() {
        driver.expedite();
    }

    /**
     * Fails all messages. Afterwards nothing uses the channels. Called after the peers' states
     * report that this rank is destroying the group.
     */
    @Override
    public void close() {
        driver.close(() -> peers.ring(rank));
        locked(
                () -> {
                    passAll(); // Posts letters of messages that have ended here.
                    closed = true;
                    endAll();
                });
    }
}
