// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import com.google.gson.Gson;
import java.nio.file.Path;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.training.Training.Outcome;

/** One of the processes of {@link TwoDimensionsTest}. */
final class TwoDimensionsMain {

    private static final String OUTCOME = "outcome ";

    private TwoDimensionsMain() {}

    /**
     * Trains and prints the outcome.
     *
     * @param args the optimizer, how many ranks share a model, and where it is saved
     */
    public static void main(String[] args) throws Exception {
        try (ProcessGroup group = ProcessGroups.init("shm")) {
            Outcome outcome =
                    TwoDimensionsTest.run(
                            group, args[0], Integer.parseInt(args[1]), Path.of(args[2]));
            System.out.println(OUTCOME + new Gson().toJson(outcome));
        }
    }

    /** Parses the output of {@link #main}. */
    static Outcome parse(String output) {
        String line =
                output.lines().filter(each -> each.startsWith(OUTCOME)).findFirst().orElseThrow();
        return new Gson().fromJson(line.substring(OUTCOME.length()), Outcome.class);
    }
}
