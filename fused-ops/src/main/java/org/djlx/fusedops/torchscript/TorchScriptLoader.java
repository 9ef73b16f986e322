// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.torchscript;

import ai.djl.Device;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.ParallelModel;
import org.djlx.collectives.engine.ParallelModelLoader;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.launch.TorchThreads;
import org.djlx.nativeops.torch.InstalledTorch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Loads a TorchScript model that is divided among ranks, for DJL and DJL Serving. The model is a
 * directory with {@code model_rank0.pt}, {@code model_rank1.pt} and so on, which call the {@link
 * TorchOperators}.
 *
 * <pre>{@code
 * Criteria<NDList, NDList> criteria =
 *         Criteria.builder()
 *                 .setTypes(NDList.class, NDList.class)
 *                 .optEngine("PyTorch-P2P")
 *                 .optModelPath(directory)
 *                 .build();
 * try (ZooModel<NDList, NDList> model = criteria.loadModel();
 *         Predictor<NDList, NDList> predictor = model.newPredictor();
 *         NDManager manager = NDManager.newBaseManager()) {
 *     NDList output = predictor.predict(new NDList(manager.create(values)));
 * }
 * }</pre>
 *
 * <p><b>Requests.</b>
 *
 * <ul>
 *   <li>Each file is loaded on its rank's device, regardless of the device that saved it.
 *   <li>The arrays of a request are copied to all ranks, and all ranks run the model. The output of
 *       rank 0 is the response.
 *   <li>For an {@code NDList}, the response is on rank 0's device and in the manager of the first
 *       input.
 *   <li>For an {@link ai.djl.modality.Input} with bytes, requests are {@code tensor/ndlist}, {@code
 *       tensor/npz} or JSON arrays of numbers, and DJL's own translator writes the responses.
 *   <li>Requests run one at a time. Several threads may use predictors.
 *   <li>If all ranks reject a request, for example because of its shapes, the request gets an error
 *       and the model stays usable. If some ranks fail while peers wait for them, the model fails
 *       permanently, and later errors say why.
 * </ul>
 *
 * <p><b>Ranks.</b>
 *
 * <ul>
 *   <li>There is one rank for each file. If the option {@code tensor_parallel_degree} is set, it
 *       must equal this number.
 *   <li>The ranks are threads. If {@code RANK} and {@code WORLD_SIZE} say that a launcher started
 *       several processes, loading throws an {@link IllegalArgumentException}.
 *   <li>The ranks use the GPUs that the model is loaded on. If the model is loaded on one GPU, they
 *       use this GPU and the GPUs with the next ids.
 *   <li>The backend is {@code cuda_p2p} on GPUs, {@code shm} on the CPU.
 *   <li>On an {@linkplain InstalledTorch installed PyTorch} loading throws an {@link
 *       IllegalStateException}.
 * </ul>
 */
public final class TorchScriptLoader implements ParallelModelLoader {

    private static final Logger LOG = LoggerFactory.getLogger(TorchScriptLoader.class);
    private static final String DEGREE = "tensor_parallel_degree";
    private static final Pattern FILE = Pattern.compile("model_rank(\\d{1,6})\\.pt");

    /** Creates the loader; for {@link java.util.ServiceLoader}. */
    public TorchScriptLoader() {}

    /** Returns the name of a rank's model: its file name without {@code .pt}. */
    static String modelName(int rank) {
        return "model_rank" + rank;
    }

    @Override
    public boolean canLoad(Path directory) {
        try (Stream<Path> files = Files.list(directory)) {
            // load() reports missing files.
            return files.anyMatch(file -> FILE.matcher(file.getFileName().toString()).matches());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public ParallelModel load(String name, Path directory, Device device, Map<String, ?> options)
            throws IOException {
        for (String option : new TreeSet<>(options.keySet())) {
            if (!option.equals(DEGREE) && !option.equals("modelName")) {
                LOG.warn("{}: ignoring the unknown option {}; known is " + DEGREE, name, option);
            }
        }
        checkIsOnlyProcess();
        checkLibtorch(InstalledTorch.isUsed());
        int ranks = ranks(directory);
        Object degree = options.get(DEGREE);
        if (degree != null && !degree.toString().trim().equals(Integer.toString(ranks))) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s is %s, but %s has %d files: they must be equal",
                            DEGREE, degree, directory, ranks));
        }
        List<Device> devices = devices(device.getDevices(), ranks);
        TorchOperators.register();
        return new TorchScriptService(name, groups(devices), directory);
    }

    /** Throws if a launcher started several processes: each would load all ranks. */
    private static void checkIsOnlyProcess() {
        if (LaunchEnvironment.current().isDistributed()) {
            throw new IllegalArgumentException(
                    String.format(
                            "the ranks of a TorchScript model are threads of one process, but"
                                    + " a launcher says %s: start one process without a launcher,"
                                    + " or unset its variables",
                            LaunchEnvironment.current()));
        }
    }

    /** Throws on an installed PyTorch, where DJL's native code would crash the process. */
    static void checkLibtorch(boolean installed) {
        if (installed) {
            throw new IllegalStateException(
                    "models in TorchScript do not run on an installed PyTorch, because DJL's native"
                            + " code is made for another version: unset PYTORCH_LIBRARY_PATH and"
                            + " PYTORCH_VERSION, and put DJL's pytorch-native on the class path");
        }
    }

    /** Counts the files. Throws if one is missing. */
    private static int ranks(Path directory) throws IOException {
        TreeSet<Integer> found = new TreeSet<>();
        try (Stream<Path> files = Files.list(directory)) {
            files.forEach(
                    file -> {
                        Matcher matcher = FILE.matcher(file.getFileName().toString());
                        if (matcher.matches()) {
                            found.add(Integer.parseInt(matcher.group(1)));
                        }
                    });
        }
        for (int rank = 0; rank <= found.last(); rank++) {
            if (!found.contains(rank)) {
                throw new IllegalArgumentException(
                        String.format(
                                "%s.pt is missing in %s, which has %s.pt: add the file",
                                modelName(rank), directory, modelName(found.last())));
            }
        }
        return found.size();
    }

    static List<Device> devices(List<Device> given, int ranks) {
        Device first = given.get(0);
        if (given.size() == 1) {
            return IntStream.range(0, ranks)
                    .mapToObj(i -> first.isGpu() ? Device.gpu(first.getDeviceId() + i) : first)
                    .toList();
        }
        if (given.size() != ranks) {
            throw new IllegalArgumentException(
                    String.format(
                            "the model has %d files, but is loaded on %d devices, %s: pass one"
                                    + " device, or one for each file",
                            ranks, given.size(), given));
        }
        return given;
    }

    private static List<ProcessGroup> groups(List<Device> devices) {
        if (!devices.get(0).isGpu()) {
            TorchThreads.choose(devices.size());
            return ProcessGroups.local(devices.size());
        }
        Device[] each = devices.toArray(new Device[0]);
        NcclOptions nccl = NcclOptions.builder().optDevices(each).build();
        CudaP2pOptions options = CudaP2pOptions.builder().optNcclOptions(nccl).build();
        return ProcessGroups.local("cuda_p2p", each.length, options);
    }
}
