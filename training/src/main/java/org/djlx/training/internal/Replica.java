// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Pair;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import java.util.zip.CRC32C;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.ArrayBytes;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank of a trainer: its device, its group and its whole arrays of parameters. The first rank
 * of a JVM uses the block's own arrays if they are on its device. A {@link
 * org.djlx.training.strategy.ParameterStrategy} decides which parameters a rank has.
 *
 * <p>Parameters are in the order of {@code block.getParameters()}: DJL's own store iterates over a
 * hash map, and derives the keys from the time, so its order differs between JVMs.
 */
public final class Replica implements AutoCloseable {

    private final int index; // among the ranks of this JVM
    private final Device device;
    private final ProcessGroup group; // null if it is the only rank
    private final NDManager manager;
    private final RankStore store;
    private final List<LocalParameter> parameters = new ArrayList<>();
    private final Set<NDArray> shared = Collections.newSetFromMap(new IdentityHashMap<>());
    // By the block's array: its autograd version when this rank's array was last copied from it.
    private final Map<NDArray, Long> taken = new IdentityHashMap<>();
    private Optional<FusedUpdates> updates; // null before the first update that they know
    private List<NDArray> buffers = List.of(); // that each rank's passes write to

    Replica(
            int index,
            Device device,
            ProcessGroup group,
            NDManager parent,
            ScalarType computeType) {
        this.index = index;
        this.device = device;
        this.group = group;
        manager = parent.newSubManager(device);
        store = new RankStore(manager, group, computeType);
        Recomputation.RANKS.incrementAndGet();
    }

    /** {@return this rank's device} */
    public Device device() {
        return device;
    }

    public int index() {
        return index;
    }

    public ProcessGroup group() {
        return group;
    }

    /** {@return the manager of this rank's arrays} */
    public NDManager manager() {
        return manager;
    }

    public RankStore store() {
        return store;
    }

    /**
     * Computes a whole batch with this rank's parameters. Neither statistics nor the batch change:
     * the block gets copies.
     */
    public NDList whole(Block block, NDList data, NDList labels, boolean training) {
        try (NDManager copies = manager.newSubManager()) {
            RankStore own = store.withOwnStatistics(block, copies, null, false);
            NDList batch = ForwardPass.copy(data, copies);
            NDList outputs =
                    training
                            ? ForwardPass.forward(
                                    block, own, batch, ForwardPass.copy(labels, copies))
                            : ForwardPass.evaluate(block, own, batch);
            outputs.attach(data.head().getManager());
            return outputs;
        }
    }

    /** Waits for a work: on a GPU the current stream waits, on a CPU the calling thread. */
    public static void complete(Device device, Work work) {
        if (device.isGpu()) {
            work.blockCurrentStream();
        } else {
            work.await();
        }
    }

    /**
     * Creates this rank's arrays, after the block has been initialised: of parameters that the rank
     * has as a whole, those of {@code isView} in the block's memory.
     */
    public void load(Block block, Predicate<Parameter> isWhole, Predicate<Parameter> isView) {
        Map<NDArray, NDArray> owns = new IdentityHashMap<>();
        for (Pair<String, Parameter> named : block.getParameters()) {
            Parameter parameter = named.getValue();
            if (!isWhole.test(parameter) || store.array(parameter) != null) {
                continue; // A block may hold a parameter twice.
            }
            NDArray original = parameter.getArray();
            if (owns.containsKey(original)) {
                store.put(parameter, owns.get(original));
                shared.add(owns.get(original));
                continue; // Two parameters may share an array.
            }
            boolean view = isView.test(parameter);
            NDArray array = view ? view(original) : own(original);
            taken.put(original, Torch.version(original));
            owns.put(original, array);
            array.setRequiresGradient(parameter.requiresGradient());
            store.put(parameter, array);
            NDArray written = view ? array : original;
            parameters.add(
                    new LocalParameter(named.getKey(), idOf(parameter), parameter, array, written));
        }
        Set<Parameter> equal = new HashSet<>(); // on all ranks
        SyncBatchNorm.collectParameters(block, equal);
        buffers =
                parameters.stream()
                        .filter(own -> own.isBuffer() && !equal.contains(own.parameter()))
                        .map(LocalParameter::array)
                        .toList();
    }

    /**
     * Returns a parameter's id in optimizers, which keep their state by id and device. Ranks may
     * share a device, so their ids differ.
     */
    public String idOf(Parameter parameter) {
        return index == 0 ? parameter.getId() : parameter.getId() + "/" + index;
    }

    /** Returns the id that a parameter has itself, given a rank's id of it. */
    public static String parameterId(String id) {
        return id.replaceFirst("/.*", "");
    }

    private NDArray view(NDArray original) {
        NDArray view = original.stopGradient();
        view.attach(manager);
        view.setName(original.getName());
        return view;
    }

    /** Has a parameter view other memory: the program has replaced the first rank's. */
    public void replaceView(int i, NDArray memory) {
        LocalParameter own = parameters.get(i);
        NDArray view = view(memory);
        view.setRequiresGradient(own.isTrained());
        store.replace(own.array(), view);
        parameters.set(i, new LocalParameter(own.name(), own.id(), own.parameter(), view, view));
        own.array().close();
    }

    private NDArray own(NDArray original) {
        if (index == 0 && original.getDevice().equals(device)) {
            return original;
        }
        NDArray copy = copy(original);
        copy.setName(original.getName());
        return copy;
    }

    public NDArray copy(NDArray array) {
        NDArray copy = Torch.empty(manager, array.getShape(), Torch.scalarType(array));
        NoGradient.run(() -> Torch.copy(copy, array));
        return copy;
    }

    /** Returns whether passes write to arrays that may then differ between the ranks. */
    public boolean hasBuffers() {
        return group != null && !buffers.isEmpty();
    }

    /** Replaces this rank's buffers by those of another rank. All ranks call it. */
    public void receiveBuffers(int source) {
        List<Work> works = buffers.stream().map(array -> group.broadcast(array, source)).toList();
        works.forEach(work -> complete(device, work));
    }

    /**
     * Copies the block's own arrays to this rank's arrays, if the program has changed them since
     * the last copy. Excludes statistics, because forward passes write them.
     */
    public void takeWritten() {
        for (LocalParameter own : parameters) {
            NDArray original = own.original();
            if (own.array() == original || own.isStatistic() || original.isReleased()) {
                continue;
            }
            long version = Torch.version(original);
            if (taken.put(original, version) != version) {
                NoGradient.run(() -> Torch.copy(own.array(), original));
            }
        }
    }

    /** {@return the parameters that this rank has as a whole, in the block's order} */
    public List<LocalParameter> parameters() {
        return parameters;
    }

    public List<NDArray> arrays() {
        return parameters.stream().map(LocalParameter::array).toList();
    }

    public List<NDArray> trained() {
        return parameters.stream()
                .filter(LocalParameter::isTrained)
                .map(LocalParameter::array)
                .toList();
    }

    /** Returns whether two parameters of the block have this array. */
    public boolean isShared(NDArray array) {
        return shared.contains(array);
    }

    /** Requires gradients of exactly the trained arrays; parameters may be frozen between steps. */
    public void updateRequiresGradient() {
        for (LocalParameter own : parameters) {
            if (own.array().hasGradient() != own.isTrained()) {
                own.array().setRequiresGradient(own.isTrained());
            }
        }
    }

    /**
     * Compares all, or only the trained, parameters with those of all other ranks. On all ranks
     * throws a {@link CollectiveException} if a bit differs.
     */
    public void verify(String when, boolean trainedOnly) {
        CurrentStreams.await(device);
        try (NDManager temporary = manager.newSubManager()) {
            NDArray own = temporary.create(new long[] {checksum(temporary, trainedOnly)});
            NDArray all = temporary.create(new long[group.worldSize()]);
            group.allGatherIntoTensor(all, own).await();
            CurrentStreams.await(device);
            long[] values = all.toLongArray();
            List<Integer> different =
                    IntStream.range(1, values.length)
                            .filter(rank -> values[rank] != values[0])
                            .boxed()
                            .toList();
            if (!different.isEmpty()) {
                throw new CollectiveException(
                        String.format(
                                "the parameters of ranks %s differ from those of rank 0 %s: one"
                                        + " rank alone may have been given other weights or"
                                        + " gradients; checksums of all ranks: %s",
                                different, when, Arrays.toString(values)));
            }
        }
    }

    private long checksum(NDManager temporary, boolean trainedOnly) {
        CRC32C checksum = new CRC32C();
        try {
            for (LocalParameter own : parameters) {
                if (!trainedOnly || own.isTrained()) {
                    ArrayBytes.read(temporary, own.array(), checksum::update);
                }
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e); // Not thrown: updating a checksum does no I/O.
        }
        return checksum.getValue();
    }

    /**
     * Updates a parameter. The update of a 16-bit parameter is computed in float32, in which the
     * optimizer then keeps its state: DJL's optimizers cannot create a bfloat16 state, and Adam's
     * epsilon is 0 in float16.
     */
    public void update(Optimizer optimizer, String id, NDArray array, NDArray gradient) {
        if (Torch.scalarType(array).isReducedFloatingPoint()) {
            try (NDArray wide = Torch.cast(array, ScalarType.FLOAT32);
                    NDArray wideGradient = Torch.cast(gradient, ScalarType.FLOAT32)) {
                optimizer.update(id, wide, wideGradient);
                Torch.copy(array, wide);
            }
            return;
        }
        boolean known = FusedUpdates.knows(optimizer) && array.getDevice().equals(device);
        if (known && updates == null) {
            updates = FusedUpdates.open(device);
        }
        if (known && updates.isPresent()) {
            updates.get().update(optimizer, id, array, gradient);
        } else {
            optimizer.update(id, array, gradient);
        }
    }

    /**
     * Copies the parameters to the block's own arrays, if the block's arrays are not this rank's
     * arrays. Skips arrays that the program has replaced, for example by loading parameters.
     */
    public void writeBack() {
        for (LocalParameter own : parameters) {
            if (own.original() != own.array() && own.original() == own.parameter().getArray()) {
                NoGradient.run(() -> Torch.copy(own.original(), own.array()));
            }
        }
    }

    @Override
    public void close() {
        Recomputation.RANKS.decrementAndGet();
        manager.close();
        if (updates != null) {
            updates.ifPresent(FusedUpdates::close);
        }
    }
}
