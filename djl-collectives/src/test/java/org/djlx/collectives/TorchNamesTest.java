// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;

/** The tables of docs/process-groups.md have a row for each public name of torch.distributed. */
class TorchNamesTest {

    /** {@code __all__} of torch/distributed/distributed_c10d.py, of 2.11 and of the main branch. */
    private static final String C10D =
            """
            AllToAllOptions AllreduceCoalescedOptions AllreduceOptions Backend BackendConfig
            BarrierOptions BroadcastOptions DebugLevel GatherOptions GroupMember GroupName P2POp
            PrefixStore ProcessGroup ProcessGroupGloo ProcessGroupMPI ProcessGroupNCCL
            ProcessGroupUCC ProcessGroupXCCL ReduceOp ReduceOptions ReduceScatterOptions
            ScatterOptions Store Work all_gather all_gather_coalesced all_gather_into_tensor
            all_gather_object all_reduce all_reduce_coalesced all_to_all all_to_all_single barrier
            batch_isend_irecv broadcast broadcast_object_list default_pg_timeout
            destroy_process_group gather gather_object get_backend get_backend_config
            get_debug_level get_default_backend_for_device get_global_rank get_group_rank
            get_node_local_rank get_pg_count get_process_group_ranks get_rank get_world_size group
            init_process_group irecv is_backend_available is_gloo_available is_initialized
            is_mpi_available is_nccl_available is_torchelastic_launched is_ucc_available
            is_xccl_available isend monitored_barrier new_group new_subgroups
            new_subgroups_by_enumeration record_comm recv recv_object_list reduce reduce_op
            reduce_scatter reduce_scatter_tensor scatter scatter_object_list send send_object_list
            shrink_group split_group supports_complex
            """;

    /** The other public names of torch/distributed/__init__.py. */
    private static final String PACKAGE =
            """
            BuiltinCommHookType DeviceMesh DistBackendError DistError DistNetworkError
            DistStoreError FileStore GradBucket HashStore Logger QueueEmptyError Reducer TCPStore
            breakpoint init_device_mesh is_available register_rendezvous_handler rendezvous
            set_debug_level set_debug_level_from_env
            """;

    private static final Pattern CODE = Pattern.compile("`([^`]+)`");
    private static final Pattern NAME = Pattern.compile("\\w+");

    @Test
    void everyNameHasARow() throws IOException {
        String page = Files.readString(Path.of("../docs/process-groups.md"));
        String tables =
                page.substring(
                        page.indexOf("\n## From torch.distributed"),
                        page.indexOf("\n## What differs from c10d"));
        Set<String> rows =
                tables.lines()
                        .filter(line -> line.startsWith("|"))
                        .map(line -> line.split("\\|")[1])
                        .flatMap(cell -> CODE.matcher(cell).results())
                        .flatMap(code -> NAME.matcher(code.group(1)).results())
                        .map(MatchResult::group)
                        .collect(Collectors.toSet());
        Set<String> missing = new TreeSet<>(List.of((C10D + PACKAGE).strip().split("\\s+")));
        missing.removeAll(rows);
        assertEquals(Set.of(), missing);
    }
}
