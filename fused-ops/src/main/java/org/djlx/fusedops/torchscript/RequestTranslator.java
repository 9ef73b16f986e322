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
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.fusedops.serving.RequestJson;

/**
 * Reads arrays from requests and writes arrays to responses, like DJL's {@link
 * NoopServingTranslatorFactory}, with two differences:
 *
 * <ul>
 *   <li>A request in JSON must be an array, or an object with an array {@code inputs} or {@code
 *       instances}. Its rows must have equal length, and its numbers must be finite in float32.
 *       DJL's translator accepts rows of different lengths, and infers shapes in another way.
 *   <li>The form of the response is the one that {@code Accept} prefers, by HTTP's rules, otherwise
 *       the request's. DJL's translator compares the whole header with one type.
 * </ul>
 */
final class RequestTranslator implements Translator<Input, Output> {

    private static final int DEEPEST = 8;
    private static final String JSON = "application/json";
    private static final String NDLIST = "tensor/ndlist";
    private static final List<String> FORMS =
            List.of(NDLIST, "tensor/npz", "tensor/safetensors", JSON);
    private static final Pattern QUALITY =
            Pattern.compile(";\\s*q\\s*=\\s*([01](\\.\\d{0,3})?)", Pattern.CASE_INSENSITIVE);

    private final Translator<Input, Output> translator;

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
        String type = mediaType(input.getProperty("Content-Type", ""));
        String form = responseForm(input.getProperty("Accept", ""), type);
        NDList arrays;
        if (type.equals(JSON)) {
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
        // DJL's translator reads the form of the response from there.
        context.setAttachment("properties", Map.of("Content-Type", form, "Accept", form));
        return arrays;
    }

    /**
     * Returns the form of the response.
     *
     * @param accept the header {@code Accept} of the request. If it is empty, or prefers several
     *     forms equally, the response has the form of the request
     * @throws TorchScriptService.Refusal if the client accepts none of the forms, with status 406
     */
    static String responseForm(String accept, String type) {
        String own = FORMS.contains(type) ? type : NDLIST;
        if (accept.isBlank()) {
            return own;
        }
        String best = null;
        int most = 0;
        for (String form : FORMS) {
            int preference = preference(accept, form);
            if (preference > 0 && 2 * preference + (form.equals(own) ? 1 : 0) > most) {
                best = form;
                most = 2 * preference + (form.equals(own) ? 1 : 0);
            }
        }
        if (best == null) {
            throw new TorchScriptService.Refusal(
                    406,
                    String.format(
                            "the request accepts %s only, but the answer is %s: name one of these"
                                    + " in Accept, or leave it out",
                            accept, String.join(", ", FORMS)));
        }
        return best;
    }

    @Override
    public Output processOutput(TranslatorContext context, NDList list) throws Exception {
        Output output = translator.processOutput(context, list);
        output.getProperties().putIfAbsent("Content-Type", JSON); // DJL names all others.
        return output;
    }

    /**
     * Returns how much a client prefers a form: by its quality, then by how exactly it is named. 0
     * if the client does not accept it.
     */
    private static int preference(String accept, String form) {
        int exactness = 0;
        int quality = 0; // of the most exact range, in thousandths
        for (String range : accept.split(",")) {
            String name = mediaType(range);
            String any = form.substring(0, form.indexOf('/')) + "/*";
            int level = name.equals(form) ? 3 : name.equals(any) ? 2 : name.equals("*/*") ? 1 : 0;
            if (level > exactness) {
                exactness = level;
                Matcher q = QUALITY.matcher(range);
                quality = q.find() ? (int) (1000 * Double.parseDouble(q.group(1))) : 1000;
            }
        }
        return quality == 0 ? 0 : 4 * quality + exactness;
    }

    /** Returns a media type without parameters, in lower case. */
    private static String mediaType(String type) {
        return type.split(";", 2)[0].strip().toLowerCase(Locale.ROOT);
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
