/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * The main job: a tensor-parallel MLP, computed or trained, compared with the same without
 * sharding.
 *
 * <pre>
 *   MlpCommand   the command
 *   MlpJob       one rank of a tensor-parallel MLP on a text
 *   MlpTraining  its training
 * </pre>
 */
package org.djlx.samples.mlp;
