// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Dataset;
import dev.langchain4j.data.document.Document;
import dev.langchain4j.data.segment.TextSegment;
import dev.langchain4j.store.embedding.EmbeddingStore;
import java.nio.file.Path;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.llm.ChatModel;
import org.djlx.llm.EmbeddingModel;
import org.djlx.training.DataParallelConfig;

/** What the snippets of the pages take as given: the names that their texts explain. */
@SuppressWarnings("unused")
public class Given {

    protected ProcessGroup group;
    protected NDManager manager;
    protected NDArray x;
    protected NDArray w1;
    protected NDArray w2;
    protected NDArray a;
    protected NDArray bT;
    protected NDArray aScale;
    protected NDArray bScale;
    protected NDArray tokens;
    protected NDArray splits;
    protected NDArray gradient;
    protected NDArray weights;
    protected long capacity;
    protected long hidden;
    protected long experts;
    protected float[] values;
    protected Model model;
    protected Block block;
    protected DataParallelConfig config;
    protected Shape shape;
    protected int epochs;
    protected Dataset dataset;
    protected Trainer trainer;
    protected NDList data;
    protected NDList labels;
    protected NDList firstBatch;
    protected NDList lastBatch;
    protected Path directory;
    protected Path file;
    protected Path out;
    protected Path adapter;
    protected Path another;

    protected NDArray experts(NDArray rows, NDArray routed) {
        return rows;
    }

    protected NDArray loss(NDArray y) {
        return y;
    }

    protected void trainingStep() {}

    protected void backward(Trainer trainer, NDList batch) {}

    /** On the page of text generation, a model is one for chats. */
    public static class Chat extends Given {
        protected ChatModel model;
    }

    /** On the page of embeddings, a model is one for these. */
    public static class Embeddings extends Given {
        protected EmbeddingModel model;
        protected EmbeddingStore<TextSegment> store;
        protected List<Document> documents;
    }
}
