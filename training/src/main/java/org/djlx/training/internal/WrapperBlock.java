// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.nn.ParameterList;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;

/**
 * A block that computes another one in its own way. Names of parameters, files and shapes are those
 * of the other block.
 */
public abstract class WrapperBlock extends AbstractBlock {

    private Block block; // not final: trainers replace layers

    protected WrapperBlock(Block block) {
        this.block = addChildBlock("block", block);
    }

    /** {@return the block that this one computes} */
    public final Block block() {
        return block;
    }

    /** Computes the block; {@code labels} is null for none. */
    protected abstract NDList compute(
            ParameterStore store,
            NDList data,
            NDList labels,
            boolean training,
            PairList<String, Object> params);

    /** Computes the block as it is. */
    protected final NDList forward(
            ParameterStore store,
            NDList data,
            NDList labels,
            boolean training,
            PairList<String, Object> params) {
        return labels == null
                ? block.forward(store, data, training, params)
                : block.forward(store, data, labels, params);
    }

    @Override
    protected final NDList forwardInternal(
            ParameterStore store,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        return compute(store, inputs, null, training, params);
    }

    @Override
    protected final NDList forwardInternal(
            ParameterStore store, NDList data, NDList labels, PairList<String, Object> params) {
        return compute(store, data, labels, true, params);
    }

    @Override
    protected final void initializeChildBlocks(NDManager manager, DataType type, Shape... shapes) {
        block.initialize(manager, type, shapes);
    }

    @Override
    public final ParameterList getParameters() {
        return block.getParameters();
    }

    @Override
    public final boolean isInitialized() {
        return block.isInitialized();
    }

    @Override
    public final Shape[] getInputShapes() {
        return block.getInputShapes();
    }

    @Override
    public final PairList<String, Shape> describeInput() {
        return block.describeInput();
    }

    @Override
    public final Shape[] getOutputShapes(Shape[] inputShapes) {
        return block.getOutputShapes(inputShapes);
    }

    @Override
    public final void saveParameters(DataOutputStream out) throws IOException {
        block.saveParameters(out);
    }

    @Override
    public final void loadParameters(NDManager manager, DataInputStream in)
            throws IOException, MalformedModelException {
        block.loadParameters(manager, in);
    }
}
