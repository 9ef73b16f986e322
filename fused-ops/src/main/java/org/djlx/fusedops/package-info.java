/** Tensor-parallel operators that hide their communication behind the matmul. */
package org.djlx.fusedops;
