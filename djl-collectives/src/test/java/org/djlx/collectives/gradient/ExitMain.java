// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.concurrent.CountDownLatch;

/** A program that exits, as SIGTERM makes it, while a backward pass of some seconds runs. */
public final class ExitMain {

    private ExitMain() {}

    /** Exits with code 7. */
    public static void main(String[] args) {
        CountDownLatch begun = new CountDownLatch(1);
        Thread exit =
                new Thread(
                        () -> {
                            try {
                                begun.await();
                                Thread.sleep(200); // The pass is in libtorch.
                            } catch (InterruptedException e) {
                                throw new IllegalStateException(e);
                            }
                            System.exit(7);
                        });
        exit.setDaemon(true);
        exit.start();
        try (NDManager manager = NDManager.newBaseManager("PyTorch-P2P");
                GradientScope scope = GradientScope.open()) {
            NDArray w = manager.randomNormal(new Shape(4, 4));
            w.setRequiresGradient(true);
            NDArray x = manager.ones(new Shape(4, 4));
            for (int i = 0; i < 100_000; i++) {
                NDArray next = x.matMul(w).tanh();
                x.close(); // The graph keeps what it needs.
                x = next;
            }
            NDArray loss = x.sum();
            begun.countDown();
            scope.backward(loss);
        }
    }
}
