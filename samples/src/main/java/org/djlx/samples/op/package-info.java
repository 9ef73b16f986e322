/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Any operation, on arrays in NumPy files. *
 *
 * <pre>
 *   OpCommand  the command
 *   OpJob      one operation from files to files
 *   OpKind     the operations that there are
 *   OpCall     one rank's call
 *   OpInput    where the ranks' arrays come from
 *   NpzFile    NumPy's files of arrays
 *   NpyChecks  checks of an array's bytes
 * </pre>
 */
package org.djlx.samples.op;
