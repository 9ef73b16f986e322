// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.SymbolBlock;
import ai.djl.training.GradientCollector;
import org.djlx.collectives.TorchThreads;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.train.DataParallelConfig;
import org.djlx.collectives.train.DataParallelTrainer;
import org.djlx.collectives.train.DistributedSampler;
import org.djlx.collectives.train.DividedBlock;
import org.djlx.collectives.train.GradientReduction;
import org.djlx.nativeops.NativeLibrary;

/**
 * The engine {@code PyTorch-P2P}: DJL's PyTorch engine with models that are trained, or loaded, on
 * several ranks. A program only names the engine:
 *
 * <pre>{@code
 * try (Model model = Model.newInstance("mlp", "PyTorch-P2P")) {
 *     model.setBlock(block);
 *     try (Trainer trainer = model.newTrainer(config)) {
 *         trainer.initialize(shape);
 *         EasyTrain.fit(trainer, epochs, dataset, null);
 *     }
 * }
 * }</pre>
 *
 * <p>{@code Criteria.optEngine("PyTorch-P2P")} and {@code -Dai.djl.default_engine=PyTorch-P2P} name
 * it too. It becomes the default engine only if a program names it. Arrays are arrays of the engine
 * {@code PyTorch}, and their managers return that name.
 *
 * <h2>Ranks</h2>
 *
 * <ul>
 *   <li><b>GPUs of this JVM</b>: one rank per device of the {@code TrainingConfig}, by default all
 *       GPUs.
 *   <li><b>CPU ranks of this JVM</b>: DJL knows one CPU device, so the system property {@code
 *       org.djlx.ranks} or {@link DataParallelConfig#optRanks} sets their number; the default is 1.
 *       {@link TorchThreads} gives each rank its share of the cores.
 *   <li><b>Processes</b>: one rank each, if {@code RANK} and {@code WORLD_SIZE} are set, as {@code
 *       samples/run.sh launch} and torchrun do. On GPUs each process uses the GPU that {@code
 *       LOCAL_RANK} names.
 * </ul>
 *
 * <h2>Several ranks in one JVM</h2>
 *
 * <p>The ranks share each batch and its loss. Each rank has a thread and a copy of the parameters.
 * CPU ranks of a float32 model of up to 2 MiB have no copies: all use the block's own arrays.
 *
 * <ul>
 *   <li>{@code trainer.forward} divides the batch along its first dimension and concatenates the
 *       ranks' predictions on the first device, along the dimension in which the ranks' shapes
 *       differ from one rank's. Loss and metrics are computed there, with the same values as on one
 *       device.
 *   <li>The backward pass sums the ranks' gradients in buckets; {@code trainer.step} updates each
 *       rank's parameters. In a {@code SequentialBlock}, nested ones included, the buckets of later
 *       blocks are reduced while the backward pass of earlier blocks runs. All gradients are
 *       reduced when the collector's {@code backward} returns. {@link DataParallelTrainer#noSync}
 *       postpones the reduction.
 *   <li>The gradients do not depend on the number of ranks. With DJL's own engines each device has
 *       its own loss, so the sum over devices of a mean loss grows with their number.
 *   <li>Between backward pass and step {@code getGradient()} returns the gradient of all ranks.
 *       Changes to it in place, such as clipping by the norm, reach all ranks, and so does a
 *       further {@code backward}, such as that of a penalty on parameters. With {@code FULL_SHARD}
 *       no rank has whole gradients, and {@code getGradient()} throws; use {@link
 *       DataParallelTrainer#clipGradNorm} or {@link DataParallelTrainer#clipGradValue}.
 *   <li>Values that the program writes to a parameter between steps, such as initial or clamped
 *       weights, are copied to all ranks. Arrays that replace a parameter's array stay when the
 *       trainer is closed.
 *   <li>Batch normalisation uses the rows of all ranks ({@link
 *       DataParallelConfig#optSyncBatchNorm}). A rank without rows, in a short last batch, computes
 *       a row that counts for nothing.
 *   <li>An array whose first dimension is not the batch, such as a mask or a number, goes whole to
 *       each rank. A prediction without the batch, such as a mean loss, is the ranks' mean,
 *       weighted by their rows.
 *   <li>The first forward pass, and the first evaluation, check that the ranks' predictions equal
 *       those of one rank, and that the block keeps no state in fields between passes ({@link
 *       DataParallelConfig#optCheckForward}). {@code forward} throws {@code
 *       IllegalArgumentException} otherwise.
 *   <li>Open {@code trainer.newGradientCollector()}. With the collector of {@code
 *       manager.getEngine()}, {@code forward} throws {@code IllegalStateException}. Within another
 *       trainer's collector, or a {@code GradientScope}, the end of its {@code backward} reduces
 *       the gradients; with a {@code GradScaler} that throws {@code IllegalStateException}.
 *   <li>All ranks that have copies of the parameters call the same optimizer at the same time,
 *       under different parameter ids. {@code newTrainer} refuses a learning rate per parameter
 *       ({@code FixedPerVarTracker}). If another trainer used the optimizer before, the state of
 *       DJL's optimizers is copied from the first rank to the other ranks. Give each trainer a new
 *       instance of your own optimizers.
 *   <li>Dropout and other random operators draw from one generator per JVM, in no fixed order.
 * </ul>
 *
 * <h2>Processes</h2>
 *
 * <p>Each process has its own batches and loss; {@link DistributedSampler} divides a dataset among
 * them.
 *
 * <ul>
 *   <li>Gradients are averaged, as by PyTorch's DDP; {@link GradientReduction} sets {@code SUM} for
 *       losses that are sums.
 *   <li>Batch normalisation uses the rows of all processes. With {@link DataParallelConfig#optJoin}
 *       processes may have different numbers of batches.
 *   <li>At the end of an epoch of {@code EasyTrain}, loss and evaluators are those of all
 *       processes, on each of them, so {@code TrainingResult} is that of the whole job. For
 *       evaluators that are not known to be sums, processes keep labels and predictions of an
 *       epoch. If a listener throws {@code EarlyStoppedException} in {@code onEpoch}, it is thrown
 *       in all processes, after all listeners were called. Metrics of single batches are those of
 *       the process.
 *   <li>All processes call {@code Model.save}; only rank 0 writes the file. Only rank 0 calls DJL's
 *       {@code LoggingTrainingListener}, {@code TimeMeasureTrainingListener} and {@code
 *       MemoryTrainingListener}.
 *   <li>If the block's parameters are divided among ranks ({@link DividedBlock}), rank 0 of both
 *       groups saves and logs. The other ranks of the divided block send their parts in {@code
 *       Model.save}; they return after the file is written, and fail if the file cannot be written.
 *   <li>When {@code backward} returns, gradients are those of all processes, as above. All
 *       processes must change them alike; otherwise parameters differ, and {@code trainer.close()}
 *       reports it.
 * </ul>
 *
 * <h2>Parameters</h2>
 *
 * <p>Rank 0's parameters are broadcast when the trainer is initialised, or before the first forward
 * pass if the model already is. They are compared then, and again when the trainer is closed.
 *
 * <p>On GPUs, DJL's {@code Sgd}, {@code Adam} and {@code AdamW} update a float32 parameter by one
 * kernel, with the same result. After a step a float32 parameter has no gradient array. Exception:
 * an array from {@code getGradient()} that is still open stays, and is zero. Later calls of {@code
 * getGradient()} return new zeros, which the caller closes.
 *
 * <h2>Loading</h2>
 *
 * <p>A model directory that a {@link ParallelModelLoader} knows, such as the text engine's, is
 * divided among ranks when it is loaded. Such a model takes an {@link ai.djl.modality.Input} and
 * returns an {@link ai.djl.modality.Output}; models on arrays also take and return an {@link
 * ai.djl.ndarray.NDList}.
 *
 * <p>{@code Criteria.optEngine("PyTorch-P2P")} without a group id, or with {@code
 * ai.djl.pytorch-p2p}, finds the models of all zoos on the class path that are for PyTorch.
 */
public final class P2pEngine extends Engine {

    /** The engine's name. */
    public static final String NAME = "PyTorch-P2P";

    // DJL prefers the engine with the lowest rank; this engine never has it.
    static final int RANK = Integer.MAX_VALUE;

    private final Engine pytorch;

    P2pEngine(Engine pytorch) {
        this.pytorch = pytorch;
    }

    @Override
    public Engine getAlternativeEngine() {
        return pytorch.getAlternativeEngine();
    }

    @Override
    public String getEngineName() {
        return NAME;
    }

    @Override
    public int getRank() {
        return RANK;
    }

    /**
     * {@return libtorch's version and the available backends, for example {@code libtorch 2.7.1,
     * backends shm}}
     */
    @Override
    public String getVersion() {
        boolean nccl = NativeLibrary.CUDA.isAvailable() && NativeLibrary.NCCL.isAvailable();
        String backends =
                String.join(
                        ", ",
                        Backends.names().stream().filter(name -> nccl || !isNccl(name)).toList());
        return "libtorch " + pytorch.getVersion() + ", backends " + backends;
    }

    private static boolean isNccl(String backend) {
        return "nccl".equals(backend) || "cuda_p2p".equals(backend);
    }

    /**
     * {@return the default device: on GPUs the GPU of {@code LOCAL_RANK}, if that is set; otherwise
     * PyTorch's default}
     *
     * @throws IllegalArgumentException if {@code LOCAL_RANK} is not a number
     */
    @Override
    public Device defaultDevice() {
        Device device = pytorch.defaultDevice();
        return device.isGpu() ? gpu(LaunchEnvironment.current(), device, getGpuCount()) : device;
    }

    static Device gpu(LaunchEnvironment launcher, Device otherwise, int count) {
        return launcher.source("LOCAL_RANK") == null
                ? otherwise
                : Device.gpu(Math.floorMod(launcher.requireInt("LOCAL_RANK"), count));
    }

    @Override
    public boolean hasCapability(String capability) {
        return pytorch.hasCapability(capability);
    }

    @Override
    public SymbolBlock newSymbolBlock(NDManager manager) {
        return pytorch.newSymbolBlock(manager);
    }

    @Override
    public Model newModel(String name, Device device) {
        Device where = device == null ? defaultDevice() : device;
        // With several devices, the first one holds the arrays that are not divided.
        Device first = where.getDevices().get(0);
        if (first.isGpu() && first.getDeviceId() >= getGpuCount()) {
            throw new IllegalArgumentException(
                    String.format(
                            "newModel: %s of the model '%s' is out of range: libtorch sees %d GPUs;"
                                    + " choose another device, or install NVIDIA's driver and a"
                                    + " libtorch for GPUs",
                            first, name, getGpuCount()));
        }
        return new P2pModel(pytorch.newModel(name, first), device);
    }

    @Override
    public NDManager newBaseManager() {
        return pytorch.newBaseManager(defaultDevice());
    }

    @Override
    public NDManager newBaseManager(Device device) {
        return pytorch.newBaseManager(device == null ? defaultDevice() : device);
    }

    /**
     * Opens a {@link GradientScope} on this thread.
     *
     * @return the scope
     */
    @Override
    public GradientCollector newGradientCollector() {
        return GradientScope.open();
    }

    @Override
    public void setRandomSeed(int seed) {
        super.setRandomSeed(seed);
        pytorch.setRandomSeed(seed);
    }
}
