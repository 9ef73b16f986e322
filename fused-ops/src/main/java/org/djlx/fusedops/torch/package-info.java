/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * The operators of a group for models in TorchScript. A plus
 * marks what users name.
 *
 * <pre>
 * + TorchOperators  registers the operators with libtorch, and says on which group they work
 * </pre>
 */
package org.djlx.fusedops.torch;
