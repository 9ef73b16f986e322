// SPDX-License-Identifier: Apache-2.0
import com.github.tjake.jlama.model.AbstractModel;
import com.github.tjake.jlama.model.ModelSupport;
import com.github.tjake.jlama.safetensors.DType;
import com.github.tjake.jlama.tensor.AbstractTensor;
import com.github.tjake.jlama.tensor.KvBufferCache;
import com.github.tjake.jlama.util.PhysicalCoreExecutor;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Measures Jlama on the CPU for {@code ci/bench/run.sh bench-llama-cpp}; arguments and lines of JSON are those of
 * llama_cpp_peer.mjs, and the first line has {@code "jlama"}. Jlama computes one sequence at a time, so a step of several
 * takes them in turns. Activations, keys and values are float32: Jlama cannot multiply all others by bfloat16 or 4 bits. Run
 * from source by a JDK of 21 or newer with {@code --add-modules jdk.incubator.vector} and the jars of
 * jlama-core and jlama-native as class path.
 */
public final class JlamaPeer {

    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        AbstractModel model;
        long start = System.nanoTime();
        try {
            PhysicalCoreExecutor.overrideThreadCount(Integer.parseInt(args[2]));
            if (args[1].equals("q8_0")) {
                throw new UnsupportedOperationException("Jlama is measured with bfloat16, float32 and 4 bits only");
            }
            Optional<DType> weights = args[1].equals("q4_0") ? Optional.of(DType.Q4) : Optional.empty();
            model = ModelSupport.loadModel(new File(args[0]), null, DType.F32, DType.F32, weights, Optional.empty());
        } catch (Throwable e) {
            System.out.println(JSON.createObjectNode().put("error", e.toString()));
            e.printStackTrace();
            return;
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        System.out.println(JSON.createObjectNode().put("jlama", System.getProperty("jlama.version")).put("seconds", seconds));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode request = JSON.readTree(line);
            System.out.println(answer(model, request.get("prompts"), request.get("tokens").asInt()));
        }
        System.exit(0);
    }

    /** Answers prompts by greedy tokens: all prompts, then a token of each sequence in turns. */
    private static ObjectNode answer(AbstractModel model, JsonNode prompts, int count) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode tokens = answer.putArray("tokens"), nanos = answer.putArray("nanos");
        List<KvBufferCache.KvBuffer> caches = new ArrayList<>();
        int[] last = new int[prompts.size()];
        long start = System.nanoTime();
        try (KvBufferCache cache = new KvBufferCache(model);
                AbstractTensor logits = model.makeDenseTensor(model.getConfig().vocabularySize)) {
            for (int step = 0; step < count; step++) {
                for (int i = 0; i < last.length; i++) {
                    int[] prompt = JSON.convertValue(prompts.get(i), int[].class);
                    if (step == 0) {
                        caches.add(cache.getEphemeralKvBuffer());
                        tokens.addArray();
                        nanos.addArray();
                    }
                    int[] input = step == 0 ? prompt : new int[] {last[i]};
                    int position = step == 0 ? 0 : prompt.length + step - 1;
                    try (AbstractTensor output = model.batchForward(input, position, caches.get(i))) {
                        AbstractTensor row = output.slice(output.shape().first() - 1);
                        last[i] = model.sample(row, 0, 0, logits);
                    }
                    ((ArrayNode) tokens.get(i)).add(last[i]);
                    ((ArrayNode) nanos.get(i)).add(System.nanoTime() - start);
                }
            }
        } finally {
            for (KvBufferCache.KvBuffer buffer : caches) {
                buffer.close();
            }
        }
        return answer;
    }
}
