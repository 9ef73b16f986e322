// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.djlx.collectives.launch.cli.CliCommand;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code pages}: writes the figures of ci/results into README.md and docs. */
@Command(
        name = "pages",
        description =
                "Writes the tables and charts of ci/results into README.md and docs, and prints the"
                        + " files that changed.")
final class PagesCommand extends CliCommand {

    @Option(
            names = "--root",
            paramLabel = "FOLDER",
            description = "The checkout; the one that the command was started from if not given.")
    private Path root = Path.of(System.getProperty("djlx.home", "."));

    @Override
    public Integer call() throws IOException {
        for (Map.Entry<Path, String> page : ResultsPages.render(root).entrySet()) {
            Path file = root.resolve(page.getKey());
            if (!Files.exists(file) || !Files.readString(file).equals(page.getValue())) {
                Files.createDirectories(file.getParent());
                Files.writeString(file, page.getValue());
                out().println(file);
            }
        }
        return 0;
    }
}
