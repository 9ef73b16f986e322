// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * FinetuneJob - one rank of the training
 */
/**
 * Fine-tunes a model on chats.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.finetune.FinetuneCommand} - {@code finetune}
 * </ul>
 */
package org.djlx.samples.finetune;
