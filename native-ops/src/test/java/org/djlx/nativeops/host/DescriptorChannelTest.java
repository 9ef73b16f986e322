// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.EngineException;
import com.sun.jna.LastErrorException;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(120)
class DescriptorChannelTest {

    private static final byte[] TOKEN = {1, 2, 3, 4, 5, 6, 7, 8};
    private static final byte[] OTHER_TOKEN = {1, 2, 3, 4, 5, 6, 7, 9};
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final String FILE = "descriptor-channel-test";

    /** An open file without a name, which only its descriptors keep. */
    private static Descriptor file(String text) throws IOException {
        Descriptor file = new Descriptor(LibC.memfd_create(FILE, LibC.MFD_CLOEXEC));
        write(file, text);
        return file;
    }

    static void write(Descriptor file, String text) throws IOException {
        Files.writeString(Path.of("/proc/self/fd/" + file.number()), text);
    }

    static String read(Descriptor file) throws IOException {
        return Files.readString(Path.of("/proc/self/fd/" + file.number()));
    }

    /** How many sockets and files of these tests this process has open. */
    private static int open() throws IOException {
        int count = 0;
        try (var files = Files.newDirectoryStream(Path.of("/proc/self/fd"))) {
            for (Path file : files) {
                try {
                    String target = Files.readSymbolicLink(file).toString();
                    count += target.contains(FILE) || target.startsWith("socket:") ? 1 : 0;
                } catch (IOException e) {
                    // Another thread has closed it since.
                }
            }
        }
        return count;
    }

    @Test
    void passesWithinAProcess() throws IOException {
        try (DescriptorChannel channel = DescriptorChannel.open()) {
            try (Descriptor file = file("hello")) {
                DescriptorChannel.send(channel.name(), TOKEN, -7, file, PATIENCE);
            }
            DescriptorChannel.Received received = channel.receive(TOKEN, PATIENCE).orElseThrow();
            assertEquals(-7, received.tag());
            try (Descriptor file = received.descriptor()) {
                assertEquals("hello", read(file));
            }
            assertThrows(IllegalStateException.class, received.descriptor()::number);
            assertEquals(Optional.empty(), channel.receive(TOKEN, Duration.ZERO));
        }
    }

    @Test
    void receivedDescriptorsAreNotInherited() throws IOException {
        try (DescriptorChannel channel = DescriptorChannel.open();
                Descriptor file = file("mine")) {
            DescriptorChannel.send(channel.name(), TOKEN, 0, file, PATIENCE);
            try (Descriptor copy = channel.receive(TOKEN, PATIENCE).orElseThrow().descriptor()) {
                assertNotEquals(file.number(), copy.number());
                String info =
                        Files.readString(Path.of("/proc/self/fdinfo/" + copy.number()))
                                .lines()
                                .filter(line -> line.startsWith("flags:"))
                                .findFirst()
                                .orElseThrow();
                int flags = Integer.parseInt(info.substring(6).trim(), 8);
                assertTrue(
                        (flags & (LibC.O_RDWR | LibC.O_CLOEXEC)) == (LibC.O_RDWR | LibC.O_CLOEXEC),
                        info);
            }
        }
    }

    @Test
    void passesADescriptorBetweenProcesses() throws Exception {
        try (DescriptorChannel channel = DescriptorChannel.open();
                Descriptor file = file("there")) {
            Process peer =
                    new ProcessBuilder(
                                    System.getProperty("java.home") + "/bin/java",
                                    "-cp",
                                    System.getProperty("java.class.path"),
                                    DescriptorPeer.class.getName(),
                                    channel.name(),
                                    HexFormat.of().formatHex(TOKEN))
                            .redirectError(ProcessBuilder.Redirect.INHERIT)
                            .start();
            try (BufferedReader output =
                    new BufferedReader(
                            new InputStreamReader(peer.getInputStream(), StandardCharsets.UTF_8))) {
                String name = output.readLine();
                DescriptorChannel.send(name, TOKEN, 41, file, PATIENCE);
                DescriptorChannel.Received back = channel.receive(TOKEN, PATIENCE).orElseThrow();
                assertEquals(42, back.tag());
                back.descriptor().close();
                assertEquals("there and back", read(file));

                // A queue that nobody empties any more, then a process that is gone.
                String full = sendUntilItFails(name, file, Duration.ofMillis(100));
                assertTrue(full.contains("its queue was full for 0.1 s"), full);
                Thread end = new Thread(peer::destroyForcibly);
                end.start();
                String gone = sendUntilItFails(name, file, PATIENCE);
                assertTrue(gone.contains("no channel has this name"), gone);
                end.join();
            } finally {
                peer.destroyForcibly();
            }
            assertTrue(peer.waitFor(60, TimeUnit.SECONDS));
        }
    }

    private static String sendUntilItFails(String name, Descriptor file, Duration timeout) {
        EngineException e =
                assertThrows(
                        EngineException.class,
                        () -> {
                            for (int tag = 0; tag < 100_000; tag++) {
                                DescriptorChannel.send(name, TOKEN, tag, file, timeout);
                            }
                        });
        assertTrue(e.getMessage().contains(name), e.getMessage());
        return e.getMessage();
    }

    @Test
    void waitsWhileTheQueueIsFull() throws Exception {
        int count = 2000; // more than queues hold
        try (DescriptorChannel channel = DescriptorChannel.open();
                Descriptor file = file("often")) {
            AtomicReference<Throwable> failure = new AtomicReference<>();
            Thread sender =
                    new Thread(
                            () -> {
                                for (int tag = 0; tag < count; tag++) {
                                    DescriptorChannel.send(
                                            channel.name(), TOKEN, tag, file, PATIENCE);
                                }
                            });
            sender.setUncaughtExceptionHandler((thread, e) -> failure.set(e));
            sender.start();
            for (int tag = 0; tag < count; tag++) {
                var received = channel.receive(TOKEN, PATIENCE).orElseThrow();
                received.descriptor().close();
                assertEquals(tag, received.tag());
            }
            sender.join();
            assertEquals(null, failure.get());
        }
    }

    @Test
    void messagesWithAnotherTokenAreDroppedAndClosed() throws IOException {
        try (DescriptorChannel channel = DescriptorChannel.open();
                Descriptor file = file("refused")) {
            int before = open();
            for (int i = 0; i < 20; i++) {
                DescriptorChannel.send(channel.name(), OTHER_TOKEN, 1, file, PATIENCE);
                DescriptorChannel.send(channel.name(), new byte[] {1}, 2, file, PATIENCE);
                DescriptorChannel.send(channel.name(), new byte[4000], 3, file, PATIENCE);
                DescriptorChannel.send(channel.name(), TOKEN, 4, file, PATIENCE);
                var received = channel.receive(TOKEN, PATIENCE).orElseThrow();
                assertEquals(4, received.tag());
                received.descriptor().close();
            }
            DescriptorChannel.send(channel.name(), OTHER_TOKEN, 1, file, PATIENCE);
            assertEquals(Optional.empty(), channel.receive(TOKEN, Duration.ofMillis(20)));
            assertThrows(
                    EngineException.class,
                    () -> DescriptorChannel.send("djlx-nobody", TOKEN, 1, file, PATIENCE));
            assertEquals(before, open());
        }
    }

    @Test
    void closingFreesWhatWasNotReceived() throws IOException {
        int before = open();
        DescriptorChannel channel = DescriptorChannel.open();
        try (Descriptor file = file("not received")) {
            DescriptorChannel.send(channel.name(), TOKEN, 1, file, PATIENCE);
        }
        channel.close();
        channel.close();
        assertEquals(before, open());
        assertThrows(IllegalStateException.class, () -> channel.receive(TOKEN, PATIENCE));
    }

    @Test
    void closingEndsAWait() throws InterruptedException {
        DescriptorChannel channel = DescriptorChannel.open();
        AtomicReference<Throwable> end = new AtomicReference<>();
        Thread receiver = new Thread(() -> channel.receive(TOKEN, PATIENCE));
        receiver.setUncaughtExceptionHandler((thread, e) -> end.set(e));
        receiver.start();
        // In recvmsg or poll, before or after: it must end in each of them.
        Thread.sleep(50);
        channel.close();
        receiver.join();
        assertEquals(IllegalStateException.class, end.get().getClass());
    }

    /** Without room for one more file the message is an error, not silence. */
    @Test
    void lostDescriptorIsAnError() throws IOException {
        List<Descriptor> filler = new ArrayList<>();
        try (DescriptorChannel channel = DescriptorChannel.open();
                Descriptor file = file("lost")) {
            DescriptorChannel.send(channel.name(), TOKEN, 17, file, PATIENCE);
            var e =
                    assertThrows(
                            EngineException.class,
                            () -> {
                                fill(filler);
                                channel.receive(TOKEN, PATIENCE);
                            });
            assertTrue(e.getMessage().contains("tag 17 was lost"), e.getMessage());
        } finally {
            filler.forEach(Descriptor::close);
        }
    }

    private static void fill(List<Descriptor> filler) {
        while (filler.size() < 2_000_000) {
            try {
                filler.add(new Descriptor(LibC.open("/dev/null", (LibC.O_RDWR | LibC.O_CLOEXEC))));
            } catch (LastErrorException e) {
                return;
            }
        }
    }

    @Test
    void refusesEmptyTokensAndNegativeTimes() throws IOException {
        try (DescriptorChannel channel = DescriptorChannel.open();
                DescriptorChannel other = DescriptorChannel.open();
                Descriptor file = file("")) {
            assertNotEquals(channel.name(), other.name());
            assertFalse(channel.name().isEmpty());
            String name = channel.name();
            assertThrows(
                    IllegalArgumentException.class,
                    () -> channel.receive(new byte[0], Duration.ZERO));
            assertThrows(IllegalArgumentException.class, () -> channel.receive(TOKEN, null));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> DescriptorChannel.send(name, TOKEN, 0, file, Duration.ofMillis(-1)));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> DescriptorChannel.send(name, null, 0, file, Duration.ZERO));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> DescriptorChannel.send(null, TOKEN, 0, file, PATIENCE));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> DescriptorChannel.send(name, TOKEN, 0, null, PATIENCE));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> DescriptorChannel.send("x".repeat(108), TOKEN, 0, file, PATIENCE));
        }
    }
}
