// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * InvocationAnswer  DJL Serving's answers
 * JsonOptions       reads options from a JSON object, and refuses unknown ones
 * LogProbabilities  log probabilities in OpenAI's schemas
 * OpenAiAnswer      OpenAI's answers, to chats and completions
 * OpenAiOptions     the options that OpenAI's schemas share
 * ResponsesAnswer   OpenAI's responses
 * Tools             the tools of a chat, and how the model may call them
 */
/**
 * The HTTP schemas of OpenAI and DJL Serving, independent of the HTTP server. {@link
 * org.djlx.fusedops.llm.api.TextApi} reads a request, {@link org.djlx.fusedops.llm.api.TextCall}
 * submits it, {@link org.djlx.fusedops.llm.api.TextAnswer} is its answer.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.api.AnswerFormat} - formats an answer in a schema
 *   <li>{@link org.djlx.fusedops.llm.api.ApiException} - an error for the client
 *   <li>{@link org.djlx.fusedops.llm.api.TextAnswer} - an answer as it is generated
 *   <li>{@link org.djlx.fusedops.llm.api.TextApi} - reads requests for one model
 *   <li>{@link org.djlx.fusedops.llm.api.TextCall} - a parsed request
 * </ul>
 */
package org.djlx.fusedops.llm.api;
