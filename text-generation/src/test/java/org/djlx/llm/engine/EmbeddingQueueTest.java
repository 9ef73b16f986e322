// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.djlx.llm.engine.EmbeddingQueue.Text;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class EmbeddingQueueTest {

    private final EmbeddingQueue queue = new EmbeddingQueue(1, 2, 100);

    private CompletableFuture<float[][]> embed(int[]... texts) {
        return CompletableFuture.supplyAsync(() -> queue.embed(List.of(texts)));
    }

    @Test
    void textsOfAFailedCallAreNotTaken() throws Exception {
        CompletableFuture<float[][]> failed = embed(new int[] {1, 1}, new int[] {2}, new int[] {3});
        List<Text> first = queue.take(); // The longest text fills a batch.
        assertEquals(1, first.size());
        first.get(0).call().fail(new ArithmeticException("no number"));
        assertThrows(CompletionException.class, failed::join);
        CompletableFuture<float[][]> next = embed(new int[] {4});
        List<Text> taken = queue.take();
        assertEquals(4, taken.get(0).tokens()[0]);
        taken.get(0).call().complete(0, new float[] {5});
        assertEquals(5, next.join()[0][0]);
    }
}
