/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.store;

class HashStoreTest extends StoreContractTest {

    private final HashStore shared = new HashStore();

    @Override
    Store open() {
        return shared;
    }
}
