// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.training.listener.LoggingTrainingListener;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.config.Configuration;
import org.apache.logging.log4j.core.config.ConfigurationSource;
import org.apache.logging.log4j.core.config.xml.XmlConfiguration;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The log configurations that users get: of the commands, and to copy. */
class LogConfigurationsTest {

    @ParameterizedTest
    @ValueSource(
            strings = {
                "djl-collectives/src/main/resources/org/djlx/collectives/launch/cli/log4j2.xml",
                "samples/quickstart-project/src/main/resources/log4j2.xml"
            })
    void showsTheTrainersStartAndEpochsAndOtherwiseWarnings(String file) throws Exception {
        try (LoggerContext context = new LoggerContext("test");
                var stream = Files.newInputStream(Path.of("..", file))) {
            Configuration configuration =
                    new XmlConfiguration(context, new ConfigurationSource(stream));
            configuration.initialize();
            assertEquals(Level.INFO, level(configuration, DataParallelTrainer.class.getName()));
            String epochs = LoggingTrainingListener.class.getName();
            assertEquals(Level.INFO, level(configuration, epochs));
            assertEquals(Level.WARN, level(configuration, "com.example"));
        }
    }

    private static Level level(Configuration configuration, String logger) {
        return configuration.getLoggerConfig(logger).getLevel();
    }
}
