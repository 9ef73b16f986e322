// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.llm.ops.TokenBatch;
import org.djlx.llm.sampling.Sampler;

/**
 * Makes the ranks load new adapters and free those without a directory. An adapter that one rank
 * cannot read is loaded on none. The results of the step in flight are left to the next request.
 */
final class AdapterRequest extends StepRequest {

    private final Map<Integer, Path> directories; // by id
    private final Map<Integer, String> failures = new ConcurrentHashMap<>();

    AdapterRequest(Map<Integer, Path> directories) {
        super(new TokenBatch(List.of()));
        this.directories = directories;
    }

    Map<Integer, Path> directories() {
        return directories;
    }

    /** Returns the reasons why adapters could not be loaded, by id, once the request has ended. */
    Map<Integer, String> failures() {
        return failures;
    }

    @Override
    List<Sampler.SampledToken> run(ModelRank rank) {
        Map<Integer, String> own = rank.setAdapters(directories);
        CacheSize.allGather(rank.group(), new HashMap<>(own)).forEach(failures::putAll);
        if (!failures.isEmpty()) {
            Map<Integer, Path> readable = new HashMap<>(directories);
            readable.keySet().removeAll(failures.keySet());
            rank.setAdapters(readable);
        }
        return List.of();
    }

    @Override
    void write(DataOutputStream out) throws IOException {
        out.writeInt(ADAPTERS);
        out.writeInt(directories.size());
        for (Map.Entry<Integer, Path> each : directories.entrySet()) {
            out.writeInt(each.getKey());
            out.writeUTF(each.getValue().toString());
        }
    }

    /** Reads what {@link #write} has written after {@link #ADAPTERS}. */
    static AdapterRequest read(DataInputStream in) throws IOException {
        Map<Integer, Path> directories = new HashMap<>();
        for (int left = in.readInt(); left > 0; left--) {
            directories.put(in.readInt(), Path.of(in.readUTF()));
        }
        return new AdapterRequest(directories);
    }
}
