// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * ChannelStream    divides an answer of GPT-OSS, which has channels
 * ControlTokens    keeps clients' texts from becoming control tokens, such as <|im_end|>
 * LongestToken     a lower limit of the number of tokens of a text, from tokenizer.json
 * ReasoningStream  finds the reasoning at the beginning of an answer
 * TokenBytes       reads the bytes of tokens from tokenizer.json
 */
/**
 * Text in, tokens out, and back: tokenizers, chat templates and streaming detokenization.
 *
 * <ul>
 *   <li>{@link AnswerParts} - the parts of an answer as its tokens come
 *   <li>{@link AnswerStream} - divides an answer into reasoning, content and calls of tools
 *   <li>{@link ChatFormat} - how a model reads chats and writes answers
 *   <li>{@link ChatTemplate} - encodes a chat as a prompt, by the model's Jinja template
 *   <li>{@link ChatTools} - the tools of a chat, and how the model may call them
 *   <li>{@link ContextLengthException} - a prompt is too long
 *   <li>{@link ModelTokenizer} - the tokenizer of a model directory
 *   <li>{@link ReasoningFormat} - how a model writes its reasoning
 *   <li>{@link TextStream} - detokenizes one sequence as its tokens come, and finds stop strings
 *   <li>{@link TextTokenizer} - encodes and decodes text
 *   <li>{@link ToolCall} - a call of a tool
 *   <li>{@link ToolCallStream} - finds calls of tools in an answer as it is generated
 *   <li>{@link ToolFormat} - how a model writes calls of tools
 * </ul>
 */
package org.djlx.llm.text;
