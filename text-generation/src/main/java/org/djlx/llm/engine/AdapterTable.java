// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/**
 * The adapters of an engine. An adapter is waiting, until the ranks have loaded it; named, until it
 * is removed; and leaving, until no sequence has it. Its id is never used again, so blocks of the
 * prefix cache stay right if another adapter gets its name. Not thread-safe.
 */
final class AdapterTable {

    private record Waiting(String name, int id, CompletableFuture<Void> loaded) {}

    private final Map<Integer, Path> directories = new LinkedHashMap<>(); // of all of them, by id
    private final Map<String, Integer> named = new LinkedHashMap<>();
    private final List<Waiting> waiting = new ArrayList<>();
    private int last; // id

    List<String> names() {
        return List.copyOf(named.keySet());
    }

    /** Returns the id of a named adapter. */
    int id(String name) {
        Integer id = named.get(name);
        if (id == null) {
            throw new IllegalArgumentException(
                    "there is no adapter '" + name + "'; loaded are " + names());
        }
        return id;
    }

    /** Returns whether sequences may begin with an adapter. */
    boolean isNamed(int id) {
        return named.containsValue(id);
    }

    /** Adds a waiting adapter; the result completes when it is named. */
    CompletableFuture<Void> add(String name, Path directory) {
        boolean isWaiting = waiting.stream().anyMatch(each -> each.name.equals(name));
        if (isWaiting || named.containsKey(name)) {
            throw new IllegalArgumentException(
                    "the adapter '"
                            + name
                            + "' is loaded already; remove it first, or take another"
                            + " name");
        }
        CompletableFuture<Void> loaded = new CompletableFuture<>();
        directories.put(++last, directory.toAbsolutePath());
        waiting.add(new Waiting(name, last, loaded));
        return loaded;
    }

    void remove(String name) {
        id(name); // Throws if there is none.
        named.remove(name);
    }

    /** Returns whether the ranks should {@link #load}. */
    boolean hasChanges(Set<Integer> used) {
        return !waiting.isEmpty()
                || directories.keySet().stream().anyMatch(id -> !isNamed(id) && !used.contains(id));
    }

    /**
     * Forgets adapters that are leaving and not used. Returns the directories of all others, which
     * the ranks should load.
     */
    Map<Integer, Path> load(Set<Integer> used) {
        List<Integer> ids = waiting.stream().map(Waiting::id).toList();
        directories
                .keySet()
                .removeIf(id -> !isNamed(id) && !used.contains(id) && !ids.contains(id));
        return new HashMap<>(directories);
    }

    /** Names the waiting adapters among those that the ranks have loaded. */
    void loaded(Set<Integer> ids) {
        List<Waiting> done = waiting.stream().filter(each -> ids.contains(each.id)).toList();
        waiting.removeAll(done);
        done.forEach(each -> named.put(each.name, each.id));
        done.forEach(each -> each.loaded.complete(null));
    }

    /** Forgets the waiting adapters. */
    void fail(Throwable cause) {
        List<Waiting> failed = List.copyOf(waiting);
        waiting.clear();
        failed.forEach(each -> directories.remove(each.id));
        failed.forEach(each -> each.loaded.completeExceptionally(cause));
    }
}
