// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * StagedCopy  copies rows to a GPU through pinned memory
 * StrictJson  JSON whose keys are unique and whose numbers are whole
 */
/**
 * Files of tensors in Hugging Face's <a
 * href="https://github.com/huggingface/safetensors">safetensors format</a>: weights, of which each
 * rank reads its part, and checkpoints. Start with {@link Safetensors}.
 *
 * <ul>
 *   <li>{@link Safetensors} - reads tensors from one file, or from all files of a model
 *   <li>{@link SafetensorsHeader} - the checked header of a file
 *   <li>{@link SafetensorsWriter} - writes a file
 *   <li>{@link TensorFiles} - open files of tensors, in this format or another
 *   <li>{@link TensorSpec} - the name, element type and shape of a stored tensor
 * </ul>
 */
package org.djlx.collectives.safetensors;
