// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.train;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.ParameterStore;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Pair;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank's copy of a block's parameters. The first rank of a JVM uses the block's own arrays
 * instead of a copy, if they are on its device.
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
     * @param original the block's own array when training began; may be {@code array} itself
     */
    public record Own(
            String name, String id, Parameter parameter, NDArray array, NDArray original) {

        boolean isTrained() {
            return parameter.requiresGradient();
        }

        boolean isStatistic() {
            Parameter.Type type = parameter.getType();
            return type == Parameter.Type.RUNNING_MEAN || type == Parameter.Type.RUNNING_VAR;
        }
    }

    private final int index; // among the ranks of this JVM
    private final Device device;
    private final ProcessGroup group; // null if it is the only rank
    private final NDManager manager;
    private final Store store;
    private final List<Own> parameters = new ArrayList<>();
    private final Set<NDArray> shared = Collections.newSetFromMap(new IdentityHashMap<>());
    // By the block's array: its autograd version when this rank's array was last copied from it.
    private final Map<NDArray, Long> taken = new IdentityHashMap<>();
    // By this rank's array: its autograd version after the last step.
    private final Map<NDArray, Long> current = new IdentityHashMap<>();
    private final GradientBuckets buckets;
    // By parameter: its reduced gradient's autograd version after the last backward pass.
    private final Map<NDArray, Long> versions = new IdentityHashMap<>();
    private FusedUpdates updates; // null if not available, or not requested yet
    private boolean hasAskedForUpdates;
    private int passes; // forward passes whose backward pass has not ended
    private boolean late; // whether all gradients are reduced in the step, none before

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
        manager = parent.newSubManager(device);
        store = new Store(manager, group);
        buckets = new GradientBuckets(group, op, settings, manager);
    }

    /** Gives blocks this rank's arrays. DJL's store makes no copy on the device of the array. */
    static final class Store extends ParameterStore {

        private final Map<String, NDArray> arrays = new ConcurrentHashMap<>();
        private final ProcessGroup group;
        private volatile boolean idle;

        Store(NDManager manager, ProcessGroup group) {
            super(manager, false);
            this.group = group;
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
            return parameter == null ? null : arrays.get(parameter.getId());
        }
    }

    /** {@return this rank's device} */
    public Device device() {
        return device;
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
     * Computes a whole batch with this rank's parameters. Statistics do not change: the block
     * writes to copies.
     */
    NDList whole(Block block, NDList data, NDList labels, boolean training) {
        try (NDManager copies = manager.newSubManager()) {
            Store own = new Store(manager, null);
            own.arrays.putAll(store.arrays);
            for (Pair<String, Parameter> named : block.getParameters()) {
                Parameter.Type type = named.getValue().getType();
                String id = named.getValue().getId();
                if (type == Parameter.Type.RUNNING_MEAN || type == Parameter.Type.RUNNING_VAR) {
                    NDArray copy = NoGradient.get(() -> own.arrays.get(id).duplicate());
                    copy.attach(copies);
                    own.arrays.put(id, copy);
                }
            }
            return training
                    ? StagedForward.forward(block, own, data, labels)
                    : block.forward(own, data, false, null);
        }
    }

    /** Sets whether this rank computes a row that counts for nothing, beside ranks with rows. */
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

    /** Creates this rank's arrays. Call it once, after the block has been initialised. */
    void load(Block block) {
        Map<NDArray, NDArray> owns = new IdentityHashMap<>();
        for (Pair<String, Parameter> named : block.getParameters()) {
            Parameter parameter = named.getValue();
            String id = parameter.getId();
            if (store.arrays.containsKey(id)) {
                continue; // A block may hold a parameter twice.
            }
            NDArray original = parameter.getArray();
            if (owns.containsKey(original)) {
                store.arrays.put(id, owns.get(original));
                shared.add(owns.get(original));
                continue; // Two parameters may share an array.
            }
            NDArray array = own(original);
            taken.put(original, Torch.version(original));
            owns.put(original, array);
            array.setRequiresGradient(parameter.requiresGradient());
            store.arrays.put(id, array);
            // An optimizer keeps its state by id and device. Ranks may share a device, so their ids
            // differ.
            String own = index == 0 ? id : id + "/" + index;
            parameters.add(new Own(named.getKey(), own, parameter, array, original));
        }
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
        try (NDManager temporary = manager.newSubManager()) {
            ParameterChecksum checksum = new ParameterChecksum();
            for (Own own : parameters) {
                if (!trainedOnly || own.isTrained()) {
                    checksum.add(temporary, own.array);
                }
            }
            NDArray own = temporary.create(new long[] {checksum.value()});
            NDArray all = temporary.create(new long[group.worldSize()]);
            group.allGatherIntoTensor(all, own).await();
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
     * Postpones all reductions to the step, until {@link #forgetPasses}. Needed after a pass that
     * only some ranks have begun, because they would not issue the same reductions.
     */
    void reduceLate() {
        late = true;
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
        if (passes == 1 && !late) {
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

    /** Forgets passes without a backward pass. */
    void forgetPasses() {
        passes = 0;
        late = false;
    }

    /** Removes all gradients, including those of frozen parameters. */
    void zeroGradients() {
        versions.clear();
        buckets.reset();
        parameters.forEach(own -> clear(own.array));
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
     * All-reduces the gradients and updates the parameters.
     *
     * @param check whether to skip the update if all gradients are zero
     * @param updated opened by the first rank of this JVM after its first update; the other ranks
     *     of the JVM wait for it. The ranks share learning-rate trackers, and the first update of a
     *     step may change a tracker, such as DJL's {@code MultiFactorTracker}
     * @return false if the update was skipped
     */
    boolean step(Optimizer optimizer, boolean check, CountDownLatch updated) {
        Map<NDArray, String> ids = new IdentityHashMap<>();
        parameters.forEach(own -> ids.put(own.array, own.id));
        GradientBuckets.Visitor update =
                (array, gradient) -> {
                    if (index > 0) {
                        await(updated);
                    }
                    update(optimizer, ids.get(array), array, gradient);
                    updated.countDown();
                };
        try {
            if (check && NoGradient.get(() -> buckets.areZero(trained()))) {
                return false;
            }
            NoGradient.run(() -> buckets.finish(trained(), update));
            parameters.stream().filter(own -> !own.isTrained()).forEach(own -> clear(own.array));
        } finally {
            updated.countDown(); // Also after a failure.
        }
        return true;
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
        manager.close();
        if (updates != null) {
            updates.close();
        }
    }
}
