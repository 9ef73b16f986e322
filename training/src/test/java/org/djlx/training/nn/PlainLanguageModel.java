// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import java.util.Map;

/**
 * {@link LanguageModel} by DJL's operators only, with full parameters, on tokens of shape (batch,
 * sequence).
 */
final class PlainLanguageModel {

    private final NDManager manager; // numbers must live until the backward pass
    private final Map<String, NDArray> parameters;
    private final LanguageModel.Settings settings;

    PlainLanguageModel(
            NDManager manager, Map<String, NDArray> parameters, LanguageModel.Settings settings) {
        this.manager = manager;
        this.parameters = parameters;
        this.settings = settings;
    }

    private NDArray get(String name) {
        return parameters.get(name);
    }

    private DataType type() {
        return get("embedding.weight").getDataType();
    }

    private NDArray constant(double[] values, long... shape) {
        return manager.create(values, new Shape(shape)).toType(type(), false);
    }

    /** Returns logits of shape (batch × sequence, vocabulary). */
    NDArray scores(NDArray tokens) {
        long batch = tokens.getShape().get(0);
        long sequence = tokens.getShape().get(1);
        NDArray embedding = get("embedding.weight");
        int vocabulary = (int) settings.vocabulary();
        NDArray oneHot = tokens.reshape(-1).oneHot(vocabulary).toType(type(), true);
        NDArray x = oneHot.matMul(embedding);
        for (int i = 0; i < LanguageModel.LAYERS; i++) {
            x = x.add(attention(i, norm(x, i + ".attentionNorm"), batch, sequence));
            x = x.add(mlp(i, norm(x, i + ".mlpNorm")));
        }
        NDArray normed = norm(x, "norm");
        return settings.tied()
                ? normed.matMul(embedding.transpose())
                : normed.matMul(get("head.weight").transpose()).add(get("head.bias"));
    }

    /** Returns the mean cross entropy over labels that are not ignored. */
    NDArray loss(NDArray tokens, long[] labels) {
        NDArray logarithms = scores(tokens).logSoftmax(1);
        double[] weights = new double[(int) logarithms.size()];
        int count = 0;
        for (long label : labels) {
            count += label == LanguageModel.IGNORED ? 0 : 1;
        }
        for (int i = 0; i < labels.length; i++) {
            if (labels[i] != LanguageModel.IGNORED) {
                weights[(int) (i * settings.vocabulary() + labels[i])] = -1.0 / count;
            }
        }
        return logarithms.mul(constant(weights, labels.length, settings.vocabulary())).sum();
    }

    private NDArray norm(NDArray x, String name) {
        NDArray mean = x.square().mean(new int[] {1}, true).add(LanguageModel.EPSILON);
        return x.div(mean.sqrt()).mul(get(name + ".weight"));
    }

    private NDArray mlp(int layer, NDArray x) {
        NDArray gate = x.matMul(get(layer + ".mlp.gate").transpose());
        NDArray up = x.matMul(get(layer + ".mlp.up").transpose());
        return gate.mul(Activation.sigmoid(gate))
                .mul(up)
                .matMul(get(layer + ".mlp.down").transpose());
    }

    private NDArray attention(int layer, NDArray x, long batch, long sequence) {
        String name = layer + ".attention.";
        int heads = settings.heads();
        int groups = settings.keyValueHeads();
        NDArray queries = heads(x.matMul(get(name + "query").transpose()), heads, batch, sequence);
        NDArray keys = heads(x.matMul(get(name + "key").transpose()), groups, batch, sequence);
        NDArray values = heads(x.matMul(get(name + "value").transpose()), groups, batch, sequence);
        NDArray turned = rotated(queries, sequence);
        NDArray turnedKeys = rotated(keys, sequence);
        double[] mask = new double[(int) (sequence * sequence)];
        for (int q = 0; q < sequence; q++) {
            for (int k = 0; k < sequence; k++) {
                mask[(int) (q * sequence + k)] = k > q ? Double.NEGATIVE_INFINITY : 0;
            }
        }
        NDArray unseen = constant(mask, sequence, sequence);
        NDArray scale = constant(new double[] {1 / Math.sqrt(LanguageModel.HEAD_SIZE)}, 1);
        NDList results = new NDList();
        for (int head = 0; head < heads; head++) {
            int group = head / (heads / groups);
            NDArray q = turned.get(":, " + head);
            NDArray k = turnedKeys.get(":, " + group);
            NDArray scores = q.matMul(k.transpose(0, 2, 1)).mul(scale).add(unseen);
            results.add(scores.softmax(2).matMul(values.get(":, " + group)));
        }
        NDArray joined = NDArrays.concat(results, 2).reshape(batch * sequence, -1);
        return joined.matMul(get(name + "output").transpose());
    }

    /** Returns (batch, heads, sequence, head size). */
    private static NDArray heads(NDArray x, int heads, long batch, long sequence) {
        return x.reshape(batch, sequence, heads, LanguageModel.HEAD_SIZE).transpose(0, 2, 1, 3);
    }

    /** Applies the rotary embedding as a matrix for each position. */
    private NDArray rotated(NDArray x, long sequence) {
        int size = LanguageModel.HEAD_SIZE;
        double[] matrices = new double[(int) sequence * size * size];
        for (int position = 0; position < sequence; position++) {
            for (int i = 0; i < size / 2; i++) {
                double angle = position * Math.pow(100, -2.0 * i / size);
                int other = i + size / 2;
                int begin = position * size * size;
                matrices[begin + i * size + i] = Math.cos(angle);
                matrices[begin + i * size + other] = Math.sin(angle);
                matrices[begin + other * size + i] = -Math.sin(angle);
                matrices[begin + other * size + other] = Math.cos(angle);
            }
        }
        NDArray turns = constant(matrices, sequence, size, size);
        return x.expandDims(3).matMul(turns).squeeze(3);
    }
}
