/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Tensor-parallel inference of Llama: a model directory in Hugging Face's layout, and text that is
 * generated for many requests at a time. A plus marks what users name.
 *
 * <pre>
 * + LlamaLoader          loads a model directory for DJL and DJL Serving
 * + LlamaGenerator       a model on several ranks, from its directory
 * + TextGenerator        what takes requests
 * + GenerationRequest    one of them
 * + Generation           what becomes of it
 * + GeneratedPiece       one token of that, with its text
 * + FinishReason         why it has ended
 * + GeneratorStatistics  what a generator does
 * + TextTokenizer        turns text into tokens and back
 * + LlamaConfig          the sizes of a model
 * + LoadingProgress      says how loading goes
 *   GeneratorSettings    what a generator was built with
 *   LlamaService         serves DJL's requests by a generator
 *   Scheduler            which requests run, and what the model reads of them
 *   Sequence             a request that is being served
 *   PieceQueue           what its caller sees
 *   Scores               the scores of the next tokens of several sequences
 *   ScoreReader          chooses those tokens
 *   TokenChooser         those of one
 *   Draw                 how ranks do that by themselves
 *   TextStream           turns tokens into text as they come
 *   HuggingFaceTokens    the tokenizer of a model directory
 *   LlamaRanks           the ranks of a generator, and how a model is loaded onto them
 *   LlamaStep            what all ranks do at a time, and how it gets to other processes
 *   LlamaRank            what one of them has, and the step that it has begun
 *   LlamaModel           one rank's part of a model, and its forward pass
 *   LlamaBatch           what that computes: tokens of several sequences
 *   LlamaWeights         a rank's weights, and how they are read
 *   LlamaGpu             the kernels of a rank's GPU
 *   Attention            a rank's heads, and rotary positions
 *   Decoder              computes a token of each sequence by a CUDA graph
 *   KvCache              a rank's keys and values
 *   CacheBlocks          gives out its rows
 * </pre>
 */
package org.djlx.fusedops.llama;
