// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import org.djlx.nativeops.host.Required;

/**
 * The LoRA adapters of an engine, by name and id. Not thread-safe. An adapter has these states:
 *
 * <ol>
 *   <li>waiting: added; the ranks have not loaded it yet
 *   <li>named: loaded; requests may name it
 *   <li>leaving: removed, but sequences still use it
 * </ol>
 *
 * <p>An id is never reused. So a request never finds blocks of the prefix cache that were computed
 * with another adapter of the same name.
 */
final class AdapterTable {

    private record Waiting(String name, int id, CompletableFuture<Void> loaded) {}

    private final Map<Integer, Path> directories = new LinkedHashMap<>(); // in any state, by id
    private final Map<String, Integer> named = new LinkedHashMap<>();
    private final List<Waiting> waiting = new ArrayList<>();
    private int lastId;

    List<String> names() {
        return List.copyOf(named.keySet());
    }

    int id(String name) {
        Integer id = named.get(name);
        if (id == null) {
            throw new IllegalArgumentException(
                    "there is no adapter '" + name + "'; loaded are " + names());
        }
        return id;
    }

    /** Returns whether new sequences may use an adapter. */
    boolean isNamed(int id) {
        return named.containsValue(id);
    }

    /** Adds a waiting adapter. The result completes when the ranks have loaded it. */
    CompletableFuture<Void> add(String name, Path directory) {
        boolean isWaiting = waiting.stream().anyMatch(each -> each.name.equals(name));
        Required.check(
                !isWaiting && !named.containsKey(name),
                "the adapter '%s' is loaded already; remove it first, or take another name",
                name);
        CompletableFuture<Void> loaded = new CompletableFuture<>();
        directories.put(++lastId, directory.toAbsolutePath());
        waiting.add(new Waiting(name, lastId, loaded));
        return loaded;
    }

    void remove(String name) {
        id(name); // Throws if there is none.
        named.remove(name);
    }

    /**
     * Returns whether adapters are waiting, or are leaving and no sequence uses them. Asked before
     * each step: it gets the ids of adapters of all sequences only if adapters are leaving.
     */
    boolean hasChanges(Supplier<Set<Integer>> used) {
        if (!waiting.isEmpty() || directories.size() == named.size()) {
            return !waiting.isEmpty();
        }
        Set<Integer> ids = used.get();
        return directories.keySet().stream().anyMatch(id -> !isNamed(id) && !ids.contains(id));
    }

    /**
     * Forgets adapters that are leaving and not used. Returns the directories of all others, by id:
     * the ranks must load these and free the rest.
     */
    Map<Integer, Path> load(Set<Integer> used) {
        List<Integer> ids = waiting.stream().map(Waiting::id).toList();
        directories
                .keySet()
                .removeIf(id -> !isNamed(id) && !used.contains(id) && !ids.contains(id));
        return new HashMap<>(directories);
    }

    /**
     * Completes the waiting adapters among {@code ids}, those of a finished request. Adapters with
     * a failure are forgotten, and their futures fail with the reason.
     *
     * @param failures the reasons why adapters could not be loaded, by id
     */
    void loaded(Set<Integer> ids, Map<Integer, String> failures) {
        List<Waiting> done = waiting.stream().filter(each -> ids.contains(each.id)).toList();
        waiting.removeAll(done);
        done.forEach(each -> named.put(each.name, each.id));
        named.values().removeAll(failures.keySet());
        directories.keySet().removeAll(failures.keySet());
        for (Waiting each : done) {
            String why = failures.get(each.id);
            if (why == null) {
                each.loaded.complete(null);
            } else {
                String name = "the adapter '" + each.name + "' could not be loaded: ";
                each.loaded.completeExceptionally(new IOException(name + why));
            }
        }
    }

    /** Forgets the waiting adapters; their futures fail with the cause. */
    void fail(Throwable cause) {
        List<Waiting> failed = List.copyOf(waiting);
        waiting.clear();
        failed.forEach(each -> directories.remove(each.id));
        failed.forEach(each -> each.loaded.completeExceptionally(cause));
    }
}
