// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.djlx.nativeops.host.Flock;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A cache of compiled kernels, {@link GpuRates} and other measurements, in files and in memory, so
 * a machine compiles each kernel once, and a process reads each file once. Thread-safe.
 *
 * <ul>
 *   <li><b>Shared folder.</b> A file is written under a temporary name and renamed when complete,
 *       so readers see a complete file or none.
 *   <li><b>Damaged files.</b> A file whose checksum is wrong is compiled again and replaced.
 *   <li><b>Read-only folder.</b> Every process compiles kernels itself; one warning says so.
 *   <li><b>Concurrency.</b> If several threads need the same kernel, one thread compiles it.
 *       Different kernels compile concurrently. Between processes, a lock file in the kernel file's
 *       folder does the same, with a timeout.
 *   <li><b>Cleaning.</b> The folder is never cleaned. A kernel takes some ten kilobytes; files may
 *       be deleted at any time.
 * </ul>
 */
public final class KernelCache {

    /** The system property that names the folder of {@link #user()}. */
    public static final String DIRECTORY_PROPERTY = "djlx.kernels.cache";

    /** The environment variable that names the folder if the property is not set. */
    public static final String DIRECTORY_VARIABLE = "DJLX_KERNELS_CACHE";

    private static final Logger LOGGER = LoggerFactory.getLogger(KernelCache.class);

    /**
     * The time after which a running compilation is logged, so users see why the start takes long.
     */
    private static final Duration LOG_DELAY = Duration.ofSeconds(1);

    /**
     * How long to wait for another process that compiles the same kernel. That process may be
     * stopped.
     */
    private static final Duration MAX_LOCK_WAIT = Duration.ofSeconds(60);

    private final Path directory;
    private final Duration logDelay;
    private final Consumer<String> log;
    private final Map<Path, Entry> entries = new ConcurrentHashMap<>();
    private final AtomicBoolean warned = new AtomicBoolean();

    /** A kernel. Its monitor is held while the kernel is read or compiled. */
    private static final class Entry {
        volatile byte[] compiled; // null until read or compiled; writes are guarded by this
    }

    /** Creates a cache in a folder, which the first write creates. */
    public KernelCache(Path directory) {
        this(directory, LOG_DELAY, LOGGER::info);
    }

    /** Creates a cache that logs compilations which take longer than a delay. */
    KernelCache(Path directory, Duration logDelay, Consumer<String> log) {
        this.directory = directory;
        this.logDelay = logDelay;
        this.log = log;
    }

    /**
     * {@return the cache of this process, in the folder named by {@value #DIRECTORY_PROPERTY} or
     * {@value #DIRECTORY_VARIABLE}, by default {@code ~/.cache/djlx/kernels}}
     */
    public static KernelCache user() {
        return User.CACHE;
    }

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
     * Returns compiled kernels: from memory, from a file, or from the compiler. A compilation that
     * takes longer than a second is logged at level info.
     *
     * @param compiler compiles the kernels; if it throws, the exception propagates and nothing is
     *     cached
     * @return the compiled kernels; must not be changed
     */
    public byte[] get(Key key, Supplier<byte[]> compiler) {
        return get(file(key), file -> logged(key, () -> compile(file, compiler)));
    }

    /** As {@link #get(Key, Supplier)}, for other content that a machine computes once. */
    byte[] get(String name, Supplier<byte[]> content) {
        return get(directory.resolve(name), file -> compile(file, content));
    }

    /** {@return the name of a file: a prefix and 16 digits that depend on all of a text} */
    public static String name(String prefix, String text) {
        byte[] digest = sha256(text.getBytes(StandardCharsets.UTF_8));
        return prefix + HexFormat.of().formatHex(digest, 0, 8);
    }

    /**
     * {@return the content of a file, read anew; empty if there is none or it is damaged, which is
     * logged}
     */
    public Optional<byte[]> find(String name) {
        return Optional.ofNullable(read(directory.resolve(name), true));
    }

    /** Replaces the content of a file. One warning says if the folder cannot be written. */
    public void put(String name, byte[] content) {
        write(directory.resolve(name), content);
    }

    private byte[] get(Path file, Function<Path, byte[]> compiler) {
        // Do not compile in computeIfAbsent, which would block other keys.
        Entry entry = entries.computeIfAbsent(file, absent -> new Entry());
        synchronized (entry) {
            if (entry.compiled == null) {
                byte[] cached = read(file, false);
                entry.compiled = cached != null ? cached : compiler.apply(file);
            }
            return entry.compiled;
        }
    }

    /**
     * Returns whether {@link #get} probably finds the kernels in memory or in a file. Does not
     * check the file. Does not block.
     */
    boolean has(Key key) {
        Path file = file(key);
        Entry entry = entries.get(file);
        return entry != null && entry.compiled != null || Files.exists(file);
    }

    private Path file(Key key) {
        return directory.resolve(key.digest() + ".cubin");
    }

    /** Compiles a kernel, and logs it if it takes longer than the delay. */
    private byte[] logged(Key key, Supplier<byte[]> compiler) {
        Executor later = CompletableFuture.delayedExecutor(logDelay.toNanos(), NANOSECONDS);
        CompletableFuture<Void> message =
                CompletableFuture.runAsync(
                        () ->
                                log.accept(
                                        String.format(
                                                "compiling %s by %s; the result is cached in %s",
                                                key.describe(), key.compiler(), directory)),
                        later);
        try {
            return compiler.get();
        } finally {
            message.cancel(false); // No-op if it has been logged.
        }
    }

    private byte[] compile(Path file, Supplier<byte[]> compiler) {
        Path lockFile = Path.of(file + ".lock");
        try (Flock lock = lock(lockFile)) {
            try {
                // The previous holder of the lock may have written it.
                byte[] cached = read(file, true);
                if (cached == null) {
                    cached = compiler.get();
                    write(file, cached);
                }
                return cached;
            } finally {
                if (lock != null) {
                    delete(lockFile);
                }
            }
        }
    }

    private static void delete(Path file) {
        try {
            Files.deleteIfExists(file);
        } catch (IOException e) {
            LOGGER.debug("cannot delete {}", file, e);
        }
    }

    /** Returns null without the lock, which saves duplicate work only. */
    private Flock lock(Path file) {
        try {
            Files.createDirectories(directory);
            return Flock.acquire(file, MAX_LOCK_WAIT);
        } catch (IOException e) {
            LOGGER.debug("compiling without the lock {}", file, e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return null;
    }

    /** Returns the content of a file; null if there is none or it is damaged. */
    private static byte[] read(Path file, boolean warn) {
        try {
            byte[] content = CachedFile.unwrap(Files.readAllBytes(file));
            if (content == null && warn) {
                LOGGER.warn("{} is damaged; its content is made again", file);
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
                        "cannot write compiled kernels to {} ({}); each process compiles its own."
                                + " Set another folder with the system property {} or the"
                                + " environment variable {}",
                        directory,
                        e.toString(),
                        DIRECTORY_PROPERTY,
                        DIRECTORY_VARIABLE);
            }
        }
    }

    /**
     * Everything on which a compiled kernel depends; the architecture is for example {@code
     * sm_90a}, the compiler with its version {@code NVRTC 13.0}.
     */
    public record Key(
            KernelSource source, List<String> options, String architecture, String compiler) {

        public Key {
            options = List.copyOf(options);
        }

        /** Returns a description, for example {@code k.cu for sm_90a with -DWIDTH=16}. */
        String describe() {
            String defined =
                    options.stream()
                            .filter(option -> option.startsWith("-D"))
                            .collect(Collectors.joining(" "));
            return "%s for %s%s"
                    .formatted(
                            source.name(),
                            architecture,
                            defined.isEmpty() ? "" : " with " + defined);
        }

        /** Returns a unique name: the SHA-256 of the key. */
        String digest() {
            List<String> texts = new ArrayList<>(List.of(source.name(), source.text()));
            texts.add(Integer.toString(source.headers().size()));
            source.headers().forEach((name, text) -> texts.addAll(List.of(name, text)));
            texts.add(Integer.toString(options.size()));
            texts.addAll(options);
            texts.addAll(List.of(architecture, compiler));
            // No text of a program contains the separator, so different keys give different bytes.
            byte[] bytes = String.join("\0", texts).getBytes(StandardCharsets.UTF_8);
            return HexFormat.of().formatHex(sha256(bytes));
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
