/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Text generation as clients ask for it over HTTP: requests and answers in JSON, for any front end.
 * A plus marks what users name.
 *
 * <pre>
 * + TextApi           reads requests to one model
 * + TextCall          one of them, and how its answer is worded
 * + TextAnswer        the answer to it, as it is generated
 * + AnswerFormat      words answers
 * + ChatTemplate      makes a prompt of a chat
 * + ApiException      a request that is refused, and why
 *   JsonOptions       a JSON object of which every entry must be known
 *   OpenAiOptions     how OpenAI's clients ask for tokens to be chosen
 *   OpenAiAnswer      OpenAI's answers, to chats and to prompts
 *   InvocationAnswer  DJL Serving's answers
 * </pre>
 */
package org.djlx.fusedops.llama.schema;
