/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * A model behind HTTP.
 *
 * <pre>
 * ServeCommand        the command line
 * GenerationServer    listens, and ends
 * ConnectionHandler   one connection: what each request is answered with
 * Answer              a generation on its way to a client
 * AccessRules         who may ask
 * ServerOptions       where to listen, and what is bounded
 * ServerMetrics       what has happened, for Prometheus
 * Replies             whole responses
 * chat.html           the page to chat with
 * </pre>
 */
package org.djlx.samples.serve;
