// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import org.djlx.nativeops.torch.NoGradient;

/** Opens a gradient scope, or runs {@link NoGradient}, before any other call of DJL. */
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
