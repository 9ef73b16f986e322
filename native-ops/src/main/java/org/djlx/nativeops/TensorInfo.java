/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

/**
 * What libtorch says of a tensor, asked for at once: each question costs a call and its checks.
 *
 * @param type the element type
 * @param sizes the size of every dimension, not to be changed
 * @param strides the stride of every dimension, in elements, not to be changed
 */
public record TensorInfo(ScalarType type, long[] sizes, long[] strides) {}
