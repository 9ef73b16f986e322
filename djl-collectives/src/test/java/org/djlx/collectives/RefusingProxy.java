// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * Forwards connections to a server on this host. On request, it closes current and new connections,
 * or delays new ones, or what the server sends.
 */
public final class RefusingProxy implements AutoCloseable {

    private final ServerSocket listener;
    private final int server;
    // Guarded by this.
    private final List<Socket> open = new ArrayList<>();
    private boolean refuses;
    private boolean holds;
    private volatile Duration delay = Duration.ZERO;

    public RefusingProxy(int server) throws IOException {
        this.server = server;
        listener = new ServerSocket(0, 50, InetAddress.getByName("localhost"));
        new Thread(this::accept, "refusing-proxy").start();
    }

    public int port() {
        return listener.getLocalPort();
    }

    public synchronized void refuse(boolean refuse) throws IOException {
        refuses = refuse;
        endAll();
    }

    public synchronized void hold(boolean hold) {
        holds = hold;
    }

    /** Delays what the server sends, except for single bytes. */
    public void delayLonger(Duration time) {
        delay = time;
    }

    private synchronized void endAll() throws IOException {
        for (Socket socket : open) {
            socket.close();
        }
        open.clear();
    }

    private void accept() {
        while (!listener.isClosed()) {
            try {
                connect(listener.accept());
            } catch (IOException e) {
                // Closed, or the other end is.
            }
        }
    }

    private synchronized void connect(Socket client) throws IOException {
        if (refuses) {
            client.close();
            return;
        }
        if (holds) {
            open.add(client);
            return;
        }
        Socket target = new Socket(InetAddress.getByName("localhost"), server);
        open.add(client);
        open.add(target);
        hand(client, target, false);
        hand(target, client, true);
    }

    private void hand(Socket from, Socket to, boolean delays) {
        Thread thread =
                new Thread(
                        () -> {
                            try (from;
                                    to) {
                                byte[] piece = new byte[8192];
                                int count;
                                while ((count = from.getInputStream().read(piece)) >= 0) {
                                    Thread.sleep(delays && count > 1 ? delay.toMillis() : 0);
                                    to.getOutputStream().write(piece, 0, count);
                                }
                            } catch (IOException | InterruptedException e) {
                                // Ended.
                            }
                        },
                        "refusing-proxy-hand");
        thread.start();
    }

    @Override
    public void close() throws IOException {
        listener.close(); // Which ends the thread.
        endAll();
    }
}
