/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/** Runs a program as a job of several processes on one host or several, as torchrun does. */
package org.djlx.samples.launch;
