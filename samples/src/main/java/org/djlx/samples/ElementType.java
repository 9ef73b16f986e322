/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples;

import java.util.Locale;
import org.djlx.nativeops.ScalarType;

/** Types of elements, by the names that users of a command know. */
enum ElementType {
    float64,
    float32,
    float16,
    bfloat16,
    int64,
    int32,
    int8,
    uint8,
    bool;

    ScalarType scalarType() {
        return ScalarType.valueOf(name().toUpperCase(Locale.ROOT));
    }
}
