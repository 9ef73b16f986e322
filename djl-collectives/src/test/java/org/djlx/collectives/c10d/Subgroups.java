// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.c10d;

import static org.djlx.collectives.c10d.Rank.least;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.c10d.Expectation.Table;
import org.djlx.collectives.c10d.Rank.Body;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.spi.Backends;

/** What PyTorch's tests expect of groups, objects and the launcher's variables. */
final class Subgroups {

    private static final String GLOBAL_ROOTS =
            "[What differs from c10d](process-groups.md#what-differs-from-c10d), 1";

    private Subgroups() {}

    static List<Expectation<Body>> rows() {
        Table<Body> table = Table.of("distributed_test.py");
        members(table);
        divided(table);
        shrunk(table.file("test_c10d_nccl.py"));
        broken(table.file("test_c10d_nccl.py"));
        objects(table.file("test_c10d_object_collectives.py"));
        variables(table.file("test_c10d_nccl.py"));
        common(table.file("test_c10d_common.py"));
        return table.rows();
    }

    /** Runs a body with a group of ranks 1 and 2, on members and others. */
    private static Body pair(Consumer<ProcessGroup> body) {
        return least(
                3,
                rank -> {
                    ProcessGroup pair = rank.group().newGroup(List.of(1, 2));
                    body.accept(pair);
                    pair.destroy();
                });
    }

    private static double sum(Rank rank, ProcessGroup group, double number) {
        NDArray tensor = rank.full(number, 1);
        group.allReduce(tensor, ReduceOp.SUM).await();
        return TestArrays.values(tensor)[0];
    }

    private static void members(Table<Body> table) {
        table.agrees(
                "test_get_rank",
                "the ranks are 0 to n - 1, each once",
                rank -> {
                    List<Integer> all =
                            new ObjectCollectives(rank.group()).allGatherObject(rank.r());
                    assertEquals(IntStream.range(0, rank.n()).boxed().toList(), all);
                });
        table.agrees(
                "test_get_backend",
                "a member's group has the backend of the whole",
                least(
                        3,
                        rank -> {
                            ProcessGroup pair = rank.group().newGroup(List.of(1, 2));
                            if (pair.isMember()) {
                                assertEquals(rank.group().backendName(), pair.backendName());
                            }
                            pair.destroy();
                        }));
        table.agrees(
                "test_get_backend",
                "a rank that is not a member cannot ask for it",
                pair(
                        group -> {
                            if (!group.isMember()) {
                                assertThrows(IllegalStateException.class, group::backendName);
                            }
                        }));
        table.agrees(
                "test_Backend_enum_class",
                "the names of backends",
                rank -> assertTrue(Backends.names().contains(rank.group().backendName())));
        table.agrees(
                "test_Backend_enum_class",
                "no name is refused",
                rank -> assertThrows(RuntimeException.class, () -> Backends.get(null)));
        table.agrees(
                "test_get_rank_size_group",
                "a member's rank is 0 or 1, of 2",
                pair(
                        group -> {
                            if (group.isMember()) {
                                assertEquals(2, group.worldSize());
                                assertTrue(group.rank() == 0 || group.rank() == 1);
                            }
                        }));
        table.agrees(
                "test_get_rank_size_group",
                "the rank of others is -1",
                pair(group -> assertEquals(group.isMember(), group.rank() >= 0)));
        table.differs(
                "test_get_rank_size_group",
                "the size for others is -1",
                "the number of members",
                "the handle of others knows name and ranks",
                pair(group -> assertEquals(2, group.worldSize())));
        table.agrees(
                "test_get_rank_size_full_group",
                "rank and size are those of the whole",
                rank -> {
                    ProcessGroup all = rank.group().split(0, rank.r());
                    assertEquals(rank.r(), all.rank());
                    assertEquals(rank.n(), all.worldSize());
                    all.destroy();
                });
        for (String test : List.of("test_destroy_group", "test_destroy_full_group")) {
            table.agrees(
                    test,
                    "the whole goes on after a group was destroyed",
                    rank -> {
                        ProcessGroup group =
                                test.contains("full")
                                        ? rank.group().split(0, rank.r())
                                        : rank.group().newGroup(List.of(0));
                        group.destroy();
                        assertEquals(rank.n(), sum(rank, rank.group(), 1));
                    });
        }
        table.differs(
                "test_broadcast_group",
                "roots are ranks of the whole",
                "roots are ranks of the group that is called",
                GLOBAL_ROOTS,
                least(
                        3,
                        rank -> {
                            ProcessGroup pair = rank.group().newGroup(List.of(1, 2));
                            if (pair.isMember()) {
                                NDArray tensor = rank.full(rank.r(), 1);
                                pair.broadcast(tensor, 0).await();
                                rank.all(1, tensor);
                                assertEquals(0, pair.groupRank(1));
                                assertEquals(2, pair.globalRank(1));
                            }
                            pair.destroy();
                        }));
    }

    private static void divided(Table<Body> table) {
        table.agrees(
                "test_new_subgroups",
                "groups of two ranks: each rank is in one",
                rank -> {
                    ProcessGroup two = rank.group().split(rank.r() / 2, rank.r());
                    int size = rank.r() / 2 * 2 + 1 < rank.n() ? 2 : 1;
                    assertEquals(size, two.worldSize());
                    assertEquals(rank.r() % 2, two.rank());
                    assertEquals(size, sum(rank, two, 1));
                    two.destroy();
                });
        table.differs(
                "test_new_subgroups_world_size_not_divisible_by_group_size",
                "refused",
                "the last group is smaller",
                "`split` takes a color, not a size",
                least(
                        3,
                        rank -> {
                            int size = rank.n() - 1;
                            ProcessGroup part = rank.group().split(rank.r() / size, rank.r());
                            assertEquals(rank.r() < size ? size : 1, part.worldSize());
                            part.destroy();
                        }));
        table.agrees(
                "test_new_subgroups_by_enumeration",
                "the even ranks and the odd ranks",
                rank -> {
                    ProcessGroup half = rank.group().split(rank.r() % 2, rank.r());
                    assertEquals(rank.r() / 2, half.rank());
                    half.destroy();
                });
        table.agrees(
                "test_new_subgroups_group_size_exceeds_world_size",
                "more ranks than there are: refused",
                rank ->
                        rank.refuses(
                                () ->
                                        rank.group()
                                                .newGroup(
                                                        IntStream.range(0, 100).boxed().toList())));
        table.agrees(
                "test_new_subgroups_by_enumeration_input_rank_exceeds_world_size",
                "rank n is refused",
                rank -> rank.refuses(() -> rank.group().newGroup(List.of(0, rank.n()))));
        table.agrees(
                "test_new_subgroups_by_enumeration_negative_input_rank",
                "rank -1 is refused",
                rank -> rank.refuses(() -> rank.group().newGroup(List.of(-1, -2))));
        table.differs(
                "test_new_subgroups_overlap_not_allowed",
                "lists that have a rank in common are refused",
                "`newGroup` makes one group, so groups may overlap; those of `split` cannot",
                "a color has one group",
                least(
                        2,
                        rank -> {
                            ProcessGroup first = rank.group().newGroup(List.of(0));
                            ProcessGroup both = rank.group().newGroup(List.of(0, 1));
                            assertEquals(rank.r() < 2, both.isMember());
                            first.destroy();
                            both.destroy();
                        }));
    }

    private static void shrunk(Table<Body> table) {
        table.agrees(
                "test_shrink_group_multiple_exclusions",
                "the others keep their order, and sum their ranks",
                least(
                        3,
                        rank -> {
                            ProcessGroup whole = rank.group().split(0, rank.r());
                            int excluded = rank.n() - 1;
                            if (rank.r() != excluded) {
                                ProcessGroup rest = whole.shrink(List.of(excluded));
                                assertEquals(excluded, rest.worldSize());
                                assertEquals(rank.r(), rest.rank());
                                double expected = excluded * (excluded - 1) / 2.0;
                                assertEquals(expected, sum(rank, rest, rank.r()));
                                rest.destroy();
                            }
                            rank.group().barrier().await();
                            whole.destroy();
                        }));
        table.agrees(
                "test_shrink_group_multiple_iterations",
                "a shrunk group can be shrunk again",
                least(
                        4,
                        rank -> {
                            ProcessGroup whole = rank.group().split(0, rank.r());
                            int last = rank.n() - 1;
                            if (rank.r() < last) {
                                ProcessGroup once = whole.shrink(List.of(last));
                                if (rank.r() < last - 1) {
                                    ProcessGroup twice = once.shrink(List.of(last - 1));
                                    assertEquals(last - 1, sum(rank, twice, 1));
                                    twice.destroy();
                                }
                            }
                            rank.group().barrier().await();
                            whole.destroy();
                        }));
    }

    private static void broken(Table<Body> table) {
        table.agrees(
                "test_abort_pg",
                "abort ends an operation that waits for another rank",
                least(
                        2,
                        rank -> {
                            ProcessGroup group = rank.group().split(0, rank.r());
                            if (rank.r() == 0) {
                                NDArray tensor = rank.full(1, 10, 10);
                                var work = group.allReduce(tensor, ReduceOp.SUM);
                                group.abort(new IllegalStateException("stuck"));
                                assertThrows(
                                        CollectiveException.class,
                                        () -> work.await(Duration.ofSeconds(60)));
                                assertTrue(group.failure().isPresent());
                            }
                            rank.group().barrier().await();
                            group.destroy();
                        }));
        table.agrees(
                "test_close_pg",
                "a destroyed group refuses operations, and can be destroyed again",
                rank -> {
                    ProcessGroup group = rank.group().split(0, rank.r());
                    group.destroy();
                    group.destroy();
                    assertThrows(IllegalStateException.class, group::barrier);
                });
        table.differs(
                "test_set_nccl_pg_timeout",
                "the group's timeout is set, for all later operations",
                "`withTimeout` returns a view with another timeout",
                "two threads of a rank can use two timeouts",
                rank -> {
                    Duration other = Duration.ofSeconds(23);
                    assertEquals(other, rank.group().withTimeout(other).timeout());
                    assertFalse(rank.group().timeout().equals(other));
                });
        table.agrees(
                "test_comm_split_group",
                "two halves broadcast on their own",
                rank -> {
                    ProcessGroup half = rank.group().split(2 * rank.r() / rank.n(), rank.r());
                    NDArray tensor = rank.full(rank.r(), 2, 3);
                    half.broadcast(tensor, 0).await();
                    rank.all(half.globalRank(0), tensor);
                    half.destroy();
                });
        table.agrees(
                "test_comm_split_subgroup",
                "a group of rank 0 beside the whole",
                rank -> {
                    ProcessGroup zero = rank.group().newGroup(List.of(0));
                    if (zero.isMember()) {
                        assertEquals(0, sum(rank, zero, rank.r()));
                    }
                    zero.destroy();
                    assertEquals(rank.n(), sum(rank, rank.group(), 1));
                });
    }

    private static void objects(Table<Body> table) {
        table.agrees(
                "test_all_gather_object",
                "the ranks in order",
                rank ->
                        assertEquals(
                                IntStream.range(0, rank.n()).boxed().toList(),
                                new ObjectCollectives(rank.group()).allGatherObject(rank.r())));
        table.agrees(
                "test_gather_object",
                "rank 0 gets the ranks in order",
                rank -> {
                    List<Integer> all =
                            new ObjectCollectives(rank.group()).gatherObject(rank.r(), 0);
                    int size = rank.r() == 0 ? rank.n() : 0;
                    assertEquals(IntStream.range(0, size).boxed().toList(), all);
                });
        table.agrees(
                "test_broadcast_object_list",
                "99 from rank 0",
                rank -> {
                    Integer sent = rank.r() == 0 ? 99 : null;
                    Object got = new ObjectCollectives(rank.group()).broadcastObject(sent, 0);
                    assertEquals(99, got);
                });
        table.agrees(
                "test_scatter_object_list",
                "rank r gets r",
                rank -> {
                    List<Integer> all = IntStream.range(0, rank.n()).boxed().toList();
                    Object got = new ObjectCollectives(rank.group()).scatterObjectList(all, 0);
                    assertEquals(rank.r(), got);
                });
        table.agrees(
                "test_send_recv_object_list",
                "rank 1 gets a list of 99 from rank 0",
                least(
                        2,
                        rank -> {
                            ObjectCollectives objects = new ObjectCollectives(rank.group());
                            if (rank.r() == 0) {
                                objects.sendObjectList(List.of(99, 99), 1);
                            } else if (rank.r() == 1) {
                                assertEquals(List.of(99, 99), objects.recvObjectList(0));
                            }
                        }));
        for (String operation : List.of("scatter", "all_gather", "gather", "broadcast")) {
            table.agrees(
                    "test_subpg_" + operation + "_object",
                    operation + " in groups of two ranks",
                    rank -> inPairs(rank, operation));
        }
        Table<Body> distributed = table.file("distributed_test.py");
        List<Object> examples =
                List.of(
                        Map.of("key1", 3, "key2", 4, "key3", Map.of("nested", true)),
                        "foo",
                        List.of(1, 2, true, "string", List.of(4, 5, "nested")));
        for (Object example : examples) {
            String says = example.getClass().getSimpleName().replaceAll("N$|12$", "");
            distributed.agrees(
                    "test_broadcast_object_list",
                    "nested " + says + " from rank 0",
                    rank -> {
                        Object sent = rank.r() == 0 ? example : null;
                        Object got = new ObjectCollectives(rank.group()).broadcastObject(sent, 0);
                        assertEquals(example, got);
                    });
            distributed.agrees(
                    "test_all_gather_object_default_pg",
                    "nested " + says + " from each rank",
                    rank ->
                            new ObjectCollectives(rank.group())
                                    .allGatherObject(example)
                                    .forEach(got -> assertEquals(example, got)));
        }
        distributed.differs(
                "test_scatter_object_list",
                "an empty output list is refused",
                "the object is returned",
                "there is no output list",
                rank -> {
                    List<Integer> all = IntStream.range(0, rank.n()).boxed().toList();
                    Object got = new ObjectCollectives(rank.group()).scatterObjectList(all, 0);
                    assertEquals(rank.r(), got);
                });
    }

    private static void inPairs(Rank rank, String operation) {
        ProcessGroup two = rank.group().split(rank.r() / 2, rank.r());
        ObjectCollectives objects = new ObjectCollectives(two);
        int base = rank.r() - two.rank();
        List<Integer> ranks = two.ranks();
        switch (operation) {
            case "scatter" -> {
                Object got = objects.scatterObjectList(two.rank() == 0 ? ranks : null, 0);
                assertEquals(rank.r(), got);
            }
            case "all_gather" -> assertEquals(ranks, objects.allGatherObject(rank.r()));
            case "gather" -> {
                List<Integer> got = objects.gatherObject(rank.r(), 0);
                assertEquals(two.rank() == 0 ? ranks : List.of(), got);
            }
            default -> {
                Object got = objects.broadcastObject(rank.r(), 0);
                assertEquals(base, got);
            }
        }
        two.destroy();
    }

    private static void variables(Table<Body> table) {
        Map<String, String> all =
                Map.of(
                        "RANK", "0",
                        "WORLD_SIZE", "1",
                        "MASTER_ADDR", "127.0.0.1",
                        "MASTER_PORT", "29500");
        for (String name : all.keySet().stream().sorted().toList()) {
            table.agrees(
                    "RendezvousEnvTest.test_common_errors",
                    "without " + name + " an error names it",
                    rank -> {
                        LaunchEnvironment without = LaunchEnvironment.of(Map.of());
                        String message =
                                assertThrows(RuntimeException.class, () -> without.require(name))
                                        .getMessage();
                        assertTrue(message.contains(name), message);
                    });
            table.agrees(
                    "RendezvousEnvTest.test_common_errors",
                    "with all variables " + name + " is read",
                    rank -> assertEquals(all.get(name), LaunchEnvironment.of(all).require(name)));
        }
        for (String url : List.of("env://?rank=0", "env://?world_size=1")) {
            table.differs(
                    "RendezvousEnvTest.test_common_errors",
                    "`" + url + "` sets it",
                    "`LaunchEnvironment.builder().optRank(rank, worldSize)` sets both",
                    "there are no URLs",
                    rank -> {
                        LaunchEnvironment given = LaunchEnvironment.builder().optRank(0, 1).build();
                        assertEquals("0", given.require("RANK"));
                        assertEquals("1", given.require("WORLD_SIZE"));
                    });
        }
    }

    private static void common(Table<Body> table) {
        table.agrees(
                "LocalRankTest.testWithoutEnv",
                "an error names LOCAL_RANK",
                rank -> {
                    LaunchEnvironment none = LaunchEnvironment.of(Map.of());
                    String message =
                            assertThrows(
                                            RuntimeException.class,
                                            () -> none.requireInt("LOCAL_RANK"))
                                    .getMessage();
                    assertTrue(message.contains("LOCAL_RANK"), message);
                });
        table.differs(
                "LocalRankTest.testWithoutEnvWithFallback",
                "the fallback 2 is returned",
                "`get` returns null",
                "the caller has its own default",
                rank -> assertNull(LaunchEnvironment.of(Map.of()).get("LOCAL_RANK")));
        table.agrees(
                "LocalRankTest.testNodeLocalRank",
                "the variable is read",
                rank -> {
                    Map<String, String> variables = Map.of("LOCAL_RANK", "3");
                    assertEquals(3, LaunchEnvironment.of(variables).requireInt("LOCAL_RANK"));
                });
        table.agrees(
                "test_init_process_group_for_all_backends",
                "a group has rank, size and the backend's name",
                rank -> {
                    assertTrue(rank.r() >= 0 && rank.r() < rank.n());
                    assertTrue(Backends.names().contains(rank.group().backendName()));
                });
        table.differs(
                "test_backend_config",
                "`cpu:gloo,cuda:nccl` names a backend for each device",
                "unknown backend",
                "a group has one device: create one group for each",
                rank -> rank.refuses(() -> Backends.get("cpu:shm,cuda:nccl")));
    }
}
