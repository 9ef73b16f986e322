// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.function.Consumer;
import org.djlx.collectives.spi.cpu.Letter;
import org.djlx.collectives.spi.cpu.MessageChannel;
import org.djlx.collectives.spi.cpu.Transfer;
import org.djlx.nativeops.mpi.MpiCommunicator;
import org.djlx.nativeops.mpi.MpiException;
import org.djlx.nativeops.mpi.MpiRequests;

/** Carries messages to and from one peer, from tensor to tensor. */
final class MpiChannel implements MessageChannel {

    /** A transfer whose data is moving. */
    private record Flight(Transfer transfer, MpiRequests requests) {}

    private final MpiGroup group;
    private final int peer;
    private final boolean polls;
    private final List<Flight> flights = new ArrayList<>();
    private final Deque<MpiRequests> idle = new ArrayDeque<>();

    /** Creates a channel; {@code polls} is true for one channel of the group. */
    MpiChannel(MpiGroup group, int peer, boolean polls) {
        this.group = group;
        this.peer = peer;
        this.polls = polls;
    }

    @Override
    public boolean post(Letter letter) {
        group.send(peer, letter);
        return true;
    }

    @Override
    public Letter take() {
        Letter letter = group.takeLetter(peer);
        if (letter == null && polls && group.poll()) {
            letter = group.takeLetter(peer);
        }
        return letter;
    }

    @Override
    public void start(Transfer transfer) {
        MpiRequests requests = idle.isEmpty() ? new MpiRequests() : idle.pop();
        flights.add(new Flight(transfer, requests));
        int tags = MpiCommunicator.MAX_TAG + 1 - MpiGroup.MESSAGES;
        int tag = MpiGroup.MESSAGES + (int) (transfer.message() % tags);
        boolean sends = transfer.sends();
        group.transfer(sends, requests, transfer.address(), transfer.remaining(), peer, tag);
    }

    @Override
    public boolean move(Consumer<Transfer> onMoved) {
        boolean moved = false;
        for (Iterator<Flight> iterator = flights.iterator(); iterator.hasNext(); ) {
            Flight flight = iterator.next();
            if (group.test(flight.requests)) {
                iterator.remove();
                idle.add(flight.requests);
                flight.transfer.advance(flight.transfer.remaining());
                onMoved.accept(flight.transfer);
                moved = true;
            }
        }
        return moved;
    }

    @Override
    public Transfer stopReceiving(long message) {
        for (Flight flight : flights) {
            if (!flight.transfer.sends() && flight.transfer.message() == message) {
                stop(flight.transfer);
                return flight.transfer;
            }
        }
        return null;
    }

    @Override
    public boolean stop(Transfer transfer) {
        for (Iterator<Flight> iterator = flights.iterator(); iterator.hasNext(); ) {
            Flight flight = iterator.next();
            if (flight.transfer == transfer) {
                iterator.remove();
                abandon(flight);
                return transfer.sends();
            }
        }
        return false;
    }

    @Override
    public void stopAll() {
        flights.forEach(this::abandon);
        flights.clear();
    }

    private void abandon(Flight flight) {
        boolean ended = false;
        try {
            ended =
                    flight.transfer.sends()
                            ? group.test(flight.requests)
                            : group.cancel(flight.requests);
        } catch (MpiException e) {
            // Its memory is kept, as MPI may still use it.
        }
        if (ended) {
            idle.add(flight.requests);
        } else {
            flight.transfer.leak();
        }
    }
}
