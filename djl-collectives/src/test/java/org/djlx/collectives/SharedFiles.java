// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** The files in /dev/shm, of which a test leaves none. */
public final class SharedFiles {

    // Of Open MPI and MPICH, whose tests run at the same time.
    private static final Pattern OTHERS = Pattern.compile("(vader_segment|sm_segment|mpich).*");

    private SharedFiles() {}

    /** Returns the files that are there now. */
    public static Set<Path> now() {
        try (var files = Files.list(Path.of("/dev/shm"))) {
            return files.filter(file -> !OTHERS.matcher(file.getFileName().toString()).matches())
                    .collect(Collectors.toCollection(TreeSet::new));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
