// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.store.PrefixStore;
import org.djlx.collectives.store.Store;
import org.djlx.nativeops.host.FailureText;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Creates sub-groups, in two steps:
 *
 * <ol>
 *   <li>All ranks of the parent exchange their arguments in an operation of the parent. A mismatch
 *       is then an error on all ranks, and a dead rank fails the operation.
 *   <li>The members meet in the parent's store, under a number that is the same on all ranks. The
 *       other ranks wait until the members have met.
 * </ol>
 */
final class SubGroups {

    private static final OpType NEW_GROUP = new OpType("newGroup");
    private static final OpType SPLIT = new OpType("split");
    private static final int MAX_NAME = 200; // bytes
    private static final int MAX_BACKEND = 56; // bytes that are compared
    private static final String FAILURE = "newGroup failed"; // key of a member's reason

    private final RankGroup parent;
    private final String backend;
    private final Optional<BackendOptions> options; // empty: the parent's, and its backend

    /** Creates sub-groups with the backend, options and device of their parent. */
    SubGroups(RankGroup parent) {
        parent.state().checkUsable();
        this.parent = parent;
        this.backend = parent.backendName();
        this.options = Optional.empty();
    }

    /** Creates sub-groups with a backend and options of their own. */
    SubGroups(RankGroup parent, String backend, BackendOptions options) {
        parent.state().checkUsable();
        this.parent = parent;
        this.backend = Required.argument("newGroup: backend", backend);
        this.options = Optional.of(Required.argument("newGroup: options", options));
        Backends.get(backend); // before anything is sent
    }

    RankGroup newGroup(List<Integer> ranks, Optional<String> givenName) {
        givenName.ifPresent(SubGroups::checkName);
        byte[] call = encode(ranks, givenName.orElse(""));
        byte[] calls = exchange(call);
        for (int rank = 0; rank < parent.worldSize(); rank++) {
            byte[] other = Arrays.copyOfRange(calls, rank * call.length, (rank + 1) * call.length);
            if (!Arrays.equals(call, other)) {
                throw new CollectiveMismatchException(
                        String.format(
                                "the ranks of group '%s' do not create the same sub-group: rank %d"
                                    + " called %s, rank %d called %s; pass the same arguments on"
                                    + " all ranks",
                                parent.name(),
                                parent.rank(),
                                describe(call),
                                rank,
                                describe(other)));
            }
        }
        int number = parent.state().nextSubGroup(givenName.orElse(null));
        String name = parent.name() + "." + givenName.orElse(Integer.toString(number));
        List<Integer> members = members(call);
        return together(begun -> create(Integer.toString(number), name, 0, members, begun));
    }

    /**
     * Checks a user's name for a sub-group. A full name is the parent's name, a dot, and the given
     * or generated name. Generated names consist of numbers and dots. A given name must not be a
     * number or contain a dot, so full names stay unique.
     */
    private static void checkName(String givenName) {
        if (givenName.getBytes(StandardCharsets.UTF_8).length > MAX_NAME) {
            throw new IllegalArgumentException(
                    "newGroup: the name must have at most %s bytes in UTF-8: %s"
                            .formatted(MAX_NAME, givenName));
        }
        if (givenName.indexOf('.') >= 0 || givenName.chars().allMatch(Character::isDigit)) {
            throw new IllegalArgumentException(
                    "newGroup: the name must not be empty, a number, or contain a dot, which"
                            + " generated names use, but is '"
                            + givenName
                            + "'");
        }
    }

    /** Encodes the arguments: one byte per rank, 1 for members, then name and backend. */
    private byte[] encode(List<Integer> ranks, String name) {
        if (ranks == null || ranks.stream().anyMatch(Objects::isNull)) {
            throw new IllegalArgumentException(
                    "newGroup: ranks must not be null or contain null: " + ranks);
        }
        int worldSize = parent.worldSize();
        if (ranks.isEmpty()) {
            throw new IllegalArgumentException("newGroup: ranks is empty; pass at least one rank");
        }
        byte[] call = new byte[worldSize + MAX_NAME + MAX_BACKEND];
        for (int rank : ranks) {
            if (rank < 0 || rank >= worldSize) {
                throw new IllegalArgumentException(
                        String.format(
                                "newGroup: rank %d is out of range: the group '%s' has ranks 0 to"
                                        + " %d",
                                rank, parent.name(), worldSize - 1));
            }
            if (call[rank] != 0) {
                throw new IllegalArgumentException(
                        "newGroup: ranks must be distinct, but are " + ranks);
            }
            call[rank] = 1;
        }
        put(name, call, worldSize, MAX_NAME);
        put(backend, call, worldSize + MAX_NAME, MAX_BACKEND);
        return call;
    }

    private static void put(String text, byte[] call, int begin, int max) {
        byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
        System.arraycopy(utf8, 0, call, begin, Math.min(utf8.length, max));
    }

    private static String text(byte[] call, int begin, int max) {
        return new String(call, begin, max, StandardCharsets.UTF_8).replace("\0", "");
    }

    private List<Integer> members(byte[] call) {
        return IntStream.range(0, parent.worldSize())
                .filter(rank -> call[rank] != 0)
                .boxed()
                .toList();
    }

    private String describe(byte[] call) {
        String name = text(call, parent.worldSize(), MAX_NAME);
        return "newGroup(%s%s) with backend '%s'"
                .formatted(
                        members(call),
                        name.isEmpty() ? "" : ", '" + name + "'",
                        text(call, parent.worldSize() + MAX_NAME, MAX_BACKEND));
    }

    private byte[] exchange(byte[] call) {
        try (NDManager manager = manager()) {
            NDArray calls =
                    Torch.empty(
                            manager,
                            new Shape((long) parent.worldSize() * call.length),
                            ScalarType.INT8);
            HostWait.await(
                    parent, parent.allGatherIntoTensor(NEW_GROUP, 0, calls, manager.create(call)));
            return calls.toByteArray();
        }
    }

    private NDManager manager() {
        return NDManager.newBaseManager(parent.state().backend().device(), "PyTorch");
    }

    RankGroup split(int color, int key) {
        int[] calls;
        try (NDManager manager = manager()) {
            NDArray all = Torch.empty(manager, new Shape(parent.worldSize(), 2), ScalarType.INT32);
            NDArray own = manager.create(new int[] {color, key});
            HostWait.await(parent, parent.allGatherIntoTensor(SPLIT, 0, all, own));
            calls = all.toIntArray();
        }
        int number = parent.state().nextSubGroup(null);
        String name = parent.name() + "." + number;
        List<Integer> members =
                IntStream.range(0, parent.worldSize())
                        .filter(rank -> calls[2 * rank] == color)
                        .boxed()
                        .sorted(
                                Comparator.<Integer>comparingInt(rank -> calls[2 * rank + 1])
                                        .thenComparingInt(rank -> rank))
                        .toList();
        return together(
                begun -> {
                    if (color < 0) {
                        parent.state().backend().split(null, 0, List.of());
                        return RankGroup.nonMember(name, List.of(), parent);
                    }
                    String prefix = number + "." + color;
                    return create(prefix, name + "." + color, color, members, begun);
                });
    }

    /**
     * Creates a group without the excluded ranks. The remaining ranks meet in the parent's store,
     * not in an operation, because the parent may be broken.
     */
    RankGroup shrink(List<Integer> excluded) {
        List<Integer> members = remaining(excluded);
        int number = parent.state().nextShrink();
        GroupContext whole = parent.state().context();
        Store store = new PrefixStore("shrink" + number, whole.store());
        byte[] own = members.toString().getBytes(StandardCharsets.UTF_8);
        byte[] first = store.compareSet("members", new byte[0], own);
        if (!Arrays.equals(own, first)) {
            throw new CollectiveMismatchException(
                    String.format(
                            "shrink: rank %d of group '%s' keeps ranks %s, but another rank keeps"
                                    + " %s; exclude the same ranks on all remaining ranks",
                            parent.rank(),
                            parent.name(),
                            members,
                            new String(first, StandardCharsets.UTF_8)));
        }
        GroupContext context =
                whole.part(
                        parent.name() + ".shrink" + number,
                        members,
                        store,
                        whole.options(),
                        parent.device(),
                        () -> failure(store));
        return part(context, members, () -> Backends.get(backend).create(context));
    }

    private List<Integer> remaining(List<Integer> excluded) {
        OperationChecks.present("shrink", "ranksToExclude", excluded);
        int worldSize = parent.worldSize();
        for (int rank : excluded) {
            if (rank < 0 || rank >= worldSize || rank == parent.rank()) {
                throw new IllegalArgumentException(
                        String.format(
                                "shrink: rank %d of group '%s' cannot exclude rank %d; exclude"
                                        + " other ranks, from 0 to %d",
                                parent.rank(), parent.name(), rank, worldSize - 1));
            }
        }
        return IntStream.range(0, worldSize)
                .filter(rank -> !excluded.contains(rank))
                .boxed()
                .toList();
    }

    /**
     * Creates a rank's part of a sub-group and waits until all ranks of the parent have created
     * their parts. Until then no rank may leave the parent, because the members meet in the
     * parent's store. A rank that fails still calls the barrier; otherwise the other ranks would
     * wait for it. The argument of {@code part} is a barrier that all ranks begin first. It fails
     * if a rank leaves; a wait in the store would not detect this.
     */
    private RankGroup together(Function<Work, RankGroup> part) {
        Work begun = parent.barrier();
        RankGroup group;
        try {
            group = part.apply(begun);
        } catch (RuntimeException | Error e) { // Error: a library is missing on this host.
            try {
                parent.barrier().await();
            } catch (RuntimeException late) {
                e.addSuppressed(late);
            }
            throw e;
        }
        try {
            parent.barrier().await();
            return group;
        } catch (RuntimeException e) {
            group.destroy();
            throw e;
        }
    }

    private RankGroup create(
            String prefix, String name, int color, List<Integer> members, Work begun) {
        Backend whole = parent.state().backend();
        GroupContext context = parent.state().context();
        int rank = members.indexOf(parent.rank());
        if (rank < 0) {
            if (options.isEmpty()) {
                whole.split(null, color, members);
            }
            return RankGroup.nonMember(name, ranks(members), parent);
        }
        Store store = new PrefixStore("group" + prefix, context.store());
        GroupContext part =
                context.part(
                        name,
                        members,
                        store,
                        options.orElse(context.options()),
                        options.isEmpty() ? parent.device() : null,
                        () -> begun.exception().or(() -> failure(store)));
        return part(part, members, () -> join(part, members, color));
    }

    /** Creates this rank's part. Announces a failure, so that the other members do not wait. */
    private RankGroup part(
            GroupContext context, List<Integer> members, Supplier<Backend> creation) {
        try {
            return RankGroup.part(parent, context, creation.get(), ranks(members));
        } catch (RuntimeException | Error e) {
            announce(context.store(), e);
            throw e;
        }
    }

    /** Returns the ranks in the initial group. */
    private List<Integer> ranks(List<Integer> members) {
        return members.stream().map(parent.ranks()::get).toList();
    }

    /** Ends the other members' wait for this rank. At a timeout they have timeouts of their own. */
    private void announce(Store store, Throwable failure) {
        if (failure instanceof CollectiveTimeoutException) {
            return;
        }
        String reason =
                "rank %d of group '%s' failed: %s"
                        .formatted(parent.rank(), parent.name(), FailureText.of(failure));
        try { // The first failure is the cause.
            store.compareSet(FAILURE, new byte[0], reason.getBytes(StandardCharsets.UTF_8));
        } catch (RuntimeException e) {
            failure.addSuppressed(e);
        }
    }

    /** Returns why a member cannot create its part, if it has announced that. */
    private static Optional<Throwable> failure(Store store) {
        if (!store.check(List.of(FAILURE))) {
            return Optional.empty();
        }
        String reason = new String(store.get(FAILURE), StandardCharsets.UTF_8);
        return Optional.of(new CollectiveException(reason));
    }

    /** Creates the backend; a timeout names missing ranks by their rank in the parent. */
    private Backend join(GroupContext part, List<Integer> members, int color) {
        try {
            Optional<Backend> split =
                    options.isEmpty()
                            ? parent.state().backend().split(part, color, members)
                            : Optional.empty();
            return split.orElseGet(() -> Backends.get(backend).create(part));
        } catch (CollectiveTimeoutException e) {
            List<Integer> missing = e.missingRanks().stream().map(members::get).sorted().toList();
            throw new CollectiveTimeoutException(
                    ("newGroup or split on rank %s of group '%s': ranks %s of that group did not"
                                    + " join: %s")
                            .formatted(parent.rank(), parent.name(), missing, e.getMessage()),
                    missing,
                    e);
        }
    }
}
