/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * The operators of a group for models in TorchScript, and such models on several ranks. A plus
 * marks what users name.
 *
 * <pre>
 * + TorchOperators      registers the operators with libtorch, and says on which group they work
 * + TorchScriptLoader   loads a directory with a model for each rank, for DJL and DJL Serving
 *   TorchScriptService  serves requests by them
 *   RequestTranslator   arrays out of requests and into answers
 * </pre>
 */
package org.djlx.fusedops.torch;
