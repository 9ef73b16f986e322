// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.djl;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.BytesSupplier;
import java.io.File;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.ParallelModel;
import org.djlx.collectives.engine.ParallelModelLoader;
import org.djlx.fusedops.torchscript.TorchScriptLoader;
import org.djlx.nativeops.NativeLibrary;

/**
 * Loads and asks models in a process whose own class path has nothing of this project or DJL: a
 * class loader of its own sees them, as for DJL Serving's {@code deps/}. The context class loader
 * is the platform's.
 */
final class ContextLoaderMain {

    private ContextLoaderMain() {}

    /** Runs the body in the class path, a language model and a model in TorchScript given. */
    public static void main(String[] arguments) throws Exception {
        List<URL> urls = new ArrayList<>();
        for (String element : arguments[0].split(File.pathSeparator)) {
            urls.add(Path.of(element).toUri().toURL());
        }
        ClassLoader platform = ClassLoader.getPlatformClassLoader();
        Thread.currentThread().setContextClassLoader(platform);
        try (URLClassLoader loader = new URLClassLoader(urls.toArray(new URL[0]), platform)) {
            Class<?> body = Class.forName(Body.class.getName(), true, loader);
            Method run = body.getMethod("run", Path.class, Path.class);
            run.setAccessible(true);
            run.invoke(null, Path.of(arguments[1]), Path.of(arguments[2]));
            if (Thread.currentThread().getContextClassLoader() != platform) {
                throw new AssertionError("the context class loader has changed");
            }
        }
    }

    /** What needs the project's classes. */
    static final class Body {

        private Body() {}

        /** Loads the models, asks each of them, and runs a group. */
        public static void run(Path text, Path torchScript) throws Exception {
            ask(
                    text,
                    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 3,"
                            + " \"response_format\": {\"type\": \"json_object\"}}");
            ask(torchScript, "[[1, 2, 3, 4, 5, 6, 7, 8]]");
            List<ProcessGroup> groups = ProcessGroups.local(2);
            ProcessGroups.run(
                    groups,
                    group -> {
                        group.barrier().await();
                        return null;
                    });
            groups.forEach(ProcessGroup::destroy);
        }

        private static void ask(Path directory, String json) throws Exception {
            // DJL's first class that is used looks up the engines, once for the process.
            NativeLibrary.LIBTORCH.ensureAvailability();
            Input input = new Input();
            input.addProperty("Content-Type", "application/json");
            input.add(BytesSupplier.wrap(json));
            try (Model model = Model.newInstance("m", "PyTorch-P2P")) {
                model.load(directory);
                try (Predictor<Input, Output> predictor = model.newPredictor(null)) {
                    check(predictor.predict(input));
                }
            }
            // Without the predictor, which sets the context class loader.
            for (ParallelModelLoader loader :
                    List.of(new TextModelLoader(), new TorchScriptLoader())) {
                if (loader.canLoad(directory)) {
                    Device cpu = Device.cpu();
                    try (ParallelModel model = loader.load("m", directory, cpu, Map.of())) {
                        check(model.predict(input));
                    }
                }
            }
        }

        private static void check(Output output) {
            System.out.println(output.getData().getAsString());
            if (output.getCode() != 200) {
                throw new AssertionError(output.getMessage());
            }
        }
    }
}
