// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.PeerWatch;
import org.djlx.collectives.spi.cpu.Letter;
import org.djlx.collectives.spi.cpu.PeerStates;
import org.djlx.nativeops.mpi.MpiCommunicator;
import org.djlx.nativeops.mpi.MpiException;
import org.djlx.nativeops.mpi.MpiRequests;

/**
 * The communicator of one group, as one rank uses it: sends letters, sorts those that arrive, and
 * knows which ranks have left or failed. Any thread that waits for something calls {@link #poll}.
 * Thread-safe; a lock orders the calls of MPI.
 *
 * <p>Each rank ends with a letter {@link LetterBuffer#LEFT}. After those of all ranks nothing
 * arrives any more, and the communicator is freed.
 */
final class MpiGroup extends PeerStates {

    static final int LETTERS = 0;

    static final int DATA = 1;

    /** The first tag of the data of messages. */
    static final int MESSAGES = 2;

    // Letters carry data of up to 16 KiB: sending larger data separately takes about as long.
    private static final int MIN_CAPACITY = LetterBuffer.HEADER + (16 << 10);

    // How many letters to send before testing whether they have left: each test is a call of MPI.
    private static final int SENDING = 8;

    // How often to test whether a cancelled transfer has ended: takes some milliseconds.
    private static final int MAX_TESTS = 10_000;

    private final MpiCommunicator comm;
    private final String name;
    private final PeerWatch processes;
    private final int rank;
    private final int worldSize;
    private final int[] others; // the other ranks, from the next one on
    private final int capacity;
    private final List<Queue<Letter>> letters = new ArrayList<>(); // by source
    private final AtomicReferenceArray<String> ends; // by rank; null while it takes part
    private final Backoff doorbell = new Backoff(); // of the thread that drives messages

    private final ReentrantLock lock = new ReentrantLock();
    // Guarded by lock.
    private final Deque<LetterBuffer> free = new ArrayDeque<>(); // the first is in the cache
    private Outbox sending = new Outbox();
    private Outbox sent = new Outbox();
    private final List<Deque<LetterBuffer>> calls = new ArrayList<>(); // by source
    private int callers; // other ranks whose call has arrived
    private LetterBuffer posted;
    private final MpiRequests receive = new MpiRequests(); // into posted
    private int leavers; // ranks that have sent their last letter
    private boolean left;
    private boolean silent; // whether MPI must not be called any more

    /** Letters that leave together; tested by one call of MPI. */
    private final class Outbox {

        private final List<LetterBuffer> letters = new ArrayList<>();
        private final MpiRequests requests = new MpiRequests();

        void send(LetterBuffer letter, int peer) {
            comm.send(requests, letter.address(), letter.byteSize(), peer, LETTERS);
        }

        /** Returns whether all letters have left, and frees them. */
        boolean isEmpty() {
            if (letters.isEmpty()) {
                return true;
            }
            if (!requests.test()) {
                return false;
            }
            letters.forEach(free::push);
            letters.clear();
            return true;
        }
    }

    MpiGroup(MpiCommunicator comm, String name, PeerWatch processes) {
        super(comm.rank(), comm.size(), 1);
        this.comm = comm;
        this.name = name;
        this.processes = processes;
        rank = comm.rank();
        worldSize = comm.size();
        others = IntStream.range(1, worldSize).map(i -> (rank + i) % worldSize).toArray();
        capacity = Math.max(MIN_CAPACITY, LetterBuffer.HEADER + 2 * worldSize * Long.BYTES);
        ends = new AtomicReferenceArray<>(worldSize);
        for (int peer = 0; peer < worldSize; peer++) {
            letters.add(new ConcurrentLinkedQueue<>());
            calls.add(new ArrayDeque<>());
        }
        posted = take();
        expectLetter();
    }

    /** Returns the most bytes of data that fit into a call. */
    int maxPayload() {
        return MIN_CAPACITY - LetterBuffer.HEADER;
    }

    private LetterBuffer take() {
        LetterBuffer buffer = free.poll();
        return buffer == null ? new LetterBuffer(capacity) : buffer;
    }

    private void expectLetter() {
        comm.receive(receive, posted.address(), capacity, MpiCommunicator.ANY_SOURCE, LETTERS);
    }

    private void locked(Runnable calls) {
        locked(
                () -> {
                    calls.run();
                    return null;
                });
    }

    private <T> T locked(Supplier<T> calls) {
        lock.lock();
        try {
            return calls.get();
        } finally {
            lock.unlock();
        }
    }

    void sendToAll(Consumer<LetterBuffer> put) {
        send(put, others);
    }

    void send(int peer, Letter letter) {
        send(buffer -> buffer.put(rank, letter), peer);
    }

    private void send(Consumer<LetterBuffer> put, int... to) {
        locked(
                () -> {
                    if (!silent && to.length > 0) {
                        LetterBuffer buffer = take();
                        put.accept(buffer);
                        sending.letters.add(buffer);
                        for (int peer : to) {
                            sending.send(buffer, peer);
                        }
                    }
                });
    }

    /** Starts to send or receive data, in as many messages as it takes. */
    void transfer(boolean sends, MpiRequests requests, long address, long size, int peer, int tag) {
        lock.lock();
        try {
            requireCalls();
            for (long offset = 0; offset < size; offset += MpiCommunicator.MAX_BYTES) {
                int bytes = (int) Math.min(MpiCommunicator.MAX_BYTES, size - offset);
                if (sends) {
                    comm.send(requests, address + offset, bytes, peer, tag);
                } else {
                    comm.receive(requests, address + offset, bytes, peer, tag);
                }
            }
        } finally {
            lock.unlock();
        }
    }

    /** Adds numbers to others: {@link MpiCommunicator#add}. */
    void add(long sum, long term, int count, boolean isDouble) {
        locked(
                () -> {
                    requireCalls();
                    MpiCommunicator.add(sum, term, count, isDouble);
                });
    }

    private void requireCalls() {
        if (silent) {
            throw new MpiException(name, "this process is ending");
        }
    }

    boolean test(MpiRequests requests) {
        return locked(() -> !silent && requests.test());
    }

    /** Returns whether a transfer has ended: {@link MpiRequests#test(int)}. */
    boolean test(MpiRequests requests, int index) {
        return locked(() -> !silent && requests.test(index));
    }

    /**
     * Cancels transfers, and waits a moment for their end. Returns false if one goes on: MPI cannot
     * cancel what it has begun to send.
     */
    boolean cancel(MpiRequests requests) {
        lock.lock();
        try {
            if (silent) {
                return false;
            }
            requests.cancel();
            for (int i = 0; i < MAX_TESTS; i++) {
                if (requests.test()) {
                    return true;
                }
            }
            return false;
        } catch (MpiException e) {
            return false;
        } finally {
            lock.unlock();
        }
    }

    /** Lets MPI make progress, and sorts one letter; returns whether one has arrived. */
    boolean poll() {
        if (!lock.tryLock()) {
            return false; // Another thread polls.
        }
        try {
            if (silent) {
                return false;
            }
            if (sending.letters.size() >= SENDING || isClosing()) {
                freeSent();
            }
            try {
                if (!receive.test()) {
                    return false;
                }
            } catch (MpiException e) {
                expectLetter(); // What the buffer holds is an older letter.
                throw e;
            }
            LetterBuffer letter = posted;
            posted = take();
            expectLetter();
            sort(letter);
            return true;
        } finally {
            lock.unlock();
        }
    }

    private void freeSent() {
        if (!sending.isEmpty() && sent.isEmpty()) {
            Outbox empty = sent;
            sent = sending;
            sending = empty;
        }
    }

    private void sort(LetterBuffer letter) {
        int source = letter.source();
        switch (letter.kind()) {
            case LetterBuffer.CALL -> {
                callers += calls.get(source).isEmpty() ? 1 : 0;
                calls.get(source).add(letter);
                return; // Freed by endCall().
            }
            case LetterBuffer.FAILED ->
                    setEnd(source, "rank " + source + " failed: " + letter.text());
            case LetterBuffer.LEFT -> {
                leavers++;
                setEnd(source, PeerStates.left(source));
            }
            default -> letters.get(source).add(letter.letter());
        }
        free.push(letter);
    }

    private void setEnd(int peer, String end) {
        ends.compareAndSet(peer, null, end);
    }

    /** Takes the next letter about messages from a rank; null if there is none. */
    Letter takeLetter(int peer) {
        return letters.get(peer).poll();
    }

    /** Returns whether the current calls of all other ranks have arrived. */
    boolean hasCalls() {
        return locked(() -> callers == worldSize - 1);
    }

    /** Returns the current call of a rank; null if it has not arrived. */
    LetterBuffer callOf(int peer) {
        return locked(() -> calls.get(peer).peek());
    }

    /** Frees the current calls of all ranks. */
    void endCall() {
        lock.lock();
        try {
            callers = 0;
            for (Deque<LetterBuffer> queue : calls) {
                LetterBuffer call = queue.poll();
                if (call != null) {
                    free.push(call);
                }
                callers += queue.isEmpty() ? 0 : 1;
            }
        } finally {
            lock.unlock();
        }
    }

    @Override
    public CollectiveException failure() {
        while (poll()) {
            continue;
        }
        return super.failure();
    }

    @Override
    protected Optional<String> lost() {
        return processes.dead();
    }

    @Override
    protected void announceFailure(CollectiveException reason) {
        lock.lock();
        try {
            if (!left) {
                sendToAll(
                        buffer ->
                                buffer.putEnd(
                                        LetterBuffer.FAILED,
                                        rank,
                                        String.valueOf(reason.getMessage())));
            }
        } catch (MpiException e) {
            reason.addSuppressed(e);
        } finally {
            lock.unlock();
        }
    }

    @Override
    public String announcedEndOf(int peer) {
        return ends.get(peer);
    }

    @Override
    public int spins() {
        return 0; // sleep() spins and yields.
    }

    @Override
    public void ring(int peer) {
        if (peer != rank) {
            doorbell.reset();
        }
    }

    @Override
    public int prepareSleep() {
        return 0;
    }

    @Override
    public void sleep(int value, long nanos) {
        doorbell.pause(nanos);
    }

    @Override
    public void endSleep() {}

    /** Sends the last letter. */
    void leave() {
        locked(
                () -> {
                    if (!left) {
                        left = true;
                        processes.close();
                        sendToAll(buffer -> buffer.putEnd(LetterBuffer.LEFT, rank, ""));
                    }
                });
    }

    /** Frees the communicator if nothing can arrive any more; returns whether it is free. */
    boolean release() {
        lock.lock();
        try {
            while (poll()) {
                continue;
            }
            if (silent || leavers < worldSize - 1 || !sending.isEmpty() || !sent.isEmpty()) {
                return silent;
            }
            endReceive();
            silent = true;
            comm.close();
            return true;
        } finally {
            lock.unlock();
        }
    }

    private void endReceive() {
        receive.cancel();
        // A letter that is arriving cannot be cancelled, and its sender may hang.
        for (int i = 0; i < MAX_TESTS && !receive.test(); i++) {
            Thread.onSpinWait();
        }
    }

    /** Makes no more calls of MPI. */
    void silence() {
        locked(
                () -> {
                    if (!silent) {
                        endReceive();
                        silent = true;
                    }
                });
    }
}
