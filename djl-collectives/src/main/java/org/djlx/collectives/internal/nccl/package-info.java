/** Backend {@code nccl}: collectives between GPUs of one or several hosts. */
package org.djlx.collectives.internal.nccl;
