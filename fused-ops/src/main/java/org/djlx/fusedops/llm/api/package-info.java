/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * InvocationAnswer  DJL Serving's answers
 * JsonOptions       a JSON object of which every entry must be known
 * OpenAiAnswer      OpenAI's answers, to chats and to prompts
 * OpenAiOptions     how OpenAI's clients ask for tokens to be chosen
 */
/**
 * The HTTP schemas of OpenAI and DJL Serving: requests and answers in JSON, for any front end.
 * Start with {@link org.djlx.fusedops.llm.api.TextApi}.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.api.AnswerFormat} - words answers
 *   <li>{@link org.djlx.fusedops.llm.api.ApiException} - a request that is refused, and why
 *   <li>{@link org.djlx.fusedops.llm.api.TextAnswer} - the answer to it, as it is generated
 *   <li>{@link org.djlx.fusedops.llm.api.TextApi} - reads requests to one model
 *   <li>{@link org.djlx.fusedops.llm.api.TextCall} - one of them, and how its answer is worded
 * </ul>
 */
package org.djlx.fusedops.llm.api;
