// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.djlx.collectives.launch.Nodes.UNSET;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.Heartbeat;
import org.djlx.collectives.launch.Nodes.Attempt;
import org.djlx.collectives.launch.Nodes.Request;
import org.djlx.collectives.launch.Nodes.Result;
import org.djlx.collectives.store.Store;

/**
 * Decides which launchers of a job take part in its next attempt. Ends an attempt when one of them
 * dies or, with a number of nodes from MIN to MAX, another one comes. Runs in the launcher that
 * serves the store. If that launcher is started again, the other launchers tell the new coordinator
 * all that it needs.
 *
 * <p>An attempt begins with MAX launchers, or with at least MIN when the last call is over.
 */
final class Coordinator implements AutoCloseable {

    private static final long TICK_MILLIS = 50;
    private static final long CLOSE_MILLIS = 2000;

    // Two launchers with the same node rank are twins. The second waits for this many beats. It is
    // refused if the first has beaten meanwhile, and replaces the first if that was silent.
    private static final int TWIN_BEATS = 2;

    /** A launcher that waits for an attempt, or takes part in one. */
    private record Member(int number, Request request, long twinBeats) {

        String beat() {
            return Nodes.BEAT + number;
        }
    }

    private final Store store;
    private final Launcher launcher;
    private final PrintStream err;
    private final Heartbeat heartbeat;
    private final Thread thread = new Thread(this::run, "nodes-coordinator");
    private final List<Member> waiting = new ArrayList<>();
    private final List<Member> running = new ArrayList<>();
    private Attempt attempt; // of the members that run
    private int generation; // least of the next attempt
    private int failures; // before the next attempt, at least
    private String end; // why no attempt follows; null if one may
    private int next = 1; // number of the next launcher that comes
    private long enoughSince; // since when MIN launchers wait; 0 while fewer do
    private volatile boolean closed;

    Coordinator(Store store, Launcher launcher, PrintStream err) {
        this.store = store;
        this.launcher = launcher;
        this.err = err;
        heartbeat = new Heartbeat("nodes-heartbeats", store, Nodes.BEAT + 0, beat -> {});
        thread.setDaemon(true);
        thread.start();
    }

    private void run() {
        try {
            while (!closed) {
                endOfAttempt();
                admitNew();
                List.copyOf(waiting).forEach(this::compareWithTwin);
                waiting.removeIf(this::isGone);
                if (!running.isEmpty()) {
                    check();
                } else if (end == null) {
                    begin();
                }
                Thread.sleep(TICK_MILLIS);
            }
            admitNew();
            endOfAttempt(); // Its own launcher may have seen it first.
        } catch (CollectiveException | InterruptedException e) {
            closed = true; // The launcher ends.
        }
    }

    private void admitNew() {
        while (store.check(List.of(Nodes.NODE + next))) {
            Request request = Nodes.read(store.get(Nodes.NODE + next), Request.class);
            admit(new Member(next, request, 0));
            next++;
        }
    }

    private void admit(Member member) {
        String job = launcher.job();
        if (!member.request().job().equals(job)) {
            refuse(member, "it has " + member.request().job() + ", this job has " + job);
        } else if (end != null) {
            refuse(member, end);
        } else {
            heartbeat.watch(member.beat());
            Member twin = twinOf(member);
            long beats = twin == null ? 0 : heartbeat.beats(twin.beat());
            waiting.add(new Member(member.number(), member.request(), beats));
        }
    }

    private void refuse(Member member, String reason) {
        waiting.remove(member);
        store.set(Nodes.ANSWER + member.number(), Nodes.bytes(Nodes.REFUSED + reason));
        List<Integer> here =
                List.of(waiting, running).stream()
                        .flatMap(List::stream)
                        .map(known -> known.request().node())
                        .toList();
        String missing =
                IntStream.range(0, launcher.maxNodes)
                        .filter(node -> node != launcher.nodeRank && !here.contains(node))
                        .mapToObj(Integer::toString)
                        .collect(Collectors.joining(", "));
        boolean named = !missing.isEmpty() && !here.contains(-1) && end == null;
        RankProcesses.say(
                err,
                "a launcher was refused: "
                        + reason
                        + (named ? "; still waiting for node(s) " + missing : ""));
    }

    /** Returns the launcher with the same node rank that came before; null if there is none. */
    private Member twinOf(Member member) {
        int node = member.request().node();
        return List.of(waiting, running).stream()
                .flatMap(List::stream)
                .filter(other -> other.number() < member.number() && node >= 0)
                .filter(other -> other.request().node() == node)
                .findFirst()
                .orElse(null);
    }

    private void compareWithTwin(Member member) {
        Member twin = twinOf(member);
        if (twin != null && heartbeat.beats(twin.beat()) >= member.twinBeats() + TWIN_BEATS) {
            String taken = "--node-rank " + member.request().node();
            refuse(member, taken + " is taken by another launcher; give each launcher its own");
        } else if (twin != null && heartbeat.missed(twin.beat()) > TWIN_BEATS) {
            store.set(Nodes.GONE + twin.number(), UNSET);
        }
    }

    private boolean isGone(Member member) {
        return heartbeat.missed(member.beat()) >= Heartbeat.LIMIT
                || store.check(List.of(Nodes.GONE + member.number()));
    }

    private void endOfAttempt() {
        if (running.isEmpty() || !store.check(List.of(Nodes.OUTCOME + attempt.generation()))) {
            return;
        }
        Result result = Nodes.read(store.get(Nodes.OUTCOME + attempt.generation()), Result.class);
        if (result.code() == 0) {
            end = "the job has ended";
        } else if (!launcher.restarts(attempt, result)) {
            end = "the job has failed";
        }
        generation = attempt.generation() + 1;
        failures = attempt.failures() + (result.code() == Nodes.NODE_COME ? 0 : 1);
        running.forEach(member -> heartbeat.forget(member.beat()));
        running.clear();
        if (end != null) {
            List.copyOf(waiting).forEach(member -> refuse(member, end));
        }
    }

    private void check() {
        for (Member member : running) {
            if (isGone(member)) {
                fail(new Result(Nodes.NODE_GONE, member.request().host() + " has died or left"));
                return;
            }
        }
        if (running.size() < launcher.maxNodes && !waiting.isEmpty()) {
            Member member = waiting.get(0);
            if (twinOf(member) == null) {
                fail(new Result(Nodes.NODE_COME, member.request().host() + " has come"));
            }
        }
    }

    private void fail(Result result) {
        store.compareSet(Nodes.OUTCOME + attempt.generation(), UNSET, Nodes.json(result));
    }

    private void begin() {
        List<Member> ready =
                waiting.stream()
                        .filter(member -> twinOf(member) == null)
                        .sorted(
                                Comparator.<Member>comparingInt(member -> member.request().node())
                                        .thenComparingInt(Member::number))
                        .limit(launcher.maxNodes)
                        .toList();
        boolean enough = ready.size() >= launcher.minNodes;
        enoughSince = !enough ? 0 : enoughSince == 0 ? System.nanoTime() : enoughSince;
        if (!enough
                || ready.size() < launcher.maxNodes
                        && System.nanoTime() - enoughSince < launcher.lastCall.toNanos()) {
            return;
        }
        enoughSince = 0;
        running.addAll(ready);
        waiting.removeAll(ready);
        for (Member member : ready) {
            generation = Math.max(generation, member.request().generation());
            failures = Math.max(failures, member.request().failures());
        }
        for (int node = 0; node < running.size(); node++) {
            Attempt part = new Attempt(generation, failures, node, running.size());
            attempt = part;
            store.set(Nodes.ANSWER + running.get(node).number(), Nodes.json(part));
        }
    }

    /** Tells the launchers that still wait if the job has ended. */
    @Override
    public void close() {
        closed = true;
        try {
            thread.join(CLOSE_MILLIS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        heartbeat.close();
    }
}
