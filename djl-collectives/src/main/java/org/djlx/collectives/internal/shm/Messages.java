/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.Operation;
import org.djlx.collectives.internal.host.ControlBlock;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.internal.shm.Mailbox.Kind;
import org.djlx.collectives.internal.shm.Mailbox.Letter;

/**
 * The messages of one rank, to and from all others.
 *
 * <p>A sender offers a message. The receiver matches offers with its receives by tag and, unless
 * any will do, by source, both in the order in which they came. It accepts what fits; then the
 * sender writes the data, chunk by chunk, as there is room. So nothing is stored for a receiver
 * that does not ask, and both ends learn of a message that does not fit. Neither ring ever blocks:
 * letters for which there is no room wait here, and whoever has a message under way reads all that
 * arrives, his or not.
 *
 * <p>A message that fails leaves no trace: a sender that gives up withdraws it, and chunks of a
 * message that is not known any more are thrown away.
 */
final class Messages implements MessageDriver.Engine {

    /** A message of another rank that nobody here has asked for yet, and when it came. */
    private record Offer(long turn, Letter letter) {}

    /** A message that has ended, and how; its work is completed without the lock held. */
    private record Ended(Transfer transfer, CollectiveException reason) {}

    private final ControlBlock control;
    private final Rendezvous rendezvous;
    private final int rank;
    private final int worldSize;
    private final MessageDriver driver;

    private final ReentrantLock lock = new ReentrantLock();
    // All below is guarded by lock.
    private final List<Peer> peers;
    private final Set<Transfer> pending = new LinkedHashSet<>();
    private final TagQueues<Transfer> wantedOfAny = new TagQueues<>();
    private List<Ended> ended = new ArrayList<>();
    private long lastNumber;
    private long lastTurn; // of what waits for its other end
    private boolean closed;
    private volatile int pendingCount;
    private volatile int unpostedCount;
    private long lastLook; // by whoever drives
    // What broke the group, if it was this rank's operation; not guarded.
    private volatile CollectiveException failedOperation;

    Messages(
            ShmSegment segment,
            ControlBlock control,
            Rendezvous rendezvous,
            String group,
            int rank) {
        this.control = control;
        this.rendezvous = rendezvous;
        this.rank = rank;
        this.worldSize = segment.worldSize();
        Copies copies = new Copies();
        this.peers =
                IntStream.range(0, worldSize)
                        .mapToObj(
                                peer ->
                                        new Peer(
                                                segment.mailbox(peer, rank, copies),
                                                segment.mailbox(rank, peer, copies)))
                        .toList();
        this.driver =
                new MessageDriver(
                        this, "shm-" + group + "-rank-" + rank + "-p2p", rendezvous.spins());
    }

    /** What is under way between this rank and another. */
    private static final class Peer {

        private final Mailbox in;
        private final Mailbox out;
        private final Deque<Letter> unposted = new ArrayDeque<>();
        private final Map<Long, Transfer> offered = new HashMap<>();
        private final Deque<Transfer> sending = new ArrayDeque<>();
        private final Map<Long, Transfer> receiving = new HashMap<>();
        private final TagQueues<Transfer> wanted = new TagQueues<>();
        private final TagQueues<Offer> offers = new TagQueues<>();

        Peer(Mailbox in, Mailbox out) {
            this.in = in;
            this.out = out;
        }

        boolean post() {
            boolean posted = false;
            while (!unposted.isEmpty() && out.post(unposted.peek())) {
                unposted.remove();
                posted = true;
            }
            return posted;
        }
    }

    /** Begins a message. */
    void submit(Transfer transfer) {
        locked(
                () -> {
                    String broken = closed ? null : rendezvous.announcedEndOf(rank);
                    if (closed || broken != null) {
                        end(transfer, ownEnd(transfer, broken));
                        return;
                    }
                    pending.add(transfer);
                    transfer.operation().started();
                    pendingCount = pending.size();
                    if (transfer.sends()) {
                        offer(transfer);
                    } else {
                        want(transfer);
                    }
                    passAll();
                });
        if (hasPending()) {
            driver.wake();
        }
    }

    private void offer(Transfer transfer) {
        transfer.bind(rank, ++lastNumber);
        Peer peer = peers.get(transfer.peer());
        peer.offered.put(transfer.message(), transfer);
        peer.unposted.add(transfer.letter(Kind.OFFER));
    }

    private void want(Transfer transfer) {
        int tag = transfer.tag();
        int source = transfer.peer() == Transfer.ANY ? firstToOffer(tag) : transfer.peer();
        Offer offer = source == Transfer.ANY ? null : peers.get(source).offers.poll(tag);
        if (offer != null) {
            match(transfer, source, offer.letter());
        } else {
            transfer.setTurn(++lastTurn);
            wantedOf(transfer.peer()).add(tag, transfer);
        }
    }

    /** The rank whose offer with a tag is the oldest, or {@link Transfer#ANY} if there is none. */
    private int firstToOffer(int tag) {
        int first = Transfer.ANY;
        long turn = Long.MAX_VALUE;
        for (int i = 0; i < worldSize; i++) {
            Offer offer = peers.get(i).offers.peek(tag);
            if (offer != null && offer.turn() < turn) {
                first = i;
                turn = offer.turn();
            }
        }
        return first;
    }

    /** The receives from a rank, or from any, that wait for an offer. */
    private TagQueues<Transfer> wantedOf(int source) {
        return source == Transfer.ANY ? wantedOfAny : peers.get(source).wanted;
    }

    private void match(Transfer transfer, int source, Letter offer) {
        Peer peer = peers.get(source);
        if (!transfer.fits(offer)) {
            peer.unposted.add(transfer.letter(Kind.REJECT, offer.message()));
            end(transfer, misfit(transfer, source, offer));
            return;
        }
        transfer.bind(source, offer.message());
        peer.unposted.add(transfer.letter(Kind.ACCEPT));
        if (transfer.isMoved()) {
            end(transfer, null);
        } else {
            peer.receiving.put(offer.message(), transfer);
        }
    }

    private static CollectiveException misfit(Transfer transfer, int source, Letter other) {
        return new CollectiveMismatchException(
                transfer.operation()
                        + " does not fit "
                        + Operation.describe(other.signature())
                        + " of rank "
                        + source
                        + ": a message and its receive must have the same element type and number"
                        + " of elements");
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
        for (int i = 0; i < worldSize && !closed; i++) {
            Peer peer = peers.get(i);
            if (i != rank && pass(i, peer)) {
                control.ring(i);
                moved = true;
            }
            letters += peer.unposted.size();
        }
        unpostedCount = letters;
        return moved;
    }

    private boolean pass(int source, Peer peer) {
        boolean moved = false;
        Letter letter = peer.in.take();
        while (letter != null) {
            moved = true;
            handle(source, peer, letter);
            letter = peer.in.take();
        }
        moved |= peer.post();
        moved |= write(peer);
        moved |= read(peer);
        return moved;
    }

    private void handle(int source, Peer peer, Letter letter) {
        switch (letter.kind()) {
            case OFFER -> handleOffer(source, peer, letter);
            case ACCEPT -> {
                Transfer transfer = peer.offered.remove(letter.message());
                if (transfer != null && transfer.isMoved()) {
                    end(transfer, null);
                } else if (transfer != null) {
                    peer.sending.add(transfer);
                }
            }
            case REJECT -> {
                Transfer transfer = peer.offered.remove(letter.message());
                if (transfer != null) {
                    end(transfer, misfit(transfer, source, letter));
                }
            }
            case WITHDRAW -> {
                peer.offers.removeFirst(
                        letter.tag(), offer -> offer.letter().message() == letter.message());
                Transfer transfer = peer.receiving.remove(letter.message());
                if (transfer != null) {
                    end(
                            transfer,
                            new CollectiveException(
                                    transfer.operation()
                                            + " cannot complete: rank "
                                            + source
                                            + " gave up sending: its call timed out, or it has"
                                            + " destroyed the group"));
                }
            }
        }
    }

    private void handleOffer(int source, Peer peer, Letter letter) {
        int tag = letter.tag();
        Transfer named = peer.wanted.peek(tag);
        Transfer any = wantedOfAny.peek(tag);
        boolean anyFirst = named == null || any != null && any.turn() < named.turn();
        Transfer transfer = (anyFirst ? wantedOfAny : peer.wanted).poll(tag);
        if (transfer != null) {
            match(transfer, source, letter);
        } else {
            peer.offers.add(tag, new Offer(++lastTurn, letter));
        }
    }

    private boolean write(Peer peer) {
        boolean written = false;
        while (!peer.sending.isEmpty()) {
            Transfer transfer = peer.sending.peek();
            long size = transfer.chunk();
            if (!peer.out.write(transfer.message(), transfer.address(), size)) {
                break;
            }
            written = true;
            transfer.advance(size);
            if (transfer.isMoved()) {
                peer.sending.remove();
                end(transfer, null);
            }
        }
        return written;
    }

    private boolean read(Peer peer) {
        boolean read = false;
        for (long message = peer.in.nextMessage(); message >= 0; message = peer.in.nextMessage()) {
            read = true;
            Transfer transfer = peer.receiving.get(message);
            if (transfer == null) {
                peer.in.read(0, 0); // This rank gave up on it.
                continue;
            }
            long size = transfer.chunk();
            peer.in.read(transfer.address(), size);
            transfer.advance(size);
            if (transfer.isMoved()) {
                peer.receiving.remove(message);
                end(transfer, null);
            }
        }
        return read;
    }

    /** Ends a message, with the lock held; its work is completed when that is released. */
    private void end(Transfer transfer, CollectiveException reason) {
        pending.remove(transfer);
        pendingCount = pending.size();
        CollectiveException outcome = reason;
        try (HostTensor tensor = transfer.tensor()) {
            if (reason == null && !transfer.sends()) {
                tensor.flush();
            }
        } catch (RuntimeException e) {
            outcome = new CollectiveException(transfer.operation() + " failed: " + e, e);
        }
        ended.add(new Ended(transfer, outcome));
    }

    private void locked(Runnable action) {
        List<Ended> completed = List.of();
        lock.lock();
        try {
            action.run();
        } finally {
            if (!ended.isEmpty()) {
                completed = ended;
                ended = new ArrayList<>();
            }
            lock.unlock();
        }
        // What depends on them may issue messages itself.
        completed.forEach(one -> one.transfer().complete(one.reason()));
    }

    @Override
    public boolean hasPending() {
        // A letter that finds no room is to be posted even if the message has ended here.
        return pendingCount > 0 || unpostedCount > 0;
    }

    @Override
    public void sleep() {
        int doorbell = control.prepareSleep(rank);
        try {
            if (!pass() && !closed) {
                control.sleep(rank, doorbell, Math.min(nanosLeft(), Rendezvous.CHECK_NANOS));
            }
        } finally {
            // Whoever waited for what ended in the pass may have destroyed the group, right there.
            if (!closed) {
                control.endSleep(rank);
            }
        }
    }

    private long nanosLeft() {
        lock.lock();
        try {
            return Math.max(
                    0,
                    pending.stream()
                            .mapToLong(Transfer::nanosLeft)
                            .min()
                            .orElse(Rendezvous.CHECK_NANOS));
        } finally {
            lock.unlock();
        }
    }

    @Override
    public boolean check() {
        // States are read first: a rank may send and then leave.
        String[] ends = ends();
        while (pass()) {
            // Until there is nothing left of what the ranks did before.
            continue;
        }
        int before = pendingCount;
        locked(
                () -> {
                    for (Transfer transfer : List.copyOf(pending)) {
                        CollectiveException reason = reasonToEnd(transfer, ends);
                        if (reason != null) {
                            abandon(transfer);
                            end(transfer, reason);
                        }
                    }
                    for (int i = 0; i < worldSize; i++) {
                        if (ends[i] != null) {
                            peers.get(i).unposted.clear();
                        }
                    }
                });
        return pass() || pendingCount < before;
    }

    /** Why each rank takes no part any more; null for those that do. */
    private String[] ends() {
        long now = System.nanoTime();
        boolean look = now - lastLook >= Rendezvous.CHECK_NANOS;
        lastLook = look ? now : lastLook;
        boolean[] involved = new boolean[worldSize];
        lock.lock();
        try {
            for (int i = 0; i < worldSize; i++) {
                involved[i] = !peers.get(i).unposted.isEmpty();
            }
            for (Transfer transfer : pending) {
                int peer = transfer.peer();
                for (int i = 0; i < worldSize; i++) {
                    involved[i] |= i != rank && (peer == i || peer == Transfer.ANY);
                }
            }
        } finally {
            lock.unlock();
        }
        String[] ends = new String[worldSize];
        for (int i = 0; i < worldSize; i++) {
            ends[i] = rendezvous.announcedEndOf(i);
            if (ends[i] == null && look && involved[i]) {
                ends[i] = rendezvous.deathOf(i);
            }
        }
        return ends;
    }

    private CollectiveException reasonToEnd(Transfer transfer, String[] ends) {
        if (ends[rank] != null) {
            return ownEnd(transfer, ends[rank]);
        }
        int peer = transfer.peer();
        List<Integer> left =
                IntStream.range(0, worldSize)
                        .filter(i -> i != rank && (peer == Transfer.ANY || peer == i))
                        .filter(i -> ends[i] == null)
                        .boxed()
                        .toList();
        if (left.isEmpty()) {
            String end = peer == Transfer.ANY ? "all other ranks are gone" : ends[peer];
            return new CollectiveException(
                    transfer.operation() + " cannot complete on rank " + rank + ": " + end);
        }
        if (transfer.nanosLeft() > 0) {
            return null;
        }
        String did = transfer.sends() ? " did not receive it" : " did not send";
        return new CollectiveTimeoutException(
                transfer.operation()
                        + " timed out on rank "
                        + rank
                        + " after "
                        + transfer.operation().timeout()
                        + ": "
                        + Rendezvous.ranks(left)
                        + did,
                left);
    }

    private CollectiveException ownEnd(Transfer transfer, String broken) {
        return broken == null || closed
                ? new CollectiveException(
                        transfer.operation() + " was ended: this rank destroyed the group")
                : new CollectiveException(
                        transfer.operation()
                                + " cannot run: the group is broken since "
                                + broken
                                + "; destroy it and create a new one",
                        failedOperation);
    }

    /** Forgets a message that fails, and tells the other end if that waits for data. */
    private void abandon(Transfer transfer) {
        if (!transfer.isBound()) {
            wantedOf(transfer.peer()).removeFirst(transfer.tag(), other -> other == transfer);
            return;
        }
        Peer peer = peers.get(transfer.peer());
        peer.receiving.remove(transfer.message(), transfer);
        if (peer.offered.remove(transfer.message(), transfer) | peer.sending.remove(transfer)) {
            peer.unposted.add(transfer.letter(Kind.WITHDRAW));
        }
    }

    /** Waits until a message has ended, and drives all until then. */
    void await(Transfer transfer) {
        while (!transfer.isCompleted()) {
            if (!driver.driveUntil(transfer) || Thread.currentThread().isInterrupted()) {
                try {
                    transfer.awaitFuture(TimeUnit.SECONDS.toNanos(1));
                } catch (TimeoutException e) {
                    continue;
                }
            }
        }
    }

    void expedite() {
        driver.expedite();
    }

    /** Tells why messages will fail: to be called before the rank says that it has failed. */
    void breakWith(CollectiveException reason) {
        failedOperation = reason;
    }

    /** Fails what is under way; nothing uses the shared memory afterwards. */
    void close() {
        driver.close(() -> control.ring(rank));
        locked(
                () -> {
                    passAll(); // Letters of messages that have ended here.
                    closed = true;
                    for (Transfer transfer : List.copyOf(pending)) {
                        end(transfer, ownEnd(transfer, null));
                    }
                });
    }
}
