/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Loads a model in TorchScript that is divided among ranks for DJL, and so for DJL Serving: a
 * directory with {@code model_rank0.pt}, {@code model_rank1.pt} and so on, each of which calls the
 * {@link TorchOperators}.
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
 * <p>Each file is loaded on its rank's device, whatever device it was saved from. A request's
 * arrays are copied to all ranks, all run the model, and the output of rank 0 is the answer: of an
 * {@code NDList} its arrays, on rank 0's device, in the manager of the first input; of an {@link
 * ai.djl.modality.Input} with bytes what DJL's own translator for such makes of them, which reads
 * and writes {@code tensor/ndlist} and {@code tensor/npz}, and reads arrays of numbers in JSON.
 * Requests are served one after the other; predictors may be used by several threads.
 *
 * <p>A request that all ranks refuse alike, as one whose shapes do not fit, gets an error, and the
 * next is served. If ranks fail that others wait for, the model is lost, and says why.
 *
 * <p>One option, which need not be given: {@code tensor_parallel_degree}, the number of ranks,
 * which must be that of the files. The ranks are threads: in a process that a launcher has started
 * as one of several, as {@code RANK} and {@code WORLD_SIZE} tell, loading throws an {@link
 * IllegalArgumentException}. On GPUs the ranks are on those that the model is loaded on; with one
 * GPU, on those that follow it too. The backend is {@code cuda_p2p} there, {@code shm} on the CPU.
 */
public final class TorchScriptLoader implements ParallelModelLoader {

    private static final Logger LOG = LoggerFactory.getLogger(TorchScriptLoader.class);
    private static final String DEGREE = "tensor_parallel_degree";
    private static final Pattern FILE = Pattern.compile("model_rank(\\d{1,6})\\.pt");

    /** Creates the loader; for {@link java.util.ServiceLoader}. */
    public TorchScriptLoader() {}

    /** The name of a rank's model; its file's has {@code .pt} behind. */
    static String modelName(int rank) {
        return "model_rank" + rank;
    }

    @Override
    public boolean canLoad(Path directory) {
        try (Stream<Path> files = Files.list(directory)) {
            // Which of them are missing is told when the model is loaded.
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
                LOG.warn("{}: the option {} is not known, and does nothing", name, option);
            }
        }
        checkIsOnlyProcess();
        int ranks = ranks(directory);
        Object degree = options.get(DEGREE);
        if (degree != null && !degree.toString().trim().equals(Integer.toString(ranks))) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s is %s, but in %s the number of files is %d",
                            DEGREE, degree, directory, ranks));
        }
        List<Device> devices = devices(device.getDevices(), ranks);
        TorchOperators.register();
        return new TorchScriptService(name, groups(devices), directory);
    }

    /** Refuses to be a rank of several processes, each of which would load all ranks. */
    private static void checkIsOnlyProcess() {
        String worldSize = System.getenv("WORLD_SIZE");
        if (System.getenv("RANK") != null && worldSize != null && !worldSize.trim().equals("1")) {
            throw new IllegalArgumentException(
                    String.format(
                            "the ranks of a model in TorchScript are threads of one process, but"
                                    + " WORLD_SIZE is %s, as a launcher sets it: start one process"
                                    + " without a launcher, or take RANK and WORLD_SIZE out of its"
                                    + " environment",
                            worldSize));
        }
    }

    /** Counts the files, of which none may be missing. */
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
                                "%s.pt is missing in %s, where there is %s.pt",
                                modelName(rank), directory, modelName(found.last())));
            }
        }
        return found.size();
    }

    /** Returns each rank's device. */
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
                            "the number of files is %d, but the model is loaded on %s",
                            ranks, given));
        }
        return given;
    }

    private static List<ProcessGroup> groups(List<Device> devices) {
        if (!devices.get(0).isGpu()) {
            return ProcessGroups.local(devices.size());
        }
        Device[] each = devices.toArray(new Device[0]);
        NcclOptions nccl = NcclOptions.builder().optDevices(each).build();
        CudaP2pOptions options = CudaP2pOptions.builder().optNcclOptions(nccl).build();
        return ProcessGroups.local("cuda_p2p", each.length, options);
    }
}
