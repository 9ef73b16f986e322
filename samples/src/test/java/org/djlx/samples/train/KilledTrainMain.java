// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;

/** A rank of {@code train}. Rank 1 kills itself at a step of the first attempt. */
public final class KilledTrainMain {

    private KilledTrainMain() {}

    /**
     * Trains for 60 steps, with a checkpoint after each 10.
     *
     * @param args the text, the folder of checkpoints, and the step at which rank 1 dies; 0 for
     *     none
     */
    public static void main(String[] args) throws Exception {
        int last = Integer.parseInt(args[2]);
        boolean dies =
                System.getenv("RANK").equals("1")
                        && System.getenv("TORCHELASTIC_RESTART_COUNT").equals("0");
        byte[] text = Files.readAllBytes(Path.of(args[0]));
        try (ProcessGroup group = ProcessGroups.init("shm")) {
            TrainJob.Settings settings =
                    new TrainJob.Settings(
                            group, 1, false, 60, 64, 4, 1, Path.of(args[1]), 10, null, 60);
            TrainJob.Listener listener =
                    new TrainJob.Listener() {
                        @Override
                        public void restored(long step) {
                            System.out.println("restored " + step);
                        }

                        @Override
                        public void trained(int step, float loss, float heldOut) {
                            System.out.println("loss " + step + " " + loss);
                            if (dies && step == last) {
                                kill();
                            }
                        }
                    };
            System.out.println("text " + new TrainJob(text, settings, listener).run());
        }
    }

    private static void kill() {
        try {
            new ProcessBuilder("sh", "-c", "kill -KILL $PPID").start();
            Thread.sleep(Long.MAX_VALUE);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
