// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.safetensors.SafetensorsHeader;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;

/**
 * A checkpoint of one file, or of several that the first one names: its metadata has {@code parts},
 * the names of the other files, and {@code shapes} of divided parameters. Each file has arrays as a
 * whole, or pieces {@code NAME@FIRST}: a row of elements of the array, from the element FIRST.
 */
final class CheckpointParts implements AutoCloseable {

    static final String MODEL = "model.";
    static final String OPTIMIZER = "optimizer.";

    private static final Pattern ARRAY = Pattern.compile("(?s)model\\..+|optimizer\\.[^.]+\\..+");
    private static final Pattern PIECE = Pattern.compile("(.*)@(\\d{1,18})");

    private record Piece(CheckpointFile file, String name, long from, long size) {}

    private final List<CheckpointFile> files = new ArrayList<>();
    private final Map<String, TensorSpec> specs = new LinkedHashMap<>();
    private final Map<String, List<Piece>> pieces = new HashMap<>();

    /**
     * Verifies the checksums. Throws if a file is missing or damaged, or was not written by
     * CheckpointManager.
     */
    static CheckpointParts open(Path path) throws IOException {
        CheckpointParts parts = new CheckpointParts();
        try {
            parts.add(path);
            for (String name : parts.first().texts("parts", "[]")) {
                if (!CheckpointDirectory.PART.matcher(name).matches()) { // Of this directory only.
                    throw parts.first().wrong("parts", "names of parts of checkpoints", null);
                }
                parts.addPart(path.resolveSibling(name), path);
            }
            parts.requireComplete(path);
            return parts;
        } catch (Throwable e) {
            parts.close();
            throw e;
        }
    }

    /** Returns the file that names the others. */
    CheckpointFile first() {
        return files.get(0);
    }

    private void addPart(Path part, Path index) throws IOException {
        try {
            add(part);
        } catch (NoSuchFileException e) {
            throw new IOException(
                    String.format(
                            "%s, a part of %s, is missing; delete %s to resume from the previous"
                                    + " checkpoint",
                            part, index, index.getFileName()),
                    e);
        }
    }

    private void add(Path path) throws IOException {
        CheckpointFile file = CheckpointFile.open(path);
        files.add(file);
        Map<String, long[]> shapes = first().map("shapes", "{}", long[].class);
        for (SafetensorsHeader.Stored stored : file.tensors().values()) {
            try {
                add(file, stored.spec(), shapes);
            } catch (IllegalArgumentException e) { // Of an element type or a size.
                throw new IOException(path + ": " + e.getMessage(), e);
            }
        }
    }

    private void add(CheckpointFile file, TensorSpec spec, Map<String, long[]> shapes)
            throws IOException {
        if (!ARRAY.matcher(spec.name()).matches()) {
            throw new IOException(
                    file.path() + " has the array '" + spec.name() + "', which is no parameter");
        }
        Matcher piece = PIECE.matcher(spec.name());
        boolean whole = !metadata().containsKey("shapes") || !piece.matches();
        String name = whole ? spec.name() : piece.group(1);
        long from = whole ? 0 : Long.parseLong(piece.group(2));
        long[] sizes = whole ? spec.shape().getShape() : shapes.get(parameter(name));
        if (sizes == null) {
            throw first().wrong("shapes", "JSON with the shape of " + parameter(name), null);
        }
        TensorSpec array = TensorSpec.of(name, spec.type(), new Shape(sizes));
        if (array.byteSize() < 0 || !array.equals(specs.getOrDefault(name, array))) {
            throw new IOException(
                    String.format(
                            "%s has %s, but another part of the checkpoint has %s",
                            file.path(), array, specs.get(name)));
        }
        specs.put(name, array);
        pieces.computeIfAbsent(name, key -> new ArrayList<>())
                .add(new Piece(file, spec.name(), from, spec.shape().size()));
    }

    private void requireComplete(Path path) throws IOException {
        for (TensorSpec spec : specs.values()) {
            long size = 0; // of the elements up to the first that is missing, or is there twice
            List<Piece> sorted = new ArrayList<>(pieces.get(spec.name()));
            sorted.sort(Comparator.comparingLong(Piece::from).thenComparingLong(Piece::size));
            for (Piece piece : sorted) {
                size += piece.from == size ? piece.size : 0;
            }
            if (size != spec.shape().size()) {
                throw new IOException(
                        String.format(
                                "%s and its parts have %d of the %d elements of '%s'; delete it to"
                                        + " resume from the previous checkpoint",
                                path, size, spec.shape().size(), spec.name()));
            }
        }
    }

    static String parameter(String name) {
        return name.startsWith(MODEL)
                ? name.substring(MODEL.length())
                : name.substring(OPTIMIZER.length()).split("\\.", 2)[1];
    }

    static String slot(String name) {
        return name.substring(OPTIMIZER.length()).split("\\.", 2)[0];
    }

    Map<String, String> metadata() {
        return files.get(0).metadata();
    }

    /** Returns a number of the metadata of all files, 0 or more: the greatest. */
    int greatest(String key) throws IOException {
        long greatest = 0;
        for (CheckpointFile file : files) {
            greatest = Math.max(greatest, file.number(key, 0, Integer.MAX_VALUE));
        }
        return (int) greatest;
    }

    /** Returns the numbers of updates by parameter, from all files. */
    Map<String, Integer> counts() throws IOException {
        Map<String, Integer> counts = new HashMap<>();
        for (CheckpointFile file : files) {
            counts.putAll(file.map("counts", null, Integer.class));
        }
        return counts;
    }

    String checksum() {
        return files.get(0).checksum();
    }

    Object key() {
        return files.get(0).key();
    }

    Map<String, TensorSpec> tensors() {
        return specs;
    }

    /** Reads as many elements of an array as the target has, from an element on. */
    void read(String name, long from, NDArray target) throws IOException {
        long end = from + target.size();
        for (Piece piece : pieces.get(name)) {
            long first = Math.max(from, piece.from);
            long last = Math.min(end, piece.from + piece.size);
            if (first == from && last == end) {
                piece.file.read(piece.name, first - piece.from, target);
            } else if (first < last) {
                try (NDManager temporary = target.getManager().newSubManager(target.getDevice())) {
                    NDArray part =
                            Torch.empty(
                                    temporary, new Shape(last - first), Torch.scalarType(target));
                    piece.file.read(piece.name, first - piece.from, part);
                    NoGradient.run(
                            () -> {
                                NDArray row = target.reshape(-1);
                                row.attach(temporary);
                                Torch.copy(Torch.narrow(row, 0, first - from, last - first), part);
                            });
                }
            }
        }
    }

    @Override
    public void close() throws IOException {
        for (CheckpointFile file : files) {
            file.close();
        }
    }
}
