/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/** Any operation, on arrays in NumPy files. */
package org.djlx.samples.op;
