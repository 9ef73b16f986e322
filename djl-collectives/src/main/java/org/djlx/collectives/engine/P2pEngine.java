/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.engine;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.SymbolBlock;
import ai.djl.training.GradientCollector;
import org.djlx.collectives.TorchThreads;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.train.DataParallelConfig;
import org.djlx.collectives.train.DistributedSampler;
import org.djlx.collectives.train.DividedBlock;
import org.djlx.collectives.train.GradientReduction;
import org.djlx.nativeops.NativeLibrary;

/**
 * DJL's PyTorch engine, whose models are trained on several ranks: {@code PyTorch-P2P}. A program
 * names it and changes in nothing else:
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
 * it too. It is never the default just by being there. Arrays are those of the engine {@code
 * PyTorch}, whose name their managers give.
 *
 * <p>Which ranks there are:
 *
 * <ul>
 *   <li><b>GPUs of this JVM</b>: a rank for each of the devices of the {@code TrainingConfig},
 *       which are all GPUs unless it names some.
 *   <li><b>CPU ranks in this JVM</b>: DJL knows one CPU device, so their number is said apart, by
 *       the system property {@code org.djlx.ranks} or {@link DataParallelConfig#optRanks}. One
 *       unless given. {@link TorchThreads} gives each rank its share of the cores.
 *   <li><b>Processes</b>: one rank each, if {@code RANK} and {@code WORLD_SIZE} are set, as {@code
 *       samples/run.sh launch} and torchrun do. On GPUs each takes the one that {@code LOCAL_RANK}
 *       names.
 * </ul>
 *
 * <p>The ranks of a JVM share a batch and its loss. Each has a copy of the parameters and a thread.
 * {@code trainer.forward} divides the batch among them, along its first dimension, and puts their
 * predictions together on the first device, so that the program computes its loss and its metrics
 * as if there were one device, and gets the same values. The backward pass goes back to the ranks,
 * and {@code trainer.step} adds their gradients up in buckets by a process group and updates each
 * rank's parameters. Where the block is a {@code SequentialBlock}, also of such, buckets of later
 * blocks are reduced while the backward pass of earlier ones still runs; the gradients of any other
 * block are all reduced in the step. So the number of ranks does not change the gradients: unlike
 * with DJL's own engines, where each device has a loss of its own and what it adds up is larger by
 * the number of devices where that is a mean. On GPUs DJL's {@code Sgd}, {@code Adam} and {@code
 * AdamW} update a parameter of float32 by one kernel, with the same results; other optimizers, and
 * other types, as they do without this engine. A float32 parameter has no gradient behind a step,
 * unless an array from {@code getGradient()} is still open, which then has zeros; asked for it, DJL
 * makes zeros each time, to be closed as all that it returns.
 *
 * <p>Between the backward pass and the step, and with several ranks in this JVM, {@code
 * getGradient()} shows what rank 0 has: its part, or for gradients that have been reduced already
 * the sum. The ranks would not know of a change: gradients are clipped by the optimizer ({@code
 * optClipGrad}), and penalties are part of the loss. The step refuses gradients that were changed
 * or added to since, where it can tell: of buckets that were not reduced yet, as the first layers'
 * never are. Processes have a part each, and are not checked: what one changes there changes the
 * sum, and of gradients that have been reduced already its own alone, so that parameters differ,
 * which shows when the trainer is closed. For the same reason parameters are the trainer's from the
 * first step until it is closed: what the program writes to them before, such as initial weights,
 * all ranks of its JVM take, what it writes meanwhile, rank 0 has alone; what it loads or sets in
 * their place stays when the trainer is closed, and is what a new one begins with.
 *
 * <p>Processes have a batch and a loss each; {@link DistributedSampler} divides a dataset among
 * them. {@link GradientReduction} says how their gradients become one: added up, unless {@code
 * MEAN} is asked for, which several ranks of one JVM refuse. All call {@code Model.save}, and only
 * rank 0 writes the file; only there DJL's listeners hear of the job that write logs: {@code
 * LoggingTrainingListener}, {@code TimeMeasureTrainingListener} and {@code MemoryTrainingListener}.
 * Where the parameters themselves are divided among ranks, by {@link DividedBlock}s, that is one
 * rank of all: the first of those that share a model, and of those that share batches. The ranks
 * that share the model with it send it their parts in {@code Model.save}, and return when the file
 * is written, or fail when it cannot be.
 *
 * <p>Parameters are sent from rank 0 to all others when the trainer is initialised, or, if the
 * model is, before the first forward pass, and compared then, and when the trainer is closed.
 * Statistics such as those of batch normalisation stay each rank's own; rank 0's are those of the
 * model. What draws random numbers, such as dropout, takes them from one generator for all ranks of
 * a JVM, in no fixed order. Ranks of a JVM share the optimizer and call it at once, each with names
 * of its own for parameters: learning rates by parameter ({@code FixedPerVarTracker}) take
 * processes. A trainer that is given an optimizer which another has used gives all ranks what DJL's
 * own optimizers keep for the first; what an optimizer of your own keeps stays as it is, by those
 * names, and a rank that the other trainer did not have begins with none: give each trainer a new
 * one.
 *
 * <p>Models whose directory a {@link ParallelModelLoader} knows, such as Llamas, are divided among
 * ranks when they are loaded, and take an {@link ai.djl.modality.Input} and return an {@link
 * ai.djl.modality.Output}. Those that work on arrays also take and return an {@link
 * ai.djl.ndarray.NDList}.
 */
public final class P2pEngine extends Engine {

    /** The engine's name. */
    public static final String NAME = "PyTorch-P2P";

    // DJL takes the engine with the least, and only one below this.
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
     * Returns libtorch's version and the backends that can be used here.
     *
     * @return such as {@code libtorch 2.7.1, backends shm}
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
     * Returns the device that is taken where none is named.
     *
     * @return on GPUs the one that {@code LOCAL_RANK} names, if it is set; otherwise PyTorch's
     */
    @Override
    public Device defaultDevice() {
        String local = System.getenv("LOCAL_RANK");
        Device device = pytorch.defaultDevice();
        return local == null || !device.isGpu()
                ? device
                : Device.gpu(Integer.parseInt(local.trim()) % getGpuCount());
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
        // Of several devices, the first has what is not divided.
        Device first = where.getDevices().get(0);
        if (first.isGpu() && first.getDeviceId() >= getGpuCount()) {
            throw new IllegalArgumentException(
                    String.format(
                            "newModel: there is no %s for the model '%s': libtorch can use %d GPUs;"
                                    + " name another device, or see that NVIDIA's driver and a"
                                    + " libtorch for GPUs are there",
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
