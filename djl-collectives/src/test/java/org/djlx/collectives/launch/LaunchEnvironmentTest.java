// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.spi.BackendOptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Environments as launchers set them; those of Slurm 22.05 and Debian's MPIs are recorded. */
class LaunchEnvironmentTest {

    private static final String SRUN =
            "SLURM_JOB_ID=4 SLURM_JOB_NODELIST=n[1-2] SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=0"
                    + " SLURM_NNODES=2 SLURM_NODEID=1 SLURM_NODELIST=n[1-2] SLURM_NTASKS=4"
                    + " SLURM_PROCID=3 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2]"
                    + " SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4"
                    + " SLURM_STEP_TASKS_PER_NODE=3,1 SLURM_TASKS_PER_NODE=3,1";
    private static final String SBATCH =
            "SLURM_JOB_ID=3 SLURM_JOB_NODELIST=n[1-2] SLURM_LOCALID=0 SLURM_NNODES=2"
                    + " SLURM_NODEID=0 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_TASKS_PER_NODE=3,1";

    private static LaunchEnvironment environment(String variables) {
        return LaunchEnvironment.of(map(variables));
    }

    private static Map<String, String> map(String variables) {
        return Arrays.stream(variables.split(" "))
                .map(variable -> variable.split("=", 2))
                .collect(Collectors.toMap(pair -> pair[0], pair -> pair[1]));
    }

    private static void assertUnderstood(String expected, String variables) {
        assertEquals(expected, environment(variables).toString());
    }

    @Test
    void readsTorchrunsVariables() {
        assertUnderstood(
                "RANK=5 (RANK), WORLD_SIZE=8 (WORLD_SIZE), LOCAL_RANK=1 (LOCAL_RANK),"
                        + " LOCAL_WORLD_SIZE=4 (LOCAL_WORLD_SIZE), MASTER_ADDR=node0 (MASTER_ADDR),"
                        + " MASTER_PORT=29501 (MASTER_PORT), DJLX_BIND_ADDRESS=node0 (MASTER_ADDR)",
                "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=node0"
                        + " MASTER_PORT=29501");
    }

    @Test
    void readsSrunsVariablesAndDerivesAPortFromTheJob() {
        int port = portOf(SRUN.replace("PROCID=3", "PROCID=0"));
        assertUnderstood(
                "RANK=3 (SLURM_PROCID), WORLD_SIZE=4 (SLURM_STEP_NUM_TASKS), LOCAL_RANK=0"
                        + " (SLURM_LOCALID), LOCAL_WORLD_SIZE=1 (SLURM_STEP_TASKS_PER_NODE),"
                        + " MASTER_ADDR=n1 (SLURM_STEP_NODELIST), MASTER_PORT="
                        + port
                        + " (SLURM_JOB_ID),"
                        + " DJLX_BIND_ADDRESS=n1 (MASTER_ADDR)",
                SRUN);
        // Jobs on the same hosts have ports of their own, below those that the kernel gives away.
        assertNotEquals(port, portOf(SRUN.replace("JOB_ID=4", "JOB_ID=5")));
        assertNotEquals(port, portOf(SRUN.replace("STEP_ID=0", "STEP_ID=1")));
        assertTrue(port >= 15_000 && port < 30_000, () -> "" + port);
    }

    private static int portOf(String variables) {
        return Integer.parseInt(environment(variables).get("MASTER_PORT"));
    }

    /** The script of a batch job has a rank, too, but is none. */
    @Test
    void batchScriptIsNotARank() {
        assertUnderstood("nothing", SBATCH);
        assertFalse(environment(SBATCH).isDistributed());
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = ' ',
            value = {
                "gpu7 gpu7",
                "gpu[07-09,12],login1 gpu07",
                "gpu[3,5-6] gpu3",
                "a-b[1-2]-x,c a-b1-x",
                "rack[2-3]n[10-12] rack2n10",
                "node[01-03,7] node01",
                "a-[1-2]-b a-1-b",
                "login1,gpu[1-2] login1"
            })
    void theFirstHostOfANodeList(String hosts, String first) {
        assertEquals(first, environment("SLURM_JOB_NODELIST=" + hosts).get("MASTER_ADDR"));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = ' ',
            value = {"4(x2),3 0 4", "4(x2),3 1 4", "4(x2),3 2 3", "2,1(x3) 3 1", "8 0 8"})
    void tasksOfANode(String tasks, int node, String expected) {
        String variables = "SLURM_STEP_TASKS_PER_NODE=" + tasks + " SLURM_NODEID=" + node;
        assertEquals(expected, environment(variables).get("LOCAL_WORLD_SIZE"));
    }

    @Test
    void readsOpenMpisVariablesOfOneHost() {
        String one =
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1"
                        + " OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=3426222081";
        assertUnderstood(
                "RANK=1 (OMPI_COMM_WORLD_RANK), WORLD_SIZE=2 (OMPI_COMM_WORLD_SIZE), LOCAL_RANK=1"
                        + " (OMPI_COMM_WORLD_LOCAL_RANK), LOCAL_WORLD_SIZE=2"
                        + " (OMPI_COMM_WORLD_LOCAL_SIZE), MASTER_ADDR=127.0.0.1"
                        + " (OMPI_COMM_WORLD_LOCAL_SIZE: one host), MASTER_PORT="
                        + environment(one).get("MASTER_PORT")
                        + " (PMIX_NAMESPACE), DJLX_BIND_ADDRESS=127.0.0.1 (MASTER_ADDR)",
                one);
        // The ranks of several hosts need an address.
        assertNull(
                environment(
                                one.replace("_SIZE=2", "_SIZE=4")
                                        .replace("LOCAL_SIZE=4", "LOCAL_SIZE=2"))
                        .get("MASTER_ADDR"));
    }

    /**
     * mpirun in a job of Slurm starts its daemons with srun on all nodes but the first: of Slurm's
     * variables, ranks under daemons have those of the daemons' step, the others those of a script.
     */
    @Test
    void mpirunInAJobOfSlurm() {
        String rank = " OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=34";
        String daemon = SRUN.replace("STEP_NODELIST=n[1-2]", "STEP_NODELIST=n2");
        LaunchEnvironment here = environment(SBATCH + rank + " OMPI_COMM_WORLD_RANK=0");
        LaunchEnvironment there = environment(daemon + rank + " OMPI_COMM_WORLD_RANK=3");
        assertEquals("3", there.get("RANK"));
        assertEquals("2", there.get("LOCAL_WORLD_SIZE"));
        assertNull(there.get("LOCAL_RANK"));
        for (LaunchEnvironment each : List.of(here, there)) {
            assertEquals("4", each.get("WORLD_SIZE"));
            assertEquals("n1", each.get("MASTER_ADDR"));
            assertEquals("SLURM_JOB_NODELIST", each.source("MASTER_ADDR"));
            assertEquals(here.get("MASTER_PORT"), each.get("MASTER_PORT"));
        }
    }

    /** torchrun as a task of srun: its ranks have the variables of both. */
    @Test
    void torchrunsVariablesWinOverSruns() {
        String torchrun =
                "RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=n9"
                        + " MASTER_PORT=29501";
        assertEquals(
                environment(torchrun).toString(), environment(torchrun + " " + SRUN).toString());
    }

    /**
     * A value that makes no sense is an error where it is needed, not where the class is loaded.
     */
    @ParameterizedTest
    @ValueSource(strings = {"x", "-1", "99999999999", "1.5", " "})
    void garbage(String value) {
        Map<String, String> variables = new HashMap<>(map(SRUN + " PET_NPROC_PER_NODE=1"));
        variables.replaceAll((name, before) -> value);
        LaunchEnvironment garbage = LaunchEnvironment.of(variables);
        assertNull(garbage.get("LOCAL_WORLD_SIZE"));
        BackendOptions options = new BackendOptions(BackendOptions.DEFAULT_TIMEOUT);
        assertThrows(
                IllegalArgumentException.class, () -> ProcessGroups.init("shm", garbage, options));
    }

    @Test
    void readsPmiAndPmixVariables() {
        assertUnderstood(
                "RANK=2 (PMI_RANK), WORLD_SIZE=3 (PMI_SIZE), LOCAL_RANK=2 (MPI_LOCALRANKID),"
                        + " LOCAL_WORLD_SIZE=3 (MPI_LOCALNRANKS), MASTER_ADDR=127.0.0.1"
                        + " (MPI_LOCALNRANKS: one host), MASTER_PORT=29500 (torchrun's default),"
                        + " DJLX_BIND_ADDRESS=127.0.0.1 (MASTER_ADDR)",
                "PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=3");
        LaunchEnvironment pmix = environment("PMIX_RANK=1 WORLD_SIZE=4 MASTER_ADDR=node0");
        assertEquals("1", pmix.get("RANK"));
        assertEquals("29500", pmix.get("MASTER_PORT"));
    }

    @Test
    void readsTheIndexOfAKubernetesJob() {
        assertUnderstood(
                "RANK=2 (JOB_COMPLETION_INDEX), WORLD_SIZE=4 (WORLD_SIZE),"
                        + " MASTER_ADDR=train-0.train (MASTER_ADDR), MASTER_PORT=29500 (torchrun's"
                        + " default), DJLX_BIND_ADDRESS=0.0.0.0 (DJLX_BIND_ADDRESS)",
                "JOB_COMPLETION_INDEX=2 WORLD_SIZE=4 MASTER_ADDR=train-0.train"
                        + " DJLX_BIND_ADDRESS=0.0.0.0");
    }

    /** Kubeflow's PyTorchJob sets torchrun's variables, its TrainJob the options of torchrun. */
    @Test
    void readsKubeflowsVariables() {
        assertEquals(
                "1",
                environment(
                                "PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456 PET_NNODES=3"
                                        + " PET_NODE_RANK=2 RANK=1 WORLD_SIZE=3"
                                        + " MASTER_ADDR=job-master-0 MASTER_PORT=23456")
                        .get("RANK"));
        String train =
                "PET_NNODES=2 PET_NPROC_PER_NODE=1 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job"
                        + " PET_MASTER_PORT=29400 JOB_COMPLETION_INDEX=1";
        assertUnderstood(
                "RANK=1 (PET_NODE_RANK), WORLD_SIZE=2 (PET_NNODES), MASTER_ADDR=job-node-0-0.job"
                        + " (PET_MASTER_ADDR), MASTER_PORT=29400 (PET_MASTER_PORT),"
                        + " DJLX_BIND_ADDRESS=job-node-0-0.job (MASTER_ADDR)",
                train);
        // With more processes a node, its launcher starts the ranks.
        assertNull(environment(train.replace("NODE=1 ", "NODE=8 ")).get("WORLD_SIZE"));
    }

    @Test
    void optionsOverrideVariables() {
        LaunchEnvironment explicit =
                LaunchEnvironment.builder()
                        .optEnvironment(
                                map(SRUN + " MASTER_ADDR=other TORCHELASTIC_USE_AGENT_STORE=True"))
                        .optRank(1, 2)
                        .optMasterAddress("node0", 29500)
                        .optBindAddress("0.0.0.0")
                        .build();
        assertEquals(
                "RANK=1 (an option), WORLD_SIZE=2 (an option), LOCAL_RANK=0 (SLURM_LOCALID),"
                        + " LOCAL_WORLD_SIZE=1 (SLURM_STEP_TASKS_PER_NODE), MASTER_ADDR=node0 (an"
                        + " option), MASTER_PORT=29500 (an option), DJLX_BIND_ADDRESS=0.0.0.0 (an"
                        + " option)",
                explicit.toString());
        assertEquals("1", explicit.given().get("RANK"));
        assertEquals("3", explicit.given().get("SLURM_PROCID"));
        // The launcher serves its own address only.
        assertNull(explicit.given().get("TORCHELASTIC_USE_AGENT_STORE"));
        assertTrue(explicit.isDistributed());
        assertFalse(LaunchEnvironment.builder().optRank(0, 1).build().isDistributed());
    }

    @Test
    void missingVariablesAreNamed() {
        // A pod of an indexed job is a rank only if the number of ranks is known.
        assertUnderstood("nothing", "JOB_COMPLETION_INDEX=2");
        LaunchEnvironment some = environment("PMI_RANK=2 OTHER=x");
        String message =
                assertThrows(IllegalArgumentException.class, () -> some.requireInt("WORLD_SIZE"))
                        .getMessage();
        assertTrue(message.contains("WORLD_SIZE is not set"), message);
        assertTrue(message.contains("Found: RANK=2 (PMI_RANK)"), message);
        message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> environment("PMI_RANK=x").requireInt("RANK"))
                        .getMessage();
        assertEquals("the environment variable PMI_RANK must be an integer, but is 'x'", message);
    }

    /** Rank 0 listens on one address and tells the ranks another. */
    @Test
    void aGroupFromOptions() {
        LaunchEnvironment.Builder builder =
                LaunchEnvironment.builder().optRank(0, 1).optMasterAddress("localhost", 0);
        BackendOptions options = new BackendOptions(BackendOptions.DEFAULT_TIMEOUT);
        LaunchEnvironment environment = builder.optBindAddress("127.0.0.1").build();
        try (ProcessGroup group = ProcessGroups.init("shm", environment, options)) {
            assertEquals(1, group.worldSize());
        }
        LaunchEnvironment foreign = builder.optBindAddress("192.0.2.1").build();
        String message =
                assertThrows(
                                RuntimeException.class,
                                () -> ProcessGroups.init("shm", foreign, options))
                        .getMessage();
        assertTrue(message.contains("192.0.2.1"), message);
    }
}
