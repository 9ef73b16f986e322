/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Files of tensors in Hugging Face's <a
 * href="https://github.com/huggingface/safetensors">safetensors format</a>: weights, of which each
 * rank reads its part, and checkpoints. A plus marks what users name.
 *
 * <pre>
 * + Safetensors         reads one file, or a model's several ones
 * + SafetensorsWriter   writes them
 * + SafetensorsHeader   the description at the start of a file, checked
 * + TensorSpec          the name, element type and shape of a stored tensor
 *   StagedCopy          copies rows to a GPU through pinned memory
 *   StrictJson          JSON whose keys are unique and whose numbers are whole
 * </pre>
 */
package org.djlx.collectives.safetensors;
