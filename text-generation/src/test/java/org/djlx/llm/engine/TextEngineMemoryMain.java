// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import com.sun.jna.NativeLibrary;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Loads models, one after the other, and prints by how many bytes this process's memory grew at
 * most, for {@link TextEngineMemoryTest}. The arguments are their directories.
 */
public final class TextEngineMemoryMain {

    private TextEngineMemoryMain() {}

    /** Loads the models. */
    public static void main(String[] args) throws IOException {
        for (String directory : args) {
            // What the C library keeps of what was freed would be taken for nothing.
            NativeLibrary.getInstance("c").getFunction("malloc_trim").invokeInt(new Object[] {0L});
            Files.writeString(Path.of("/proc/self/clear_refs"), "5"); // VmHWM begins anew.
            long before = status("VmRSS");
            TextEngineMemoryTest.load(Path.of(directory)).close();
            System.out.println("peak " + (status("VmHWM") - before));
        }
    }

    /** Returns what the system says of this process's memory, in bytes. */
    private static long status(String name) throws IOException {
        String line =
                Files.readAllLines(Path.of("/proc/self/status")).stream()
                        .filter(each -> each.startsWith(name + ":"))
                        .findFirst()
                        .orElseThrow();
        return Long.parseLong(line.replaceAll("[^0-9]", "")) << 10;
    }
}
