// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.nio.charset.StandardCharsets;

/**
 * The process of a rank.
 *
 * @param host the host, see {@link Liveness#HOST}
 * @param startTime its start time, see {@link Liveness#startTime}
 * @param hostName the host's name, for messages
 */
public record RankProcess(String host, long pid, long startTime, String hostName) {

    public static RankProcess own() {
        long pid = ProcessHandle.current().pid();
        return new RankProcess(Liveness.HOST, pid, Liveness.startTime(pid), Liveness.HOST_NAME);
    }

    /** Returns the process that {@link #encoded} describes. */
    public static RankProcess decoded(byte[] process) {
        String[] fields = new String(process, StandardCharsets.UTF_8).split(" ");
        return new RankProcess(
                fields[0], Long.parseLong(fields[1]), Long.parseLong(fields[2]), fields[3]);
    }

    /** Returns this process as bytes, to be sent to other ranks. */
    public byte[] encoded() {
        String text = host + " " + pid + " " + startTime + " " + hostName;
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Returns whether the process has ended; false if it is on another host. */
    public boolean hasDied() {
        return host.equals(Liveness.HOST) && !Liveness.isAlive(pid, startTime);
    }
}
