/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.engine;

import ai.djl.ndarray.NDManager;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.pool.RankWorker;
import org.djlx.fusedops.llm.model.LlamaModel;
import org.djlx.fusedops.llm.sampling.Logits;
import org.djlx.fusedops.llm.sampling.LogitsReader;
import org.djlx.fusedops.llm.sampling.Sampler;

/** One rank's part of a model, and the step that it has begun. To be used by the rank's thread. */
final class ModelRank implements RankWorker<StepRequest, List<Sampler.Choice>> {

    private final ProcessGroup group;
    private final LlamaModel model;
    private Begun begun; // null if the last one has ended

    /** What a step has left until its tokens are chosen. */
    private record Begun(NDManager manager, Logits scores, List<Sampler> choosers) {}

    /** Takes the model, which it closes. */
    ModelRank(ProcessGroup group, LlamaModel model) {
        this.group = group;
        this.model = model;
    }

    ProcessGroup group() {
        return group;
    }

    @Override
    public List<Sampler.Choice> serve(StepRequest step) throws Exception {
        return step.run(this);
    }

    /** Begins a step, and ends the one before, whose choices rank 0 returns. */
    List<Sampler.Choice> next(StepRequest step) {
        Begun before = begun;
        begun = null;
        try {
            if (!step.batch().chunks().isEmpty()) {
                begun = begin(step);
            }
            if (before == null) {
                return List.of();
            }
            before.scores.await();
            return group.rank() == 0
                    ? LogitsReader.choose(before.scores, before.choosers)
                    : List.of();
        } finally {
            if (before != null) {
                before.manager.close();
            }
        }
    }

    private Begun begin(StepRequest step) {
        NDManager manager = NDManager.newBaseManager(group.device());
        boolean done = false;
        try {
            Logits scores = model.forward(step.batch(), step.needsAll(), manager);
            done = true;
            return new Begun(manager, scores, step.choosers());
        } finally {
            if (!done) {
                manager.close();
            }
        }
    }

    @Override
    public void close() {
        model.close();
        if (begun != null) {
            begun.manager.close(); // When the GPU no longer computes on what it has.
        }
    }
}
