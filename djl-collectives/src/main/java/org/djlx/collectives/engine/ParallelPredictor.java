// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.NDList;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.djlx.nativeops.ContextLoader;

/**
 * Passes requests to a {@link ParallelModel}: an {@link Input} is answered by an {@link Output}, an
 * {@link NDList} by an {@link NDList}, and inputs of other types of the model as the model does.
 * The translator is not used.
 */
final class ParallelPredictor<I, O> extends Predictor<I, O> {

    private final ParallelModel parallel;

    ParallelPredictor(Model model, Translator<I, O> translator, ParallelModel parallel) {
        super(model, translator, model.getNDManager().getDevice(), false);
        this.parallel = parallel;
    }

    @Override
    @SuppressWarnings("unchecked") // A model that takes an Input returns an Output; see Criteria.
    public List<O> batchPredict(List<I> inputs) throws TranslateException {
        Optional<List<?>> all =
                ContextLoader.of(parallel.getClass(), () -> parallel.predictAll(inputs));
        if (all.isPresent()) {
            return (List<O>) all.get();
        }
        List<O> outputs = new ArrayList<>(inputs.size());
        for (I input : inputs) {
            if (input instanceof Input request) {
                outputs.add((O) ask(request));
            } else if (input instanceof NDList arrays) {
                outputs.add((O) predict(arrays));
            } else {
                throw new TranslateException(
                        String.format(
                                "the model '%s' takes %s and returns ai.djl.modality.Output, or"
                                        + " takes and returns %s, but got %s",
                                model.getName(),
                                Input.class.getName(),
                                NDList.class.getName(),
                                input == null ? null : input.getClass().getName()));
            }
        }
        return outputs;
    }

    /** Servers ask from threads whose context class loader may not see the model's classes. */
    private Output ask(Input request) {
        return ContextLoader.of(parallel.getClass(), () -> parallel.predict(request));
    }

    private NDList predict(NDList arrays) throws TranslateException {
        Input request = new Input();
        request.add(arrays);
        Output answer = ask(request);
        if (answer.getCode() >= 400) {
            throw new TranslateException(answer.getMessage());
        }
        if (answer.getData() instanceof NDList results) {
            return results;
        }
        throw new TranslateException(
                String.format("the model '%s' does not answer with arrays", model.getName()));
    }
}
