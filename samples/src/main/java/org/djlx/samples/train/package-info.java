// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * TrainJob - one rank of a training
 * LicenceTexts - the default text
 */
/**
 * Trains a language model on the bytes of a text with DJL on several ranks.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.train.TrainCommand} - {@code train}
 * </ul>
 */
package org.djlx.samples.train;
