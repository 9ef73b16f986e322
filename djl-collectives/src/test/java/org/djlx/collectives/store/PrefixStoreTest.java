// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.List;
import org.junit.jupiter.api.Test;

class PrefixStoreTest extends StoreContractTest {

    private final HashStore shared = new HashStore();

    @Override
    Store open() {
        return new PrefixStore("group0", shared);
    }

    @Override
    void close(Store handle) {
        handle.close();
        shared.close();
    }

    @Test
    void keysAreThoseOfPyTorch() {
        store.set("k", bytes("1"));
        assertEquals("1", text(shared.get("group0/k")));
        Store nested = new PrefixStore("inner", store);
        nested.add("n", 2);
        assertEquals("2", text(shared.get("group0/inner/n")));
        assertMissing(List.of("lost"), () -> nested.get("lost", SHORT));
    }

    @Test
    void groupsDoNotSeeEachOther() {
        Store group1 = new PrefixStore("group1", shared);
        store.set("k", bytes("1"));
        assertFalse(group1.check(List.of("k")));
        assertEquals(1, group1.numKeys(), "the number is that of the whole store");
    }

    @Test
    void closingAViewLeavesTheStoreOpen() {
        new PrefixStore("view", shared).close();
        shared.set("k", bytes("1"));
    }

    @Test
    void prefixAndStoreAreNeeded() {
        assertThrows(IllegalArgumentException.class, () -> new PrefixStore("", shared));
        assertThrows(IllegalArgumentException.class, () -> new PrefixStore("p", null));
    }
}
