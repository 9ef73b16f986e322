// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

import static org.djlx.collectives.trace.TestDumps.completed;
import static org.djlx.collectives.trace.TestDumps.dump;
import static org.djlx.collectives.trace.TestDumps.entry;
import static org.djlx.collectives.trace.TestDumps.failed;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.trace.FlightEntry.State;
import org.djlx.collectives.trace.FlightFinding.Kind;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class FlightAnalysisTest {

    private static final String A = "allReduce(float32, (2, 3), SUM)";
    private static final String B = "broadcast(float32, (2, 3), 1)";
    private static final String C = "barrier()";

    private static FlightAnalysis analyse(FlightDump... dumps) {
        List<FlightAnalysis> groups = FlightAnalysis.of(Arrays.asList(dumps));
        assertEquals(1, groups.size());
        return groups.get(0);
    }

    /** Checks that there is exactly one finding. */
    private static void assertFinding(
            FlightAnalysis analysis, Kind kind, List<Integer> ranks, long sequence, String text) {
        assertEquals(List.of(new FlightFinding(kind, ranks, sequence, text)), analysis.findings());
        assertEquals(text, analysis.verdict());
    }

    private static List<Kind> kinds(FlightAnalysis analysis) {
        return analysis.findings().stream().map(FlightFinding::kind).toList();
    }

    @Test
    void ranksThatDidTheSameAgree() {
        FlightAnalysis analysis = analyse(completed(1, 2, 1, A, C), completed(0, 2, 1, A, C));
        assertEquals(List.of(), analysis.findings());
        assertEquals(
                "all ranks agree: each called and completed the same operations, up to #2"
                        + " barrier()",
                analysis.verdict());
        assertEquals("g", analysis.group());
        assertEquals(2, analysis.worldSize());
        assertEquals(List.of(0, 1), analysis.dumps().stream().map(FlightDump::rank).toList());
    }

    @Test
    void ranksThatDidNothingAgree() {
        assertEquals(
                "all ranks agree: none has called anything", analyse(completed(0, 1, 1)).verdict());
    }

    @Test
    void aRankIsBehind() {
        assertFinding(
                analyse(
                        completed(0, 3, 1, A, B, C, A),
                        completed(1, 3, 1, A, B),
                        completed(2, 3, 1, A, B, C, A)),
                Kind.BEHIND,
                List.of(1),
                3,
                "rank 1 is behind and never called #3 barrier(); the last call there was #2 "
                        + B
                        + ", that of ranks 0, 2 #4 "
                        + A);
    }

    @Test
    void ranksAreBehindAtDifferentPlaces() {
        FlightAnalysis analysis =
                analyse(
                        completed(0, 4, 1),
                        completed(1, 4, 1, A),
                        completed(2, 4, 1),
                        completed(3, 4, 1, A, C));
        assertEquals(List.of(Kind.BEHIND, Kind.BEHIND), kinds(analysis));
        assertEquals(
                "ranks 0, 2 are behind and never called #1 "
                        + A
                        + "; the last call there was none, that of rank 3 #2 barrier()",
                analysis.verdict());
        assertEquals(List.of(1), analysis.findings().get(1).ranks());
    }

    @Test
    void rankAfterTheTimeoutIsLateAndOthersAreNotBehind() {
        FlightAnalysis analysis =
                analyse(
                        dump("g", 0, 3, List.of(2), List.of(failed(1, C, 2_000, 0, 2_000))),
                        // Rank 0 broke the group just before the timeout of rank 1.
                        dump(1, 3, List.of(failed(1, C, 2_000, 1, 2_000))),
                        dump(
                                2,
                                3,
                                List.of(
                                        failed(1, C, 2_000, 5_012, 5_013),
                                        failed(2, C, 2_000, 5_014, 7_014))));
        FlightFinding late = analysis.findings().get(0);
        assertEquals(Kind.LATE, late.kind());
        assertEquals(List.of(2), late.ranks());
        assertEquals(1, late.sequence());
        assertEquals(
                "rank 2 reached #1 barrier() 3.012 s after ranks 0, 1 had timed out",
                late.message());
        assertEquals(List.of(Kind.LATE, Kind.FAILED, Kind.FAILED, Kind.FAILED), kinds(analysis));
    }

    @Test
    void severalRanksAreLate() {
        FlightAnalysis analysis =
                analyse(
                        dump(0, 3, List.of(failed(1, C, 2_000, 0, 2_000))),
                        dump(1, 3, List.of(failed(1, C, 2_000, 4_500, 4_501))),
                        dump(2, 3, List.of(failed(1, C, 2_000, 4_000, 4_001))));
        assertEquals(
                "ranks 1, 2 reached #1 barrier() 2.000 s or more after rank 0 had timed out",
                analysis.verdict());
    }

    @Test
    void failureBeforeTheTimeoutIsNoTimeout() {
        FlightAnalysis analysis =
                analyse(
                        dump(0, 2, List.of(failed(1, C, 2_000, 0, 100))),
                        dump(1, 2, List.of(failed(1, C, 2_000, 200, 201))));
        assertEquals(List.of(Kind.FAILED, Kind.FAILED), kinds(analysis));
    }

    /** The clocks of hosts differ: who was not missed is not late. */
    @Test
    void rankIsNotLateIfNoRankTimedOut() {
        FlightAnalysis analysis =
                analyse(
                        dump("g", 0, 3, List.of(1), List.of(failed(1, C, 2_000, 0, 2_000))),
                        dump(2, 3, List.of(failed(1, C, 2_000, 5_000, 7_000))));
        assertEquals(List.of(Kind.MISSING_DUMP, Kind.FAILED, Kind.FAILED), kinds(analysis));
    }

    @Test
    void failedRankIsNotBehindButARankWithoutTheCallIs() {
        FlightAnalysis analysis =
                analyse(
                        dump(
                                0,
                                3,
                                List.of(
                                        failed(1, C, 2_000, 0, 2_000),
                                        failed(2, C, 2_000, 2_001, 2_001))),
                        dump(1, 3, List.of(failed(1, C, 2_000, 0, 2_000))),
                        completed(2, 3, 1));
        assertEquals(List.of(Kind.BEHIND, Kind.FAILED, Kind.FAILED), kinds(analysis));
        assertEquals(
                "rank 2 is behind and never called #1 barrier(); the last call there was none, that"
                        + " of rank 0 #2 barrier()",
                analysis.verdict());
    }

    @Test
    void oneRankCalledAnotherOperation() {
        assertFinding(
                analyse(
                        completed(0, 3, 1, C, A),
                        completed(1, 3, 1, C, B),
                        completed(2, 3, 1, C, A)),
                Kind.MISMATCH,
                List.of(1),
                2,
                "the calls of #2 differ: ranks 0, 2 called " + A + "; rank 1 called " + B);
    }

    @Test
    void firstDifferenceInShapeOrTypeIsReported() {
        String shape = "allReduce(float32, (2, 4), SUM)";
        String type = "allReduce(float16, (2, 3), SUM)";
        assertFinding(
                analyse(completed(0, 2, 1, A, C), completed(1, 2, 1, shape, B)),
                Kind.MISMATCH,
                List.of(0, 1),
                1,
                "the calls of #1 differ: rank 0 called " + A + "; rank 1 called " + shape);
        assertEquals(
                List.of(Kind.MISMATCH),
                kinds(analyse(completed(0, 2, 1, A), completed(1, 2, 1, type))));
    }

    @Test
    void mismatchIsReportedBeforeItsConsequences() {
        assertEquals(
                List.of(Kind.MISMATCH, Kind.BEHIND),
                kinds(analyse(completed(0, 2, 1, A, C, C), completed(1, 2, 1, B))));
    }

    @Test
    void aDumpIsMissing() {
        assertFinding(
                analyse(completed(0, 3, 1, A), completed(2, 3, 1, A)),
                Kind.MISSING_DUMP,
                List.of(1),
                0,
                "there is no dump of rank 1");
    }

    @Test
    void rankWithoutADumpIsNamedByRanksThatWaitedForIt() {
        FlightAnalysis analysis =
                analyse(
                        dump(
                                TestDumps.GROUP,
                                0,
                                3,
                                List.of(1),
                                List.of(
                                        entry(1, C, State.COMPLETED),
                                        entry(2, A, State.FAILED),
                                        entry(3, A, State.FAILED))));
        assertEquals(List.of(Kind.MISSING_DUMP, Kind.FAILED), kinds(analysis));
        assertEquals(
                "there is no dump of ranks 1, 2; rank 0 timed out waiting for rank 1 in #2 " + A,
                analysis.verdict());
        assertEquals(
                "rank 0 failed in #2 " + A + ": it broke", analysis.findings().get(1).message());
    }

    @Test
    void operationRunningOnSomeRanksIsUnfinished() {
        assertFinding(
                analyse(
                        completed(0, 3, 1, A, C),
                        dump(
                                1,
                                3,
                                List.of(entry(1, A, State.STARTED), entry(2, C, State.SCHEDULED))),
                        completed(2, 3, 1, A, C)),
                Kind.UNFINISHED,
                List.of(1),
                1,
                "#1 " + A + " was called by all ranks and has not completed on rank 1 (started)");
    }

    @Test
    void rankThatWaitsForARankBehindIsNotBlamed() {
        FlightAnalysis analysis =
                analyse(
                        dump(
                                0,
                                2,
                                List.of(entry(1, A, State.COMPLETED), entry(2, C, State.STARTED))),
                        completed(1, 2, 1, A));
        assertEquals(List.of(Kind.BEHIND), kinds(analysis));
        assertEquals(List.of(1), analysis.findings().get(0).ranks());
    }

    @Test
    void overwrittenRecordsAreNotCompared() {
        // Rank 0 has lost #1 and #2; rank 1 has #2 to #4, where #2 could differ unnoticed.
        assertEquals(
                List.of(),
                analyse(completed(0, 2, 3, A, C), completed(1, 2, 2, B, A, C)).findings());
        assertEquals(
                List.of(Kind.MISMATCH),
                kinds(analyse(completed(0, 2, 3, A, C), completed(1, 2, 2, B, A, A))));
    }

    @Test
    void rankTooFarBehindForCommonRecordsIsNamed() {
        assertFinding(
                analyse(completed(0, 2, 1001, A, C), completed(1, 2, 2, B, A)),
                Kind.BEHIND,
                List.of(1),
                4,
                "rank 1 is behind and never called #4 (no longer on record); the last call there"
                        + " was #3 "
                        + A
                        + ", that of rank 0 #1002 barrier()");
    }

    @Test
    void dumpsOfGroupsAreAnalysedSeparately() {
        List<FlightAnalysis> groups =
                FlightAnalysis.of(
                        List.of(
                                dump("tp", 0, 1, List.of(), List.of(entry(1, A, State.COMPLETED))),
                                dump("dp", 0, 2, List.of(), List.of())));
        assertEquals(List.of("dp", "tp"), groups.stream().map(FlightAnalysis::group).toList());
        assertEquals(List.of(Kind.MISSING_DUMP), kinds(groups.get(0)));
        assertEquals(List.of(), groups.get(1).findings());
    }

    private static FlightDump of(String job, long after, String group, int rank, String call) {
        List<FlightEntry> entries = List.of(entry(1, call, State.COMPLETED));
        return dump(job, after, group, rank, 2, List.of(), entries);
    }

    /** Each names its groups as the others do. */
    @Test
    void latestJobIsTakenIfGroupNamesAreEqual() {
        List<FlightDump> latest = List.of(of("c", 20, "g", 0, C), of("c", 30, "g", 1, C));
        List<FlightDump> dumps = new ArrayList<>(latest);
        dumps.add(of("b", 10, "g", 0, B));
        dumps.add(of("b", 10, "g.0", 0, B)); // Not of the latest job, which has not written it.
        dumps.add(of("a", 0, "g.0", 1, A)); // Nor is it completed from another.
        FlightAnalysis analysis = analyse(dumps.toArray(new FlightDump[0]));
        assertEquals(latest, analysis.dumps());
        assertEquals(List.of(), analysis.findings());
    }

    /** Not every program starts its groups from one. */
    @Test
    void jobsWithDifferentGroupNamesAreBothTaken() {
        List<FlightAnalysis> groups =
                FlightAnalysis.of(List.of(of("a", 0, "tp", 0, C), of("b", 10, "dp", 0, C)));
        assertEquals(List.of("dp", "tp"), groups.stream().map(FlightAnalysis::group).toList());
    }

    @Test
    void laterOfTwoDumpsOfARankIsTaken() {
        FlightDump earlier = of("a", 0, "g", 0, B);
        FlightDump later = of("a", 10, "g", 0, C);
        FlightDump other = of("a", 5, "g", 1, C);
        assertEquals(List.of(later, other), analyse(later, earlier, other).dumps());
        assertEquals(List.of(later, other), analyse(earlier, later, other).dumps());
    }

    @Test
    void dumpsThatDoNotBelongTogetherAreRefused() {
        IllegalArgumentException sizes =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> analyse(completed(0, 2, 1, A), completed(1, 3, 1, A)));
        assertTrue(sizes.getMessage().contains("2 ranks in one and 3"), sizes::getMessage);
    }
}
