/**
 * What the stores are made of: the key-value semantics they share, the log of the file store, and
 * client and server of the TCP store. Internal: types here are public only for {@code
 * org.djlx.collectives} and may change at any time.
 */
package org.djlx.collectives.internal.store;
