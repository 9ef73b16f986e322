/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/** What fused operators are predicted to cost, and which path they take. */
package org.djlx.samples.plan;
