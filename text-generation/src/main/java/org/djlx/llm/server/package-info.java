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
 * SlowProgress       shows progress if loading takes long
 * Tools              the tools of a chat, and how the model may call them
 */
/**
 * The HTTP server, and the schemas of OpenAI and DJL Serving, which need no HTTP server.
 *
 * <p>Schemas: {@link org.djlx.llm.server.TextApi} reads a request, {@link
 * org.djlx.llm.server.TextCall} submits it, {@link org.djlx.llm.server.TextAnswer} is its answer.
 *
 * <ul>
 *   <li>{@link org.djlx.llm.server.AnswerFormat} - formats an answer in a schema
 *   <li>{@link org.djlx.llm.server.ApiException} - an error for the client
 *   <li>{@link org.djlx.llm.server.TextAnswer} - an answer as it is generated
 *   <li>{@link org.djlx.llm.server.TextApi} - reads requests for one model
 *   <li>{@link org.djlx.llm.server.TextCall} - a parsed request
 * </ul>
 *
 * <p>Server; the resource {@code chat.html} is the chat page:
 *
 * <ul>
 *   <li>{@link org.djlx.llm.server.GenerationServer} - the HTTP server
 *   <li>{@link org.djlx.llm.server.ServerOptions} - its address and limits
 *   <li>{@link org.djlx.llm.server.ServeCommand} - the command {@code serve}
 *   <li>{@link org.djlx.llm.server.ServeModelCommand} - {@code serve-model}: writes a small random
 *       model
 *   <li>{@link org.djlx.llm.server.ModelOptions} - the options of commands that generate text
 *   <li>{@link org.djlx.llm.server.Main} - the program of {@code java -jar}
 * </ul>
 */
package org.djlx.llm.server;
