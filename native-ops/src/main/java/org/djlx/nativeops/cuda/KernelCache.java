/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.djlx.nativeops.host.ProcessLock;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps compiled kernels in files, so that they are compiled once on a machine, and in memory, so
 * that a file is read once by a process.
 *
 * <p>A file is written under another name and renamed when complete: processes may share the
 * folder, and a reader sees a complete file or none. One that is not what was written, because a
 * disk was full or failed, does not fit its checksum; the kernel is compiled again and the file
 * replaced. Where the folder cannot be written, kernels are compiled by every process, and one
 * warning says so. Safe for use by several threads; of those that want the same kernel, one
 * compiles it, while others compile other kernels. So it is with processes: a locked file beside
 * the kernel's says that one compiles it. The others wait, but not for ever.
 *
 * <p>The folder is not cleaned: a kernel takes some ten kilobytes, and files may be deleted at any
 * time.
 */
public final class KernelCache {

    /** The system property that names the folder of {@link #user()}. */
    public static final String DIRECTORY_PROPERTY = "djlx.kernels.cache";

    /** The environment variable that names the folder where the property does not. */
    public static final String DIRECTORY_VARIABLE = "DJLX_KERNELS_CACHE";

    private static final Logger LOGGER = LoggerFactory.getLogger(KernelCache.class);

    /** After which time a compilation is told of: somebody may wonder why nothing happens. */
    private static final Duration PATIENCE = Duration.ofSeconds(1);

    /** How long another process that compiles the same kernel is waited for: it may be stopped. */
    private static final Duration MOST_WAIT = Duration.ofSeconds(60);

    private final Path directory;
    private final Duration patience;
    private final Consumer<String> teller;
    private final Map<String, Entry> entries = new ConcurrentHashMap<>();
    private final AtomicBoolean warned = new AtomicBoolean();

    /** Held while its kernel is read or compiled. */
    private static final class Entry {
        volatile byte[] compiled; // null before; written by who holds it
    }

    /**
     * Creates a cache.
     *
     * @param directory the folder, which is created when first written to
     */
    public KernelCache(Path directory) {
        this(directory, PATIENCE, LOGGER::info);
    }

    /** As above; tells what is being compiled if it takes longer than the patience. */
    KernelCache(Path directory, Duration patience, Consumer<String> teller) {
        this.directory = directory;
        this.patience = patience;
        this.teller = teller;
    }

    /**
     * Returns the cache of this process: in the folder that {@value #DIRECTORY_PROPERTY} or {@value
     * #DIRECTORY_VARIABLE} names, else in {@code ~/.cache/djlx/kernels}.
     *
     * @return the cache
     */
    public static KernelCache user() {
        return User.CACHE;
    }

    /** Returns the folder of {@link #user()}. */
    static Path userDirectory(String property, String variable, String home) {
        if (property != null && !property.isEmpty()) {
            return Path.of(property);
        }
        if (variable != null && !variable.isEmpty()) {
            return Path.of(variable);
        }
        return Path.of(home, ".cache", "djlx", "kernels");
    }

    /**
     * Returns compiled kernels, from memory, from a file or from the compiler. If the latter takes
     * longer than a second, the log says at level info what is being compiled.
     *
     * @param key what is compiled, how and by what
     * @param compiler compiles it; what it throws is passed on, and nothing is kept
     * @return the compiled kernels, which must not be changed
     */
    public byte[] get(Key key, Supplier<byte[]> compiler) {
        String digest = key.digest();
        // Not compiled by the map, which lets other keys wait, too.
        Entry entry = entries.computeIfAbsent(digest, absent -> new Entry());
        synchronized (entry) {
            if (entry.compiled == null) {
                Path file = file(digest);
                byte[] cached = read(file, false);
                entry.compiled = cached != null ? cached : told(key, () -> compile(file, compiler));
            }
            return entry.compiled;
        }
    }

    /**
     * Tells, without waiting for anybody, whether {@link #get} will hardly have to compile: the
     * kernels are in memory, or there is a file of them, which nobody has looked at.
     */
    boolean has(Key key) {
        String digest = key.digest();
        Entry entry = entries.get(digest);
        return entry != null && entry.compiled != null || Files.exists(file(digest));
    }

    private Path file(String digest) {
        return directory.resolve(digest + ".cubin");
    }

    /** Compiles a kernel, or waits for another process that does; tells so if it takes long. */
    private byte[] told(Key key, Supplier<byte[]> compiler) {
        Executor later = CompletableFuture.delayedExecutor(patience.toNanos(), NANOSECONDS);
        CompletableFuture<Void> message =
                CompletableFuture.runAsync(
                        () ->
                                teller.accept(
                                        String.format(
                                                "compiling %s by %s, to be kept in %s",
                                                key.describe(), key.compiler(), directory)),
                        later);
        try {
            return compiler.get();
        } finally {
            message.cancel(false); // If it has not been written yet, it is not.
        }
    }

    private byte[] compile(Path file, Supplier<byte[]> compiler) {
        Path lockFile = Path.of(file + ".lock");
        try (ProcessLock lock = ProcessLock.acquire(lockFile, MOST_WAIT)) {
            if (!lock.isHeld()) {
                LOGGER.debug("{} is not locked", lockFile);
            }
            byte[] cached = read(file, true); // Who held the lock before may have written it.
            if (cached != null) {
                return cached;
            }
            byte[] compiled = compiler.get();
            write(file, compiled);
            return compiled;
        }
    }

    /** Returns what a file holds, or null if there is none or it is damaged. */
    private static byte[] read(Path file, boolean warn) {
        try {
            byte[] content = CachedFile.unwrap(Files.readAllBytes(file));
            if (content == null && warn) {
                LOGGER.warn("{} is damaged; the kernel is compiled again", file);
            }
            return content;
        } catch (NoSuchFileException e) {
            return null;
        } catch (IOException e) {
            LOGGER.debug("cannot read {}", file, e);
            return null;
        }
    }

    private void write(Path file, byte[] content) {
        try {
            Files.createDirectories(directory);
            Path partial = Files.createTempFile(directory, "partial-", ".tmp");
            try {
                Files.write(partial, CachedFile.wrap(content));
                Files.move(
                        partial,
                        file,
                        StandardCopyOption.ATOMIC_MOVE,
                        StandardCopyOption.REPLACE_EXISTING);
            } finally {
                Files.deleteIfExists(partial);
            }
        } catch (IOException e) {
            if (!warned.getAndSet(true)) {
                LOGGER.warn(
                        "compiled kernels cannot be kept in {} ({}); each process compiles its own."
                                + " Name another folder with the system property {} or the"
                                + " environment variable {}",
                        directory,
                        e.toString(),
                        DIRECTORY_PROPERTY,
                        DIRECTORY_VARIABLE);
            }
        }
    }

    /**
     * All that a compiled kernel depends on.
     *
     * @param source the source with its headers
     * @param options the compiler's options, in their order
     * @param architecture the architecture, for example {@code sm_90a}
     * @param compiler the compiler and its version, for example {@code NVRTC 13.0}
     */
    public record Key(
            KernelSource source, List<String> options, String architecture, String compiler) {

        /**
         * Copies the options.
         *
         * @param source the source with its headers
         * @param options the compiler's options
         * @param architecture the architecture
         * @param compiler the compiler and its version
         * @throws NullPointerException if an argument is null
         */
        public Key {
            options = List.copyOf(options);
        }

        /** Names the kernels, as {@code k.cu for sm_90a with -DWIDTH=16}. */
        String describe() {
            String defined =
                    options.stream()
                            .filter(option -> option.startsWith("-D"))
                            .collect(Collectors.joining(" "));
            return source.name()
                    + " for "
                    + architecture
                    + (defined.isEmpty() ? "" : " with " + defined);
        }

        /** Returns a name that no other key has. */
        String digest() {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            try (DataOutputStream out = new DataOutputStream(bytes)) {
                put(out, source.name());
                put(out, source.text());
                out.writeInt(source.headers().size());
                for (Map.Entry<String, String> header : source.headers().entrySet()) {
                    put(out, header.getKey());
                    put(out, header.getValue());
                }
                out.writeInt(options.size());
                for (String option : options) {
                    put(out, option);
                }
                put(out, architecture);
                put(out, compiler);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            return HexFormat.of().formatHex(sha256(bytes.toByteArray()));
        }

        /** Writes the length first, so that no two lists of texts look the same. */
        private static void put(DataOutputStream out, String text) throws IOException {
            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            out.writeInt(bytes.length);
            out.write(bytes);
        }
    }

    static byte[] sha256(byte[] bytes) {
        try {
            return MessageDigest.getInstance("SHA-256").digest(bytes);
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("every Java platform has SHA-256", e);
        }
    }

    private static final class User {
        static final KernelCache CACHE =
                new KernelCache(
                        userDirectory(
                                System.getProperty(DIRECTORY_PROPERTY),
                                System.getenv(DIRECTORY_VARIABLE),
                                System.getProperty("user.home")));
    }
}
