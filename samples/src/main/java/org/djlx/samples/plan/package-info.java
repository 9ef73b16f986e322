/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * What fused operators are predicted to cost, and which path they take. *
 *
 * <pre>
 *   PlanCommand  the command
 *   Plan         what an operator costs by each path
 *   Table        a table, as text or for a page
 * </pre>
 */
package org.djlx.samples.plan;
