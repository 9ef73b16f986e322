// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.IntStream;
import org.djlx.collectives.trace.FlightEntry.State;
import org.djlx.collectives.trace.FlightFinding.Kind;
import org.djlx.nativeops.host.Required;

/**
 * Compares the flight records of a group's ranks. Finds ranks that are behind in the number of
 * issued operations, and ranks that have called a different operation.
 *
 * <p>Operations are compared by their sequence number in the group, as far back as the records go.
 * If the records of a healthy job are taken at different times, the rank of the earlier record
 * appears behind. Immutable.
 */
public final class FlightAnalysis {

    private static final double NANOS_PER_SECOND = 1e9;

    private final String group;
    private final int worldSize;
    private final SortedMap<Integer, FlightDump> dumps = new TreeMap<>();
    private final SortedMap<Long, SortedMap<Integer, FlightEntry>> operations = new TreeMap<>();
    private final List<FlightFinding> findings = new ArrayList<>();

    private FlightAnalysis(FlightDump first) {
        group = first.group();
        worldSize = first.worldSize();
    }

    /**
     * Compares the records of one or more groups. A directory may hold files of earlier jobs: of
     * several jobs with groups of the same name only the latest is used, and of several records of
     * one rank only the latest.
     *
     * @param dumps one dump per rank; some may be missing
     * @throws IllegalArgumentException if there are dumps of one group with different world sizes
     */
    public static List<FlightAnalysis> of(Collection<FlightDump> dumps) {
        SortedMap<String, FlightAnalysis> groups = new TreeMap<>();
        for (FlightDump dump : latestJobs(Required.argument("of: dumps", dumps))) {
            groups.computeIfAbsent(dump.group(), k -> new FlightAnalysis(dump)).add(dump);
        }
        groups.values().forEach(FlightAnalysis::analyse);
        return List.copyOf(groups.values());
    }

    /** Drops every job that shares a group's name with a later job. */
    private static List<FlightDump> latestJobs(Collection<FlightDump> dumps) {
        Map<String, List<FlightDump>> jobs = new LinkedHashMap<>(); // the latest first
        dumps.stream()
                .sorted(Comparator.comparingLong(FlightDump::timeDumpedNs).reversed())
                .forEach(
                        dump -> jobs.computeIfAbsent(dump.job(), k -> new ArrayList<>()).add(dump));
        List<FlightDump> latest = new ArrayList<>();
        Set<String> names = new HashSet<>();
        for (List<FlightDump> job : jobs.values()) {
            List<String> groups = job.stream().map(FlightDump::group).toList();
            if (Collections.disjoint(names, groups)) {
                latest.addAll(job);
            }
            names.addAll(groups);
        }
        return latest;
    }

    /** Adds a dump; of one rank, the latest comes first. */
    private void add(FlightDump dump) {
        if (dump.worldSize() != worldSize) {
            throw new IllegalArgumentException(
                    ("the dumps of group '%s' are not of one job: it has %s ranks in one and %s in"
                                    + " another")
                            .formatted(group, worldSize, dump.worldSize()));
        }
        if (dumps.putIfAbsent(dump.rank(), dump) != null) {
            return;
        }
        dump.collectives()
                .forEach(
                        entry ->
                                operations
                                        .computeIfAbsent(
                                                entry.collectiveSeqId(), k -> new TreeMap<>())
                                        .put(dump.rank(), entry));
    }

    /** {@return the group's name} */
    public String group() {
        return group;
    }

    /** {@return the number of ranks in the group} */
    public int worldSize() {
        return worldSize;
    }

    /** {@return the dumps by rank} */
    public List<FlightDump> dumps() {
        return List.copyOf(dumps.values());
    }

    /** {@return the findings, likely causes first; empty if all ranks agree} */
    public List<FlightFinding> findings() {
        return List.copyOf(findings);
    }

    /**
     * {@return the message of the first finding, which is the most likely cause; or a message that
     * all ranks agree}
     */
    public String verdict() {
        if (!findings.isEmpty()) {
            return findings.get(0).message();
        }
        if (operations.isEmpty()) {
            return "all ranks agree: none has called anything";
        }
        return "all ranks agree: each called and completed the same operations, up to "
                + name(operations.lastKey());
    }

    private void analyse() {
        findMismatch();
        findLate();
        findBehind();
        findMissingDumps();
        findUnfinished();
        findFailed();
    }

    /** Finds the first mismatch; operations after it are often shifted by one. */
    private void findMismatch() {
        for (Map.Entry<Long, SortedMap<Integer, FlightEntry>> operation : operations.entrySet()) {
            Map<String, List<Integer>> calls = new LinkedHashMap<>();
            operation
                    .getValue()
                    .forEach(
                            (rank, entry) ->
                                    calls.computeIfAbsent(entry.call(), k -> new ArrayList<>())
                                            .add(rank));
            if (calls.size() > 1) {
                StringBuilder text = new StringBuilder("the calls of #" + operation.getKey());
                String separator = " differ: ";
                for (Map.Entry<String, List<Integer>> call : calls.entrySet()) {
                    text.append(separator)
                            .append(FlightFinding.ranks(call.getValue()))
                            .append(" called ")
                            .append(call.getKey());
                    separator = "; ";
                }
                add(Kind.MISMATCH, deviating(calls), operation.getKey(), text.toString());
                return;
            }
        }
    }

    /** Returns the ranks that differ from the majority; all ranks if there is none. */
    private static List<Integer> deviating(Map<String, List<Integer>> calls) {
        int total = calls.values().stream().mapToInt(List::size).sum();
        return calls.values().stream()
                .filter(ranks -> 2 * ranks.size() <= total)
                .flatMap(List::stream)
                .sorted()
                .toList();
    }

    /** Finds the first operation that timed out; later timeouts follow from it. */
    private void findLate() {
        for (SortedMap<Integer, FlightEntry> operation : operations.values()) {
            Optional<Integer> first =
                    operation.keySet().stream()
                            .filter(rank -> operation.get(rank).isTimedOut())
                            .min(
                                    Comparator.comparing(
                                            rank ->
                                                    operation
                                                            .get(rank)
                                                            .timeDiscoveredCompletedNs()));
            if (first.isPresent()) {
                findLate(operation, first.get());
                return;
            }
        }
    }

    /** Finds the ranks that arrived after the first rank had timed out waiting for them. */
    private void findLate(SortedMap<Integer, FlightEntry> operation, int first) {
        long givenUp = operation.get(first).timeDiscoveredCompletedNs();
        List<Integer> awaited = dumps.get(first).missingRanks();
        List<Integer> late = new ArrayList<>();
        List<Integer> inTime = new ArrayList<>();
        long soonest = Long.MAX_VALUE;
        for (Map.Entry<Integer, FlightEntry> call : operation.entrySet()) {
            int rank = call.getKey();
            long lateness = call.getValue().timeCreatedNs() - givenUp;
            if (lateness > 0 && (awaited.isEmpty() || awaited.contains(rank))) {
                late.add(rank);
                soonest = Math.min(soonest, lateness);
            } else if (lateness <= 0 && call.getValue().state() == State.FAILED) {
                inTime.add(rank);
            }
        }
        if (!late.isEmpty()) {
            FlightEntry entry = operation.get(first);
            add(
                    Kind.LATE,
                    late,
                    entry.collectiveSeqId(),
                    String.format(
                            Locale.ROOT,
                            "%s reached %s %.3f s%s after %s had timed out",
                            FlightFinding.ranks(late),
                            name(entry),
                            soonest / NANOS_PER_SECOND,
                            late.size() == 1 ? "" : " or more",
                            FlightFinding.ranks(inTime)));
        }
    }

    /**
     * Finds ranks that are behind in the number of issued operations. Excludes ranks that failed:
     * their failures are other findings.
     */
    private void findBehind() {
        long last = dumps.values().stream().mapToLong(FlightDump::lastScheduled).max().orElse(0);
        SortedMap<Long, List<Integer>> behind = new TreeMap<>();
        List<Integer> ahead = new ArrayList<>();
        for (FlightDump dump : dumps.values()) {
            if (dump.lastScheduled() == last) {
                ahead.add(dump.rank());
            } else if (!dump.endsInFailure()) {
                behind.computeIfAbsent(dump.lastScheduled(), k -> new ArrayList<>())
                        .add(dump.rank());
            }
        }
        behind.forEach(
                (reached, ranks) ->
                        add(
                                Kind.BEHIND,
                                ranks,
                                reached + 1,
                                FlightFinding.ranks(ranks)
                                        + (ranks.size() == 1 ? " is" : " are")
                                        + " behind and never called "
                                        + name(reached + 1)
                                        + "; the last call there was "
                                        + (reached == 0 ? "none" : name(reached))
                                        + ", that of "
                                        + FlightFinding.ranks(ahead)
                                        + " "
                                        + name(last)));
    }

    private void findMissingDumps() {
        List<Integer> missing =
                IntStream.range(0, worldSize)
                        .filter(rank -> !dumps.containsKey(rank))
                        .boxed()
                        .toList();
        if (missing.isEmpty()) {
            return;
        }
        StringBuilder text =
                new StringBuilder("there is no dump of " + FlightFinding.ranks(missing));
        for (FlightDump dump : dumps.values()) {
            List<Integer> awaited =
                    dump.missingRanks().stream().filter(missing::contains).sorted().toList();
            if (!awaited.isEmpty()) {
                text.append("; rank ")
                        .append(dump.rank())
                        .append(" timed out waiting for ")
                        .append(FlightFinding.ranks(awaited))
                        .append(firstFailed(dump).map(e -> " in " + name(e)).orElse(""));
            }
        }
        add(Kind.MISSING_DUMP, missing, 0, text.toString());
    }

    /** Finds the first operation that all ranks have called and some have not completed. */
    private void findUnfinished() {
        long common = dumps.values().stream().mapToLong(FlightDump::lastScheduled).min().orElse(0);
        for (SortedMap<Integer, FlightEntry> operation : operations.headMap(common + 1).values()) {
            List<Integer> ranks = new ArrayList<>();
            TreeSet<String> states = new TreeSet<>();
            operation.forEach(
                    (rank, entry) -> {
                        if (entry.timeDiscoveredCompletedNs() == null) {
                            ranks.add(rank);
                            states.add(entry.state().name().toLowerCase(Locale.ROOT));
                        }
                    });
            if (!ranks.isEmpty()) {
                FlightEntry entry = operation.get(ranks.get(0));
                add(
                        Kind.UNFINISHED,
                        ranks,
                        entry.collectiveSeqId(),
                        "%s was called by all ranks and has not completed on %s (%s)"
                                .formatted(
                                        name(entry),
                                        FlightFinding.ranks(ranks),
                                        String.join(", ", states)));
                return;
            }
        }
    }

    private void findFailed() {
        for (FlightDump dump : dumps.values()) {
            firstFailed(dump)
                    .ifPresent(
                            entry ->
                                    add(
                                            Kind.FAILED,
                                            List.of(dump.rank()),
                                            entry.collectiveSeqId(),
                                            "rank %s failed in %s: %s"
                                                    .formatted(
                                                            dump.rank(),
                                                            name(entry),
                                                            entry.exception())));
        }
    }

    private static Optional<FlightEntry> firstFailed(FlightDump dump) {
        return dump.entries().stream()
                .filter(entry -> entry.state() == State.FAILED)
                .min(Comparator.comparingLong(FlightEntry::collectiveSeqId));
    }

    private void add(Kind kind, List<Integer> ranks, long sequence, String message) {
        findings.add(new FlightFinding(kind, List.copyOf(ranks), sequence, message));
    }

    private String name(long sequence) {
        SortedMap<Integer, FlightEntry> calls = operations.get(sequence);
        return calls == null
                ? "#" + sequence + " (no longer on record)"
                : name(calls.get(calls.firstKey()));
    }

    private static String name(FlightEntry entry) {
        return "#" + entry.collectiveSeqId() + " " + entry.call();
    }
}
