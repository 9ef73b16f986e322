// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import ai.djl.util.Progress;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletionService;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorCompletionService;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.LongConsumer;
import java.util.regex.Pattern;
import org.djlx.llm.model.EncoderConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.nativeops.host.Flock;
import org.djlx.nativeops.host.Required;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Models by name, from a Hugging Face hub. Thread-safe.
 *
 * <pre>{@code
 * Path directory = ModelHub.builder().build().directory("Qwen/Qwen3-0.6B");
 * }</pre>
 *
 * <p><b>Cache.</b> Files are kept where huggingface_hub keeps them, in its layout: each library
 * finds what the other has downloaded, and neither downloads a file while the other does.
 *
 * <p><b>Files.</b> Only those that are read: configuration, tokenizer, chat templates,
 * sentence-transformers' modules and safetensors. Each is checked by size and hash, SHA-256 or
 * git's SHA-1. A download that was cut off is resumed, also by a later program.
 *
 * <p><b>Environment.</b> What is not set here comes from huggingface_hub's variables: {@code
 * HF_ENDPOINT}, {@code HF_TOKEN} or the file that {@code hf auth login} writes, {@code HF_HOME} or
 * {@code HF_HUB_CACHE}, {@code HF_HUB_OFFLINE}. Where a variable is not set, a system property of
 * its name stands for it.
 */
public final class ModelHub {

    private static final Logger LOG = LoggerFactory.getLogger(ModelHub.class);
    private static final Pattern NAME = Pattern.compile("\\w[\\w.-]*/\\w[\\w.-]*");
    private static final Pattern NEEDED =
            Pattern.compile(
                    "(config|generation_config|tokenizer|tokenizer_config|modules"
                            + "|sentence_bert_config|config_sentence_transformers)\\.json"
                            + "|\\d+_\\w+/config\\.json"
                            + "|chat_template\\.jinja|additional_chat_templates/[^/]+\\.jinja");
    private static final int PARALLEL = 8;

    private final URI endpoint;
    private final Optional<String> token;
    private final Path cache;
    private final String revision;
    private final boolean offline;
    private final Optional<Progress> progress;
    private final Duration backoff;
    private final Duration patience;

    private ModelHub(Builder builder) {
        endpoint = endpoint(builder.endpoint);
        token = builder.token;
        cache = builder.cache;
        revision = builder.revision;
        offline = builder.offline;
        progress = builder.progress;
        backoff = builder.backoff;
        patience = builder.patience;
        if (!HubClient.isSafe(revision) || !revision.matches("[\\w./-]+")) {
            throw new IllegalArgumentException(
                    "the revision '%s' is not a branch, tag or commit".formatted(revision));
        }
        if (token.filter(each -> !each.matches("[!-~]+")).isPresent()) {
            throw new IllegalArgumentException("the hub's token has blanks or other characters");
        }
    }

    private static URI endpoint(String text) {
        try {
            URI uri = URI.create(text);
            if (uri.getHost() != null && String.valueOf(uri.getScheme()).matches("(?i)https?")) {
                return uri;
            }
        } catch (IllegalArgumentException e) {
            // As any other text.
        }
        throw new IllegalArgumentException(
                "the hub's endpoint '%s' is not of the form https://HOST".formatted(text));
    }

    /** Returns a builder of a hub as the environment describes it. */
    public static Builder builder() {
        return builder(System.getenv());
    }

    /** Returns a builder with other variables than the process's, for tests. */
    static Builder builder(Map<String, String> environment) {
        return new Builder(new Environment(environment));
    }

    /** {@return whether a text has the form of a name on a hub, ORG/NAME} */
    public static boolean isName(String text) {
        return NAME.matcher(text).matches()
                && !text.contains("..")
                && !text.contains("--")
                && !text.endsWith(".git")
                && !text.endsWith(".gguf"); // a path
    }

    /**
     * Returns the directory of a model, which is {@linkplain #download downloaded} if its files are
     * not there.
     *
     * @param model a directory, a GGUF file, or ORG/NAME
     * @throws IllegalArgumentException if it is none of these
     */
    public Path directory(String model) throws IOException {
        Path path = Path.of(Required.argument("the model's name", model));
        if (Files.isDirectory(path) || model.endsWith(".gguf") && Files.exists(path)) {
            return GgufDirectory.of(path);
        }
        Required.check(
                isName(model),
                "%s is not a directory or a GGUF file, nor a model's name on a hub, such as"
                        + " Qwen/Qwen3-0.6B; serve-model writes a model to try things with",
                model);
        return download(model);
    }

    /**
     * Downloads the files of a model that are not in the cache. Blocks until all are there. If the
     * hub fails, takes the files of an earlier download, with a warning.
     *
     * @param name ORG/NAME
     * @return the snapshot in the cache, with links to the files
     * @throws IllegalArgumentException if this is not a name, or the model is not supported; found
     *     out before its weights are downloaded
     * @throws IOException if the hub has no such model, refuses access or cannot be reached, or the
     *     disk is full; the message says what to do
     */
    public Path download(String name) throws IOException {
        Required.check(isName(name), "'%s' is not a model's name on a hub, ORG/NAME", name);
        HubCache files = new HubCache(cache, name);
        Optional<Path> cached = files.find(revision);
        if (offline) {
            return cached.orElseThrow(
                    () ->
                            new IOException(
                                    ("%s (%s) is not complete in %s; without HF_HUB_OFFLINE and"
                                                    + " --offline it is downloaded")
                                            .formatted(name, revision, cache)));
        }
        if (cached.isPresent() && HubCache.COMMIT.matcher(revision).matches()) {
            return cached.get();
        }
        HubClient client = new HubClient(endpoint, token, name, backoff, patience);
        HubClient.Listing listing;
        try {
            listing = client.list(revision, cached.isEmpty());
        } catch (HubException e) {
            if (cached.isEmpty()) {
                throw e;
            }
            LOG.warn("Taking {} as it was downloaded before: {}", name, e.getMessage());
            return cached.get();
        }
        return new Download(client, files, name, listing).run();
    }

    private final class Download {

        private final HubClient client;
        private final HubCache files;
        private final String name;
        private final String commit;
        private final List<String> listed;

        Download(HubClient client, HubCache files, String name, HubClient.Listing listing) {
            this.client = client;
            this.files = files;
            this.name = name;
            commit = listing.commit();
            listed = listing.files();
        }

        Path run() throws IOException {
            boolean isDivided = listed.contains(HubCache.INDEX);
            String weights = isDivided ? HubCache.INDEX : HubCache.WEIGHTS;
            for (String file : List.of(HubCache.CONFIG, HubCache.TOKENIZER, weights)) {
                if (!listed.contains(file)) {
                    throw HubException.lasting(
                            "%s has no %s at %s: only models with it can be loaded"
                                    .formatted(name, file, endpoint));
                }
            }
            List<String> small = new ArrayList<>(listed);
            small.removeIf(file -> !NEEDED.matcher(file).matches());
            if (isDivided) {
                small.add(HubCache.INDEX);
            }
            fetch(small, Optional.empty());
            Path snapshot = files.snapshot(commit);
            if (EncoderConfig.isEncoder(snapshot)) { // Refuses a model that is not supported.
                EncoderConfig.read(snapshot, null);
            } else {
                ModelConfig.read(snapshot);
            }
            Collection<String> large =
                    isDivided ? HubCache.shards(snapshot) : List.of(HubCache.WEIGHTS);
            fetch(large, progress);
            files.setRef(revision, commit);
            return snapshot;
        }

        /** Fetches files that are not in the snapshot, in parallel. */
        private void fetch(Collection<String> names, Optional<Progress> progress)
                throws IOException {
            List<String> missing = new ArrayList<>(names);
            missing.removeIf(file -> Files.exists(files.snapshot(commit).resolve(file)));
            if (missing.isEmpty()) {
                return;
            }
            ExecutorService threads =
                    Executors.newFixedThreadPool(
                            Math.min(PARALLEL, missing.size()), Download::daemon);
            try {
                List<HubClient.RemoteFile> remote = new ArrayList<>();
                for (String file : missing) {
                    remote.add(client.head(commit, file));
                }
                long total = remote.stream().mapToLong(HubClient.RemoteFile::size).sum();
                Counter counter = new Counter(progress, total, remote.size());
                CompletionService<Void> tasks = new ExecutorCompletionService<>(threads);
                for (HubClient.RemoteFile file : remote) {
                    tasks.submit(() -> fetch(file, counter));
                }
                for (int i = 0; i < remote.size(); i++) {
                    tasks.take().get();
                }
                counter.end();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new InterruptedIOException("interrupted while " + name + " is downloaded");
            } catch (ExecutionException e) {
                if (e.getCause() instanceof IOException cause) {
                    throw cause;
                }
                throw new IOException("cannot download " + name + ": " + e.getCause(), e);
            } finally {
                end(threads);
            }
        }

        private static Thread daemon(Runnable task) {
            Thread thread = new Thread(task, "model-download");
            thread.setDaemon(true);
            return thread;
        }

        private static void end(ExecutorService threads) {
            threads.shutdownNow();
            boolean interrupted = false;
            while (!threads.isTerminated()) {
                try {
                    threads.awaitTermination(1, TimeUnit.MINUTES);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        @SuppressWarnings("try") // The lock is held, and not used.
        private Void fetch(HubClient.RemoteFile file, LongConsumer counter) throws IOException {
            Path blob = files.blob(file.etag());
            try (Flock lock = files.lock(file.etag())) {
                if (Files.exists(blob) && Files.size(blob) == file.size()) {
                    counter.accept(file.size());
                } else {
                    new BlobDownload(file, blob, counter).run(client, commit, blob);
                }
                files.link(commit, file.name(), file.etag());
            }
            return null;
        }

        /** Passes what all threads have downloaded to the progress. */
        private final class Counter implements LongConsumer {

            private final Optional<Progress> progress;
            private long done;

            Counter(Optional<Progress> progress, long total, int count) {
                this.progress = progress;
                String files =
                        String.format(
                                Locale.ROOT,
                                "%,d bytes in %d file%s from %s",
                                total,
                                count,
                                count == 1 ? "" : "s",
                                endpoint);
                progress.ifPresent(each -> each.reset("Downloading " + name, total, files));
            }

            @Override
            public synchronized void accept(long bytes) {
                done += bytes;
                progress.ifPresent(each -> each.update(done));
            }

            synchronized void end() {
                progress.ifPresent(Progress::end);
            }
        }
    }

    /**
     * huggingface_hub's environment variables or, where one is not set or empty, system properties
     * of the same name, as DJL reads such variables.
     */
    private record Environment(Map<String, String> variables) {

        String get(String name, String otherwise) {
            String value = variables.getOrDefault(name, "");
            value = value.isBlank() ? System.getProperty(name, "") : value;
            return value.isBlank() ? otherwise : value.strip();
        }

        Path home() {
            String user = get("HOME", System.getProperty("user.home"));
            String caches = get("XDG_CACHE_HOME", user + "/.cache");
            return path(get("HF_HOME", caches + "/huggingface"));
        }

        Path cache() {
            String old = get("HUGGINGFACE_HUB_CACHE", home().resolve("hub").toString());
            return path(get("HF_HUB_CACHE", old));
        }

        private Path path(String text) {
            String user = get("HOME", System.getProperty("user.home"));
            return Path.of(text.matches("~(/.*)?") ? user + text.substring(1) : text);
        }

        Optional<String> token() {
            String token = get("HF_TOKEN", get("HUGGING_FACE_HUB_TOKEN", ""));
            Path file = path(get("HF_TOKEN_PATH", home().resolve("token").toString()));
            try {
                token = token.isEmpty() && Files.isReadable(file) ? Files.readString(file) : token;
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            return Optional.of(token.strip()).filter(each -> !each.isEmpty());
        }

        boolean isOffline() {
            return get("HF_HUB_OFFLINE", get("TRANSFORMERS_OFFLINE", ""))
                    .matches("(?i)1|on|yes|true");
        }
    }

    /** Options of a hub; each takes precedence over the environment's. */
    public static final class Builder {

        Duration backoff = Duration.ofSeconds(1); // these two for tests
        Duration patience = Duration.ofSeconds(30);
        private String endpoint;
        private Optional<String> token;
        private Path cache;
        private String revision = "main";
        private boolean offline;
        private Optional<Progress> progress = Optional.empty();

        private Builder(Environment environment) {
            endpoint = environment.get("HF_ENDPOINT", "https://huggingface.co");
            token = environment.token();
            cache = environment.cache();
            offline = environment.isOffline();
        }

        /** Sets the hub's address; by default {@code https://huggingface.co}. */
        public Builder optEndpoint(String endpoint) {
            this.endpoint = endpoint;
            return this;
        }

        /** Sets the token for models that are private or gated. It goes to the endpoint only. */
        public Builder optToken(String token) {
            this.token = Optional.of(token);
            return this;
        }

        /** Sets the directory of the cache, by default {@code ~/.cache/huggingface/hub}. */
        public Builder optCache(Path cache) {
            this.cache = cache;
            return this;
        }

        /** Sets the branch, tag or commit; default {@code main}. */
        public Builder optRevision(String revision) {
            this.revision = revision;
            return this;
        }

        /** Sets whether only the cache is used. */
        public Builder optOffline(boolean offline) {
            this.offline = offline;
            return this;
        }

        /** Sets a listener for the bytes of the weights, which receives them on any thread. */
        public Builder optProgress(Progress progress) {
            this.progress = Optional.of(progress);
            return this;
        }

        /**
         * Creates the hub; no request is sent.
         *
         * @throws IllegalArgumentException if the endpoint, the token or the revision is invalid
         */
        public ModelHub build() {
            return new ModelHub(this);
        }
    }
}
