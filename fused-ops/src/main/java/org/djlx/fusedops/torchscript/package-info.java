/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * RequestTranslator   arrays out of requests and into answers
 * TorchScriptService  serves requests by them
 */
/**
 * The fused operators for TorchScript models. Start with {@link
 * org.djlx.fusedops.torchscript.TorchScriptLoader}.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.torchscript.TorchOperators} - registers the operators with
 *       libtorch, and says on which group they work
 *   <li>{@link org.djlx.fusedops.torchscript.TorchScriptLoader} - loads a directory with a model
 *       for each rank, for DJL and DJL Serving
 * </ul>
 */
package org.djlx.fusedops.torchscript;
