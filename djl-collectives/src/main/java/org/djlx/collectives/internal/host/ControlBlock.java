/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.nio.charset.StandardCharsets;
import org.djlx.collectives.Operation;
import org.djlx.nativeops.AtomicBuffer;
import org.djlx.nativeops.NativeMemory;

/**
 * The part of the shared memory through which ranks see each other.
 *
 * <p>It holds one record for each rank, written by that rank except for the doorbell, and after the
 * records the signal words. Everything that different ranks write lies on different cache lines.
 *
 * <pre>
 *   record (1024 bytes)
 *     0     int    arrived: number of meetings this rank has come to
 *     4     int    given up: the meeting at which it does not wait any more, or 0
 *     64    int    doorbell: rung by others when they have changed something while it sleeps
 *     68    int    sleepers: threads of this rank that sleep on the doorbell, or are about to
 *     128   int    state (see {@link State})
 *     132   int    length of the reason
 *     136   long   process id
 *     144   long   start time of the process, see {@link Liveness}
 *     192   bytes  reason for FAILED, UTF-8, at most 256
 *     448   longs  signature of the current operation, and of the one before, by parity
 *   signal words (64 bytes each): [rank it lies on][channel][rank that raises it]
 * </pre>
 */
public final class ControlBlock {

    /** What a rank is doing, in the order in which it can change. */
    public enum State {
        ABSENT,
        ACTIVE,
        LEFT,
        FAILED
    }

    public static final int CHANNELS = 4;

    private static final int RECORD = 1024;
    private static final int LINE = 64;
    private static final int GIVEN_UP = 4;
    private static final int DOORBELL = 64;
    private static final int SLEEPERS = 68;
    private static final int STATE = 128;
    private static final int REASON_LENGTH = 132;
    private static final int PID = 136;
    private static final int START_TIME = 144;
    private static final int REASON = 192;
    private static final int MAX_REASON = 256;
    private static final int SIGNATURES = 448;

    private final AtomicBuffer words;
    private final int worldSize;

    public ControlBlock(NativeMemory memory, int worldSize) {
        this.worldSize = worldSize;
        this.words = new AtomicBuffer(memory, 0, byteSize(worldSize));
    }

    public static int byteSize(int worldSize) {
        return worldSize * RECORD + worldSize * CHANNELS * worldSize * LINE;
    }

    public int arrived(int rank) {
        return words.getIntVolatile(rank * RECORD);
    }

    public void setArrived(int rank, int epoch) {
        words.putIntVolatile(rank * RECORD, epoch);
    }

    public int givenUp(int rank) {
        return words.getIntVolatile(rank * RECORD + GIVEN_UP);
    }

    public void setGivenUp(int rank, int epoch) {
        words.putIntVolatile(rank * RECORD + GIVEN_UP, epoch);
    }

    public int signal(int rank, int channel, int source) {
        return words.getIntVolatile(signalOffset(rank, channel, source));
    }

    public void setSignal(int rank, int channel, int source, int epoch) {
        words.putIntVolatile(signalOffset(rank, channel, source), epoch);
    }

    private int signalOffset(int rank, int channel, int source) {
        return worldSize * RECORD + ((rank * CHANNELS + channel) * worldSize + source) * LINE;
    }

    /** Wakes a rank if it sleeps; to be called after a change that it may wait for. */
    public void ring(int rank) {
        // The change before and the sleeper's count are both sequentially consistent: either the
        // sleeper's last check sees the change, or its count is seen here.
        if (words.getIntVolatile(rank * RECORD + SLEEPERS) != 0) {
            words.getAndAddInt(rank * RECORD + DOORBELL, 1);
            words.wake(rank * RECORD + DOORBELL);
        }
    }

    public int prepareSleep(int rank) {
        words.getAndAddInt(rank * RECORD + SLEEPERS, 1);
        return words.getIntVolatile(rank * RECORD + DOORBELL);
    }

    public void sleep(int rank, int doorbell, long nanos) {
        words.sleepWhile(rank * RECORD + DOORBELL, doorbell, nanos);
    }

    public void endSleep(int rank) {
        words.getAndAddInt(rank * RECORD + SLEEPERS, -1);
    }

    public State state(int rank) {
        return State.values()[words.getIntVolatile(rank * RECORD + STATE)];
    }

    public void setActive(int rank, long pid, long startTime) {
        words.putLong(rank * RECORD + PID, pid);
        words.putLong(rank * RECORD + START_TIME, startTime);
        words.putIntVolatile(rank * RECORD + STATE, State.ACTIVE.ordinal());
    }

    public void setLeft(int rank) {
        words.putIntVolatile(rank * RECORD + STATE, State.LEFT.ordinal());
    }

    public void setFailed(int rank, byte[] utf8) {
        int length = Math.min(utf8.length, MAX_REASON);
        words.putBytes(rank * RECORD + REASON, utf8, length);
        words.putIntVolatile(rank * RECORD + REASON_LENGTH, length);
        words.putIntVolatile(rank * RECORD + STATE, State.FAILED.ordinal());
    }

    public String reason(int rank) {
        byte[] utf8 = new byte[words.getIntVolatile(rank * RECORD + REASON_LENGTH)];
        words.getBytes(rank * RECORD + REASON, utf8);
        return new String(utf8, StandardCharsets.UTF_8);
    }

    public long pid(int rank) {
        return words.getLong(rank * RECORD + PID);
    }

    public long startTime(int rank) {
        return words.getLong(rank * RECORD + START_TIME);
    }

    public void putSignature(int rank, long sequence, long[] signature) {
        int offset = signatureOffset(rank, sequence);
        for (int i = 0; i < Operation.SIGNATURE_WORDS; i++) {
            words.putLong(offset + i * Long.BYTES, signature[i]);
        }
    }

    public boolean signatureEquals(int rank, long sequence, long[] signature) {
        int offset = signatureOffset(rank, sequence);
        for (int i = 0; i < Operation.SIGNATURE_WORDS; i++) {
            if (words.getLong(offset + i * Long.BYTES) != signature[i]) {
                return false;
            }
        }
        return true;
    }

    public long[] signature(int rank, long sequence) {
        int offset = signatureOffset(rank, sequence);
        long[] signature = new long[Operation.SIGNATURE_WORDS];
        for (int i = 0; i < signature.length; i++) {
            signature[i] = words.getLong(offset + i * Long.BYTES);
        }
        return signature;
    }

    private static int signatureOffset(int rank, long sequence) {
        int parity = (int) (sequence & 1);
        return rank * RECORD + SIGNATURES + parity * Operation.SIGNATURE_WORDS * Long.BYTES;
    }
}
