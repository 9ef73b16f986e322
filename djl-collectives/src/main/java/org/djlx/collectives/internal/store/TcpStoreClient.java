// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import java.io.EOFException;
import java.io.IOException;
import java.net.ConnectException;
import java.net.ProtocolException;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.locks.ReentrantLock;
import org.djlx.collectives.CollectiveException;
import org.djlx.nativeops.host.Deadline;
import org.djlx.nativeops.host.Durations;

/**
 * The operations of a {@code TcpStore}, as the client of a server.
 *
 * <p>One connection carries all commands that are answered at once, one at a time. A blocking wait
 * uses its own connection from a small pool, because the protocol answers the commands of a
 * connection in order. Values are then read on the command connection, so a thread never reads a
 * value older than an earlier write through this handle.
 *
 * <p>A lost connection is reopened only to the same server; a different server has none of the
 * keys. PyTorch's servers have no identity, so for them it cannot be checked.
 */
public abstract class TcpStoreClient extends RequestStore {

    private static final long FIRST_PAUSE_MILLIS = 5;
    private static final long MAX_PAUSE_MILLIS = 500;

    /** The minimum time to wait for an answer: a slow server must not cost the connection. */
    private static final int MIN_ANSWER_MILLIS = 30_000;

    private static final int MISSING_BATCH = 1024;

    private static final Request NOTHING = Request.of(Command.MULTI_SET, List.of());

    /** How long to try to reopen a lost connection. */
    private static final Duration REOPEN_PATIENCE = Duration.ofSeconds(10);

    private final ServerAddress server;
    private final int answerMillis;

    private final ReentrantLock commandLock = new ReentrantLock();
    private volatile TcpConnection commands;
    private volatile CollectiveException lost;
    private boolean ended; // the command connection is lost; guarded by commandLock

    private final WaitConnections waiters;
    private volatile boolean closed;

    /**
     * Connects to a server, which may start later. The timeout is how long to try to connect, how
     * long to wait for an answer (at least 30 s), and that of methods without one. The client
     * retries until it finds a server that has the mark, a key; null accepts any server.
     */
    protected TcpStoreClient(ServerAddress server, Duration timeout, String mark) {
        super(timeout);
        this.server = server;
        answerMillis = Math.max(MIN_ANSWER_MILLIS, Deadline.after(timeout).remainingMillis());
        waiters = new WaitConnections(server);
        commands = connectCommands(mark);
    }

    /** Opens another handle on the server of a handle; throws CollectiveException if it is gone. */
    protected TcpStoreClient(TcpStoreClient other) {
        this(other.server, other.timeout(), null);
        if (!Arrays.equals(commands.serverId(), other.commands.serverId())) {
            waiters.close();
            commands.close();
            throw failure("newHandle", List.of(), new EOFException("restarted"), false);
        }
    }

    /** Adds to the number of workers that have joined, and returns it. */
    protected final long addToJoined(long workers) {
        return command(
                "join",
                List.of(),
                c -> {
                    c.send(
                            new RequestWriter()
                                    .command(Command.ADD)
                                    .rawKey(Command.INIT_KEY)
                                    .number(workers));
                    return c.readLong();
                });
    }

    @Override
    protected final Object execute(String operation, Request request) {
        return command(
                operation,
                request.keys(),
                c -> {
                    try {
                        return c.execute(request, answerMillis);
                    } catch (EOFException | SocketException e) {
                        if (request.command() == Command.ADD) {
                            explainFailedAdd(request.key(), e);
                        }
                        throw e;
                    }
                });
    }

    @Override
    public final byte[] get(String key, Duration timeout) {
        StoreChecks.checkKey(key);
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        List<String> keys = List.of(key);
        while (true) {
            byte[] value = command("get", keys, c -> isSet(c, keys) ? value(c, keys) : null);
            // The answer is also empty if the key was deleted in between.
            if (value != null && (value.length > 0 || check("get", keys))) {
                return value;
            }
            block("get", keys, deadline);
        }
    }

    @Override
    @SuppressWarnings("unchecked")
    public final List<byte[]> multiGet(List<String> keys, Duration timeout) {
        waitFor("multiGet", keys, timeout);
        return (List<byte[]>) execute("multiGet", Request.of(Command.MULTI_GET, keys));
    }

    @Override
    public final void waitFor(List<String> keys, Duration timeout) {
        waitFor("waitFor", keys, timeout);
    }

    @Override
    public final byte[] queuePop(String queue, Duration timeout) {
        StoreChecks.checkKey(queue);
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        List<String> queues = List.of(queue);
        Request pop = Request.of(Command.QUEUE_POP, queues);
        Object value = execute("queuePop", pop);
        while (value == null && !deadline.isOver()) {
            // On the connection that waited: a server wakes one client for a value.
            value = blockUntil("queuePop", queues, deadline, c -> c.execute(pop, answerMillis));
        }
        if (value == null) {
            throw StoreErrors.emptyQueue(toString(), timeout, queue);
        }
        return (byte[]) value;
    }

    /** Closes all connections; commands and waits in progress fail. Idempotent. */
    @Override
    public void close() {
        closed = true;
        waiters.close();
        // Without the lock, because a running command holds it, and its connection must be closed
        // too.
        commands.close();
    }

    private TcpConnection connectCommands(String mark) {
        Deadline deadline = Deadline.after(timeout());
        long pause = FIRST_PAUSE_MILLIS;
        while (true) {
            try {
                return openCommands(mark, deadline);
            } catch (Hello.StrangerException e) {
                throw new CollectiveException(this + ": " + e.getMessage(), e);
            } catch (IOException e) {
                if (e instanceof ProtocolException || deadline.isOver()) {
                    throw new CollectiveException(
                            ("%s: cannot connect%s within %s ms: %s; check that rank 0 runs a store"
                                 + " there, that it listens on an address this host can reach, and"
                                 + " the firewall, or increase the timeout")
                                    .formatted(
                                            this,
                                            mark == null ? "" : " to the server of '" + mark + "'",
                                            timeout().toMillis(),
                                            reason(e)),
                            e);
                }
            }
            try {
                Thread.sleep(Math.min(pause, deadline.remainingMillis()));
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new CollectiveException(this + ": interrupted while connecting", e);
            }
            pause = Math.min(2 * pause, MAX_PAUSE_MILLIS);
        }
    }

    private TcpConnection openCommands(String mark, Deadline deadline) throws IOException {
        TcpConnection opened = TcpConnection.open(server, false, deadline);
        try {
            if (mark == null || isSet(opened, List.of(mark))) {
                return opened;
            }
            throw new ConnectException("a different server has answered");
        } catch (IOException e) {
            opened.close();
            throw e;
        }
    }

    private void waitFor(String operation, List<String> keys, Duration timeout) {
        StoreChecks.checkKeys(keys);
        Deadline deadline = Deadline.after(StoreChecks.checkTimeout(timeout));
        if (!check(operation, keys)) {
            block(operation, keys, deadline);
        }
    }

    private boolean check(String operation, List<String> keys) {
        return command(operation, keys, c -> isSet(c, keys));
    }

    private boolean isSet(TcpConnection c, List<String> keys) throws IOException {
        return (Boolean) c.execute(Request.of(Command.CHECK, keys), answerMillis);
    }

    private byte[] value(TcpConnection c, List<String> key) throws IOException {
        return (byte[]) c.execute(Request.of(Command.GET, key), answerMillis);
    }

    private <T> T command(String operation, List<String> keys, Exchange<T> exchange) {
        commandLock.lock();
        try {
            checkUsable(operation);
            if (ended && !reopen()) {
                throw new EOFException(
                        "an earlier call lost the connection, and it could not be reopened");
            }
            commands.setReadTimeout(answerMillis);
            return exchange.with(commands);
        } catch (IOException e) {
            commands.close();
            if (closed) {
                throw StoreErrors.closed(toString(), operation);
            }
            boolean usable = isEnd(e) && !ended && reopen();
            CollectiveException failure = failure(operation, keys, e, usable);
            if (!usable && !ended) {
                lost = failure;
            }
            throw failure;
        } catch (Error e) {
            // The rest of an answer may still arrive and would be taken for the next answer.
            commands.close();
            throw e;
        } finally {
            commandLock.unlock();
        }
    }

    private static boolean isEnd(IOException e) {
        return e instanceof EOFException || e instanceof SocketException;
    }

    /**
     * Reopens the command connection if the same server, and so all keys, still exists. Closing the
     * connection is the protocol's only way to reject a call. A server without free resources
     * rejects the new connection too; the next call tries again.
     */
    private boolean reopen() {
        ended = false;
        byte[] serverId = commands.serverId();
        if (serverId == null) {
            return false;
        }
        try {
            TcpConnection fresh =
                    TcpConnection.open(server, false, Deadline.after(REOPEN_PATIENCE));
            if (!Arrays.equals(serverId, fresh.serverId())) {
                fresh.close();
                return false;
            }
            commands = fresh;
            if (closed) {
                fresh.close();
            }
            return true;
        } catch (IOException e) {
            ended = isEnd(e);
            return false;
        }
    }

    /** Waits on a separate connection until all keys are set. */
    private void block(String operation, List<String> keys, Deadline deadline) {
        if (!deadline.isOver()
                && blockUntil(operation, keys, deadline, TcpStoreClient::leaveQueues) != null) {
            return;
        }
        List<String> missing = missing(operation, keys);
        if (!missing.isEmpty()) {
            throw StoreErrors.timeout(toString(), operation, deadline.timeout(), missing);
        }
    }

    /**
     * Sends a command that does nothing: a key may be the name of a queue, whose value the server
     * keeps for this connection until its next command.
     */
    private static boolean leaveQueues(TcpConnection c) throws IOException {
        c.send(new RequestWriter().request(NOTHING));
        return true;
    }

    /**
     * Waits on a separate connection until all keys are set, and then uses that connection. Returns
     * null if the deadline has passed.
     */
    private <T> T blockUntil(
            String operation, List<String> keys, Deadline deadline, Exchange<T> then) {
        try {
            // If the command connection works, so does the server, and a new connection reaches the
            // same.
            TcpConnection c = waiters.take(deadline, () -> execute(operation, NOTHING));
            try {
                T answer = sendWait(c, keys, deadline) ? then.with(c) : null;
                waiters.giveBack(c);
                return answer;
            } catch (IOException e) {
                waiters.drop(c);
                throw e;
            }
        } catch (IOException e) {
            if (closed) {
                throw StoreErrors.closed(toString(), operation);
            }
            if (Thread.currentThread().isInterrupted()) {
                throw StoreErrors.interrupted(toString(), operation, keys);
            }
            if (e instanceof SocketTimeoutException && deadline.isOver()) {
                // No connection within a short deadline. The command connection, which has more
                // time, finds out whether the server is alive.
                return null;
            }
            throw failure(operation, keys, e, false);
        }
    }

    private boolean sendWait(TcpConnection c, List<String> keys, Deadline deadline)
            throws IOException {
        c.send(new RequestWriter().command(Command.WAIT).keys(keys));
        int answer = c.readByte(deadline);
        if (answer < 0) {
            c.send(new RequestWriter().command(Command.CANCEL_WAIT));
            c.setReadTimeout(answerMillis);
            answer = c.readByte();
            if (answer == Command.WAIT_CANCELED) {
                return false;
            }
            // The keys were set just before the server saw the cancellation.
            int cancelled = c.readByte();
            if (cancelled != Command.WAIT_CANCELED) {
                throw new ProtocolException("CANCEL_WAIT was answered with " + cancelled);
            }
        }
        if (answer != Command.STOP_WAITING) {
            throw new ProtocolException("WAIT was answered with " + answer);
        }
        // A pop that gave up at the deadline would lose the value.
        c.setReadTimeout(answerMillis);
        return true;
    }

    private List<String> missing(String operation, List<String> keys) {
        List<String> missing = new ArrayList<>();
        for (int start = 0; start < keys.size(); start += MISSING_BATCH) {
            List<String> batch = keys.subList(start, Math.min(keys.size(), start + MISSING_BATCH));
            command(
                    operation,
                    keys,
                    c -> {
                        RequestWriter request = new RequestWriter();
                        batch.forEach(k -> request.command(Command.CHECK).keys(List.of(k)));
                        c.send(request);
                        for (String key : batch) {
                            if (c.readByte() != Command.READY) {
                                missing.add(key);
                            }
                        }
                        return null;
                    });
        }
        return missing.stream().distinct().toList();
    }

    /**
     * Handles a connection that ended after an ADD. The protocol answers an ADD on a non-number by
     * closing the connection; in that case this throws the right exception and replaces the
     * connection.
     */
    private void explainFailedAdd(String key, IOException failure) {
        TcpConnection fresh = null;
        boolean replaced = false;
        try {
            fresh = TcpConnection.open(server, false, Deadline.after(timeout()));
            fresh.setReadTimeout(answerMillis);
            if (isSet(fresh, List.of(key))) {
                KeyValueMap.parseCounter(key, value(fresh, List.of(key)));
            }
        } catch (IllegalArgumentException e) {
            commands.close();
            commands = fresh;
            replaced = !closed;
            throw e;
        } catch (IOException e) {
            failure.addSuppressed(e);
        } finally {
            if (fresh != null && !replaced) {
                fresh.close();
            }
        }
    }

    private void checkUsable(String operation) {
        if (closed) {
            throw StoreErrors.closed(toString(), operation);
        }
        if (lost != null) {
            throw new CollectiveException(
                    this + ": " + operation + ": the connection was lost: " + lost.getMessage(),
                    lost);
        }
    }

    /** Creates the exception of a failed call; {@code usable} if the same server is reachable. */
    private CollectiveException failure(
            String operation, List<String> keys, IOException e, boolean usable) {
        String what =
                e instanceof SocketTimeoutException
                        ? "the server did not answer within "
                                + Durations.text(Duration.ofMillis(answerMillis))
                        : "the connection to the server was closed (" + reason(e) + ")";
        String rejected =
                "the server rejected this call because of a limit (number of keys, length"
                        + " of a value, or memory; see its log)";
        if (commands.serverId() == null && operation.startsWith("queue")) {
            rejected += ", or it is PyTorch's and has no queues (before 2.8, or without libuv)";
        }
        String advice =
                usable
                        ? ". The server is still running, and this handle stays usable. Either "
                                + rejected
                                + ", or the network closed the connection and the call may have"
                                + " been executed"
                        : ". Either "
                                + rejected
                                + ", or rank 0, which runs the server, has stopped or restarted,"
                                + " and all keys are lost: restart the job, or open a new store"
                                + " on all ranks";
        return new CollectiveException(
                this + ": " + operation + " " + StoreErrors.quote(keys) + ": " + what + advice, e);
    }

    private static String reason(IOException e) {
        String message = e.getMessage();
        return e.getClass().getSimpleName() + (message == null ? "" : ": " + message);
    }

    @Override
    public String toString() {
        return "TcpStore " + server;
    }

    private interface Exchange<T> {
        T with(TcpConnection connection) throws IOException;
    }
}
