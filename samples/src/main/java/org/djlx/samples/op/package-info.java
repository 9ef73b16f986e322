// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * OpJob - one operation from files to files
 * OpKind - the operations
 * OpCall - one rank's call
 * OpInput - the source of the ranks' arrays
 * ExampleFiles - writes example inputs
 * NpzFile - reads and writes .npz files
 * NpyChecks - checks an .npy array before DJL decodes it
 */
/**
 * Runs any operation on arrays in NumPy files.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.op.OpCommand} - {@code op}
 * </ul>
 */
package org.djlx.samples.op;
