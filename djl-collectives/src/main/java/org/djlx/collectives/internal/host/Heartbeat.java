// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.store.Store;

/**
 * Sends heartbeats of one member of a job through a store, and notices which other members are
 * silent. Every {@value #PERIOD_MILLIS} ms a thread adds 1 to this member's key, and reads the keys
 * of the watched members.
 *
 * <p>Silence is counted in beats of this member, not in time: a member that a debugger has stopped
 * does not take the others for dead when it goes on. Thread-safe.
 */
public final class Heartbeat implements AutoCloseable {

    /** Missed beats after which a member counts as dead: with one more to spread it, 8 s. */
    public static final int LIMIT = 7;

    private static final long PERIOD_MILLIS = 1000;
    private static final long MAX_STEP_NANOS = 500_000_000;

    /** What is known of a watched member: its last value, and the beats without another. */
    private record Pulse(long beats, int missed) {

        Pulse next(long value) {
            return new Pulse(value, value == beats ? missed + 1 : 0);
        }
    }

    private final Store store;
    private final String own;
    private final Consumer<Heartbeat> also;
    private final Map<String, Pulse> watched = new ConcurrentHashMap<>();
    private final CountDownLatch end = new CountDownLatch(1);
    private volatile long answers; // beats that the store has answered
    private volatile String failure; // why this thread has ended; null while it runs
    // Guarded by this.
    private long silentNanos; // since the last answer, as far as this process ran
    private long lastAnswers;
    private long lastNanos = System.nanoTime();

    /**
     * Begins to beat. After each beat {@code also} is called with this, perhaps before the
     * constructor returns; it throws CollectiveException if the store is lost.
     */
    public Heartbeat(String name, Store store, String own, Consumer<Heartbeat> also) {
        this.store = store;
        this.own = own;
        this.also = also;
        Thread thread = new Thread(this::run, name);
        thread.setDaemon(true);
        thread.start();
    }

    private void run() {
        try {
            while (!isClosed()) {
                store.add(own, 1);
                for (String key : watched.keySet()) {
                    long value = store.add(key, 0);
                    watched.computeIfPresent(key, (same, pulse) -> pulse.next(value));
                }
                also.accept(this);
                answers++;
                end.await(PERIOD_MILLIS, TimeUnit.MILLISECONDS);
            }
        } catch (CollectiveException | InterruptedException e) {
            failure = e.getMessage();
        }
    }

    public void watch(String key) {
        watched.putIfAbsent(key, new Pulse(0, 0));
    }

    /** Watches a member no longer. */
    public void forget(String key) {
        watched.remove(key);
    }

    /** Returns how many beats of this member a watched one has been silent. */
    public int missed(String key) {
        Pulse pulse = watched.get(key);
        return pulse == null ? 0 : pulse.missed();
    }

    /** Returns the beats of a watched member, as last read. */
    public long beats(String key) {
        Pulse pulse = watched.get(key);
        return pulse == null ? 0 : pulse.beats();
    }

    /**
     * Returns why the store is lost: its server has ended, or has been silent; null if it is not.
     * To be called several times a second, as silence adds up from call to call.
     */
    public synchronized String lost() {
        if (failure != null || isClosed()) {
            return isClosed() ? null : failure;
        }
        long now = System.nanoTime();
        silentNanos = answers == lastAnswers ? silentNanos : 0;
        silentNanos += Math.min(now - lastNanos, MAX_STEP_NANOS);
        lastNanos = now;
        lastAnswers = answers;
        long seconds = silentNanos / 1_000_000_000;
        return seconds <= LIMIT ? null : "it has been silent for " + seconds + " s";
    }

    private boolean isClosed() {
        return end.getCount() == 0;
    }

    /** Ends the beats. Does not interrupt: other threads use the connection to the store, too. */
    @Override
    public void close() {
        end.countDown();
    }
}
