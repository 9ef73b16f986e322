/**
 * The schedules of the fused operators, written once against a small stream interface. Internal:
 * users call {@link org.djlx.fusedops.FusedOps}.
 */
package org.djlx.fusedops.internal;
