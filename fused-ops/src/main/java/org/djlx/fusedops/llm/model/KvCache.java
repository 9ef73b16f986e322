/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.model;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.fusedops.llm.engine.CacheBlocks;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank's part of the keys and values of all sequences: for each layer two arrays (rows, heads,
 * head size). A sequence has rows anywhere, by blocks that a {@link CacheBlocks} gives out.
 */
public final class KvCache implements AutoCloseable {

    /** A sequence's rows come in blocks of so many that follow each other. */
    public static final int BLOCK_TOKENS = 16;

    private final int rows;
    private final NDManager manager;
    private final List<NDArray> keys = new ArrayList<>();
    private final List<NDArray> values = new ArrayList<>();

    public KvCache(LlamaConfig config, int ranks, int rows, Device device) {
        this.rows = rows;
        manager = NDManager.newBaseManager(device);
        boolean done = false;
        try {
            Shape shape = new Shape(rows, LlamaWeights.keyHeads(config, ranks), config.headSize());
            for (int layer = 0; layer < config.layers(); layer++) {
                keys.add(zeros(shape, config.type()));
                values.add(zeros(shape, config.type()));
            }
            done = true;
        } finally {
            if (!done) {
                close();
            }
        }
    }

    /** Zeros, as what is masked out is multiplied all the same, and must be no NaN. */
    private NDArray zeros(Shape shape, ScalarType type) {
        NDArray array = Torch.empty(manager, shape, type);
        try (NDArray zero = manager.create(0f)) {
            Torch.copy(array, zero.broadcast(shape));
        }
        return array;
    }

    /** Returns how many rows there are. */
    int rows() {
        return rows;
    }

    /** Returns the memory that a rank's part takes, in bytes. */
    public static long byteSize(LlamaConfig config, int ranks, long rows) {
        return 2L
                * config.layers()
                * rows
                * LlamaWeights.keyHeads(config, ranks)
                * config.headSize()
                * config.type().itemSize();
    }

    /** Writes new keys and values, of shape (tokens, heads, head size), to rows. */
    void write(int layer, NDArray rows, NDArray newKeys, NDArray newValues) {
        keys.get(layer).set(new NDIndex("{}", rows), newKeys);
        values.get(layer).set(new NDIndex("{}", rows), newValues);
    }

    /** Returns the keys of a layer, of shape (rows, heads, head size). */
    NDArray keys(int layer) {
        return keys.get(layer);
    }

    /** Returns the values of a layer, of the same shape. */
    NDArray values(int layer) {
        return values.get(layer);
    }

    /** Returns the keys of rows, of shape (rows…, heads, head size). */
    NDArray keys(NDManager manager, int layer, NDArray rows) {
        return keys.get(layer).get(manager, new NDIndex("{}", rows));
    }

    /** Returns the values of rows, as {@link #keys}. */
    NDArray values(NDManager manager, int layer, NDArray rows) {
        return values.get(layer).get(manager, new NDIndex("{}", rows));
    }

    @Override
    public void close() {
        manager.close();
    }
}
