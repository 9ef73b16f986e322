/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import java.util.ArrayList;
import java.util.List;

/**
 * Hands requests to a model on several ranks. The translator has no part in it.
 *
 * @param <I> {@link Input}
 * @param <O> {@link ai.djl.modality.Output}
 */
final class ParallelPredictor<I, O> extends Predictor<I, O> {

    private final ParallelModel parallel;

    ParallelPredictor(Model model, Translator<I, O> translator, ParallelModel parallel) {
        super(model, translator, model.getNDManager().getDevice(), false);
        this.parallel = parallel;
    }

    @Override
    @SuppressWarnings("unchecked") // What takes an Input here returns an Output; see Criteria.
    public List<O> batchPredict(List<I> inputs) throws TranslateException {
        List<O> outputs = new ArrayList<>(inputs.size());
        for (I input : inputs) {
            if (!(input instanceof Input request)) {
                throw new TranslateException(
                        String.format(
                                "the model '%s' takes %s and returns ai.djl.modality.Output; it got"
                                        + " %s",
                                model.getName(),
                                Input.class.getName(),
                                input == null ? null : input.getClass().getName()));
            }
            outputs.add((O) parallel.predict(request));
        }
        return outputs;
    }
}
