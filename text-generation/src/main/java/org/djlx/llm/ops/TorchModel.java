// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.djlx.llm.sampling.Logits;
import org.djlx.nativeops.torch.BlockMath;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * A model without kernels of its own for GPUs: libtorch's operators, and on CPUs {@link CpuOps}.
 */
final class TorchModel extends TransformerModel {

    private final TorchAttention attention;
    private final Optional<CpuOps> cpu; // for chunks of one token, or all
    private final boolean kernelsTakePrompts; // all chunks go to `cpu`

    TorchModel(RankModel model, NDManager manager) {
        super(model, manager);
        attention = new TorchAttention(model);
        cpu =
                CpuOps.supports(model.group().device(), model.config())
                        ? Optional.of(new CpuOps(model, manager))
                        : Optional.empty();
        kernelsTakePrompts = cpu.map(CpuOps::supportsPrompts).orElse(false);
    }

    @Override
    public boolean hasDecoder() {
        return false;
    }

    @Override
    void keepLogits() {} // They are kept.

    /**
     * {@inheritDoc}
     *
     * <p>The order of summation in a matmul depends on its number of rows, but the logits of a
     * sequence must not depend on the batch: single tokens, and all tokens if the weights are
     * quantized, take the kernels of CPUs; other chunks are computed one by one, together only in
     * float32, where the difference hardly matters.
     */
    @Override
    Logits compute(TokenBatch batch, NDManager manager) {
        List<Logits> parts = new ArrayList<>();
        List<TokenBatch.Chunk> rest = batch.chunks();
        if (cpu.isPresent()) {
            int count = kernelsTakePrompts ? rest.size() : batch.decodes();
            for (NDArray logits : cpu.get().compute(rest.subList(0, count), manager)) {
                parts.add(Logits.of(complete(logits, manager)));
            }
            rest = rest.subList(count, rest.size());
        }
        boolean together = model.config().type() == ScalarType.FLOAT32 && !rest.isEmpty();
        for (List<TokenBatch.Chunk> chunks :
                together ? List.of(rest) : rest.stream().map(List::of).toList()) {
            computeByTorch(new TokenBatch(chunks), manager).ifPresent(parts::add);
        }
        return Logits.concat(parts);
    }

    /** Computes all chunks together, by libtorch. */
    Optional<Logits> computeByTorch(TokenBatch batch, NDManager manager) {
        try (NDManager step = this.manager.newSubManager()) {
            TorchOps ops = new TorchOps(model, step, attention, batch);
            ForwardPass.layers(model, ops, 0, model.config().layers());
            NDArray logits = ForwardPass.logits(model, ops);
            return logits == null
                    ? Optional.empty()
                    : Optional.of(Logits.of(complete(logits, manager)));
        }
    }

    /** Returns the logits of all ranks' parts of the vocabulary, in float32. */
    private NDArray complete(NDArray own, NDManager manager) {
        NDArray all = gatherColumns(own);
        double scale = model.config().logitScale();
        NDArray scaled = scale == 1 ? all : all.mul((float) scale);
        NDArray logits = BlockMath.cap(scaled, model.config().logitCap());
        logits.attach(manager);
        return logits;
    }

    /** Returns the columns of all ranks, without padding, in float32; or x if that is the same. */
    private NDArray gatherColumns(NDArray x) {
        int ranks = model.ranks();
        Shape shape = x.getShape();
        NDArray all = ranks == 1 ? x : model.gather(x).reshape(ranks, shape.get(0), shape.get(1));
        NDArray rows =
                ranks == 1
                        ? all
                        : all.transpose(1, 0, 2).reshape(shape.get(0), ranks * shape.get(1));
        long columns = model.config().vocabularySize();
        if (rows.getShape().get(1) == columns && Torch.scalarType(rows) == ScalarType.FLOAT32) {
            return rows;
        }
        return Torch.cast(
                rows.get(new NDIndex().addAllDim().addSliceDim(0, columns)), ScalarType.FLOAT32);
    }

    @Override
    public void close() {
        cpu.ifPresent(CpuOps::close);
        super.close();
    }
}
