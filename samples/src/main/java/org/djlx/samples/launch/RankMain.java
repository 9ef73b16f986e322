/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.launch;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;

/**
 * The entry point of a process started by {@link Launcher}: runs the main method of the class named
 * by the first argument, and ends the process when the launcher ends.
 *
 * <p>The launcher holds the other end of this process's stdin and never writes to it. The kernel
 * closes it when the launcher ends, even by SIGKILL; this process then kills its child processes
 * and halts. {@link System#in} is empty for the main method.
 */
public final class RankMain {

    /** The exit code of a rank whose launcher is gone: 128 + SIGHUP. */
    private static final int LAUNCHER_GONE = 129;

    private RankMain() {}

    /**
     * Runs the main method of the class that the first argument names. An exception ends the
     * process with code 1 immediately, even if other threads still run. The launcher then stops the
     * other ranks.
     */
    public static void main(String[] args) throws ReflectiveOperationException {
        InputStream lifeline = System.in;
        System.setIn(InputStream.nullInputStream());
        Thread watch = new Thread(() -> haltWithLauncher(lifeline), "launcher-watch");
        watch.setDaemon(true);
        watch.start();
        String[] mainArgs = Arrays.copyOfRange(args, 1, args.length);
        try {
            Method main = Class.forName(args[0]).getMethod("main", String[].class);
            // As with java, the class need not be public.
            main.setAccessible(true);
            main.invoke(null, (Object) mainArgs);
        } catch (InvocationTargetException e) {
            e.getCause().printStackTrace();
            System.exit(1);
        }
    }

    /**
     * Halts once the launcher is gone. Shutdown hooks do not run: they could wait for ranks that
     * are gone.
     */
    private static void haltWithLauncher(InputStream lifeline) {
        try {
            while (lifeline.read() >= 0) {
                // The launcher writes nothing; only the end matters.
                continue;
            }
        } catch (IOException e) {
            System.err.println("Lost the launcher: " + e.getMessage());
        }
        try {
            Sessions.end(ProcessHandle.current().pid());
        } catch (InterruptedException | UncheckedIOException e) {
            System.err.println(
                    "Cannot end the processes that this rank has started: " + e.getMessage());
        }
        Runtime.getRuntime().halt(LAUNCHER_GONE);
    }
}
