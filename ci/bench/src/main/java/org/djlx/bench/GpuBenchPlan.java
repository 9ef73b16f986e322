// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.djlx.bench.GpuBenchCase.Operation;
import org.djlx.collectives.launch.cli.UsageException;
import org.djlx.fusedops.cost.Path;

/** Parses the cases of {@code bench-gpu}. */
final class GpuBenchPlan {

    static final String SHAPES =
            "tiny,pipelined:tiny,square,512x1024x8192,llama-8b,llama-70b,norms,"
                    + "experts:512x2048x8,experts:4096x2048x8";
    static final String BYTES =
            "1K,2K,4K,8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,32M,64M,"
                    + "ag:1K,ag:128K,ag:1M,ag:8M,ag:32M,rs:1K,rs:128K,rs:1M,rs:8M,rs:32M,"
                    + "a2a:1K,a2a:1M,a2a:32M,bcast:1K,bcast:1M,bcast:32M";

    private static final String NONE = "none";
    private static final Pattern SHAPE =
            Pattern.compile("(?:(ag|rs):)?(\\d{1,6})x(\\d{1,6})x(\\d{1,6})");
    private static final Pattern MODEL =
            Pattern.compile("(llama-8b|llama-70b|square)(?::(\\d{1,6})-(\\d{1,6}))?");
    private static final Pattern NORM = Pattern.compile("norm:(\\d{1,6})x(\\d{1,6})");
    private static final Pattern EXPERTS =
            Pattern.compile("experts:(\\d{1,6})x(\\d{1,6})x(\\d{1,2})");
    private static final int[] NORM_ROWS = {1, 8, 32, 64};
    private static final int[] NORM_SIZES = {4096, 8192};
    private static final Map<String, Operation> COLLECTIVES =
            Map.of(
                    "ag", Operation.allGather,
                    "rs", Operation.reduceScatter,
                    "a2a", Operation.allToAll,
                    "bcast", Operation.broadcast);

    /**
     * The two matmuls of an MLP: (M, inner, hidden) and (M, hidden, inner). M doubles from {@code
     * fewestRows} to {@code mostRows}.
     */
    private record Mlp(int hidden, int inner, int fewestRows, int mostRows) {}

    private static final Map<String, Mlp> MLPS =
            Map.of(
                    "llama-8b", new Mlp(4096, 14336, 16, 32768),
                    "llama-70b", new Mlp(8192, 28672, 16, 32768),
                    "square", new Mlp(8192, 8192, 256, 8192));

    private GpuBenchPlan() {}

    /**
     * Returns the cases in the order in which they are measured.
     *
     * @param shapes the shapes of fused operators
     * @param bytes the sizes of all-reduces; the prefix "ag:" is for all-gathers, "rs:" for
     *     reduce-scatters, "a2a:" for all-to-alls and "bcast:" for broadcasts
     * @throws UsageException if a case is malformed, or not divisible among the ranks
     */
    static List<GpuBenchCase> cases(List<String> shapes, List<String> bytes, int worldSize) {
        List<GpuBenchCase> cases = new ArrayList<>();
        // Fused operators come first. SHAPES begins with tiny, so its first calls are the first
        // calls of the JVM.
        for (String shape : shapes) {
            if (!shape.equals(NONE)) {
                addFused(cases, shape, worldSize);
            }
        }
        for (String size : bytes) {
            if (!size.equals(NONE)) {
                String prefix = size.substring(0, Math.max(0, size.indexOf(':')));
                Operation other = COLLECTIVES.get(prefix);
                String digits = other == null ? size : size.substring(prefix.length() + 1);
                long least = Math.max(2, BenchCase.parse(digits).size());
                Operation operation = other == null ? Operation.allReduce : other;
                cases.add(GpuBenchCase.collective(operation, least));
            }
        }
        return cases;
    }

    private static void addFused(List<GpuBenchCase> cases, String shape, int worldSize) {
        Matcher model = MODEL.matcher(shape);
        Matcher matcher = SHAPE.matcher(shape);
        Matcher norm = NORM.matcher(shape);
        Matcher experts = EXPERTS.matcher(shape);
        Optional<Path> path =
                Stream.of(Path.values()).filter(of -> shape.startsWith(prefix(of))).findFirst();
        if (path.isPresent()) {
            List<GpuBenchCase> forced = new ArrayList<>();
            addFused(forced, shape.substring(prefix(path.get()).length()), worldSize);
            forced.forEach(each -> cases.add(each.by(path.get())));
        } else if (shape.equals("tiny")) {
            int side = 16 * worldSize;
            cases.add(GpuBenchCase.fused(Operation.allGatherMatmul, side, side, side));
            cases.add(GpuBenchCase.fused(Operation.matmulReduceScatter, side, side, side));
        } else if (model.matches()) {
            Mlp mlp = MLPS.get(model.group(1));
            if (model.group(2) != null) {
                int first = Integer.parseInt(model.group(2));
                refuseIf(
                        first == 0, "the rows of %s begin with 0; give 1 or more".formatted(shape));
                mlp = new Mlp(mlp.hidden, mlp.inner, first, Integer.parseInt(model.group(3)));
            }
            addModel(cases, mlp, worldSize);
        } else if (shape.equals("norms")) {
            for (int hidden : NORM_SIZES) {
                for (int rows : NORM_ROWS) {
                    cases.add(GpuBenchCase.norm(rows, hidden));
                }
            }
        } else if (norm.matches()) {
            int rows = size(shape, norm.group(1), 1);
            cases.add(GpuBenchCase.norm(rows, size(shape, norm.group(2), 1)));
        } else if (experts.matches()) {
            cases.add(
                    GpuBenchCase.fused(
                            Operation.expertExchange,
                            size(shape, experts.group(1), worldSize),
                            size(shape, experts.group(2), 1),
                            size(shape, experts.group(3), 1)));
        } else {
            refuseIf(
                    !matcher.matches(),
                    ("'%s' is not a shape; give MxNxK such as 512x8192x8192, ag:512x8192x8192 or"
                         + " rs:512x8192x8192 for one operator, llama-8b, llama-70b:16-64 or"
                         + " square, norms or norm:8x4096, experts:512x2048x8")
                            .formatted(shape));
            int m = size(shape, matcher.group(2), worldSize);
            int n = size(shape, matcher.group(3), worldSize);
            int k = size(shape, matcher.group(4), worldSize);
            if (!"rs".equals(matcher.group(1))) {
                cases.add(GpuBenchCase.fused(Operation.allGatherMatmul, m, n, k));
            }
            if (!"ag".equals(matcher.group(1))) {
                cases.add(GpuBenchCase.fused(Operation.matmulReduceScatter, m, n, k));
            }
        }
    }

    private static String prefix(Path path) {
        return path.name().toLowerCase(Locale.ROOT) + ":";
    }

    private static void addModel(List<GpuBenchCase> cases, Mlp mlp, int worldSize) {
        for (int m = mlp.fewestRows; m <= mlp.mostRows; m *= 2) {
            String rows = Integer.toString(m);
            size(rows + " rows", rows, worldSize);
            cases.add(GpuBenchCase.fused(Operation.allGatherMatmul, m, mlp.inner, mlp.hidden));
            cases.add(GpuBenchCase.fused(Operation.matmulReduceScatter, m, mlp.hidden, mlp.inner));
        }
    }

    private static int size(String shape, String text, int worldSize) {
        int size = Integer.parseInt(text);
        refuseIf(
                size == 0 || size % worldSize != 0,
                "the sizes of %s must be positive multiples of the world size %d"
                        .formatted(shape, worldSize));
        return size;
    }
}
