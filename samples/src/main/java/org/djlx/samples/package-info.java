/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Runnable applications: {@link org.djlx.samples.Main}, the command line, and what its commands
 * share. Each command, or family of commands, has a package of its own.
 */
package org.djlx.samples;
