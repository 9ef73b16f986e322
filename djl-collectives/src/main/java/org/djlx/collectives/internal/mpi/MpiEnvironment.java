// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.mpi;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.net.ServerSocket;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.djlx.nativeops.mpi.MpiCommunicator;
import org.djlx.nativeops.mpi.MpiRequest;

/**
 * What a process that mpirun has started needs to create a group: its rank and world size from MPI,
 * and the store's address, which rank 0 chooses and sends to all.
 */
final class MpiEnvironment {

    private static final int TAG = 0;
    private static final int BYTES = 1024;
    private static final long POLL_NANOS = 100_000;

    private static Map<String, String> found; // guarded by the class

    private MpiEnvironment() {}

    /** Adds the variables of torchrun that are not set, the same on all ranks. */
    static synchronized Map<String, String> complete(Map<String, String> environment) {
        boolean ranked = environment.containsKey("RANK");
        boolean addressed = environment.containsKey("MASTER_ADDR");
        if (ranked && addressed) {
            return environment;
        }
        if (found == null) {
            MpiCommunicator world = MpiProcess.world();
            found = new HashMap<>();
            if (!ranked) {
                found.put("RANK", "" + world.rank());
                found.put("WORLD_SIZE", "" + world.size());
            }
            if (!addressed) {
                String[] store = exchangeAddress(world).split(" ");
                found.put("MASTER_ADDR", store[0]);
                found.put("MASTER_PORT", store[1]);
            }
        }
        Map<String, String> all = new HashMap<>(environment);
        all.putAll(found);
        return all;
    }

    private static String exchangeAddress(MpiCommunicator world) {
        Memory text = new Memory(BYTES);
        long address = Pointer.nativeValue(text);
        MpiRequest request = new MpiRequest();
        if (world.rank() > 0) {
            world.receive(request, address, BYTES, 0, TAG);
            await(request);
            return text.getString(0);
        }
        String store = chooseAddress(world);
        text.setString(0, store);
        for (int peer = 1; peer < world.size(); peer++) {
            world.send(request, address, BYTES, peer, TAG);
            await(request);
        }
        return store;
    }

    private static void await(MpiRequest request) {
        while (!request.test()) {
            LockSupport.parkNanos(POLL_NANOS);
        }
    }

    private static String chooseAddress(MpiCommunicator world) {
        try (ServerSocket socket = new ServerSocket(0)) {
            boolean oneHost = Backoff.localRanks() == world.size();
            return (oneHost ? "localhost" : ownAddress()) + " " + socket.getLocalPort();
        } catch (IOException e) {
            throw new UncheckedIOException(
                    "cannot choose the store's address: set MASTER_ADDR and" + " MASTER_PORT", e);
        }
    }

    /** Returns this host's name if it names an address that others reach, or such an address. */
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
                .orElseThrow(
                        () -> new IOException("this host has no IPv4 address that others reach"));
    }
}
