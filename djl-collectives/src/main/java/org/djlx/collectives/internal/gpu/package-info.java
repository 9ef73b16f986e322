/** What the backends on GPUs have in common. Internal to them. */
package org.djlx.collectives.internal.gpu;
