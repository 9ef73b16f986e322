// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Route - the server's paths
 * RequestFilter - checks the heads of requests and limits their bodies
 * ConnectionHandler - one connection: answers its requests in order
 * Answer - an answer being sent to a client
 * AccessRules - which hosts and tokens are allowed
 * ServerMetrics - counters and times for Prometheus
 * Replies - creates whole responses
 */
/**
 * Serves a model over HTTP. The resource {@code chat.html} is the chat page.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.serve.ServeCommand} - {@code serve}
 *   <li>{@link org.djlx.samples.serve.GenerationServer} - the HTTP server
 *   <li>{@link org.djlx.samples.serve.ServerOptions} - its address and limits
 * </ul>
 */
package org.djlx.samples.serve;
