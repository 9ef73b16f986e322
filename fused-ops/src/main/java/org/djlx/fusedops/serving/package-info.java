// SPDX-License-Identifier: Apache-2.0
/**
 * Requests and answers of DJL Serving, for all models that it serves.
 *
 * <ul>
 *   <li>{@link ReasonPhrase} - messages of answers, on one line
 *   <li>{@link RequestJson} - parses the JSON of requests strictly (RFC 8259)
 * </ul>
 */
package org.djlx.fusedops.serving;
