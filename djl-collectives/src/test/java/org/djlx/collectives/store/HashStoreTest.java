// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

class HashStoreTest extends StoreContractTest {

    private final HashStore shared = new HashStore();

    @Override
    Store open() {
        return shared;
    }
}
