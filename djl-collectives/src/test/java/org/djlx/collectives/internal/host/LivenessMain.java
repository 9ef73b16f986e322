// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.io.FileInputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** A process of {@link LivenessTest} that has used up its file descriptors. */
public final class LivenessMain {

    private LivenessMain() {}

    public static void main(String[] args) throws Exception {
        Process process = new ProcessBuilder("sleep", "100").start();
        long self = ProcessHandle.current().pid();
        long start = Liveness.startTime(self);
        long dead = process.pid();
        long deadStart = Liveness.startTime(dead);
        boolean before = Liveness.isAlive(self, start) && Liveness.isAlive(dead, deadStart);
        process.destroyForcibly();
        process.waitFor();
        before &= !Liveness.isAlive(dead, deadStart); // All classes are loaded.
        List<FileInputStream> open = new ArrayList<>();
        try {
            while (true) {
                open.add(new FileInputStream("/dev/null"));
            }
        } catch (IOException e) {
            boolean living = Liveness.isAlive(self, start);
            boolean ended = Liveness.isAlive(dead, deadStart);
            System.out.println("living: " + (before && living) + ", dead: " + ended);
        }
    }
}
