// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import java.io.IOException;
import java.net.http.HttpHeaders;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.function.LongConsumer;
import org.djlx.nativeops.host.FileWrites;

/**
 * Downloads one file to {@code ETAG.incomplete}, behind the bytes that are there, and checks its
 * size and hash. Used by one thread at a time, with the {@linkplain HubCache#lock lock} of the
 * blob.
 */
final class BlobDownload implements HubClient.Sink {

    private static final int BUFFER = 1 << 20;

    private final HubClient.RemoteFile file;
    private final Path incomplete;
    private final LongConsumer progress;
    private final MessageDigest digest;
    private FileChannel out;
    private volatile long position;

    /**
     * {@code progress} receives the bytes that each step adds; a negative number takes some back.
     */
    BlobDownload(HubClient.RemoteFile file, Path blob, LongConsumer progress) {
        this.file = file;
        this.progress = progress;
        incomplete = blob.resolveSibling(blob.getFileName() + ".incomplete");
        try {
            digest = MessageDigest.getInstance(file.etag().length() == 64 ? "SHA-256" : "SHA-1");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e); // Every JDK has both.
        }
    }

    /** Downloads the file and moves it to {@code blob}. After a failure the rest is kept. */
    void run(HubClient client, String commit, Path blob) throws IOException {
        checkSpace(blob);
        try (FileChannel channel =
                FileChannel.open(
                        incomplete,
                        StandardOpenOption.CREATE,
                        StandardOpenOption.READ,
                        StandardOpenOption.WRITE,
                        LinkOption.NOFOLLOW_LINKS)) {
            out = channel;
            boolean resumed = readWhatIsThere();
            try {
                fetch(client, commit);
            } catch (HubException e) {
                if (!resumed || e.isTemporary()) {
                    throw e;
                }
                restart(); // The bytes that were there are of another file.
                fetch(client, commit);
            }
        }
        Files.move(incomplete, blob, StandardCopyOption.ATOMIC_MOVE);
    }

    private void checkSpace(Path blob) throws IOException {
        long there = Files.exists(incomplete) ? Files.size(incomplete) : 0;
        long free = Files.getFileStore(blob.getParent()).getUsableSpace();
        if (file.size() - there > free) {
            throw new IOException(
                    "%s needs %,d bytes, and %s has %,d bytes left; free some, or set HF_HOME to a"
                                    .formatted(
                                            file.name(),
                                            file.size() - there,
                                            blob.getParent(),
                                            free)
                            + " directory on another disk");
        }
    }

    private boolean readWhatIsThere() throws IOException {
        if (out.size() > file.size()) {
            out.truncate(0);
        }
        beginDigest();
        ByteBuffer buffer = ByteBuffer.allocate(BUFFER);
        while (out.read(buffer) >= 0) {
            digest.update(buffer.flip());
            buffer.clear();
        }
        position = out.position();
        progress.accept(position);
        return position > 0;
    }

    private void beginDigest() {
        digest.reset();
        if (file.etag().length() == 40) { // git's hash of a file
            digest.update(("blob " + file.size() + "\0").getBytes(StandardCharsets.US_ASCII));
        }
    }

    private void restart() throws IOException {
        out.truncate(0);
        progress.accept(-position);
        position = 0;
        beginDigest();
    }

    private void fetch(HubClient client, String commit) throws IOException {
        if (position < file.size() || file.size() == 0) {
            client.download(commit, file.name(), () -> position, this);
        }
        String hash = HexFormat.of().formatHex(digest.digest());
        if (position != file.size() || !hash.equals(file.etag())) {
            long got = position;
            restart();
            throw HubException.lasting(
                    "%s is damaged: %,d bytes with the hash %s came, but the hub has %,d with %s"
                            .formatted(file.name(), got, hash, file.size(), file.etag()));
        }
        FileWrites.naming(incomplete, () -> out.force(true));
    }

    @Override
    public void begin(int status, HttpHeaders headers) throws IOException {
        if (status == 200 && position > 0) {
            restart(); // The host does not send ranges.
        }
        String range = headers.firstValue("Content-Range").orElse("");
        String expected = "bytes %d-%d/%d".formatted(position, file.size() - 1, file.size());
        if (status == 206 && !range.equals(expected)) {
            throw wrongSize("the range '" + range + "' instead of '" + expected + "'");
        }
        long length = headers.firstValueAsLong("Content-Length").orElse(file.size() - position);
        if (length != file.size() - position) {
            throw wrongSize("%,d instead of %,d bytes".formatted(length, file.size() - position));
        }
    }

    @Override
    public void write(ByteBuffer bytes) throws IOException {
        int count = bytes.remaining();
        if (position + count > file.size()) {
            throw wrongSize("more than %,d bytes".formatted(file.size()));
        }
        digest.update(bytes.duplicate());
        FileWrites.naming(
                incomplete,
                () -> {
                    while (bytes.hasRemaining()) {
                        out.write(bytes);
                    }
                });
        position += count;
        progress.accept(count);
    }

    private HubException wrongSize(String sent) {
        return HubException.lasting(file.name() + ": the hub sends " + sent);
    }
}
