// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.io.PrintStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/** Options of a {@link Launcher} of a test, as the command line would set them. */
final class LaunchOptions {

    private final LaunchCommand launch = new LaunchCommand();

    LaunchOptions(int processes, String... args) {
        launch.processes = "" + processes;
        launch.main = RankProbe.class.getName();
        launch.args = List.of(args);
        launch.jvmArgs = List.of("-Xmx64m", "-XX:TieredStopAtLevel=1");
    }

    LaunchOptions mainClass(String name) {
        launch.main = name;
        return this;
    }

    LaunchOptions output(PrintStream out, PrintStream err) {
        launch.out = out;
        launch.err = err;
        return this;
    }

    LaunchOptions nodes(int least, int most) {
        launch.nodes = least + ":" + most;
        return this;
    }

    LaunchOptions nodeRank(int rank) {
        launch.nodeRank = rank;
        return this;
    }

    LaunchOptions master(String address, Integer port) {
        launch.masterAddress = address;
        launch.masterPort = port;
        return this;
    }

    LaunchOptions timeouts(double join, double last) {
        launch.conf = Map.of("join_timeout", join, "last_call_timeout", last);
        return this;
    }

    LaunchOptions maxRestarts(int restarts) {
        launch.maxRestarts = restarts;
        return this;
    }

    LaunchOptions logs(Path folder) {
        launch.logs = folder;
        return this;
    }

    LaunchOptions environment(Map<String, String> variables) {
        launch.environment = variables;
        return this;
    }

    LaunchOptions gracePeriod(Duration period) {
        launch.gracePeriod = period;
        return this;
    }

    Launcher build() {
        return new Launcher(launch, Map.of());
    }
}
