/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Creates groups of some ranks of a group. All ranks tell each other through the group's store what
 * they want, so that all know the members, and a call that differs is an error on all of them. The
 * keys of a sub-group carry a number that is the same on all ranks.
 */
final class SubGroups {

    private SubGroups() {}

    static ProcessGroup newGroup(ProcessGroup parent, List<Integer> ranks, String givenName) {
        parent.state().checkUsable();
        List<Integer> members = checked(parent, ranks);
        int number = parent.state().nextSubGroup();
        String name = givenName == null ? parent.name() + "." + number : givenName;
        List<String> calls =
                exchange(parent, number, name, "newGroup(" + members + ", '" + name + "')");
        for (int rank = 0; rank < calls.size(); rank++) {
            if (!calls.get(rank).equals(calls.get(0))) {
                throw new CollectiveMismatchException(
                        String.format(
                                "the ranks of group '%s' do not create the same group: rank 0"
                                        + " called %s, rank %d called %s; all ranks must pass the"
                                        + " same",
                                parent.name(), calls.get(0), rank, calls.get(rank)));
            }
        }
        return create(parent, Integer.toString(number), name, members);
    }

    private static List<Integer> checked(ProcessGroup parent, List<Integer> ranks) {
        Objects.requireNonNull(ranks, "ranks");
        if (ranks.isEmpty()) {
            throw new IllegalArgumentException("newGroup: a group has one rank at least");
        }
        for (int rank : ranks) {
            if (rank < 0 || rank >= parent.worldSize()) {
                throw new IllegalArgumentException(
                        String.format(
                                "newGroup: rank %d lies outside the group '%s' of %d ranks",
                                rank, parent.name(), parent.worldSize()));
            }
        }
        if (ranks.stream().distinct().count() != ranks.size()) {
            throw new IllegalArgumentException("newGroup: a rank is given twice: " + ranks);
        }
        return ranks.stream().sorted().toList();
    }

    static ProcessGroup split(ProcessGroup parent, int color, int key) {
        parent.state().checkUsable();
        int number = parent.state().nextSubGroup();
        String name = parent.name() + "." + number;
        List<String> calls = exchange(parent, number, name, "split " + color + " " + key);
        List<long[]> members = new ArrayList<>(); // key, rank
        for (int rank = 0; rank < calls.size(); rank++) {
            String[] words = calls.get(rank).split(" ");
            if (words.length != 3 || !words[0].equals("split")) {
                throw new CollectiveMismatchException(
                        String.format(
                                "the ranks of group '%s' do not create the same groups: rank %d"
                                        + " called split, rank %d called %s",
                                parent.name(), parent.rank(), rank, calls.get(rank)));
            }
            if (Integer.parseInt(words[1]) == color) {
                members.add(new long[] {Integer.parseInt(words[2]), rank});
            }
        }
        if (color < 0) {
            return ProcessGroup.nonMember(name, 0, parent);
        }
        members.sort(
                Comparator.<long[]>comparingLong(member -> member[0])
                        .thenComparingLong(member -> member[1]));
        List<Integer> ranks = members.stream().map(member -> (int) member[1]).toList();
        return create(parent, number + "." + color, name + "." + color, ranks);
    }

    private static List<String> exchange(
            ProcessGroup parent, int number, String name, String call) {
        GroupContext context = parent.state().context();
        return new GroupContext(
                        name,
                        parent.rank(),
                        parent.worldSize(),
                        context.store(),
                        new BackendOptions(parent.timeout()))
                .exchange("subgroup" + number, call.getBytes(StandardCharsets.UTF_8)).stream()
                        .map(bytes -> new String(bytes, StandardCharsets.UTF_8))
                        .toList();
    }

    private static ProcessGroup create(
            ProcessGroup parent, String prefix, String name, List<Integer> members) {
        int rank = members.indexOf(parent.rank());
        if (rank < 0) {
            return ProcessGroup.nonMember(name, members.size(), parent);
        }
        GroupContext context = parent.state().context();
        Store store = new PrefixStore("group" + prefix, context.store());
        AtomicReference<ProcessGroup> self = new AtomicReference<>();
        ProcessGroup group =
                ProcessGroups.create(
                        parent.backendName(),
                        new GroupContext(name, rank, members.size(), store, context.options()),
                        () -> parent.state().removeSubGroup(self.get()));
        self.set(group);
        parent.state().addSubGroup(group);
        return group;
    }
}
