// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.torchscript;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.engine.EngineException;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.BytesSupplier;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.training.ParameterStore;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;
import ai.djl.util.PairList;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.engine.ParallelModel;
import org.djlx.collectives.pool.RankPool;
import org.djlx.collectives.pool.RankWorker;
import org.djlx.fusedops.serving.ReasonPhrase;
import org.djlx.nativeops.torch.Torch;

/** Serves requests by a TorchScript model on each rank. */
final class TorchScriptService implements ParallelModel {

    private static final String ENGINE = "PyTorch";

    private final RankPool<Request, Answer> pool;
    // Manager of the arrays of a request until all ranks have served it; after a failure, until
    // close().
    private final NDManager requests;
    private final Model front; // stands for the model in the translator
    private final RequestTranslator translator;

    /** Loads the model of each rank. The service closes the groups. */
    TorchScriptService(String name, List<ProcessGroup> groups, Path directory) {
        pool = RankPool.start(name, groups, group -> RankModel.load(directory, group));
        try {
            requests = NDManager.newBaseManager(Device.cpu(), ENGINE);
            front = Model.newInstance(name, Device.cpu(), ENGINE);
            front.setBlock(new Front());
            translator = new RequestTranslator(front);
        } catch (Throwable e) {
            pool.close();
            throw e;
        }
    }

    /**
     * A request to all ranks.
     *
     * @param inputs the arrays, on any device; the caller closes them
     */
    private record Request(NDList inputs, Verdict verdict) {}

    /** The model of one rank. Use it only on the rank's thread. */
    private record RankModel(ProcessGroup group, Model model, Predictor<NDList, NDList> predictor)
            implements RankWorker<Request, Answer> {

        static RankModel load(Path directory, ProcessGroup group)
                throws IOException, MalformedModelException {
            String name = TorchScriptLoader.modelName(group.rank());
            Model model = Model.newInstance(name, group.device(), ENGINE);
            boolean done = false;
            try {
                // Without this option, tensors are first loaded onto the device that they were
                // saved from.
                model.load(directory, name, Map.of("mapLocation", "true"));
                Predictor<NDList, NDList> predictor = model.newPredictor(new NoopTranslator());
                done = true;
                return new RankModel(group, model, predictor);
            } catch (EngineException e) {
                throw new MalformedModelException(
                        directory.resolve(name + ".pt") + " cannot be loaded: " + e.getMessage(),
                        e);
            } finally {
                if (!done) {
                    model.close();
                }
            }
        }

        @Override
        public Answer serve(Request request) throws Exception {
            return answer(group, this, request.inputs, request.verdict);
        }

        @Override
        public void close() {
            predictor.close();
            model.close();
        }
    }

    /** A block that runs the model on all ranks. */
    private final class Front extends AbstractBlock {

        @Override
        protected NDList forwardInternal(
                ParameterStore parameters,
                NDList inputs,
                boolean training,
                PairList<String, Object> arguments) {
            return serve(inputs);
        }

        @Override
        public Shape[] getOutputShapes(Shape[] inputShapes) {
            throw new UnsupportedOperationException(
                    "TorchScript files do not contain output shapes");
        }
    }

    static final class Refusal extends RuntimeException {

        private static final long serialVersionUID = 1L;

        final int code; // HTTP status

        Refusal(int code, Throwable cause) {
            super(cause.getMessage() == null ? cause.toString() : cause.getMessage(), cause);
            this.code = code;
        }

        Refusal(int code, String message) {
            super(message);
            this.code = code;
        }
    }

    @Override
    public Output predict(Input input) {
        BytesSupplier data = input.getData();
        try {
            if (data == null) {
                throw new IllegalArgumentException(
                        "the request has no data: send one or more arrays");
            }
            if (data instanceof NDList || data instanceof NDArray) {
                Output output = new Output(200, "OK");
                output.add(serve(input.getDataAsNDList(null)));
                return output;
            }
            try (Predictor<Input, Output> predictor = front.newPredictor(translator)) {
                return predictor.predict(input);
            }
        } catch (Refusal e) {
            return output(e.code, e);
        } catch (IllegalArgumentException e) {
            return output(400, e);
        } catch (IllegalStateException e) {
            return output(503, e); // The model is closed.
        } catch (TranslateException e) {
            return e.getCause() instanceof Refusal refusal
                    ? output(refusal.code, refusal)
                    : output(400, e); // The translator could not read the request.
        }
    }

    private static Output output(int code, Exception failure) {
        String message = String.valueOf(failure.getMessage());
        Output output = new Output(code, ReasonPhrase.of(message));
        output.addProperty("Content-Type", "text/plain");
        output.add(message);
        return output;
    }

    /** Runs the model on all ranks. The result belongs to the manager of the first input. */
    private NDList serve(NDList inputs) {
        if (inputs.isEmpty()) {
            throw new IllegalArgumentException("the request has no arrays, but needs 1 or more");
        }
        Optional<CollectiveException> failure = pool.failure();
        if (failure.isPresent()) {
            // Without this the request would stay open until the model is closed.
            throw new Refusal(503, failure.get());
        }
        NDManager request = null;
        boolean unused = true;
        try {
            request = requests.newSubManager();
            NDList held = new NDList();
            for (NDArray input : inputs) {
                NDArray alias = Torch.alias(request, input);
                alias.setName(input.getName());
                held.add(alias);
            }
            CompletableFuture<Answer> answers = pool.submit(new Request(held, new Verdict()));
            unused = false;
            return result(answers, request, inputs.head().getManager());
        } catch (IllegalStateException e) {
            throw new Refusal(503, e); // The model is closed.
        } finally {
            if (unused && request != null) {
                request.close();
            }
        }
    }

    private static NDList result(
            CompletableFuture<Answer> answers, NDManager request, NDManager owner) {
        try {
            Answer first = answers.get();
            if (first.failure != null) {
                throw new Refusal(isOfRequest(first.failure) ? 400 : 500, first.failure);
            }
            first.outputs.attach(owner);
            return first.outputs;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new Refusal(500, e);
        } catch (ExecutionException e) {
            throw new Refusal(503, e.getCause()); // The pool has failed.
        } finally {
            answers.thenRun(request::close); // now, or when all ranks have answered
        }
    }

    /** Returns whether all ranks refused a request because of its arrays. */
    private static boolean isOfRequest(Exception failure) {
        return failure instanceof IllegalArgumentException
                || (failure instanceof EngineException
                        && !String.valueOf(failure.getMessage()).contains("out of memory"));
    }

    /**
     * The response of a rank.
     *
     * @param outputs the outputs of rank 0, in the manager of the request; null on other ranks
     * @param failure why the rank refused the request; null if it did not
     */
    private record Answer(NDList outputs, Exception failure) {}

    private static Answer answer(
            ProcessGroup group, RankModel model, NDList inputs, Verdict verdict) throws Exception {
        try (NDManager manager = NDManager.newBaseManager(group.device(), ENGINE)) {
            NDList copies = copies(manager, inputs);
            NDList outputs = TorchOperators.call(group, () -> predict(model, copies));
            boolean first = group.rank() == 0;
            outputs.attach(first ? inputs.head().getManager() : manager);
            verdict.note(group.rank(), null);
            return new Answer(first ? outputs : null, null);
        } catch (CollectiveException e) {
            throw verdict.explain(e); // The group is broken.
        } catch (TranslateException | RuntimeException e) {
            Exception cause =
                    e instanceof TranslateException && e.getCause() instanceof Exception inner
                            ? inner
                            : e;
            verdict.note(group.rank(), cause);
            // If all ranks failed at the same operator, all of them call this barrier. Otherwise
            // the group detects a mismatch, and all ranks fail.
            try {
                group.barrier().await();
            } catch (CollectiveException apart) {
                throw verdict.explain(apart);
            }
            return new Answer(null, cause);
        }
    }

    private static NDList predict(RankModel model, NDList inputs) throws TranslateException {
        try {
            NDList outputs = model.predictor.predict(inputs);
            return outputs;
        } catch (Throwable e) {
            inputs.forEach(Torch::makeEmpty); // DJL keeps the inputs of a failed call alive.
            throw e;
        }
    }

    /** Copies the arrays of a request to a rank's device, because the model may change them. */
    private static NDList copies(NDManager manager, NDList inputs) {
        NDList copies = new NDList();
        for (NDArray input : inputs) {
            NDArray copy = Torch.empty(manager, input.getShape(), Torch.scalarType(input));
            Torch.copy(copy, input);
            copy.setName(input.getName());
            copies.add(copy);
        }
        return copies;
    }

    /**
     * The outcome of a request, which must be the same on all ranks: all serve it, or all refuse
     * it.
     */
    private static final class Verdict {

        private int first = -1; // the first rank that noted its outcome; -1 for none
        private Exception why; // the failure of that rank; null if it served the request

        synchronized void note(int rank, Exception failure) {
            boolean failed = failure != null;
            if (first < 0) {
                first = rank;
                why = failure;
            } else if (failed != (why != null)) {
                throw apart(failed ? rank : first, failed ? failure : why, null);
            }
        }

        /**
         * Returns the failure to report: of the first rank, if it failed; otherwise of the group.
         */
        synchronized CollectiveException explain(CollectiveException group) {
            return why == null ? group : apart(first, why, group);
        }

        private static CollectiveException apart(
                int rank, Exception failure, CollectiveException group) {
            CollectiveException apart =
                    new CollectiveException(
                            String.format(
                                    "the model failed on rank %d, but not on the others: %s",
                                    rank, failure.getMessage()),
                            failure);
            if (group != null) {
                apart.addSuppressed(group);
            }
            return apart;
        }
    }

    @Override
    public Optional<String> unavailabilityCause() {
        return pool.failure().map(Throwable::getMessage);
    }

    @Override
    public void close() {
        pool.close();
        front.close();
        requests.close();
    }
}
