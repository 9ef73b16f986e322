// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.util.ArrayList;
import java.util.List;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.Logger;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.Property;

/** Captures the log of a class while open. */
public final class TestLog implements AutoCloseable {

    private final Logger logger;
    private final List<String> messages = new ArrayList<>(); // guarded by itself
    private final AbstractAppender appender =
            new AbstractAppender("test", null, null, false, Property.EMPTY_ARRAY) {
                @Override
                public void append(LogEvent event) {
                    synchronized (messages) {
                        messages.add(event.getMessage().getFormattedMessage());
                        messages.notifyAll();
                    }
                }
            };

    /** Begins to listen. */
    public TestLog(Class<?> type) {
        this(type.getName());
    }

    /** Begins to listen to a class of another package. */
    public TestLog(String type) {
        logger = (Logger) LogManager.getLogger(type);
        appender.start();
        logger.addAppender(appender);
    }

    /** Waits for a message with a text; the test's own timeout is the limit. */
    public String await(String text) throws InterruptedException {
        synchronized (messages) {
            while (count(text) == 0) {
                messages.wait();
            }
            return messages.stream().filter(message -> message.contains(text)).findFirst().get();
        }
    }

    /** How many messages had a text so far. */
    public long count(String text) {
        synchronized (messages) {
            return messages.stream().filter(message -> message.contains(text)).count();
        }
    }

    @Override
    public void close() {
        logger.removeAppender(appender);
        appender.stop();
    }
}
