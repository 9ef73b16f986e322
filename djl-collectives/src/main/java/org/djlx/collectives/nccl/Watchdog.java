/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.nccl;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;

/**
 * Completes the works of one rank's group, and ends them if they take too long or if the
 * communicator reports an error: nobody need wait for a work for that. Its thread sleeps while
 * there is none.
 */
final class Watchdog implements AutoCloseable {

    private static final long INTERVAL_MILLIS = 5;

    private final Supplier<Optional<String>> error;
    private final Consumer<CollectiveException> abort;
    private final Queue<NcclWork> works = new ArrayDeque<>();
    private final Thread thread;
    private boolean closed;

    /**
     * Creates a watchdog.
     *
     * @param name the thread's name
     * @param error tells what is wrong with the communicator, if anything
     * @param abort makes the GPU end all works; called once, before they are failed
     */
    Watchdog(String name, Supplier<Optional<String>> error, Consumer<CollectiveException> abort) {
        this.error = error;
        this.abort = abort;
        thread = new Thread(this::watch, name);
        thread.setDaemon(true);
        thread.start();
    }

    synchronized void add(NcclWork work) {
        works.add(work);
        notifyAll();
    }

    private void watch() {
        try {
            while (awaitWork()) {
                pollAll();
                Thread.sleep(INTERVAL_MILLIS);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private synchronized boolean awaitWork() throws InterruptedException {
        while (works.isEmpty() && !closed) {
            wait();
        }
        return !closed;
    }

    private void pollAll() {
        List<NcclWork> running;
        synchronized (this) {
            running = new ArrayList<>(works);
        }
        List<NcclWork> done = running.stream().filter(NcclWork::poll).toList();
        synchronized (this) {
            works.removeAll(done);
        }
        Optional<NcclWork> late = running.stream().filter(w -> !w.poll() && w.isLate()).findFirst();
        if (late.isPresent()) {
            failAll(
                    new CollectiveTimeoutException(
                            late.get().operation()
                                    + " timed out after "
                                    + late.get().operation().timeout()
                                    + "; NCCL does not tell which ranks did not arrive",
                            List.of()));
            return;
        }
        error.get()
                .ifPresent(
                        text -> failAll(new CollectiveException("NCCL reports an error: " + text)));
    }

    /** Aborts, and fails what has not ended. */
    void failAll(CollectiveException reason) {
        abort.accept(reason);
        List<NcclWork> running;
        synchronized (this) {
            running = new ArrayList<>(works);
            works.clear();
        }
        for (NcclWork work : running) {
            if (!work.poll()) {
                work.fail(reason);
            }
        }
    }

    @Override
    public void close() {
        synchronized (this) {
            closed = true;
            notifyAll();
        }
        try {
            thread.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
