// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.SymbolBlock;
import ai.djl.training.GradientCollector;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.launch.TorchThreads;
import org.djlx.collectives.spi.Backends;
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
 *       org.djlx.ranks}, or the training configuration, sets their number; the default is 1. {@link
 *       TorchThreads} gives each rank its share of the cores.
 *   <li><b>Processes</b>: one rank each, if {@code RANK} and {@code WORLD_SIZE} are set, as {@code
 *       samples/run.sh launch} and torchrun do. On GPUs each process uses the GPU that {@code
 *       LOCAL_RANK} names.
 * </ul>
 *
 * <h2>Training</h2>
 *
 * <p>{@code Model.newTrainer} needs the module {@code training}, whose package {@code
 * org.djlx.training} says how ranks share batches, gradients and parameters.
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

    /** Opens a {@link GradientScope} on this thread. */
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
