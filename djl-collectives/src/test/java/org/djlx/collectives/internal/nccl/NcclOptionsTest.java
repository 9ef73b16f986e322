// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.nccl.NcclConfig;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Options of {@code nccl}, and the GPU that they choose. */
class NcclOptionsTest {

    private static GroupContext context(int rank, Device device) {
        return new GroupContext(
                "g", rank, 4, new HashStore(), NcclOptions.builder().build(), device);
    }

    private static void assertRejected(Executable call, String text) {
        String message = assertThrows(IllegalArgumentException.class, call).getMessage();
        assertTrue(message.contains(text), message);
    }

    @Test
    void defaultsLeaveTheChoiceToNccl() {
        NcclOptions options = NcclOptions.builder().build();
        assertEquals(NcclConfig.DEFAULT, options.config());
        assertEquals(BackendOptions.DEFAULT_TIMEOUT, options.timeout());
        assertFalse(options.isHighPriorityStream());
        assertTrue(options.isBlockingWait());
        assertFalse(options.isPairCommunicators());
        assertEquals(DebugLevel.OFF, options.debug());
        assertEquals(Optional.empty(), DeviceChoice.given(context(0, null), options));
    }

    @Test
    void keepsValuesAndPassesThemToNccl() {
        NcclOptions options =
                NcclOptions.builder()
                        .optTimeout(Duration.ofSeconds(3))
                        .optHighPriorityStream(true)
                        .optBlockingWait(false)
                        .optPairCommunicators(true)
                        .optDebug(DebugLevel.DETAIL)
                        .optSplitShare(true)
                        .optMinCtas(1)
                        .optMaxCtas(8)
                        .optCgaClusterSize(4)
                        .optTrafficClass(105)
                        .optNetName("IB")
                        .build();
        Map<NcclConfig.Member, Integer> numbers =
                Map.of(
                        NcclConfig.Member.SPLIT_SHARE, 1,
                        NcclConfig.Member.MIN_CTAS, 1,
                        NcclConfig.Member.MAX_CTAS, 8,
                        NcclConfig.Member.CGA_CLUSTER_SIZE, 4,
                        NcclConfig.Member.TRAFFIC_CLASS, 105);
        assertEquals(new NcclConfig(numbers, "IB"), options.config());
        assertEquals(Duration.ofSeconds(3), options.timeout());
        assertTrue(options.isHighPriorityStream());
        assertFalse(options.isBlockingWait());
        assertTrue(options.isPairCommunicators());
        assertEquals(DebugLevel.DETAIL, options.debug());
    }

    @Test
    void refusesValuesOutOfRange() {
        NcclOptions.Builder builder = NcclOptions.builder();
        assertRejected(builder.optTimeout(Duration.ZERO)::build, "the timeout must be positive");
        builder.optTimeout(Duration.ofSeconds(1));
        assertRejected(() -> builder.optMinCtas(0), "MIN_CTAS must be from 1");
        assertRejected(() -> builder.optMinCtas(9).optMaxCtas(8), "above MAX_CTAS, which is 8");
        assertRejected(
                builder.optDevices(Device.cpu())::build, "NCCL needs GPU devices, but got cpu");
        assertRejected(
                builder.optDevices(Device.gpu(1), Device.gpu(1))::build,
                "devices must be distinct, one GPU per rank");
    }

    @Test
    void devicesAreThoseOfTheRanks() {
        Device own = Device.gpu(5);
        NcclOptions one = NcclOptions.builder().optDevices(own).build();
        assertEquals(Optional.of(own), DeviceChoice.given(context(3, null), one));
        NcclOptions two = NcclOptions.builder().optDevices(Device.gpu(3), Device.gpu(2)).build();
        assertEquals(Optional.of(Device.gpu(2)), DeviceChoice.given(context(1, null), two));
        assertEquals(Optional.of(own), DeviceChoice.given(context(1, own), two));
        assertRejected(() -> DeviceChoice.given(context(2, null), two), "no device for rank 2");
    }

    @Test
    void withoutDevicesTheLaunchersChoiceCounts() {
        Map<String, String> torchrun = Map.of("RANK", "9", "WORLD_SIZE", "16", "LOCAL_RANK", "1");
        assertEquals(1, DeviceChoice.index(9, 16, torchrun, 8));
        assertRejected(() -> DeviceChoice.index(9, 16, torchrun, 0), "LOCAL_RANK is 1");
        Map<String, String> third = Map.of("RANK", "9", "WORLD_SIZE", "16", "LOCAL_RANK", "2");
        assertRejected(() -> DeviceChoice.index(9, 16, third, 2), "LOCAL_RANK is 2");
        Map<String, String> wrong = Map.of("RANK", "0", "WORLD_SIZE", "1", "LOCAL_RANK", "x");
        assertRejected(() -> DeviceChoice.index(0, 1, wrong, 8), "not a number: 'x'");
    }

    /** Slurm and Kubernetes show a task its own GPU only, whatever its local rank. */
    @Test
    void taskWithOneVisibleGpuUsesIt() {
        Map<String, String> task =
                Map.of(
                        "SLURM_PROCID", "13",
                        "SLURM_NTASKS", "16",
                        "SLURM_LOCALID", "5",
                        "CUDA_VISIBLE_DEVICES", "0");
        Map<String, String> variables = LaunchEnvironment.of(task).variables();
        assertEquals(0, DeviceChoice.index(13, 16, variables, 1));
        assertEquals(5, DeviceChoice.index(13, 16, variables, 8));
    }

    @Test
    void ranksThatAreThreadsHaveTheGpuOfTheirNumber() {
        Map<String, String> torchrun = Map.of("RANK", "0", "WORLD_SIZE", "2", "LOCAL_RANK", "0");
        for (int rank = 0; rank < 8; rank++) {
            assertEquals(rank, DeviceChoice.index(rank, 8, torchrun, 8));
            assertEquals(rank, DeviceChoice.index(rank, 8, Map.of(), 8));
        }
        assertEquals(1, DeviceChoice.index(9, 16, Map.of(), 8));
    }

    @Test
    void otherBackendsOptionsAreRefused() {
        assertRejected(
                () -> NcclBackendFactory.options(ShmOptions.builder().build()),
                "takes NcclOptions or BackendOptions, not ShmOptions");
        Duration timeout = Duration.ofSeconds(7);
        assertEquals(timeout, NcclBackendFactory.options(new BackendOptions(timeout)).timeout());
    }
}
