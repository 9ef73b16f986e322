// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * RequestTranslator   reads the arrays of requests and writes those of responses
 * TorchScriptService  serves requests by a model on each rank
 */
/**
 * The fused operators for TorchScript models. Start with {@link TorchScriptLoader}.
 *
 * <ul>
 *   <li>{@link TorchOperators} - registers the operators with libtorch, and sets the group that
 *       they use
 *   <li>{@link TorchScriptLoader} - loads a directory with a model for each rank, for DJL and DJL
 *       Serving
 * </ul>
 */
package org.djlx.fusedops.torchscript;
