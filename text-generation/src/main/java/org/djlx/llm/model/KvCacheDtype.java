// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Locale;

/** How keys and values of the KV cache are stored; vLLM's names. */
public enum KvCacheDtype {
    /** In the model's type. */
    AUTO,
    /**
     * Float8 (e4m3), with a scale in float32 for each token and KV head: the largest magnitude of
     * the head divided by 448. For GPUs, and models that have kernels.
     */
    FP8;

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
