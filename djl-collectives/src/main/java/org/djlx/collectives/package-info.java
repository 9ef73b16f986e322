/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/** Process groups over NDArrays: collectives, stores, and the backends behind them. */
package org.djlx.collectives;
