// SPDX-License-Identifier: Apache-2.0
/**
 * Fine-tuning: a model directory in Hugging Face's layout as a trainable DJL block, whole or by
 * low-rank adapters.
 *
 * <ul>
 *   <li>{@link ChatDataset} - chats in JSONL as a DJL dataset
 *   <li>{@link TrainableModel} - the block, its loss, its files
 * </ul>
 */
package org.djlx.llm.tune;
