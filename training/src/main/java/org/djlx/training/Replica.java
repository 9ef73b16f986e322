// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.ParameterStore;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Pair;
import ai.djl.util.PairList;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.stream.IntStream;
import java.util.zip.CRC32C;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.engine.DividedBlock;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.ArrayBytes;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/**
 * One rank's copy of a block's parameters. The first rank of a JVM uses the block's own arrays
 * instead of a copy, if they are on its device. If the ranks of a JVM compute a small model on the
 * CPU, the other ranks have views of its parameters, with gradients and statistics of their own.
 *
 * <p>Parameters are in the order of {@code block.getParameters()}: DJL's own store iterates over a
 * hash map, and derives the keys from the time, so its order differs between JVMs.
 */
public final class Replica implements AutoCloseable {

    /**
     * A parameter and this rank's array of it.
     *
     * @param name its name in the block, the same in all JVMs
     * @param id the parameter's id in optimizers
     * @param original the block's own array when training began; {@code array} itself if they share
     *     memory
     */
    public record Own(
            String name, String id, Parameter parameter, NDArray array, NDArray original) {

        boolean isTrained() {
            return parameter.requiresGradient();
        }

        boolean isStatistic() {
            return FullyShard.isStatistic(parameter);
        }

        /** Returns whether passes may write to it, as to PyTorch's buffers. */
        boolean isBuffer() {
            return isStatistic() || parameter.getType() == Parameter.Type.OTHER && !isTrained();
        }
    }

    /**
     * A part of a parameter that this rank holds.
     *
     * @param name as {@link Own#name}
     * @param id as {@link Own#id}
     * @param shape the shape of the whole parameter
     * @param from the index of the part's first element in the parameter
     * @param array the whole parameter, or a row of its elements
     * @param isOwner whether this rank has the optimizer's state of the part
     */
    public record Piece(
            String name, String id, Shape shape, long from, NDArray array, boolean isOwner) {

        /** {@return whether the array is the whole parameter, in its shape} */
        public boolean isWhole() {
            return array.getShape().equals(shape);
        }
    }

    private static final double NORM_EPSILON = 1e-6; // as PyTorch's clip_grad_norm_

    private final int index; // among the ranks of this JVM
    private final Device device;
    private final ProcessGroup group; // null if it is the only rank
    private final ReduceOp op; // of gradients
    private final ShardingStrategy sharding;
    private final NDManager manager;
    private final Store store;
    private FullyShard shards; // null if this rank has whole parameters
    private final List<Own> parameters = new ArrayList<>();
    private final Set<NDArray> shared = Collections.newSetFromMap(new IdentityHashMap<>());
    // By the block's array: its autograd version when this rank's array was last copied from it.
    private final Map<NDArray, Long> taken = new IdentityHashMap<>();
    // By this rank's array: its autograd version after the last step.
    private final Map<NDArray, Long> current = new IdentityHashMap<>();
    private final DataParallelConfig settings;
    private GradientBuckets buckets;
    // By parameter: its reduced gradient's autograd version after the last backward pass.
    private final Map<NDArray, Long> versions = new IdentityHashMap<>();
    // By parameter: the rank that updates it; empty if each rank updates all parameters.
    private final Map<Own, Integer> owners = new IdentityHashMap<>();
    private FusedUpdates updates; // null if not available, or not requested yet
    private boolean hasAskedForUpdates;
    private int passes; // forward passes whose backward pass has not ended
    private boolean sharesMemory; // whether the ranks of this JVM have the same parameters
    private boolean late; // whether gradients are reduced after backward passes, none within
    private boolean synchronizes = true; // whether backward passes reduce gradients
    private List<NDArray> buffers = List.of(); // that each rank's passes write to

    Replica(
            int index,
            Device device,
            ProcessGroup group,
            NDManager parent,
            ReduceOp op,
            DataParallelConfig settings) {
        this.index = index;
        this.device = device;
        this.group = group;
        this.op = op;
        this.settings = settings;
        sharding = group == null ? ShardingStrategy.NO_SHARD : settings.shardingStrategy();
        manager = parent.newSubManager(device);
        store = new Store(manager, group, settings.mixedPrecision());
        buckets = new GradientBuckets(group, op, settings, manager);
        Recomputation.RANKS.incrementAndGet();
    }

    /** Gives blocks this rank's arrays. DJL's store makes no copy on the device of the array. */
    static final class Store extends ParameterStore {

        private final Map<String, NDArray> arrays = new ConcurrentHashMap<>();
        private final ProcessGroup group;
        private final MixedPrecisionPolicy precision;
        private final NDManager manager;
        private final Map<Block, Recomputation> recomputations = new IdentityHashMap<>();
        private volatile boolean idle;

        Store(NDManager manager, ProcessGroup group, MixedPrecisionPolicy precision) {
            super(manager, false);
            this.manager = manager;
            this.group = group;
            this.precision = precision;
        }

        NDManager manager() {
            return manager;
        }

        /** Returns the recomputation of a block. Called by this rank's thread only. */
        Recomputation recomputation(Block block) {
            return recomputations.computeIfAbsent(block, own -> new Recomputation(own, this));
        }

        /** As the other method, with the ranks of this store. */
        Store withOwnStatistics(Block block, NDManager copies, boolean idle) {
            return withOwnStatistics(block, copies, group, idle);
        }

        /**
         * Returns a store of the current arrays in which a block's statistics, and other arrays
         * that passes may write to, are copies.
         *
         * @param ranks as {@link #group}
         * @param idle as {@link #isIdle}
         */
        Store withOwnStatistics(Block block, NDManager copies, ProcessGroup ranks, boolean idle) {
            Store own = new Store(manager, ranks, precision);
            own.idle = idle;
            own.arrays.putAll(arrays);
            for (Parameter parameter : block.getParameters().values()) {
                boolean other =
                        parameter.getType() == Parameter.Type.OTHER
                                && !parameter.requiresGradient();
                if (other || FullyShard.isStatistic(parameter)) {
                    NDArray copy = NoGradient.get(() -> own.array(parameter).duplicate());
                    copy.attach(copies);
                    own.put(parameter, copy);
                }
            }
            return own;
        }

        /** Returns the type in which {@link Autocast} layers compute; null for the input's. */
        ScalarType computeType() {
            return precision == MixedPrecisionPolicy.NONE ? null : precision.type();
        }

        /** Returns the ranks that compute parts of the same batch; null for a whole batch. */
        ProcessGroup group() {
            return group;
        }

        /** Returns whether this rank's rows count for nothing: the batch has too few for it. */
        boolean isIdle() {
            return idle;
        }

        @Override
        public NDArray getValue(Parameter parameter, Device device, boolean training) {
            return parameter == null ? null : array(parameter);
        }

        NDArray array(Parameter parameter) {
            return arrays.get(parameter.getId());
        }

        void put(Parameter parameter, NDArray array) {
            arrays.put(parameter.getId(), array);
        }

        void remove(Parameter parameter) {
            arrays.remove(parameter.getId());
        }
    }

    /** {@return this rank's device} */
    public Device device() {
        return device;
    }

    /** Returns this rank's index among the ranks of this JVM. */
    int index() {
        return index;
    }

    ProcessGroup group() {
        return group;
    }

    /** {@return the manager of this rank's arrays} */
    public NDManager manager() {
        return manager;
    }

    Store store() {
        return store;
    }

    /**
     * Computes a whole batch with this rank's parameters. Neither statistics nor the batch change:
     * the block gets copies.
     */
    NDList whole(Block block, NDList data, NDList labels, boolean training) {
        try (NDManager copies = manager.newSubManager()) {
            Store own = store.withOwnStatistics(block, copies, null, false);
            NDList batch = StagedForward.copy(data, copies);
            NDList outputs =
                    training
                            ? StagedForward.forward(
                                    block, own, batch, StagedForward.copy(labels, copies))
                            : StagedForward.evaluate(block, own, batch);
            outputs.attach(data.head().getManager());
            return outputs;
        }
    }

    /** Returns this rank's shards of the parameters; null if it has whole parameters. */
    FullyShard shards() {
        return shards;
    }

    /** Sets whether this rank has no rows of the batch, so that its row counts for nothing. */
    void setIdle(boolean idle) {
        store.idle = idle;
    }

    /** Waits for a work: on a GPU the current stream waits, on a CPU the calling thread. */
    static void complete(Device device, Work work) {
        if (device.isGpu()) {
            work.blockCurrentStream();
        } else {
            work.await();
        }
    }

    /**
     * Creates this rank's arrays. Call it once, after the block has been initialised.
     *
     * @param receives whether the parameters of rank 0 replace this rank's
     * @param oneMemory whether the ranks of this JVM have the same parameters
     */
    void load(Block block, boolean receives, boolean oneMemory) {
        sharesMemory = oneMemory;
        if (oneMemory) {
            buckets = new GradientBuckets(null, op, settings, manager);
        }
        if (sharding == ShardingStrategy.FULL_SHARD) {
            shards = new FullyShard(this, block, op, receives);
        }
        Map<NDArray, NDArray> owns = new IdentityHashMap<>();
        for (Pair<String, Parameter> named : block.getParameters()) {
            Parameter parameter = named.getValue();
            String id = parameter.getId();
            boolean sharded = shards != null && !FullyShard.isStatistic(parameter);
            if (sharded || store.arrays.containsKey(id)) {
                continue; // A block may hold a parameter twice.
            }
            NDArray original = parameter.getArray();
            if (owns.containsKey(original)) {
                store.arrays.put(id, owns.get(original));
                shared.add(owns.get(original));
                continue; // Two parameters may share an array.
            }
            boolean view = sharesMemory && index > 0 && !FullyShard.isStatistic(parameter);
            NDArray array = view ? view(original) : own(original);
            taken.put(original, Torch.version(original));
            owns.put(original, array);
            array.setRequiresGradient(parameter.requiresGradient());
            store.arrays.put(id, array);
            String own = idOf(parameter);
            NDArray written = view ? array : original;
            parameters.add(new Own(named.getKey(), own, parameter, array, written));
        }
        if (sharding == ShardingStrategy.SHARD_OPTIMIZER) {
            divideUpdates();
        }
        Set<Parameter> equal = new HashSet<>(); // on all ranks
        SyncBatchNorm.collectParameters(block, equal);
        buffers =
                parameters.stream()
                        .filter(own -> own.isBuffer() && !equal.contains(own.parameter))
                        .map(Own::array)
                        .toList();
    }

    /** Returns whether passes write to arrays that may then differ between the ranks. */
    boolean hasBuffers() {
        return group != null && !buffers.isEmpty();
    }

    /** Replaces this rank's buffers by those of another rank. All ranks call it. */
    void receiveBuffers(int source) {
        List<Work> works = buffers.stream().map(array -> group.broadcast(array, source)).toList();
        works.forEach(work -> complete(device, work));
    }

    /**
     * Returns a parameter's id in optimizers, which keep their state by id and device. Ranks with
     * copies may share a device, so their ids differ.
     */
    String idOf(Parameter parameter) {
        return index == 0 || sharesMemory ? parameter.getId() : parameter.getId() + "/" + index;
    }

    /**
     * Returns whether the ranks of this JVM have the same parameters. The first rank then updates
     * them, with the {@linkplain #takeGradients sum of all ranks' gradients}.
     */
    boolean sharesMemory() {
        return sharesMemory;
    }

    /** Replaces views of memory that the program has replaced, as {@code NDArray.set} does. */
    void followMemory(Replica first) {
        for (int i = 0; i < parameters.size(); i++) {
            Own own = parameters.get(i);
            NDArray array = first.parameters.get(i).array;
            if (!own.isStatistic() && Torch.dataPointer(own.array) != Torch.dataPointer(array)) {
                first.takeGradients(this);
                NDArray view = view(array);
                view.setRequiresGradient(own.isTrained());
                store.arrays.replaceAll((id, before) -> before == own.array ? view : before);
                parameters.set(i, new Own(own.name, own.id, own.parameter, view, view));
                own.array.close();
            }
        }
    }

    /** Adds another rank's gradients to this rank's, and removes them there. */
    void takeGradients(Replica other) {
        for (int i = 0; i < parameters.size(); i++) {
            PtNDArray own = (PtNDArray) parameters.get(i).array;
            PtNDArray from = (PtNDArray) other.parameters.get(i).array;
            try (NDArray gradient = JniUtils.getGradient(from);
                    NDArray sum = gradient == null ? null : JniUtils.getGradient(own)) {
                if (sum != null) {
                    sum.addi(gradient); // Both are float32: TorchInPlace would check that.
                } else if (gradient != null && own.hasGradient()) { // not frozen since the pass
                    Torch.setGradient(own, gradient);
                }
                if (gradient != null) {
                    Torch.setGradient(from, null);
                }
            }
        }
    }

    private NDArray view(NDArray original) {
        NDArray view = original.stopGradient();
        view.attach(manager);
        view.setName(original.getName());
        return view;
    }

    /**
     * Copies the block's own arrays to this rank's arrays, if the program has changed them since
     * the last copy. Excludes statistics, because forward passes write them.
     */
    void takeWritten() {
        for (Own own : parameters) {
            NDArray original = own.original;
            if (own.array == original || own.isStatistic() || original.isReleased()) {
                continue;
            }
            long version = Torch.version(original);
            if (taken.put(original, version) != version) {
                NoGradient.run(() -> Torch.copy(own.array, original));
            }
        }
    }

    /** Returns the parameters written to since the last call, by index, without statistics. */
    List<Integer> written() {
        List<Integer> written = new ArrayList<>();
        for (int i = 0; i < parameters.size(); i++) {
            Own own = parameters.get(i);
            Long version = Torch.version(own.array);
            if (!own.isStatistic() && !version.equals(current.put(own.array, version))) {
                written.add(i);
            }
        }
        return written;
    }

    /** {@return the parameters in the block's order} */
    public List<Own> parameters() {
        return parameters;
    }

    /** {@return all that this rank holds of the parameters} */
    public List<Piece> pieces() {
        List<Piece> pieces = new ArrayList<>();
        for (Own own : parameters) {
            if (sharesMemory && index > 0 && !own.isStatistic()) {
                continue; // of the first rank
            }
            boolean owner = shards == null ? owner(own) == rank() : rank() == 0;
            Shape shape = own.array.getShape();
            pieces.add(new Piece(own.name, own.id, shape, 0, own.array, owner));
        }
        if (shards != null) {
            pieces.addAll(shards.pieces());
        }
        return pieces;
    }

    /** {@return the type and shape of each whole parameter, by its name} */
    public Map<String, TensorSpec> specs() {
        Map<String, TensorSpec> specs = new LinkedHashMap<>();
        for (Own own : parameters) {
            ScalarType type = Torch.scalarType(own.array);
            specs.put(own.name, TensorSpec.of(own.name, type, own.array.getShape()));
        }
        if (shards != null) {
            shards.addSpecs(specs);
        }
        return specs;
    }

    private NDArray own(NDArray original) {
        if (index == 0 && original.getDevice().equals(device)) {
            return original;
        }
        NDArray copy = copy(original);
        copy.setName(original.getName());
        return copy;
    }

    /** Returns a copy on this rank's device. */
    NDArray copy(NDArray array) {
        NDArray copy = Torch.empty(manager, array.getShape(), Torch.scalarType(array));
        NoGradient.run(() -> Torch.copy(copy, array));
        return copy;
    }

    /** Returns the arrays that are trained. */
    List<NDArray> trained() {
        return parameters.stream().filter(Own::isTrained).map(Own::array).toList();
    }

    /** Requires gradients of exactly the trained arrays; parameters may be frozen between steps. */
    void followFreezing() {
        for (Own own : parameters) {
            if (own.array.hasGradient() != own.isTrained()) {
                own.array.setRequiresGradient(own.isTrained());
            }
        }
    }

    /** Receives rank 0's parameters. */
    void receive() {
        List<Work> works = new ArrayList<>();
        for (Own own : parameters) {
            works.add(group.broadcast(own.array, 0));
        }
        works.forEach(Work::await);
    }

    /**
     * Compares the parameters with those of all other ranks.
     *
     * @param trainedOnly whether to compare only trained parameters
     * @throws CollectiveException on all ranks if a bit of the parameters differs between ranks
     */
    void verify(String when, boolean trainedOnly) {
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
            for (Own own : parameters) {
                if (!trainedOnly || own.isTrained()) {
                    ArrayBytes.read(temporary, own.array, checksum::update);
                }
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e); // Not thrown: updating a checksum does no I/O.
        }
        return checksum.getValue();
    }

    /** Returns the bucket of each trained array, in a map that the caller may change. */
    Map<NDArray, Integer> buckets() {
        List<NDArray> trained = trained();
        int[] indices = buckets.indices(trained);
        Map<NDArray, Integer> result = new IdentityHashMap<>();
        for (int i = 0; i < indices.length; i++) {
            result.put(trained.get(i), indices[i]);
        }
        return result;
    }

    /** Begins a backward pass; keeps the gradients that earlier passes have reduced. */
    void beginBackward() {
        versions.clear();
        buckets.begin(trained());
    }

    /** Makes the gradients those of all ranks, after a backward pass. */
    void reduce() {
        NoGradient.run(() -> buckets.reduce(trained()));
    }

    /**
     * Postpones all reductions to the end of the backward pass, until {@link #forgetPasses}. Needed
     * after a pass that only some ranks have begun, because these ranks would not issue the same
     * reductions within a backward pass.
     */
    void reduceLate() {
        late = true;
    }

    boolean isLate() {
        return late;
    }

    /** Sets whether backward passes reduce gradients; otherwise they only add to them. */
    void setSynchronizes(boolean synchronizes) {
        this.synchronizes = synchronizes;
    }

    boolean synchronizes() {
        return synchronizes;
    }

    /** Counts a pass. Its backward pass ends with a call of {@link #ready} with {@code last}. */
    void passBegun() {
        passes++;
    }

    /**
     * Marks gradients as complete in a backward pass. They are reduced if no other pass adds to
     * them.
     */
    void ready(Set<Parameter> complete, boolean last) {
        if (passes == 1 && !late && synchronizes) {
            buckets.ready(
                    complete.stream()
                            .map(parameter -> store.arrays.get(parameter.getId()))
                            // Two parameters share this array: the other one may still add to it.
                            .filter(array -> !shared.contains(array))
                            .toList());
        }
        if (last) {
            passes--;
        }
    }

    /** Notes the versions of the reduced gradients. */
    void noteGradients() {
        trained().forEach(array -> versions.put(array, Torch.version(buckets.reduced(array))));
    }

    /** Copies reduced gradients that the program has changed, as by clipping, to another rank. */
    void sendChanged(Replica other) {
        for (int i = 0; i < parameters.size() && !versions.isEmpty(); i++) {
            NDArray array = parameters.get(i).array;
            NDArray from = versions.containsKey(array) ? buckets.reduced(array) : null;
            if (from != null && Torch.version(from) != versions.get(array)) {
                NDArray to = other.buckets.reduced(other.parameters.get(i).array);
                NoGradient.run(() -> Torch.copy(to, from));
            }
        }
    }

    /** Forgets passes whose backward pass has not ended, and frees parameters gathered for them. */
    void forgetPasses() {
        passes = 0;
        late = false;
        if (shards != null) {
            shards.reset();
        }
    }

    /** Removes all gradients, including those of frozen parameters. */
    void zeroGradients() {
        versions.clear();
        buckets.reset();
        parameters.forEach(own -> clear(own.array));
        if (shards != null) {
            shards.zeroGradients();
        }
    }

    private static void clear(NDArray array) {
        if (hasGradient(array)) {
            GradientBuckets.clear(array);
        }
    }

    private static boolean hasGradient(NDArray array) {
        try (NDArray gradient = JniUtils.getGradient((PtNDArray) array)) {
            return gradient != null;
        }
    }

    /**
     * Reduces the gradients, and scales them if their norm is greater than a limit.
     *
     * @param block the model's block, whose parameters may be divided among ranks
     * @return the norm before scaling
     */
    double clipNorm(Block block, double limit) {
        double norm = norm(block);
        if (!(norm <= limit)) {
            scale(limit / (norm + NORM_EPSILON));
        }
        return norm;
    }

    /** Reduces the gradients, and multiplies them by a factor. */
    void scale(double factor) {
        NoGradient.run(() -> reduced().forEach(gradient -> TorchInPlace.mul(gradient, factor)));
    }

    /** Reduces the gradients, and returns this rank's. */
    private Collection<NDArray> reduced() {
        return shards == null ? buckets.reduce(trained()).values() : shards.reducedGradients();
    }

    /** Reduces the gradients, and returns the norm of all ranks' gradients together. */
    double norm(Block block) {
        if (shards != null) {
            return Math.sqrt(NoGradient.get(shards::squares));
        }
        ProcessGroup parts = DividedBlock.groupOf(block);
        Map<NDArray, Integer> copies = new IdentityHashMap<>();
        int whole = parts == null ? 1 : parts.worldSize();
        collectCopies(block, whole, copies);
        return NoGradient.get(
                () -> {
                    PairList<NDArray, NDArray> gradients = buckets.reduce(trained());
                    double squares = 0;
                    try (NDManager temporary = manager.newSubManager()) {
                        NDList norms = new NDList();
                        List<Integer> shares = new ArrayList<>();
                        for (Pair<NDArray, NDArray> reduced : gradients) {
                            NDArray norm = reduced.getValue().norm();
                            norm.attach(temporary);
                            norms.add(norm.toType(DataType.FLOAT64, false));
                            shares.add(copies.getOrDefault(reduced.getKey(), whole));
                        }
                        CurrentStreams.await(device);
                        double[] values =
                                norms.isEmpty()
                                        ? new double[0]
                                        : NDArrays.stack(norms).toDoubleArray();
                        for (int i = 0; i < values.length; i++) {
                            squares += values[i] * values[i] / shares.get(i);
                        }
                        if (parts != null && parts.worldSize() > 1) {
                            NDArray sum = temporary.create(new double[] {squares});
                            parts.allReduce(sum, ReduceOp.SUM).await();
                            CurrentStreams.await(device);
                            squares = sum.toDoubleArray()[0];
                        }
                    }
                    return Math.sqrt(squares);
                });
    }

    /** Collects, by array, how many ranks of a divided block hold the same parameter. */
    private void collectCopies(Block block, int whole, Map<NDArray, Integer> copies) {
        for (Parameter parameter : block.getDirectParameters().values()) {
            int count = block instanceof DividedBlock own ? own.copies(parameter) : whole;
            copies.putIfAbsent(store.arrays.get(parameter.getId()), count);
        }
        block.getChildren().values().forEach(child -> collectCopies(child, whole, copies));
    }

    /** Reduces the gradients, and limits each element to [-limit, limit]. */
    void clipValue(double limit) {
        NoGradient.run(
                () -> {
                    for (NDArray gradient : reduced()) {
                        try (NDArray clipped = gradient.clip(-limit, limit)) {
                            Torch.copy(gradient, clipped);
                        }
                    }
                });
    }

    /**
     * All-reduces the gradients and updates the parameters.
     *
     * @param check whether to skip the update if all gradients are zero
     * @param updated opened by the first rank of this JVM after its first update; the other ranks
     *     of the JVM wait for it. The ranks share learning-rate trackers, and the first update of a
     *     step may change a tracker, such as DJL's {@code MultiFactorTracker}
     * @return false if the update was skipped
     */
    boolean step(Optimizer optimizer, boolean check, CountDownLatch updated) {
        Map<NDArray, Own> owns = new IdentityHashMap<>();
        parameters.forEach(own -> owns.put(own.array, own));
        FullyShard.Visitor update =
                (id, array, gradient) -> {
                    if (index > 0) {
                        await(updated);
                    }
                    update(optimizer, id, array, gradient);
                    updated.countDown();
                };
        try {
            if (check && NoGradient.get(this::isZero)) {
                return false;
            }
            NoGradient.run(
                    () ->
                            buckets.finish(
                                    trained(),
                                    (array, gradient) -> {
                                        Own own = owns.get(array);
                                        if (owner(own) == rank()) {
                                            update.visit(own.id, array, gradient);
                                        }
                                    }));
            if (shards != null) {
                NoGradient.run(() -> shards.step(update));
            }
            parameters.stream().filter(own -> !own.isTrained()).forEach(own -> clear(own.array));
        } finally {
            updated.countDown(); // Also after a failure.
        }
        if (sharding == ShardingStrategy.SHARD_OPTIMIZER) {
            List<Work> works = new ArrayList<>();
            for (Own own : parameters) {
                if (own.isTrained()) {
                    works.add(group.broadcast(own.array, owner(own)));
                }
            }
            works.forEach(work -> complete(device, work));
        }
        return true;
    }

    private boolean isZero() {
        return shards == null ? buckets.areZero(trained()) : shards.squares() == 0;
    }

    private int rank() {
        return group == null ? 0 : group.rank();
    }

    /** Returns the rank that updates a parameter: this rank, unless updates are divided. */
    private int owner(Own own) {
        return owners.getOrDefault(own, rank());
    }

    /** Divides the parameters among the ranks, so that each rank updates about as many elements. */
    private void divideUpdates() {
        long[] sizes = new long[group.worldSize()];
        for (Own own : parameters) {
            int owner = 0;
            for (int rank = 1; rank < sizes.length; rank++) {
                owner = sizes[rank] < sizes[owner] ? rank : owner;
            }
            sizes[owner] += own.array.size();
            owners.put(own, owner);
        }
    }

    /** Removes the optimizer's state if the ranks divide it: each rank has only a part. */
    void forgetState(Optimizer optimizer) {
        if (sharding != ShardingStrategy.NO_SHARD) {
            OptimizerState state = new OptimizerState(optimizer);
            parameters.forEach(own -> state.set(own.id, device, null, Map.of()));
            if (shards != null) {
                shards.forgetState(state);
            }
        }
    }

    private void update(Optimizer optimizer, String id, NDArray array, NDArray gradient) {
        boolean known = FusedUpdates.knows(optimizer);
        if (known && !hasAskedForUpdates) {
            hasAskedForUpdates = true;
            updates = FusedUpdates.open(device).orElse(null);
        }
        if (known && updates != null) {
            updates.update(optimizer, id, array, gradient);
        } else {
            optimizer.update(id, array, gradient);
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("step: interrupted between gradients and update", e);
        }
    }

    /**
     * Copies the parameters to the block's own arrays, if the block's arrays are not this rank's
     * arrays. Skips arrays that the program has replaced, for example by loading parameters.
     */
    void writeBack() {
        for (Own own : parameters) {
            if (own.original != own.array && own.original == own.parameter.getArray()) {
                NoGradient.run(() -> Torch.copy(own.original, own.array));
            }
        }
    }

    @Override
    public void close() {
        Recomputation.RANKS.decrementAndGet();
        manager.close();
        if (updates != null) {
            updates.close();
        }
    }
}
