// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import com.google.gson.Gson;
import java.io.IOException;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.training.DataParallelTrainer;
import org.djlx.training.data.DistributedSampler;

/**
 * The metadata of a checkpoint: all of a job's state but its arrays. It is read and checked before
 * anything is restored.
 *
 * @param scale of gradients; NaN without a scaler
 * @param items of the epoch, trained on before
 */
record JobState(
        TrainingProgress progress,
        double scale,
        int goodSteps,
        long items,
        int processes,
        int[] seeds,
        int updates,
        Map<String, Integer> counts,
        List<Map<String, double[]>> sums) {

    private static final String FORMAT = "djlx-checkpoint-2";

    /** What a process tells the others before it saves. */
    record Contribution(int seed, String number, String sums) {

        static Contribution parse(String text) {
            String[] parts = text.split(" ", 3);
            return new Contribution(Integer.parseInt(parts[0]), parts[1], parts[2]);
        }

        @Override
        public String toString() {
            return seed + " " + number + " " + sums;
        }
    }

    static Map<String, String> metadata(
            DataParallelTrainer trainer,
            TrainingProgress progress,
            DistributedSampler sampler,
            long items,
            List<Contribution> all,
            List<Path> parts) {
        Map<String, String> metadata = new LinkedHashMap<>();
        metadata.put("format", FORMAT);
        metadata.put("step", Long.toString(progress.step()));
        metadata.put("epoch", Long.toString(progress.epoch()));
        metadata.put("batch", Long.toString(progress.batch()));
        metadata.put("processes", Integer.toString(all.size()));
        metadata.put("ranks", Integer.toString(all.size() * trainer.ranks()));
        metadata.put(
                "random",
                String.join(",", all.stream().map(each -> Integer.toString(each.seed)).toList()));
        metadata.put("evaluators", all.stream().map(Contribution::sums).toList().toString());
        if (sampler != null) {
            metadata.put("order", sampler.order());
            metadata.put("items", Long.toString(items));
        }
        if (trainer.gradScaler() != null) {
            metadata.put("scale", Double.toString(trainer.gradScaler().scale()));
            metadata.put("goodSteps", Integer.toString(trainer.gradScaler().goodSteps()));
        }
        if (trainer.isSharded()) {
            Map<String, long[]> shapes = new LinkedHashMap<>();
            trainer.specs().forEach((name, spec) -> shapes.put(name, spec.shape().getShape()));
            metadata.put("shapes", new Gson().toJson(shapes));
            List<String> names = parts.stream().map(part -> part.getFileName().toString()).toList();
            metadata.put("parts", new Gson().toJson(names));
        }
        metadata.put("optimizer", trainer.optimizer().getClass().getName());
        return metadata;
    }

    static JobState read(CheckpointParts parts, long step, DistributedSampler sampler)
            throws IOException {
        CheckpointFile file = parts.first();
        String format = parts.metadata().get("format");
        if (!FORMAT.equals(format)) {
            throw new IOException(
                    file.path() + " has format " + format + "; supported is " + FORMAT);
        }
        String order = parts.metadata().get("order");
        if (sampler != null && !sampler.order().equals(order)) {
            throw new IOException(
                    String.format(
                            "%s was written with a sampler of order '%s', but this one has '%s', so"
                                    + " the items that are left differ; set its seed, shuffling and"
                                    + " padding as before, or leave optSampler out",
                            file.path(), order, sampler.order()));
        }
        boolean hasScale = parts.metadata().containsKey("scale");
        return new JobState(
                new TrainingProgress(
                        file.number("step", step, step), // as the file's name says
                        file.number("epoch", 0, Integer.MAX_VALUE),
                        file.number("batch", 0, Long.MAX_VALUE)),
                hasScale ? file.fraction("scale", Float.MIN_NORMAL, Float.MAX_VALUE) : Double.NaN,
                hasScale ? (int) file.number("goodSteps", 0, Integer.MAX_VALUE) : 0,
                sampler == null ? 0 : file.number("items", 0, Long.MAX_VALUE),
                (int) file.number("processes", 1, Integer.MAX_VALUE),
                file.integers("random"),
                parts.greatest("updates"),
                parts.counts(),
                EpochSums.parse(parts.metadata().get("evaluators")));
    }
}
