
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.LongPointer;
import org.bytedeco.pytorch.DoubleOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;

/**
 * A Llama by PyTorch's own operators, in float32, from a directory with float32 safetensors: what
 * transformers computes, with its formulas. Prints the scores of what follows the last token, one a
 * line. Run from source, with the jars of PyTorch's presets as class path:
 *
 * <pre>
 * java -cp 'djl-collectives/target/peer/*' fused-ops/src/test/peer/LlamaPeer.java DIR TOKEN...
 * </pre>
 */
public final class LlamaPeer {

    private static final Pattern TENSOR =
            Pattern.compile(
                    "\"([^\"]+)\":\\{\"dtype\":\"F32\",\"shape\":\\[([0-9,]+)\\],"
                            + "\"data_offsets\":\\[([0-9]+),([0-9]+)\\]\\}");

    private final Map<String, Tensor> weights = new HashMap<>();
    private final String config;

    private LlamaPeer(Path directory) throws IOException {
        config = Files.readString(directory.resolve("config.json"));
        try (var files = Files.newDirectoryStream(directory, "*.safetensors")) {
            for (Path file : files) {
                read(ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN));
            }
        }
    }

    public static void main(String[] args) throws IOException {
        long[] tokens = Arrays.stream(args).skip(1).mapToLong(Long::parseLong).toArray();
        Tensor scores = new LlamaPeer(Path.of(args[0])).scores(tokens).contiguous();
        float[] values = new float[(int) scores.numel()];
        scores.data_ptr_float().get(values);
        for (float value : values) {
            System.out.println(value);
        }
    }

    private void read(ByteBuffer file) {
        int length = (int) file.getLong(0);
        Matcher tensors =
                TENSOR.matcher(new String(file.array(), 8, length, StandardCharsets.UTF_8));
        while (tensors.find()) {
            long[] shape =
                    Arrays.stream(tensors.group(2).split(",")).mapToLong(Long::parseLong).toArray();
            int from = 8 + length + Integer.parseInt(tensors.group(3));
            float[] values =
                    new float
                            [(Integer.parseInt(tensors.group(4))
                                            - Integer.parseInt(tensors.group(3)))
                                    / Float.BYTES];
            file.slice(from, values.length * Float.BYTES)
                    .order(ByteOrder.LITTLE_ENDIAN)
                    .asFloatBuffer()
                    .get(values);
            weights.put(tensors.group(1), tensor(values, shape));
        }
    }

    private static Tensor tensor(float[] values, long... shape) {
        return torch.from_blob(new FloatPointer(values), shape).clone();
    }

    private double number(String name) {
        Matcher entry = Pattern.compile("\"" + name + "\":([-0-9.eE]+)").matcher(config);
        if (!entry.find()) {
            throw new IllegalArgumentException("config.json has no " + name);
        }
        return Double.parseDouble(entry.group(1));
    }

    private Tensor scores(long[] tokens) {
        Tensor ids =
                torch.from_blob(
                                new LongPointer(tokens),
                                new long[] {tokens.length},
                                new TensorOptions(torch.ScalarType.Long))
                        .clone();
        long size = (long) number("head_dim");
        Tensor angles = angles(tokens.length, (int) size);
        Tensor x = torch.embedding(weights.get("model.embed_tokens.weight"), ids);
        for (int i = 0; i < number("num_hidden_layers"); i++) {
            String layer = "model.layers." + i + ".";
            Tensor h = norm(x, layer + "input_layernorm");
            Tensor q = turned(heads(linear(h, layer + "self_attn.q_proj"), size), angles);
            Tensor k = turned(heads(linear(h, layer + "self_attn.k_proj"), size), angles);
            Tensor v = heads(linear(h, layer + "self_attn.v_proj"), size);
            Tensor attended =
                    torch.scaled_dot_product_attention(
                            q, k, v, new TensorOptional(), 0, true, new DoubleOptional(), true);
            Tensor merged = attended.squeeze(0).transpose(0, 1).reshape(tokens.length, -1);
            x = x.add(linear(merged, layer + "self_attn.o_proj"));
            h = norm(x, layer + "post_attention_layernorm");
            Tensor gate = torch.silu(linear(h, layer + "mlp.gate_proj"));
            x = x.add(linear(gate.mul(linear(h, layer + "mlp.up_proj")), layer + "mlp.down_proj"));
        }
        Tensor last = norm(x, "model.norm").narrow(0, tokens.length - 1, 1);
        boolean tied = !weights.containsKey("lm_head.weight");
        return linear(last, tied ? "model.embed_tokens" : "lm_head");
    }

    private Tensor linear(Tensor x, String name) {
        return torch.linear(x, weights.get(name + ".weight"));
    }

    private Tensor norm(Tensor x, String name) {
        Tensor weight = weights.get(name + ".weight");
        return torch.rms_norm(
                x,
                new long[] {weight.numel()},
                new TensorOptional(weight),
                new DoubleOptional(number("rms_norm_eps")));
    }

    /** Returns heads as a batch of one: (1, heads, tokens, size). */
    private static Tensor heads(Tensor x, long size) {
        return x.reshape(x.size(0), -1, size).transpose(0, 1).unsqueeze(0);
    }

    /** transformers' rotate_half. */
    private static Tensor turned(Tensor x, Tensor angles) {
        long half = angles.size(1);
        Tensor first = x.narrow(3, 0, half);
        Tensor second = x.narrow(3, half, half);
        Tensor cosines = torch.cos(angles);
        Tensor sines = torch.sin(angles);
        TensorVector parts =
                new TensorVector(
                        first.mul(cosines).sub(second.mul(sines)),
                        second.mul(cosines).add(first.mul(sines)));
        return torch.cat(parts, 3);
    }

    /** transformers' _compute_llama3_parameters, times positions. */
    private Tensor angles(int positions, int size) {
        double factor = number("factor");
        double low = number("low_freq_factor");
        double high = number("high_freq_factor");
        double original = number("original_max_position_embeddings");
        float[] frequencies = new float[size / 2];
        for (int i = 0; i < frequencies.length; i++) {
            double frequency = 1 / Math.pow(number("rope_theta"), 2.0 * i / size);
            double wavelength = 2 * Math.PI / frequency;
            if (wavelength > original / low) {
                frequency /= factor;
            } else if (wavelength >= original / high) {
                double smooth = (original / wavelength - low) / (high - low);
                frequency = (1 - smooth) * frequency / factor + smooth * frequency;
            }
            frequencies[i] = (float) frequency;
        }
        Tensor row = tensor(frequencies, 1, frequencies.length);
        Tensor column = torch.arange(new Scalar(positions)).to(torch.ScalarType.Float);
        return torch.matmul(column.reshape(positions, 1), row);
    }
}
