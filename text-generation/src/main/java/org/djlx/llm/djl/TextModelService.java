// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.djl;

import ai.djl.inference.streaming.ChunkedBytesSupplier;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.BytesSupplier;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.concurrent.CancellationException;
import java.util.concurrent.RejectedExecutionException;
import org.djlx.collectives.engine.ParallelModel;
import org.djlx.fusedops.serving.ReasonPhrase;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.server.AnswerFormat;
import org.djlx.llm.server.ApiException;
import org.djlx.llm.server.TextAnswer;
import org.djlx.llm.server.TextApi;
import org.djlx.llm.server.TextCall;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Serves JSON requests of DJL Serving with a generator. */
final class TextModelService implements ParallelModel {

    private static final Logger LOG = LoggerFactory.getLogger(TextModelService.class);

    private final TextGenerator generator;
    private final TextApi api;

    /** Takes ownership of the generator. */
    TextModelService(TextGenerator generator, TextApi api) {
        this.generator = generator;
        this.api = api;
    }

    /** Takes the name under which DJL Serving registers the model. */
    @Override
    public void setProperty(String key, String value) {
        if (key.equals("metric_dimension")) {
            api.rename(value);
        }
    }

    @Override
    public Output predict(Input input) {
        TextCall call = null;
        try {
            BytesSupplier data = input.getData();
            call = api.read(data == null ? new byte[0] : data.getAsBytes());
            TextAnswer text = call.submit(generator);
            Answer answer = new Answer(input, call.format(), text);
            text.onProgress(answer::pump);
            return answer.output;
        } catch (ApiException e) {
            return refusal(e);
        } catch (IllegalArgumentException e) {
            return refusal(call, 400, e);
        } catch (RejectedExecutionException e) {
            return refusal(call, 429, e);
        } catch (IllegalStateException e) {
            return refusal(call, 503, e);
        } catch (RuntimeException | StackOverflowError e) { // They would end DJL Serving's worker.
            LOG.warn("a request has failed", e);
            return refusal(call, 500, e);
        }
    }

    /** Refuses a request. The call is null if it was not parsed; the schema is then OpenAI's. */
    private static Output refusal(TextCall call, int status, Throwable e) {
        ApiException failure =
                new ApiException(
                        status, null, e.getMessage() == null ? e.toString() : e.getMessage());
        return refusal(call == null ? failure : call.format().refusal(failure));
    }

    static Output refusal(ApiException e) {
        return output(
                e.status(), e.getMessage(), "application/json", BytesSupplier.wrap(e.toJson()));
    }

    static Output output(int code, String message, String type, BytesSupplier content) {
        Output output = new Output(code, ReasonPhrase.of(message));
        output.addProperty("Content-Type", type);
        output.add(content);
        return output;
    }

    /**
     * An answer whose data arrives later. A failure before the first data changes the output's
     * code, which DJL Serving reads only after the first data.
     */
    private static final class Answer {

        final Output output;
        private final ChunkedBytesSupplier content = new ChunkedBytesSupplier();
        private final Input input;
        private final AnswerFormat format;
        private final TextAnswer text;
        private boolean begun; // data was sent
        private boolean ended;

        Answer(Input input, AnswerFormat format, TextAnswer text) {
            this.input = input;
            this.format = format;
            this.text = text;
            output = output(200, "OK", format.contentType(), content);
        }

        /**
         * Sends the available pieces. Called by the generator's thread, or by the caller of
         * predict() if pieces are already there.
         */
        synchronized void pump() {
            if (ended) {
                return;
            }
            if (input.isCancelled()) {
                fail(503, "the client of DJL Serving has disconnected");
                return;
            }
            try {
                Optional<String> next = text.poll();
                while (next.isPresent()) {
                    send(next.get());
                    next = text.poll();
                }
                if (text.isComplete()) {
                    end("");
                }
            } catch (CancellationException e) {
                fail(503, e.getMessage());
            } catch (RuntimeException e) {
                LOG.warn("a request has failed", e);
                fail(500, String.valueOf(e.getMessage()));
            }
        }

        private void fail(int code, String message) {
            ApiException failure = new ApiException(code, null, message);
            if (begun) {
                end(format.failure(failure));
            } else {
                output.setCode(code);
                output.setMessage(ReasonPhrase.of(message));
                output.addProperty("Content-Type", "application/json");
                end(format.refusal(failure).toJson());
            }
            text.cancel(); // Calls pump() again.
        }

        private void send(String text) {
            if (!text.isEmpty()) {
                begun = true;
                content.appendContent(text.getBytes(StandardCharsets.UTF_8), false);
            }
        }

        private void end(String text) {
            ended = true;
            send(text);
            // The end is a chunk of its own: a reader that sees the last-chunk flag may not wait
            // for the content of the chunk.
            content.appendContent(new byte[0], true);
        }
    }

    @Override
    public Optional<String> unavailabilityCause() {
        return generator.unavailabilityCause();
    }

    @Override
    public void close() {
        generator.close();
    }
}
