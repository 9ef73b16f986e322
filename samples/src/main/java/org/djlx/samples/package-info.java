/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Runnable applications: a command line with subcommands, and a launcher for jobs of many ranks.
 */
package org.djlx.samples;
