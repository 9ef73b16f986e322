// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * ControlTokens  keeps clients' texts from becoming control tokens, such as <|im_end|>
 * LongestToken   a lower limit of the number of tokens of a text, from tokenizer.json
 * TokenBytes     reads the bytes of tokens from tokenizer.json
 */
/**
 * Text in, tokens out, and back: tokenizers, chat templates and streaming detokenization.
 *
 * <ul>
 *   <li>{@link org.djlx.llm.text.ChatTemplate} - encodes a chat as a prompt, by the model's Jinja
 *       template
 *   <li>{@link org.djlx.llm.text.ContextLengthException} - a prompt is too long
 *   <li>{@link org.djlx.llm.text.ModelTokenizer} - the tokenizer of a model directory
 *   <li>{@link org.djlx.llm.text.TextStream} - detokenizes one sequence as its tokens come, and
 *       finds stop strings
 *   <li>{@link org.djlx.llm.text.TextTokenizer} - encodes and decodes text
 *   <li>{@link org.djlx.llm.text.ToolCallStream} - finds calls of tools in an answer as it is
 *       generated
 *   <li>{@link org.djlx.llm.text.ToolFormat} - how a model writes calls of tools
 * </ul>
 */
package org.djlx.llm.text;
