// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import org.djlx.nativeops.torch.NoGradient;

/** A program whose first call of DJL is one of a gradient scope, or of {@link NoGradient}. */
final class FirstCall {

    private FirstCall() {}

    public static void main(String[] args) {
        if (args[0].equals("scope")) {
            GradientScope.open().close();
        } else {
            NoGradient.run(() -> {});
        }
    }
}
