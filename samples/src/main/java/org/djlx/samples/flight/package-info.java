// SPDX-License-Identifier: Apache-2.0
/**
 * Compares the flight records of the ranks of a broken group.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.flight.FlightCommand} - {@code flight}: finds the rank that is
 *       late, or that made another call
 * </ul>
 */
package org.djlx.samples.flight;
