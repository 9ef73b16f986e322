// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import ai.djl.ndarray.NDManager;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.collectives.soak.RandomCall.Issued;
import org.djlx.collectives.soak.RandomCall.Kind;

/**
 * The random program of one rank: calls of all kinds on a group and on sub-groups of it, several of
 * them under way at once, each result compared with what plain Java computes. The ranks of a group
 * that begin with the same seed issue the same calls; where their arrays lie, in which order they
 * wait for their works and how, each chooses for itself. For one thread.
 */
public final class RandomProgram {

    private static final int MOST_PENDING = 8;
    private static final Duration LONG = Duration.ofMinutes(10);
    private static final Duration ENDED = Duration.ofSeconds(60);
    private static final Set<String> NEED_PEERS =
            Set.of("messages", "batchedMessages", "recvAnySource", "mismatch");

    private final long seed;
    private final Random own;
    private final Map<String, Kind> kinds;
    private final int mostGroups;
    private final List<String> order;
    private final List<Member> groups = new ArrayList<>();
    private final List<Pending> pending = new ArrayList<>();
    private final Map<String, Long> counts = new TreeMap<>();

    /**
     * A group, or its place where this rank has no handle.
     *
     * @param group this rank's handle, or null
     * @param parent what it was made of, or null
     */
    private record Member(ProcessGroup group, Member parent) {

        boolean isIn() {
            return group != null && group.isMember();
        }

        boolean descendsFrom(Member other) {
            return this == other || parent != null && parent.descendsFrom(other);
        }
    }

    private record Pending(String what, Member member, NDManager manager, Issued issued) {}

    private RandomProgram(ProcessGroup world, long seed, Map<String, Kind> kinds, int mostGroups) {
        this.seed = seed;
        this.mostGroups = mostGroups;
        this.own = new Random(seed + 31L * world.rank() + 7);
        this.kinds = kinds;
        order = new ArrayList<>(kinds.keySet());
        Collections.shuffle(order, new Random(seed));
        groups.add(new Member(world, null));
    }

    /** A program of all there is, for {@code shm}. */
    RandomProgram(ProcessGroup world, long seed) {
        this(world, seed, kinds(), 5);
    }

    /** A program of all collectives, without what not every backend can do. */
    public static RandomProgram ofCollectives(ProcessGroup world, long seed) {
        Map<String, Kind> kinds = new LinkedHashMap<>(RandomReductions.all());
        kinds.putAll(RandomMoves.all());
        return new RandomProgram(world, seed, kinds, 1);
    }

    /** All kinds of calls. */
    static Map<String, Kind> kinds() {
        Map<String, Kind> kinds = new LinkedHashMap<>(RandomReductions.all());
        kinds.putAll(RandomMoves.all());
        kinds.putAll(RandomMessages.all());
        kinds.putAll(RandomOthers.all());
        return kinds;
    }

    /**
     * Runs the program: each kind some times. Leaves no operation under way and no sub-group.
     *
     * @param times how often each kind is called
     * @return how many calls of each kind this rank has issued
     * @throws CollectiveException if an operation failed
     * @throws AssertionError if a result is wrong
     */
    public Map<String, Long> run(int times) {
        String what = "";
        try {
            for (int i = 0; i < times * order.size(); i++) {
                String name = order.get(i % order.size());
                what = "call " + i + ", " + name;
                step(i, name);
            }
            while (!pending.isEmpty()) {
                what = "the end";
                finish(own.nextInt(pending.size()));
            }
            while (groups.size() > 1) {
                leave(groups.get(groups.size() - 1));
            }
        } catch (CollectiveException e) {
            giveUp(e);
            throw e;
        } catch (RuntimeException | Error e) {
            throw new AssertionError(
                    String.format(
                            "rank %d of a program with the seed %d failed at %s: %s",
                            groups.get(0).group().rank(), seed, what, e),
                    e);
        }
        return counts;
    }

    private void step(int index, String name) {
        Random common = new Random(seed ^ 0x9e3779b97f4a7c15L * (index + 1));
        if (groups.size() < mostGroups && common.nextInt(12) == 0) {
            newGroup(new Random(common.nextLong()), index);
        } else if (groups.size() > 1 && common.nextInt(20) == 0) {
            leave(groups.get(1 + common.nextInt(groups.size() - 1)));
        }
        // The first time on all ranks, so that there are calls of each kind.
        int place = common.nextInt(groups.size());
        Member member = groups.get(index < order.size() ? 0 : place);
        if (!member.isIn() || member.group().worldSize() == 1 && NEED_PEERS.contains(name)) {
            return;
        }
        if (pending.size() == MOST_PENDING) {
            finish(own.nextInt(pending.size()));
        }
        NDManager manager = NDManager.newBaseManager(member.group().device(), "PyTorch");
        RandomCall call =
                new RandomCall(
                        member.group(),
                        manager,
                        new Random(common.nextLong()),
                        own,
                        common.nextLong());
        pending.add(new Pending(name, member, manager, kinds.get(name).issue(call)));
        counts.merge(name, 1L, Long::sum);
        if (own.nextInt(3) == 0) {
            finish(own.nextInt(pending.size()));
        }
    }

    private void newGroup(Random common, int index) {
        Member parent = groups.get(common.nextInt(groups.size()));
        groups.add(new Member(parent.isIn() ? child(parent.group(), common, index) : null, parent));
    }

    private ProcessGroup child(ProcessGroup parent, Random common, int index) {
        int n = parent.worldSize();
        if (common.nextInt(3) == 0) {
            int[] colors = common.ints(n, -1, 2).toArray();
            int[] keys = common.ints(n, 0, 3).toArray();
            return parent.split(colors[parent.rank()], keys[parent.rank()]);
        }
        List<Integer> ranks = new ArrayList<>(IntStream.range(0, n).boxed().toList());
        Collections.shuffle(ranks, common);
        ranks = ranks.subList(0, 1 + common.nextInt(n));
        return common.nextBoolean()
                ? parent.newGroup(ranks)
                : parent.newGroup(ranks, "of-" + Long.toHexString(seed) + "-" + index);
    }

    /** Destroys a group, and with it those made of it, once what this rank has issued is done. */
    private void leave(Member member) {
        for (int i = pending.size() - 1; i >= 0; i--) {
            if (pending.get(i).member().descendsFrom(member)) {
                finish(i);
            }
        }
        if (member.group() != null) {
            member.group().destroy();
        }
        groups.removeIf(other -> other.descendsFrom(member));
    }

    /** Waits for an operation, in one of the ways there are, and checks its result. */
    private void finish(int index) {
        Pending one = pending.get(index);
        for (Work work : one.issued().works()) {
            switch (own.nextInt(4)) {
                case 0 -> work.await(LONG);
                case 1 -> awaitFuture(work);
                default -> work.await();
            }
        }
        pending.remove(index);
        try {
            one.issued().check().run();
        } catch (CollectiveException e) {
            throw e;
        } catch (RuntimeException | Error e) {
            throw new AssertionError("the result of " + one.what() + " is wrong: " + e, e);
        } finally {
            one.manager().close();
        }
    }

    private static void awaitFuture(Work work) {
        try {
            work.getFuture().toCompletableFuture().get(LONG.toSeconds(), TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            throw (CollectiveException) e.getCause();
        } catch (InterruptedException | TimeoutException e) {
            throw new AssertionError(work + ": " + e, e);
        }
    }

    /** After a failure: destroys the groups, which must end all that is under way. */
    private void giveUp(CollectiveException reason) {
        groups.get(0).group().destroy();
        for (Pending one : pending) {
            for (Work work : one.issued().works()) {
                try {
                    work.await(ENDED);
                } catch (CollectiveTimeoutException e) {
                    if (!work.isCompleted()) {
                        e.addSuppressed(reason);
                        throw new AssertionError(
                                "the group was destroyed and " + work + " does not end", e);
                    }
                } catch (CollectiveException e) {
                    // Most fail.
                }
            }
            one.manager().close();
        }
    }
}
