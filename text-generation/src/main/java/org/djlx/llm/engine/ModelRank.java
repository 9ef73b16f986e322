// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.ndarray.NDManager;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.pool.RankWorker;
import org.djlx.llm.ops.TransformerModel;
import org.djlx.llm.sampling.Logits;
import org.djlx.llm.sampling.Sampler;
import org.djlx.llm.sampling.SamplingParameters;

/**
 * The worker of one rank: its part of the model, and the step in flight. Use it only on the rank's
 * thread.
 */
final class ModelRank implements RankWorker<StepRequest, List<Sampler.SampledToken>> {

    private final ProcessGroup group;
    private final TransformerModel model;
    private InFlight inFlight; // null if no step is in flight

    /** A launched step whose tokens are not sampled yet. */
    private record InFlight(NDManager manager, Logits logits, List<SamplingParameters> sampling) {}

    /** Takes ownership of the model. */
    ModelRank(ProcessGroup group, TransformerModel model) {
        this.group = group;
        this.model = model;
    }

    ProcessGroup group() {
        return group;
    }

    @Override
    public List<Sampler.SampledToken> serve(StepRequest step) throws Exception {
        return step.run(this);
    }

    /**
     * Launches a step, then finishes the previous step. Rank 0 returns the previous step's tokens.
     */
    List<Sampler.SampledToken> step(StepRequest step) {
        InFlight previous = inFlight;
        inFlight = null;
        try {
            if (!step.batch().chunks().isEmpty()) {
                inFlight = launch(step);
            }
            if (previous == null) {
                return List.of();
            }
            previous.logits.await();
            return group.rank() == 0
                    ? Sampler.sample(previous.logits, previous.sampling)
                    : List.of();
        } finally {
            if (previous != null) {
                previous.manager.close();
            }
        }
    }

    Map<Integer, String> setAdapters(Map<Integer, Path> directories) {
        return model.setAdapters(directories);
    }

    private InFlight launch(StepRequest step) {
        NDManager manager = NDManager.newBaseManager(group.device());
        try {
            return new InFlight(manager, model.forward(step.batch(), manager), step.sampling());
        } catch (Throwable e) {
            manager.close();
            throw e;
        }
    }

    @Override
    public void close() {
        model.close();
        if (inFlight != null) {
            inFlight.manager.close(); // After the model, which waits for the GPU.
        }
    }
}
