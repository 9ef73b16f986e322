// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.FileRegion;
import io.netty.channel.embedded.EmbeddedChannel;
import io.netty.util.ReferenceCountUtil;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.soak.Soak;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * Random input to the server: random bytes, corrupted requests, and requests in pieces. It must
 * close at most its own connection.
 */
class RequestFuzzTest {

    // All keys and values fit, so that no request is rejected for lack of memory.
    private static final ServerLimits LIMITS = new ServerLimits(10, 200, 300, 200_000);

    @Test
    void randomRequestsAreParsedOrRefused() throws IOException {
        fuzz(1, 30_000);
        piecewise(2, 3_000);
    }

    @Test
    @Tag("soak")
    void randomRequestsAreParsedOrRefusedForLong() throws InterruptedException {
        Soak.run(
                "requests to the store",
                soak -> {
                    while (soak.nextRound()) {
                        fuzz(soak.roundSeed(), 20_000);
                        piecewise(soak.roundSeed(), 2_000);
                    }
                });
    }

    /** Sends nonsense on one connection, while another one works and a third one waits. */
    private static void fuzz(long seed, int cases) throws IOException {
        Random random = new Random(seed);
        ServerState state = new ServerState(LIMITS, 0, null);
        EmbeddedChannel bystander = connect(state);
        EmbeddedChannel waiter = connect(state);
        send(waiter, bytes(new RequestWriter().command(Command.WAIT).keys(List.of("never set!"))));
        EmbeddedChannel victim = connect(state);
        int refused = 0;
        int answered = 0;
        for (int i = 0; i < cases; i++) {
            if (!victim.isActive()) {
                victim = connect(state);
                refused++;
            }
            byte[] request = random.nextInt(4) == 0 ? noise(random) : mutated(random);
            send(victim, request);
            answered += drain(victim).length > 0 ? 1 : 0;
            if (i % 100 == 0) {
                assertEquals(i / 100 + 1, add(bystander, "own", 1), "case " + i);
                assertTrue(state.values().size() <= LIMITS.maxKeys());
                assertTrue(state.numConnections() <= 3);
                // A connection that an incomplete request keeps waiting is of no further use.
                victim.close();
                drain(victim);
                assertEquals(1, state.numAwaited(), "the waits of the dead are forgotten");
            }
        }
        // Else most of the cases would not get far.
        assertTrue(refused > cases / 10, refused + " refused");
        assertTrue(answered > cases / 10, answered + " answered");
        assertTrue(waiter.isActive());
        assertEquals(0, drain(waiter).length);
        send(bystander, bytes(new RequestWriter().command(Command.DELETE_KEY).key("own")));
        assertEquals(Long.BYTES, drain(bystander).length);
        bystander.close();
        waiter.close();
        victim.close();
        assertEquals(0, state.numAwaited());
        assertEquals(0, state.numConnections());
        state.values().keys().forEach(state.values()::delete);
        for (String queue : state.values().queues()) {
            while (state.values().peek(queue) != null) {
                state.values().pop(queue);
            }
        }
        assertEquals(0, state.memory().used(), "what was taken is given back");
    }

    /** Checks that it makes no difference into which pieces the requests are cut. */
    private static void piecewise(long seed, int cases) throws IOException {
        Random random = new Random(seed);
        for (int i = 0; i < cases; i++) {
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            for (int n = random.nextInt(8); n >= 0; n--) {
                all.writeBytes(valid(random));
            }
            EmbeddedChannel whole = connect(new ServerState(LIMITS, 0, null));
            EmbeddedChannel pieces = connect(new ServerState(LIMITS, 0, null));
            send(whole, all.toByteArray());
            byte[] rest = all.toByteArray();
            while (rest.length > 0) {
                int n = 1 + random.nextInt(Math.min(rest.length, 1 + random.nextInt(60)));
                send(pieces, Arrays.copyOf(rest, n));
                rest = Arrays.copyOfRange(rest, n, rest.length);
            }
            assertEquals(
                    Arrays.toString(drain(whole)), Arrays.toString(drain(pieces)), "case " + i);
            assertEquals(whole.isActive(), pieces.isActive(), "case " + i);
            whole.finishAndReleaseAll();
            pieces.finishAndReleaseAll();
        }
    }

    private static EmbeddedChannel connect(ServerState state) throws IOException {
        EmbeddedChannel channel = new EmbeddedChannel(new ServerConnection(state));
        send(channel, bytes(new RequestWriter().command(Command.VALIDATE).number32(Command.MAGIC)));
        return channel;
    }

    private static long add(EmbeddedChannel channel, String key, long amount) throws IOException {
        send(channel, bytes(new RequestWriter().command(Command.ADD).key(key).number(amount)));
        return Unpooled.wrappedBuffer(drain(channel)).readLongLE();
    }

    private static void send(EmbeddedChannel channel, byte[] bytes) {
        if (channel.isActive()) {
            channel.writeInbound(Unpooled.wrappedBuffer(bytes));
            channel.checkException();
        }
    }

    /** Returns the server's answers: buffers, and regions of those that are long. */
    private static byte[] drain(EmbeddedChannel channel) throws IOException {
        channel.runPendingTasks();
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (Object o = channel.readOutbound(); o != null; o = channel.readOutbound()) {
            if (o instanceof FileRegion region) {
                while (region.transferred() < region.count()) {
                    region.transferTo(Channels.newChannel(all), region.transferred());
                }
            } else {
                ByteBuf buffer = (ByteBuf) o;
                buffer.readBytes(all, buffer.readableBytes());
            }
            ReferenceCountUtil.release(o);
        }
        return all.toByteArray();
    }

    private static byte[] noise(Random random) {
        byte[] bytes = new byte[random.nextInt(100)];
        random.nextBytes(bytes);
        if (bytes.length > 0) {
            bytes[0] = (byte) random.nextInt(20);
        }
        return bytes;
    }

    private static byte[] mutated(Random random) throws IOException {
        byte[] bytes = valid(random);
        switch (random.nextInt(4)) {
            case 0 -> {
                return bytes;
            }
            case 1 -> {
                return Arrays.copyOf(bytes, random.nextInt(bytes.length + 1));
            }
            case 2 -> bytes[random.nextInt(bytes.length)] = (byte) random.nextInt();
            default -> {
                // Lengths and counts start after the command.
                int at = random.nextInt(Math.min(9, bytes.length));
                bytes[at] ^= (byte) (1 << random.nextInt(8));
            }
        }
        return bytes;
    }

    private static byte[] valid(Random random) throws IOException {
        Command[] all = Command.values();
        Command command = all[1 + random.nextInt(all.length - 1)];
        RequestWriter request = new RequestWriter().command(command);
        for (int i = 0; i < command.numFields(); i++) {
            switch (command.field(i)) {
                case U32 -> request.number32(random.nextInt());
                case I64 -> request.number(random.nextLong());
                case KEY -> request.key(key(random));
                case VALUE -> request.value(value(random));
                case KEYS -> {
                    List<String> keys = new ArrayList<>();
                    for (int n = random.nextInt(6); n > 0; n--) {
                        keys.add(key(random));
                    }
                    request.keys(keys);
                }
                case PAIRS -> {
                    int pairs = random.nextInt(6);
                    request.number(pairs);
                    for (int n = 0; n < pairs; n++) {
                        request.key(key(random)).value(value(random));
                    }
                }
            }
        }
        return bytes(request);
    }

    private static String key(Random random) {
        return random.nextInt(20) == 0 ? "" : "k" + random.nextInt(300);
    }

    private static byte[] value(Random random) {
        if (random.nextInt(3) == 0) {
            return Integer.toString(random.nextInt()).getBytes(StandardCharsets.US_ASCII);
        }
        byte[] value = new byte[random.nextInt(random.nextInt(10) == 0 ? 320 : 40)];
        random.nextBytes(value);
        return value;
    }

    private static byte[] bytes(RequestWriter request) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        request.writeTo(out);
        return out.toByteArray();
    }
}
