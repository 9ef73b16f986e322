/**
 * Backend {@code cuda_p2p}: NCCL, and beside it memory of each GPU that the GPUs of all ranks write
 * into.
 */
package org.djlx.collectives.internal.cudap2p;
