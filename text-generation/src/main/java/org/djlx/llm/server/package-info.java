// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * AccessRules        which hosts and tokens are allowed
 * Answer             an answer being sent to a client
 * ConnectionHandler  one connection: answers its requests in order
 * InvocationAnswer   DJL Serving's answers
 * JsonOptions        reads options from a JSON object, and refuses unknown ones
 * LogProbabilities   log probabilities in OpenAI's schemas
 * OpenAiAnswer       OpenAI's answers, to chats and completions
 * OpenAiOptions      the options that OpenAI's schemas share
 * Replies            creates whole responses
 * RequestFilter      checks the heads of requests and limits their bodies
 * ResponsesAnswer    OpenAI's responses
 * Route              the server's paths
 * ServerMetrics      counters and times for Prometheus
 * ServedModel        a model of a server, and the paths that it answers
 * SlowProgress       shows progress if loading takes long
 * Tools              reads the tools of a chat
 */
/**
 * The HTTP server, and the schemas of OpenAI and DJL Serving, which need no HTTP server.
 *
 * <p>Schemas: {@link TextApi} reads a request, {@link TextCall} submits it, {@link TextAnswer} is
 * its answer.
 *
 * <ul>
 *   <li>{@link AnswerFormat} - formats an answer in a schema
 *   <li>{@link ApiException} - an error for the client
 *   <li>{@link EmbeddingApi} - answers requests for embeddings
 *   <li>{@link TextAnswer} - an answer as it is generated
 *   <li>{@link TextApi} - reads requests for one model
 *   <li>{@link TextCall} - a parsed request
 * </ul>
 *
 * <p>Server; the resource {@code chat.html} is the chat page:
 *
 * <ul>
 *   <li>{@link GenerationServer} - the HTTP server
 *   <li>{@link ServerOptions} - its address and limits
 *   <li>{@link ServeCommand} - the command {@code serve}
 *   <li>{@link ServeModelCommand} - {@code serve-model}: writes a small random model
 *   <li>{@link ModelOptions} - the options of commands that generate text
 *   <li>{@link Main} - the program of {@code java -jar}
 *   <li>{@link Commands} - its command line
 * </ul>
 */
package org.djlx.llm.server;
