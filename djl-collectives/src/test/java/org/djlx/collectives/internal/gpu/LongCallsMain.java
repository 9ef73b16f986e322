// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import com.sun.jna.Function;
import java.util.concurrent.CountDownLatch;
import org.djlx.nativeops.host.LongCalls;

/**
 * Exits while a thread is in a library: for some time or, with the argument {@code never}, forever.
 * Unloading the libraries kills the process in this program.
 */
final class LongCallsMain {

    static final int STATUS = 9; // also the number of SIGKILL

    private LongCallsMain() {}

    public static void main(String[] args) {
        Function.getFunction("c", "on_exit")
                .invokeInt(new Object[] {Function.getFunction("c", "raise"), null});
        CountDownLatch never = new CountDownLatch(args[0].equals("never") ? 1 : 0);
        LongCalls.start(
                "something that takes its time",
                () -> {
                    try {
                        Thread.sleep(600);
                        never.await();
                    } catch (InterruptedException e) {
                        throw new AssertionError(e);
                    }
                    System.out.println("done");
                });
        System.exit(STATUS);
    }
}
