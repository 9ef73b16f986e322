/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llama.schema;

import org.djlx.fusedops.llama.GenerationRequest;

/**
 * A request to generate text.
 *
 * @param request what to generate
 * @param format how the answer is worded
 */
public record TextCall(GenerationRequest request, AnswerFormat format) {}
