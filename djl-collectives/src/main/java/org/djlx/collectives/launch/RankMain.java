// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;

/** The entry point of a process started by {@link Launcher}. */
final class RankMain {

    private RankMain() {}

    /**
     * Runs the main method of the class that the first argument names, with the other arguments. An
     * exception ends the process with code 1 immediately, even if other threads still run.
     */
    public static void main(String[] args) throws ReflectiveOperationException {
        String[] mainArgs = Arrays.copyOfRange(args, 1, args.length);
        try {
            Method main = Class.forName(args[0]).getMethod("main", String[].class);
            // The class need not be public, as with the command java.
            main.setAccessible(true);
            main.invoke(null, (Object) mainArgs);
        } catch (InvocationTargetException e) {
            e.getCause().printStackTrace();
            System.exit(1);
        }
    }
}
