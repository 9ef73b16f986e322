// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.RandomAccessDataset;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.training.data.DistributedSampler;
import org.junit.jupiter.api.Test;

class DistributedSamplerTest {

    private static final int ITEMS = 22;

    private static List<List<Long>> epoch(DistributedSampler sampler) throws Exception {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            RandomAccessDataset dataset = Training.dataset(manager, ITEMS, sampler);
            List<List<Long>> batches = new ArrayList<>();
            sampler.sample(dataset).forEachRemaining(batches::add);
            return batches;
        }
    }

    private static DistributedSampler.Builder sampler(int batchSize) {
        return DistributedSampler.builder().setBatchSize(batchSize).optSeed(7);
    }

    /** Batch i of the processes, one after the other, is batch i of one with larger batches. */
    @Test
    void dividesTheBatchesOfOneProcess() throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local(3);
        try {
            for (boolean pad : new boolean[] {false, true}) {
                List<List<Long>> whole = epoch(sampler(6).optPad(pad).build());
                assertEquals(pad ? 4 : 3, whole.size());
                List<List<Long>> joined = new ArrayList<>();
                for (ProcessGroup group : groups) {
                    List<List<Long>> own = epoch(sampler(2).optPad(pad).optGroup(group).build());
                    for (int i = 0; i < own.size(); i++) {
                        if (group.rank() == 0) {
                            joined.add(new ArrayList<>());
                        }
                        assertEquals(2, own.get(i).size());
                        joined.get(i).addAll(own.get(i));
                    }
                }
                assertEquals(whole, joined);
                List<Long> all = joined.stream().flatMap(List::stream).toList();
                assertEquals(pad ? ITEMS : 18, new HashSet<>(all).size());
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void epochsHaveDifferentOrders() throws Exception {
        DistributedSampler sampler = sampler(5).build();
        List<List<Long>> first = epoch(sampler);
        List<List<Long>> second = epoch(sampler);
        assertNotEquals(first, second);
        assertEquals(first, epoch(sampler(5).build()));
        assertNotEquals(first, epoch(sampler(5).optSeed(8).build()));
        sampler.setEpoch(1);
        assertEquals(second, epoch(sampler));
        assertEquals(
                List.of(0L, 1L, 2L, 3L, 4L), epoch(sampler(5).optShuffle(false).build()).get(0));
    }

    @Test
    void setPositionContinuesWithinAnEpoch() throws Exception {
        DistributedSampler whole = sampler(5).build();
        List<List<Long>> first = epoch(whole);
        List<List<Long>> second = epoch(whole);
        DistributedSampler sampler = sampler(5).build();
        sampler.setPosition(0, 2 * sampler.itemsPerBatch());
        assertEquals(first.subList(2, first.size()), epoch(sampler));
        assertEquals(second, epoch(sampler));
        sampler.setPosition(
                1,
                second.size()
                        * sampler.itemsPerBatch()); // ended between its last batch and the next
        // epoch
        assertEquals(List.of(), epoch(sampler));
        sampler.setPosition(1, (second.size() + 1) * sampler.itemsPerBatch());
        assertThrows(IllegalArgumentException.class, () -> epoch(sampler));
    }

    @Test
    void rejectsNumbersOutOfRange() {
        assertThrows(IllegalArgumentException.class, () -> sampler(5).build().setEpoch(-1));
        assertThrows(IllegalArgumentException.class, () -> sampler(5).build().setPosition(0, -1));
        assertThrows(IllegalArgumentException.class, () -> DistributedSampler.builder().build());
        assertThrows(IllegalArgumentException.class, () -> sampler(0).build());
        DistributedSampler large = sampler(ITEMS + 1).build(); // Nothing would be trained.
        assertThrows(IllegalArgumentException.class, () -> epoch(large));
    }
}
