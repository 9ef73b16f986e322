/** Backend {@code shm}: collectives over memory that threads or processes of one host share. */
package org.djlx.collectives.internal.shm;
