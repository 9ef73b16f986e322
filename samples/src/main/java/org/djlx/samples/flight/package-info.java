/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/** Reads the flight records of ranks, and says which rank is behind or called what differently. */
package org.djlx.samples.flight;
