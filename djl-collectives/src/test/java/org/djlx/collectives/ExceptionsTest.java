// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.util.List;
import org.djlx.collectives.store.StoreTimeoutException;
import org.junit.jupiter.api.Test;

/** Exceptions travel between JVMs, as in RMI or from a worker process, with all that they tell. */
class ExceptionsTest {

    private static Object copy(Object original) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(original);
        }
        try (ObjectInputStream in =
                new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
            return in.readObject();
        }
    }

    @Test
    void missingRanksAndKeysAreSerialized() throws Exception {
        StoreTimeoutException store = new StoreTimeoutException("late", List.of("a", "b"));
        assertEquals(List.of("a", "b"), ((StoreTimeoutException) copy(store)).missingKeys());
        CollectiveTimeoutException late =
                new CollectiveTimeoutException("late", List.of(1, 3), store);
        CollectiveTimeoutException copy = (CollectiveTimeoutException) copy(late);
        assertEquals(List.of(1, 3), copy.missingRanks());
        assertEquals("late", copy.getMessage());
        assertEquals(List.of("a", "b"), ((StoreTimeoutException) copy.getCause()).missingKeys());
    }
}
