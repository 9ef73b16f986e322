// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import java.io.IOException;
import java.nio.file.Path;

/** A rank in a process of its own: it adds to a counter and a log of a {@link FileStore}. */
final class FileStoreProcess {

    private FileStoreProcess() {}

    static Process start(Path path, int worldSize, int rounds) throws IOException {
        return new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-Xmx128m",
                        "-cp",
                        System.getProperty("java.class.path"),
                        FileStoreProcess.class.getName(),
                        path.toString(),
                        Integer.toString(worldSize),
                        Integer.toString(rounds))
                .inheritIO()
                .start();
    }

    public static void main(String[] args) {
        int rounds = Integer.parseInt(args[2]);
        try (FileStore store = new FileStore(Path.of(args[0]), Integer.parseInt(args[1]))) {
            for (int i = 0; i < rounds; i++) {
                store.add("sum", 1);
                store.append("log", new byte[1]);
            }
        }
    }
}
