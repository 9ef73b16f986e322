// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.torchscript;

import ai.djl.Model;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.translate.Batchifier;
import ai.djl.translate.NoopServingTranslatorFactory;
import ai.djl.translate.TranslateException;
import ai.djl.translate.Translator;
import ai.djl.translate.TranslatorContext;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.djlx.fusedops.internal.RequestJson;

/**
 * Reads arrays from requests and writes arrays to responses, like DJL's {@link
 * NoopServingTranslatorFactory}. The difference is JSON: a request must be an array, or an object
 * with an array {@code inputs} or {@code instances}. Its rows must have equal length, and its
 * numbers must be finite in float32. DJL's translator accepts rows of different lengths, and infers
 * shapes in another way.
 */
final class RequestTranslator implements Translator<Input, Output> {

    private static final int DEEPEST = 8;

    private final Translator<Input, Output> translator;

    /** Creates the translator of a model. */
    RequestTranslator(Model model) {
        translator =
                new NoopServingTranslatorFactory()
                        .newInstance(Input.class, Output.class, model, Map.of());
    }

    @Override
    public Batchifier getBatchifier() {
        return translator.getBatchifier();
    }

    @Override
    public NDList processInput(TranslatorContext context, Input input) throws Exception {
        NDList arrays;
        if (isJson(input)) {
            context.setAttachment("properties", input.getProperties()); // for the response
            try {
                arrays = new NDList(read(context.getNDManager(), input.getData().getAsString()));
            } catch (IllegalArgumentException e) {
                throw new TranslateException(e.getMessage(), e);
            }
        } else {
            try {
                arrays = translator.processInput(context, input);
            } catch (TranslateException e) {
                throw new TranslateException(
                        "the request must be tensor/ndlist, tensor/npz, or application/json with"
                                + " that Content-Type: "
                                + e.getMessage(),
                        e);
            }
        }
        if (arrays.isEmpty()) {
            throw new TranslateException("the request has no arrays, but needs 1 or more");
        }
        return arrays;
    }

    @Override
    public Output processOutput(TranslatorContext context, NDList list) throws Exception {
        return translator.processOutput(context, list);
    }

    private static boolean isJson(Input input) {
        String type = input.getProperty("Content-Type", "");
        int end = type.indexOf(';');
        return (end < 0 ? type : type.substring(0, end))
                .strip()
                .equalsIgnoreCase("application/json");
    }

    /** Reads the array of a JSON request. */
    private static NDArray read(NDManager manager, String json) {
        JsonElement element =
                RequestJson.parse(json, DEEPEST + 1); // the object around the array counts
        if (element instanceof JsonObject object) {
            element = object.has("inputs") ? object.get("inputs") : object.get("instances");
        }
        if (!(element instanceof JsonArray array)) {
            throw new IllegalArgumentException(
                    "the JSON of a request must be an array of numbers, or an object with such an"
                            + " array as 'inputs' or 'instances'");
        }
        List<Long> sizes = new ArrayList<>();
        for (JsonElement at = array; at instanceof JsonArray inner; at = inner.get(0)) {
            sizes.add((long) inner.size());
            if (inner.isEmpty()) {
                throw new IllegalArgumentException(
                        "an array of the request is empty, but needs 1 or more elements");
            }
        }
        Shape shape = new Shape(sizes.stream().mapToLong(Long::longValue).toArray());
        FloatBuffer values = FloatBuffer.allocate(numbers(array));
        fill(values, array, shape, 0);
        return manager.create(values.flip(), shape);
    }

    private static int numbers(JsonArray array) {
        int sum = 0;
        for (JsonElement element : array) {
            sum += element instanceof JsonArray inner ? numbers(inner) : 1;
        }
        return sum;
    }

    private static void fill(FloatBuffer values, JsonArray array, Shape shape, int dimension) {
        if (array.size() != shape.get(dimension)) {
            throw new IllegalArgumentException(
                    String.format(
                            "arrays of the request have different sizes, %d and %d, in dimension %d"
                                    + " of %s: make them equal",
                            shape.get(dimension), array.size(), dimension, shape));
        }
        boolean last = dimension == shape.dimension() - 1;
        for (JsonElement element : array) {
            if (!last && element instanceof JsonArray inner) {
                fill(values, inner, shape, dimension + 1);
            } else if (last && element instanceof JsonPrimitive number && number.isNumber()) {
                values.put(finite(number));
            } else {
                throw new IllegalArgumentException(
                        String.format(
                                "an array of shape %s must have %s instead of %.40s",
                                shape, last ? "a number" : "another array", element));
            }
        }
    }

    private static float finite(JsonPrimitive number) {
        float value = Float.parseFloat(number.getAsString());
        if (!Float.isFinite(value)) {
            throw new IllegalArgumentException(number + " is out of the range of float32");
        }
        return value;
    }
}
