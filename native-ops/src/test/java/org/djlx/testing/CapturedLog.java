// SPDX-License-Identifier: Apache-2.0
package org.djlx.testing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.Logger;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.Property;
import org.apache.logging.log4j.core.layout.PatternLayout;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.opentest4j.TestAbortedException;

/**
 * Keeps the log of the test JVM off the console, and prints the log of a test only if the test
 * fails. Tests provoke many warnings and errors on purpose.
 *
 * <p>JUnit finds the extension through {@code META-INF/services} if {@code
 * junit.jupiter.extensions.autodetection.enabled} is true, which the build sets. The system
 * property {@code test.log} names a file that receives the whole log, for JVMs that crash or hang.
 *
 * <p>JVMs that tests start are not affected: tests read their output, and show it on failure.
 */
public final class CapturedLog implements AfterEachCallback, AfterAllCallback {

    private static final int MAX_EVENTS = 400;
    private static final Buffer BUFFER = new Buffer();

    static {
        Logger root = (Logger) LogManager.getRootLogger();
        List.copyOf(root.getAppenders().values()).forEach(root::removeAppender);
        root.addAppender(BUFFER);
    }

    /** The last events since the last test ended. */
    private static final class Buffer extends AbstractAppender {

        private final Deque<String> events = new ArrayDeque<>();
        private final Writer file = openFile();

        @SuppressWarnings("deprecation") // setPattern is new in log4j 2.26.
        Buffer() {
            super(
                    "captured",
                    null,
                    PatternLayout.newBuilder()
                            .withPattern("%d{HH:mm:ss.SSS} %-5level [%t] %logger{1}: %msg%n")
                            .build(),
                    false,
                    Property.EMPTY_ARRAY);
            start();
        }

        private static Writer openFile() {
            String name = System.getProperty("test.log");
            if (name == null) {
                return Writer.nullWriter();
            }
            try {
                Path path = Path.of(name);
                Files.createDirectories(path.toAbsolutePath().getParent());
                return Files.newBufferedWriter(path);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        @Override
        public synchronized void append(LogEvent event) {
            String text = getLayout().toSerializable(event).toString();
            if (events.size() == MAX_EVENTS) {
                events.removeFirst();
            }
            events.addLast(text);
            try {
                file.write(text);
                file.flush();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        synchronized String take() {
            String log = String.join("", events);
            events.clear();
            return log;
        }
    }

    @Override
    public void afterEach(ExtensionContext context) {
        end(context);
    }

    /** For failures outside of tests, as in {@code BeforeAll}. */
    @Override
    public void afterAll(ExtensionContext context) {
        end(context);
    }

    private static void end(ExtensionContext context) {
        String log = BUFFER.take();
        boolean failed =
                context.getExecutionException()
                        .filter(thrown -> !(thrown instanceof TestAbortedException))
                        .isPresent();
        if (failed && !log.isEmpty()) {
            System.err.println("Log of " + context.getDisplayName() + ":\n" + log);
        }
    }
}
