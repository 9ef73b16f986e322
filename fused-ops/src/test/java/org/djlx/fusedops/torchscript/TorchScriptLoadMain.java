// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.torchscript;

import ai.djl.Device;
import java.nio.file.Path;
import java.util.Map;

/** Loads a model in TorchScript, whose directory is given, in a process that a test starts. */
final class TorchScriptLoadMain {

    private TorchScriptLoadMain() {}

    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]);
        new TorchScriptLoader().load("mlp", directory, Device.cpu(), Map.of()).close();
    }
}
