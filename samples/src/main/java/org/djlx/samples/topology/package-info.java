/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/** How the GPUs of a host are linked. */
package org.djlx.samples.topology;
