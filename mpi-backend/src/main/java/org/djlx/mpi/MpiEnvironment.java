// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.nativeops.host.Deadline;
import org.djlx.nativeops.mpi.MpiCommunicator;
import org.djlx.nativeops.mpi.MpiRequests;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The environment for the groups of a process that mpirun has started: rank and world size from
 * MPI, and the store's address and port, which rank 0 chooses and sends to all.
 */
final class MpiEnvironment {

    private static final int TAG = 0;
    private static final int BYTES = 1024;
    private static final long POLL_NANOS = 100_000;

    private static final Logger LOG = LoggerFactory.getLogger(MpiEnvironment.class);

    // MPI_Init has let all ranks meet, so rank 0 sends at once.
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    private static final Memory TEXT = new Memory(BYTES); // Never freed: MPI may still write it.
    private static final Map<String, String> FOUND = new HashMap<>(); // guarded by the class

    private MpiEnvironment() {}

    /**
     * Adds the variables of torchrun that are not set, the same on all ranks.
     *
     * @throws IllegalArgumentException if a launcher has started several ranks of which MPI knows
     *     one, as the mpirun of another MPI does; or if only some ranks have the store's address
     */
    static synchronized Map<String, String> complete(Map<String, String> environment) {
        boolean addressed =
                environment.containsKey("MASTER_ADDR") && environment.containsKey("MASTER_PORT");
        if (addressed && environment.containsKey("RANK")) {
            return environment;
        }
        MpiCommunicator world = MpiProcess.world();
        LaunchEnvironment launcher = LaunchEnvironment.of(environment);
        if (world.size() == 1 && launcher.isDistributed()) {
            throw new IllegalArgumentException(
                    "backend 'mpi': " + alone() + "; the launcher says " + launcher);
        }
        if (world.size() == 1) {
            LOG.warn("backend 'mpi' has 1 rank; to start several, use mpirun or srun --mpi=pmix");
        }
        FOUND.putIfAbsent("RANK", "" + world.rank());
        FOUND.putIfAbsent("WORLD_SIZE", "" + world.size());
        if (!addressed && !FOUND.containsKey("MASTER_ADDR")) {
            String[] store = exchangeAddress(world).split(" ");
            FOUND.put("MASTER_ADDR", store[0]);
            FOUND.put("MASTER_PORT", store[1]);
        }
        Map<String, String> all = new HashMap<>(FOUND);
        all.putAll(environment);
        return all;
    }

    /** Says what to do if MPI does not know the other ranks. */
    static String alone() {
        return "MPI knows of one process only; start the ranks with the mpirun of "
                + MpiCommunicator.version()
                + " or with srun --mpi=pmix, not with a launcher such as Launch or torchrun";
    }

    private static String exchangeAddress(MpiCommunicator world) {
        long address = Pointer.nativeValue(TEXT);
        MpiRequests request = new MpiRequests();
        if (world.rank() > 0) {
            world.receive(request, address, BYTES, 0, TAG);
            await(request);
            return TEXT.getString(0);
        }
        String store = chooseAddress(world);
        TEXT.setString(0, store);
        for (int peer = 1; peer < world.size(); peer++) {
            world.send(request, address, BYTES, peer, TAG);
            await(request);
        }
        return store;
    }

    private static void await(MpiRequests request) {
        Deadline deadline = Deadline.after(PATIENCE);
        while (!request.test()) {
            if (deadline.isOver()) {
                throw new IllegalArgumentException(
                        "backend 'mpi': the ranks did not exchange the store's address within "
                                + PATIENCE.toSeconds()
                                + " s; set MASTER_ADDR and MASTER_PORT on all ranks, or on none");
            }
            LockSupport.parkNanos(POLL_NANOS);
        }
    }

    private static String chooseAddress(MpiCommunicator world) {
        try (ServerSocket socket = new ServerSocket(0)) {
            boolean oneHost = Backoff.localRanks() == world.size();
            return (oneHost ? "localhost" : ownAddress()) + " " + socket.getLocalPort();
        } catch (IOException e) {
            throw new UncheckedIOException(
                    "cannot choose the store's address: set MASTER_ADDR and MASTER_PORT", e);
        }
    }

    /** Returns this host's name, or an address if the name stands for the loopback interface. */
    private static String ownAddress() throws IOException {
        InetAddress own = InetAddress.getLocalHost();
        if (!own.isLoopbackAddress()) {
            return own.getHostName();
        }
        return NetworkInterface.networkInterfaces()
                .flatMap(NetworkInterface::inetAddresses)
                .filter(address -> address instanceof Inet4Address && !address.isLoopbackAddress())
                .map(InetAddress::getHostAddress)
                .findFirst()
                .orElseThrow(() -> new IOException("this host has no IPv4 address but loopback"));
    }
}
