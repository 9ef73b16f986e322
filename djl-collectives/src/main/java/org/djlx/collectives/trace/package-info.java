/** What a rank did last, as it was recorded, and what the records of all ranks say together. */
package org.djlx.collectives.trace;
