/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.gpu;

/** Ends while something is being freed. */
final class DisposalMain {

    private DisposalMain() {}

    public static void main(String[] args) {
        Disposal.run(
                "something that takes its time",
                () -> {
                    try {
                        Thread.sleep(600);
                    } catch (InterruptedException e) {
                        throw new AssertionError(e);
                    }
                    System.out.println("freed");
                });
    }
}
