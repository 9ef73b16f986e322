// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import io.netty.handler.codec.http.FullHttpResponse;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Method;
import java.net.URL;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Replies of the server, and its options. */
class RepliesTest {

    /** Loads the server's classes anew, with one resource hidden. */
    private static final class Without extends ClassLoader {

        private final String hidden;

        Without(String hidden) {
            super(RepliesTest.class.getClassLoader());
            this.hidden = hidden;
        }

        @Override
        public URL getResource(String name) {
            return name.contains(hidden) ? null : super.getResource(name);
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("org.djlx.llm.server.") || findLoadedClass(name) != null) {
                return super.loadClass(name, resolve);
            }
            String file = name.replace('.', '/') + ".class";
            try (InputStream in = getParent().getResourceAsStream(file)) {
                byte[] bytes = in.readAllBytes();
                return defineClass(name, bytes, 0, bytes.length);
            } catch (IOException e) {
                throw new ClassNotFoundException(name, e);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "chat.html, 500, 200",
        "purify, 500, 200",
        "libraries.txt, 500, 200",
        "version.txt, 200, 500",
        "-none-, 200, 200"
    })
    void missingResourceFailsItsReplyOnly(String hidden, int page, int version) throws Exception {
        Class<?> replies = new Without(hidden).loadClass("org.djlx.llm.server.Replies");
        for (int i = 0; i < 2; i++) {
            assertEquals(page, status(replies, "page"));
            assertEquals(version, status(replies, "version"));
        }
    }

    private static int status(Class<?> replies, String name) throws Exception {
        Method method = replies.getDeclaredMethod(name);
        method.setAccessible(true);
        FullHttpResponse reply = (FullHttpResponse) method.invoke(null);
        return reply.status().code();
    }

    @Test
    void optionsDoNotPrintTheToken() {
        Duration time = Duration.ofSeconds(1);
        ServerOptions options =
                new ServerOptions(
                        "localhost", 0, "correct-horse", List.of(), 1, 1, 1, time, time, time);
        assertFalse(options.toString().contains("horse"), options.toString());
    }
}
