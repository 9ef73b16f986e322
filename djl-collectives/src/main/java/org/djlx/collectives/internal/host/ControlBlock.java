/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * The part of the shared memory through which ranks see each other.
 *
 * <p>It holds one record for each rank, written by that rank except for the doorbell, after the
 * records the signal words, and after these a reason for each rank. Everything that different ranks
 * write lies on different cache lines.
 *
 * <pre>
 *   record (512 bytes)
 *     0     int    arrived: number of meetings this rank has come to
 *     4     int    given up: the meeting at which it does not wait any more, or 0
 *     64    int    doorbell: rung by others when they have changed something while it sleeps
 *     68    int    sleepers: threads of this rank that sleep on the doorbell, or are about to
 *     128   int    state (see {@link State})
 *     132   int    length of the reason
 *     136   long   process id
 *     144   long   start time of the process, see {@link Liveness}
 *     192   longs  the current call, see {@link CallWords}, and the one before, by parity
 *   signal words (64 bytes each): [rank it lies on][channel][rank that raises it]
 *   reasons (4096 bytes each): why a rank FAILED, in UTF-8
 * </pre>
 */
public final class ControlBlock {

    /** What a rank is doing, in the order in which it can change. */
    public enum State {
        /** It has not joined yet. */
        ABSENT,
        /** It takes part. */
        ACTIVE,
        /** It has destroyed the group. */
        LEFT,
        /** It cannot go on. */
        FAILED
    }

    /** The number of signals that each rank may raise for each. */
    public static final int CHANNELS = 4;

    private static final int RECORD = 512;
    private static final int LINE = 64;
    private static final int GIVEN_UP = 4;
    private static final int DOORBELL = 64;
    private static final int SLEEPERS = 68;
    private static final int STATE = 128;
    private static final int REASON_LENGTH = 132;
    private static final int PID = 136;
    private static final int START_TIME = 144;
    private static final int CALLS = 192;

    // 8 ranks that all call something else, of 10 dimensions, in a group with a name of 200
    // characters make a text of 3.0 KB.
    private static final int MAX_REASON = 4096;
    private static final byte[] OMISSION = " … ".getBytes(StandardCharsets.UTF_8);

    private final AtomicBuffer words;
    private final int worldSize;

    /**
     * Looks at memory that all ranks share.
     *
     * @param memory the memory, with the block at its start; zeros at first
     * @param worldSize the number of ranks
     */
    public ControlBlock(NativeMemory memory, int worldSize) {
        this.worldSize = worldSize;
        this.words = new AtomicBuffer(memory, 0, byteSize(worldSize));
    }

    /**
     * Returns the size of a block.
     *
     * @param worldSize the number of ranks
     * @return the size in bytes
     */
    public static int byteSize(int worldSize) {
        return reasonOffset(worldSize, worldSize);
    }

    /**
     * Returns how many meetings a rank has come to.
     *
     * @param rank the rank
     * @return its last epoch, which wraps around
     */
    public int arrived(int rank) {
        return words.getIntVolatile(rank * RECORD);
    }

    /**
     * Tells how many meetings this rank has come to; what it wrote before is visible to who reads
     * it.
     *
     * @param rank this rank
     * @param epoch its last epoch
     */
    public void setArrived(int rank, int epoch) {
        words.putIntVolatile(rank * RECORD, epoch);
    }

    /**
     * Returns the meeting at which a rank does not wait any more.
     *
     * @param rank the rank
     * @return its epoch; 0 if there is none
     */
    public int givenUp(int rank) {
        return words.getIntVolatile(rank * RECORD + GIVEN_UP);
    }

    /**
     * Tells at which meeting this rank does not wait any more.
     *
     * @param rank this rank
     * @param epoch its epoch, or 0 to take it back
     */
    public void setGivenUp(int rank, int epoch) {
        words.putIntVolatile(rank * RECORD + GIVEN_UP, epoch);
    }

    /**
     * Returns the value of a signal.
     *
     * @param rank for whom it is
     * @param channel which one
     * @param source who raises it
     * @return the value
     */
    public int signal(int rank, int channel, int source) {
        return words.getIntVolatile(signalOffset(rank, channel, source));
    }

    /**
     * Raises a signal; what this rank wrote before is visible to who reads it.
     *
     * @param rank for whom it is
     * @param channel which one
     * @param source this rank
     * @param epoch the value
     */
    public void setSignal(int rank, int channel, int source, int epoch) {
        words.putIntVolatile(signalOffset(rank, channel, source), epoch);
    }

    private int signalOffset(int rank, int channel, int source) {
        return worldSize * RECORD + ((rank * CHANNELS + channel) * worldSize + source) * LINE;
    }

    private static int reasonOffset(int rank, int worldSize) {
        return worldSize * RECORD + worldSize * CHANNELS * worldSize * LINE + rank * MAX_REASON;
    }

    /**
     * Wakes a rank if it sleeps; to be called after a change that it may wait for.
     *
     * @param rank the rank
     */
    public void ring(int rank) {
        // The change before and the sleeper's count are both sequentially consistent: either the
        // sleeper's last check sees the change, or its count is seen here.
        if (words.getIntVolatile(rank * RECORD + SLEEPERS) != 0) {
            words.getAndAddInt(rank * RECORD + DOORBELL, 1);
            words.wake(rank * RECORD + DOORBELL);
        }
    }

    /**
     * Announces that this thread is about to sleep: what changes from now on will wake it.
     *
     * @param rank this rank
     * @return what to pass to {@link #sleep}, after another look at what is waited for
     */
    public int prepareSleep(int rank) {
        words.getAndAddInt(rank * RECORD + SLEEPERS, 1);
        return words.getIntVolatile(rank * RECORD + DOORBELL);
    }

    /**
     * Sleeps until somebody rings, unless somebody has since the announcement.
     *
     * @param rank this rank
     * @param doorbell what {@link #prepareSleep} returned
     * @param nanos how long at most
     */
    public void sleep(int rank, int doorbell, long nanos) {
        words.sleepWhile(rank * RECORD + DOORBELL, doorbell, nanos);
    }

    /**
     * Ends what {@link #prepareSleep} began; to be called in any case.
     *
     * @param rank this rank
     */
    public void endSleep(int rank) {
        words.getAndAddInt(rank * RECORD + SLEEPERS, -1);
    }

    /**
     * Returns what a rank is doing.
     *
     * @param rank the rank
     * @return its state
     */
    public State state(int rank) {
        return State.values()[words.getIntVolatile(rank * RECORD + STATE)];
    }

    /**
     * Tells that this rank takes part.
     *
     * @param rank this rank
     * @param pid its process
     * @param startTime when that started, see {@link Liveness}
     */
    public void setActive(int rank, long pid, long startTime) {
        words.putLong(rank * RECORD + PID, pid);
        words.putLong(rank * RECORD + START_TIME, startTime);
        words.putIntVolatile(rank * RECORD + STATE, State.ACTIVE.ordinal());
    }

    /**
     * Tells that this rank has destroyed the group.
     *
     * @param rank this rank
     */
    public void setLeft(int rank) {
        words.putIntVolatile(rank * RECORD + STATE, State.LEFT.ordinal());
    }

    /**
     * Tells that this rank cannot go on.
     *
     * @param rank this rank
     * @param reason why, {@linkplain #encoded encoded}
     */
    public void setFailed(int rank, byte[] reason) {
        words.putBytes(reasonOffset(rank, worldSize), reason, reason.length);
        words.putIntVolatile(rank * RECORD + REASON_LENGTH, reason.length);
        words.putIntVolatile(rank * RECORD + STATE, State.FAILED.ordinal());
    }

    /**
     * Encodes why a rank has failed. A text that is too long loses its middle: what was called
     * stands at the start of our messages, and which ranks are to blame at the end.
     *
     * @param reason why
     * @return UTF-8, as long as the block has room for
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

    /**
     * Returns why a rank has failed.
     *
     * @param rank a rank whose state is FAILED
     * @return why
     */
    public String reason(int rank) {
        byte[] utf8 = new byte[words.getIntVolatile(rank * RECORD + REASON_LENGTH)];
        words.getBytes(reasonOffset(rank, worldSize), utf8);
        return new String(utf8, StandardCharsets.UTF_8);
    }

    /**
     * Returns a rank's process.
     *
     * @param rank a rank that has joined
     * @return the process's id
     */
    public long pid(int rank) {
        return words.getLong(rank * RECORD + PID);
    }

    /**
     * Returns when a rank's process started.
     *
     * @param rank a rank that has joined
     * @return the time, see {@link Liveness}
     */
    public long startTime(int rank) {
        return words.getLong(rank * RECORD + START_TIME);
    }

    /**
     * Tells what this rank begins.
     *
     * @param rank this rank
     * @param sequence the operation's number
     * @param call the call's words
     */
    void putCall(int rank, long sequence, long[] call) {
        words.putLongs(callOffset(rank, sequence), call);
    }

    /**
     * Compares what a rank has begun.
     *
     * @param rank the rank
     * @param sequence the operation's number: the current one, or the one before
     * @param call what to compare with
     * @return whether it is the same
     */
    boolean callEquals(int rank, long sequence, long[] call) {
        return Arrays.equals(call(rank, sequence), call);
    }

    /**
     * Returns what a rank has begun.
     *
     * @param rank the rank
     * @param sequence the operation's number: the current one, or the one before
     * @return the call's words
     */
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
