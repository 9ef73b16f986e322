/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.common;

import java.util.Locale;
import org.djlx.nativeops.torch.ScalarType;

/** Element types by their names on the command line. */
public enum ElementType {
    /** IEEE double precision. */
    float64,

    /** IEEE single precision. */
    float32,

    /** IEEE half precision. */
    float16,

    /** The upper half of a float32. */
    bfloat16,

    /** Signed, 64 bits. */
    int64,

    /** Signed, 32 bits. */
    int32,

    /** Signed, 8 bits. */
    int8,

    /** Unsigned, 8 bits. */
    uint8,

    /** True or false, in a byte. */
    bool;

    /** Returns the type that libtorch knows. */
    public ScalarType scalarType() {
        return ScalarType.valueOf(name().toUpperCase(Locale.ROOT));
    }
}
