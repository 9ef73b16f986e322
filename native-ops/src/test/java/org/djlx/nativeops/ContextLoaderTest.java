// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ContextLoaderTest {

    private static final ClassLoader OWN = ContextLoader.class.getClassLoader();
    private final ClassLoader before = Thread.currentThread().getContextClassLoader();

    @AfterEach
    void restore() {
        Thread.currentThread().setContextClassLoader(before);
    }

    private static ClassLoader during() {
        return ContextLoader.of(
                ContextLoader.class, () -> Thread.currentThread().getContextClassLoader());
    }

    private static void setContext(ClassLoader loader) {
        Thread.currentThread().setContextClassLoader(loader);
    }

    @Test
    void replacesLoadersThatDoNotSeeTheClass() throws IOException {
        URL classes = ContextLoader.class.getProtectionDomain().getCodeSource().getLocation();
        ClassLoader platform = ClassLoader.getPlatformClassLoader();
        try (URLClassLoader copy = new URLClassLoader(new URL[] {classes}, platform)) {
            for (ClassLoader context : new ClassLoader[] {platform, null, copy}) {
                setContext(context);
                assertSame(OWN, during());
                assertThrows(IOException.class, ContextLoaderTest::fail);
                assertSame(context, Thread.currentThread().getContextClassLoader());
            }
        }
    }

    private static void fail() throws IOException {
        ContextLoader.of(
                ContextLoader.class,
                () -> {
                    throw new IOException("as the call does");
                });
    }

    @Test
    void keepsALoaderThatSeesTheClass() throws IOException {
        try (URLClassLoader child = new URLClassLoader(new URL[0], OWN)) {
            setContext(child);
            assertSame(child, during());
        }
    }

    /** Providers of a program, in a loader below that of this library, are found beside its own. */
    @Test
    void findsProvidersOfBothLoadersOnce(@TempDir Path folder) throws IOException {
        Path services = Files.createDirectories(folder.resolve("META-INF/services"));
        String name = Runnable.class.getName(); // its loader sees no providers
        Files.writeString(services.resolve(name), Provider.class.getName() + "\n");
        URL url = folder.toUri().toURL();
        try (URLClassLoader first = new URLClassLoader(new URL[] {url}, OWN);
                URLClassLoader second = new URLClassLoader(new URL[] {url}, first)) {
            for (ClassLoader context : List.of(first, second)) {
                setContext(context);
                List<Runnable> found = ContextLoader.providers(Runnable.class);
                assertEquals(1, found.size());
                assertSame(Provider.class, found.get(0).getClass());
            }
            setContext(ClassLoader.getPlatformClassLoader());
            assertEquals(List.of(), ContextLoader.providers(Runnable.class));
        }
    }

    /** A provider. */
    public static final class Provider implements Runnable {

        @Override
        public void run() {}
    }
}
