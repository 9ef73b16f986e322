// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Collection;
import java.util.Optional;
import java.util.TreeSet;
import java.util.UUID;
import java.util.regex.Pattern;
import org.djlx.nativeops.host.Flock;

/**
 * A model in huggingface_hub's cache:
 *
 * <pre>
 * models--ORG--NAME/refs/main                      the commit of a branch or tag
 * models--ORG--NAME/blobs/ETAG                     files by SHA-256, or by git's SHA-1
 * models--ORG--NAME/blobs/ETAG.incomplete          a download to be resumed
 * models--ORG--NAME/snapshots/COMMIT/config.json   a relative link to a blob
 * .locks/models--ORG--NAME/ETAG.lock               held during a download
 * </pre>
 */
final class HubCache {

    static final Pattern COMMIT = Pattern.compile("[0-9a-f]{40}");
    static final String CONFIG = "config.json";
    static final String TOKENIZER = "tokenizer.json";
    static final String WEIGHTS = "model.safetensors";
    static final String INDEX = "model.safetensors.index.json";

    private static final Pattern SHARD = Pattern.compile("[\\w-][\\w.-]*\\.safetensors");
    private static final long POLL_MILLIS = 100;

    private final Path home;
    private final String folder;

    /** {@code name} is ORG/NAME. */
    HubCache(Path home, String name) {
        this.home = home.toAbsolutePath();
        folder = "models--" + name.replace("/", "--");
    }

    private Path in(String first, String... more) {
        return home.resolve(folder).resolve(Path.of(first, more));
    }

    Path snapshot(String commit) {
        return in("snapshots", commit);
    }

    /**
     * Returns the snapshot of a commit, branch or tag; empty if a file that is needed is missing.
     */
    Optional<Path> find(String revision) throws IOException {
        String commit = revision;
        if (!COMMIT.matcher(revision).matches()) {
            Path ref = in("refs", revision);
            commit = Files.isRegularFile(ref) ? Files.readString(ref).strip() : "";
        }
        return COMMIT.matcher(commit).matches() && isComplete(snapshot(commit))
                ? Optional.of(snapshot(commit))
                : Optional.empty();
    }

    private static boolean isComplete(Path snapshot) throws IOException {
        if (!Files.exists(snapshot.resolve(CONFIG)) || !Files.exists(snapshot.resolve(TOKENIZER))) {
            return false;
        }
        return Files.exists(snapshot.resolve(INDEX))
                ? shards(snapshot).stream().allMatch(each -> Files.exists(snapshot.resolve(each)))
                : Files.exists(snapshot.resolve(WEIGHTS));
    }

    /** Returns the names of the files that the index of a snapshot's weights lists. */
    static Collection<String> shards(Path snapshot) throws IOException {
        Path index = snapshot.resolve(INDEX);
        Collection<String> names = new TreeSet<>();
        try {
            JsonObject json = JsonParser.parseString(Files.readString(index)).getAsJsonObject();
            for (JsonElement each : json.getAsJsonObject("weight_map").asMap().values()) {
                names.add(each.getAsString());
            }
        } catch (RuntimeException e) {
            throw new IOException(index + " is not an index of weights: " + e.getMessage(), e);
        }
        for (String each : names) {
            if (!SHARD.matcher(each).matches()) {
                throw new IOException(
                        "%s names the file '%s': the name of a file of weights is that of a file in"
                                        .formatted(index, each)
                                + " the same directory, NAME.safetensors");
            }
        }
        return names;
    }

    /** Writes what a branch or tag stands for. No-op if that is written, or for a commit. */
    void setRef(String revision, String commit) throws IOException {
        Path ref = in("refs", revision);
        if (revision.equals(commit)
                || Files.isRegularFile(ref) && Files.readString(ref).equals(commit)) {
            return;
        }
        Files.createDirectories(ref.getParent());
        Path temporary = ref.resolveSibling(ref.getFileName() + "." + UUID.randomUUID() + ".tmp");
        Files.writeString(temporary, commit);
        Files.move(temporary, ref, StandardCopyOption.ATOMIC_MOVE);
    }

    /** Returns the path of a blob; creates the directory. */
    Path blob(String etag) throws IOException {
        Files.createDirectories(in("blobs"));
        return in("blobs", etag);
    }

    /**
     * Links a snapshot's file to its blob. Call it with the {@linkplain #lock lock} of the blob.
     */
    void link(String commit, String name, String etag) throws IOException {
        Path link = snapshot(commit).resolve(name);
        Path blob = blob(etag);
        Files.createDirectories(link.getParent());
        if (Files.exists(link) && Files.isSameFile(link, blob)) {
            return;
        }
        Files.deleteIfExists(link);
        try {
            Files.createSymbolicLink(link, link.getParent().relativize(blob));
        } catch (FileAlreadyExistsException e) {
            // A process that does not take the lock has linked it meanwhile.
        } catch (UnsupportedOperationException e) {
            Files.move(blob, link); // As huggingface_hub does on file systems without links.
        }
    }

    /** Waits until no other thread or process downloads a blob. The caller closes the lock. */
    Flock lock(String etag) throws IOException {
        Path file = home.resolve(Path.of(".locks", folder, etag + ".lock"));
        Files.createDirectories(file.getParent());
        try {
            Flock lock = Flock.tryAcquire(file);
            while (lock == null) {
                Thread.sleep(POLL_MILLIS);
                lock = Flock.tryAcquire(file);
            }
            return lock;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted while another process downloads " + etag);
        }
    }
}
