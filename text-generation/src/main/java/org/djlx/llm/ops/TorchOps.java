// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import org.djlx.llm.model.LayerConfig;
import org.djlx.nativeops.torch.BlockMath;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** The operators of libtorch, for every model, type and device. */
final class TorchOps extends ArrayOps {

    private final TorchAttention attention;
    private final TorchAttention.Metadata metadata;
    private final TokenBatch batch;

    TorchOps(RankModel model, NDManager step, TorchAttention attention, TokenBatch batch) {
        super(model, step, batch.tokens(), model.adapters().segments(batch.chunks()));
        this.attention = attention;
        this.batch = batch;
        metadata = attention.metadata(step, batch);
        begin(scaled(embed(step)));
    }

    /**
     * Looks up the embedding: each rank looks up its part of the vocabulary, with zeros for other
     * tokens; the results are summed.
     */
    private NDArray embed(NDManager step) {
        int ranks = model.ranks();
        int rows = divided ? (batch.tokens() + ranks - 1) / ranks * ranks : batch.tokens();
        int own = model.vocabularyPart();
        int first = own * model.group().rank();
        long[] ids = new long[rows];
        float[] factors = new float[rows];
        int row = 0;
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            for (int token : chunk.tokens()) {
                boolean here = token >= first && token - first < own;
                ids[row] = here ? token - first : 0;
                factors[row++] = here ? 1 : 0;
            }
        }
        NDIndex index = new NDIndex("{}", step.create(ids));
        NDArray found = model.weights().embedding().get(step, index);
        if (ranks == 1) {
            return found;
        }
        NDArray mask = cast(step.create(factors, new Shape(rows, 1)));
        return sum(found.mul(mask));
    }

    /** Multiplies embeddings by their scale, in float32. */
    private NDArray scaled(NDArray tokens) {
        double scale = model.config().embeddingScale();
        return scale == 1
                ? tokens
                : cast(Torch.cast(tokens, ScalarType.FLOAT32).mul((float) scale));
    }

    private NDArray cast(NDArray array) {
        return Torch.cast(array, model.config().type());
    }

    @Override
    NDArray multiply(Operand x, ModelWeights.Linear linear) {
        return linear.multiply(x.elements());
    }

    @Override
    Operand norm(NDArray rows, NDArray weight) {
        return new Operand(weight == null ? rows : rmsNorm(rows, weight));
    }

    private NDArray rmsNorm(NDArray x, NDArray weight) {
        return BlockMath.rmsNorm(x, weight, model.epsilon());
    }

    @Override
    Sum add(NDArray residual, NDArray partial, NDArray postNorm, NDArray norm) {
        // Gemma's norms are in float32.
        if (!divided && postNorm == null && Torch.scalarType(norm) == Torch.scalarType(partial)) {
            return allReduceAndAdd(residual, partial, norm);
        }
        NDArray complete = divided ? partial : sum(partial);
        NDArray sum = residual.add(postNorm == null ? complete : rmsNorm(complete, postNorm));
        return new Sum(sum, norm(sum, norm));
    }

    @Override
    public Operand projectGated(
            NDArray postNorm, NDArray norm, ModelWeights.Linear gateUp, LayerConfig.Mlp mlp) {
        return new Operand(gated(columnParallel(addAndNorm(postNorm, norm), gateUp), mlp));
    }

    @Override
    NDArray gated(NDArray gateUp, LayerConfig.Mlp mlp) {
        long inner = gateUp.getShape().get(1) / 2;
        NDArray gate = gateUp.get(new NDIndex().addAllDim().addSliceDim(0, inner));
        NDArray up = gateUp.get(new NDIndex().addAllDim().addSliceDim(inner, 2 * inner));
        return switch (mlp.activation()) {
            case SILU -> BlockMath.siluGate(gate, up);
            case GELU_TANH -> BlockMath.geluGate(gate, up);
            case CLAMPED_SILU -> BlockMath.clampedSiluGate(gate, up);
        };
    }

    @Override
    public Operand attend(int layer, Operand qkv) {
        NDArray heads =
                attention.apply(
                        scope(), layer, model.weights().layer(layer), qkv.elements(), metadata);
        return new Operand(pad(heads, qkv.elements()));
    }

    /** Appends rows of zeros, up to the number of rows of another array. */
    private NDArray pad(NDArray x, NDArray like) {
        long missing = like.getShape().get(0) - x.getShape().get(0);
        if (missing == 0) {
            return x;
        }
        Shape shape = new Shape(missing, x.getShape().get(1));
        NDArray zeros = Torch.zeros(x.getManager(), shape, Torch.scalarType(x));
        return NDArrays.concat(new NDList(x, zeros), 0);
    }

    @Override
    public NDArray logits(NDArray postNorm, NDArray norm, ModelWeights.Linear output) {
        long[] rows = logitsRows();
        if (rows.length == 0) {
            return null;
        }
        NDArray norms = addAndNorm(postNorm, norm).elements();
        NDArray last = divided ? model.gather(norms) : norms;
        NDArray index = last.getManager().create(rows);
        return output.multiply(last.get(new NDIndex("{}", index)));
    }

    /** Returns the rows of the last tokens of chunks that need logits. */
    private long[] logitsRows() {
        long[] rows = new long[batch.chunks().size()];
        int count = 0;
        int row = 0;
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            row += chunk.tokens().length;
            if (chunk.needsLogits()) {
                rows[count++] = row - 1;
            }
        }
        return Arrays.copyOf(rows, count);
    }
}
