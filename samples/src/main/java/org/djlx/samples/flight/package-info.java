/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Compares the flight records of the ranks of a broken group.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.flight.FlightCommand} - {@code flight}: finds the rank that is
 *       behind, or whose call differs
 * </ul>
 */
package org.djlx.samples.flight;
