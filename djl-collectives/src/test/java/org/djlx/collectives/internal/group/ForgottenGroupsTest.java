// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.regex.Pattern;
import org.djlx.collectives.RankProcesses;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Groups that are never destroyed. */
@Tag("slow")
class ForgottenGroupsTest {

    @Test
    @Timeout(500)
    void forgottenGroupsAreFreedAndLoggedOnce() throws InterruptedException {
        try (RankProcesses jvm = new RankProcesses(1, ForgottenGroupsMain.class)) {
            jvm.awaitSuccess();
            String output = jvm.output(0);
            for (int number = 0; number < 100; number++) {
                Pattern told = Pattern.compile("group 'local" + number + "' .*was never destroyed");
                assertEquals(1, told.matcher(output).results().count(), output);
            }
        }
    }
}
