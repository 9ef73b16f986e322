// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * The part of the shared memory in which ranks synchronise and see each other's state: one record
 * per rank, then the signal words, then one failure reason per rank. A rank writes its own record;
 * peers write only its doorbell. Data written by different ranks is on different cache lines.
 *
 * <pre>
 *   record (512 bytes)
 *     0     int    arrived: the last epoch (synchronisation) that this rank has reached
 *     4     int    abandoned: the epoch at which this rank has stopped waiting, or 0
 *     64    int    doorbell: incremented by peers after a change, if this rank sleeps
 *     68    int    sleepers: threads of this rank that sleep on the doorbell, or are about to
 *     128   int    state (see {@link State})
 *     132   int    length of the failure reason
 *     136   long   process id
 *     144   long   start time of the process, see {@link Liveness}
 *     192   longs  the current and the previous call, see {@link CallWords}, by parity
 *   signal words (64 bytes each): [destination rank][channel][source rank]; in one more channel
 *     0     int    the last barrier of the two ranks that the source rank has reached
 *     4     ints   the ranks it named, as a hash, by parity: it may be one barrier ahead
 *   failure reasons (4096 bytes each): UTF-8
 * </pre>
 */
public final class ControlBlock {

    /** The state of a rank, in the order in which it can change. */
    public enum State {
        /** The rank has not joined yet. */
        ABSENT,
        ACTIVE,
        /** The rank has destroyed the group. */
        LEFT,
        /** The rank has failed. */
        FAILED
    }

    /** The number of signal channels from each rank to each rank. */
    public static final int CHANNELS = 4;

    private static final int BARRIERS = CHANNELS; // the channel after these
    private static final int ROWS = BARRIERS + 1;

    private static final int RECORD = 512;
    private static final int LINE = 64;
    private static final int ABANDONED = 4;
    private static final int DOORBELL = 64;
    private static final int SLEEPERS = 68;
    private static final int STATE = 128;
    private static final int REASON_LENGTH = 132;
    private static final int PID = 136;
    private static final int START_TIME = 144;
    private static final int CALLS = 192;

    // A mismatch of 8 ranks, with calls of 10 dimensions and a group name of 200 characters, gives
    // a text of 3.0 KB.
    private static final int MAX_REASON = 4096;
    private static final byte[] OMISSION = " … ".getBytes(StandardCharsets.UTF_8);

    private final AtomicBuffer words;
    private final int worldSize;

    /** Creates a view of shared memory, initially zero, with the block at its start. */
    public ControlBlock(NativeMemory memory, int worldSize) {
        this.worldSize = worldSize;
        this.words = new AtomicBuffer(memory, 0, byteSize(worldSize));
    }

    /** Returns the size of a block in bytes. */
    public static int byteSize(int worldSize) {
        return reasonOffset(worldSize, worldSize);
    }

    /** Returns the last epoch that a rank has reached, which wraps around. */
    public int arrived(int rank) {
        return words.getIntVolatile(rank * RECORD);
    }

    /**
     * Sets the last epoch that this rank has reached. Release: a rank that reads the epoch sees
     * earlier writes of this rank.
     */
    public void setArrived(int rank, int epoch) {
        words.putIntVolatile(rank * RECORD, epoch);
    }

    /** Returns the epoch at which a rank has stopped waiting; 0 if it has not stopped. */
    public int abandoned(int rank) {
        return words.getIntVolatile(rank * RECORD + ABANDONED);
    }

    /** Announces the epoch at which this rank has stopped waiting; 0 revokes this. */
    public void setAbandoned(int rank, int epoch) {
        words.putIntVolatile(rank * RECORD + ABANDONED, epoch);
    }

    public long signal(int rank, int channel, int source) {
        return words.getLongVolatile(signalOffset(rank, channel, source));
    }

    /**
     * Sets a signal for a rank. Release: when it reads the signal, it sees earlier writes of this
     * rank.
     */
    public void setSignal(int rank, int channel, int source, long epoch) {
        words.putLongVolatile(signalOffset(rank, channel, source), epoch);
    }

    /** Returns the number of the last barrier of two ranks that the source rank has reached. */
    int barrier(int rank, int source) {
        return words.getIntVolatile(signalOffset(rank, BARRIERS, source));
    }

    /** Returns the hash of the ranks that the source rank named for a barrier of the two ranks. */
    int barrierRanks(int rank, int source, int number) {
        return words.getIntVolatile(barrierRanksOffset(rank, source, number));
    }

    /**
     * Announces that the source rank has reached a barrier of ranks, given by their hash. Release,
     * as {@link #setSignal}.
     */
    void setBarrier(int rank, int source, int number, int ranks) {
        words.putIntVolatile(barrierRanksOffset(rank, source, number), ranks);
        words.putIntVolatile(signalOffset(rank, BARRIERS, source), number);
    }

    private int barrierRanksOffset(int rank, int source, int number) {
        return signalOffset(rank, BARRIERS, source) + Integer.BYTES * (1 + (number & 1));
    }

    private int signalOffset(int rank, int channel, int source) {
        return worldSize * RECORD + ((rank * ROWS + channel) * worldSize + source) * LINE;
    }

    private static int reasonOffset(int rank, int worldSize) {
        return worldSize * RECORD + worldSize * ROWS * worldSize * LINE + rank * MAX_REASON;
    }

    /** Wakes a rank if it sleeps. Call this after each change that the rank may wait for. */
    public void ring(int rank) {
        // The change and the sleeper count are both sequentially consistent: either the sleeper's
        // last check sees the change, or this check sees the sleeper.
        if (words.getIntVolatile(rank * RECORD + SLEEPERS) != 0) {
            words.getAndAddInt(rank * RECORD + DOORBELL, 1);
            words.wake(rank * RECORD + DOORBELL);
        }
    }

    /**
     * Announces that this thread is about to sleep; later changes wake it. The caller must check
     * its condition once more before it passes the result to {@link #sleep}.
     */
    public int prepareSleep(int rank) {
        words.getAndAddInt(rank * RECORD + SLEEPERS, 1);
        return words.getIntVolatile(rank * RECORD + DOORBELL);
    }

    /**
     * Sleeps until another rank rings; returns immediately if a rank has rung since {@link
     * #prepareSleep}, which returned the value of the doorbell.
     */
    public void sleep(int rank, int doorbell, long nanos) {
        words.sleepWhile(rank * RECORD + DOORBELL, doorbell, nanos);
    }

    /** Undoes {@link #prepareSleep}; must follow it in a finally block. */
    public void endSleep(int rank) {
        words.getAndAddInt(rank * RECORD + SLEEPERS, -1);
    }

    public State state(int rank) {
        return State.values()[words.getIntVolatile(rank * RECORD + STATE)];
    }

    /** Marks this rank as ACTIVE; for the start time of its process see {@link Liveness}. */
    public void setActive(int rank, long pid, long startTime) {
        words.putLong(rank * RECORD + PID, pid);
        words.putLong(rank * RECORD + START_TIME, startTime);
        words.putIntVolatile(rank * RECORD + STATE, State.ACTIVE.ordinal());
    }

    public void setLeft(int rank) {
        words.putIntVolatile(rank * RECORD + STATE, State.LEFT.ordinal());
    }

    /** Marks this rank as FAILED, for an {@linkplain #encoded encoded} reason. */
    public void setFailed(int rank, byte[] reason) {
        words.putBytes(reasonOffset(rank, worldSize), reason, reason.length);
        words.putIntVolatile(rank * RECORD + REASON_LENGTH, reason.length);
        words.putIntVolatile(rank * RECORD + STATE, State.FAILED.ordinal());
    }

    /**
     * Encodes a failure reason as at most {@value #MAX_REASON} bytes of UTF-8. If the text is too
     * long, its middle is cut out, because messages have the call at the start and the ranks at the
     * end.
     */
    public static byte[] encoded(String reason) {
        byte[] utf8 = reason.getBytes(StandardCharsets.UTF_8);
        if (utf8.length <= MAX_REASON) {
            return utf8;
        }
        int half = (MAX_REASON - OMISSION.length) / 2;
        int head = half;
        int tail = utf8.length - half;
        while (isInsideCharacter(utf8[head])) {
            head--;
        }
        while (isInsideCharacter(utf8[tail])) {
            tail++;
        }
        return ByteBuffer.allocate(head + OMISSION.length + utf8.length - tail)
                .put(utf8, 0, head)
                .put(OMISSION)
                .put(utf8, tail, utf8.length - tail)
                .array();
    }

    private static boolean isInsideCharacter(byte utf8) {
        return (utf8 & 0xc0) == 0x80;
    }

    /** Returns the failure reason of a rank in state FAILED. */
    public String reason(int rank) {
        byte[] utf8 = new byte[words.getIntVolatile(rank * RECORD + REASON_LENGTH)];
        words.getBytes(reasonOffset(rank, worldSize), utf8);
        return new String(utf8, StandardCharsets.UTF_8);
    }

    /** Returns the process id of a rank that has joined. */
    public long pid(int rank) {
        return words.getLong(rank * RECORD + PID);
    }

    /** Returns the start time of the process of a rank that has joined, see {@link Liveness}. */
    public long startTime(int rank) {
        return words.getLong(rank * RECORD + START_TIME);
    }

    /** Publishes this rank's call. */
    void putCall(int rank, long sequence, long[] call) {
        words.putLongs(callOffset(rank, sequence), call);
    }

    /** Compares a rank's current or previous call. */
    boolean callEquals(int rank, long sequence, long[] call) {
        return Arrays.equals(call(rank, sequence), call);
    }

    /** Returns a rank's current or previous call. */
    long[] call(int rank, long sequence) {
        long[] call = new long[CallWords.COUNT];
        words.getLongs(callOffset(rank, sequence), call);
        return call;
    }

    private static int callOffset(int rank, long sequence) {
        int parity = (int) (sequence & 1);
        return rank * RECORD + CALLS + parity * CallWords.COUNT * Long.BYTES;
    }
}
