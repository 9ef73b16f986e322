// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * MlpJob - one rank of the MLP
 */
/**
 * The main job: a tensor-parallel MLP, compared with the undivided MLP.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.mlp.MlpCommand} - {@code mlp}
 * </ul>
 */
package org.djlx.samples.mlp;
