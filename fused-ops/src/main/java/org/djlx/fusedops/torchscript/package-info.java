// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * RequestTranslator   reads the arrays of requests and writes those of responses
 * TorchScriptService  serves requests by a model on each rank
 */
/**
 * The fused operators for TorchScript models. Start with {@link
 * org.djlx.fusedops.torchscript.TorchScriptLoader}.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.torchscript.TorchOperators} - registers the operators with
 *       libtorch, and sets the group that they use
 *   <li>{@link org.djlx.fusedops.torchscript.TorchScriptLoader} - loads a directory with a model
 *       for each rank, for DJL and DJL Serving
 * </ul>
 */
package org.djlx.fusedops.torchscript;
