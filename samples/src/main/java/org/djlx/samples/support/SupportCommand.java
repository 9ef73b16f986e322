// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.support;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.collectives.launch.cli.TextTable;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.torch.ScalarType;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code support}: prints the operations and element types that each backend declares. */
@Command(
        name = "support",
        description = "Prints what each backend supports: operation by element type.")
public final class SupportCommand extends CliCommand {

    private static final List<ScalarType> TYPES =
            List.of(
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16,
                    ScalarType.INT8,
                    ScalarType.UINT8,
                    ScalarType.INT32,
                    ScalarType.INT64,
                    ScalarType.BOOL);

    @Option(names = "--markdown", description = "Prints the table for docs/support.md.")
    private boolean markdown;

    @Override
    public Integer call() {
        TextTable table = table();
        print("%s", markdown ? table.markdown() : table);
        return 0;
    }

    static TextTable table() {
        List<String> header = new ArrayList<>(List.of("operation", "backend"));
        TYPES.forEach(type -> header.add(name(type)));
        header.add("other types");
        TextTable table = new TextTable(header.toArray(String[]::new));
        rows().forEach(row -> table.add(row.toArray()));
        return table;
    }

    private static String name(ScalarType type) {
        return type.name().toLowerCase();
    }

    private static List<List<String>> rows() {
        List<List<String>> rows = new ArrayList<>();
        for (OpType operation : OpType.builtIn()) {
            for (String backend : Backends.names()) {
                Support support = Backends.get(backend).support();
                if (support.reduces(operation)) {
                    byTypes(support, operation)
                            .forEach(
                                    (types, ops) ->
                                            rows.add(row(operation + " " + ops, backend, types)));
                } else if (support.supports(operation)) {
                    rows.add(row(operation.toString(), backend, support.types(operation, null)));
                }
            }
        }
        return rows;
    }

    /** Groups the names of the reduce ops by their supported element types. */
    private static Map<Set<ScalarType>, String> byTypes(Support support, OpType operation) {
        Map<Set<ScalarType>, String> byTypes = new LinkedHashMap<>();
        for (ReduceOp.Kind op : ReduceOp.Kind.values()) {
            Set<ScalarType> types = support.types(operation, op);
            if (!types.isEmpty()) {
                byTypes.merge(types, op.name(), (all, one) -> all + ", " + one);
            }
        }
        return byTypes;
    }

    private static List<String> row(String operation, String backend, Set<ScalarType> types) {
        List<String> row = new ArrayList<>(List.of(operation, backend));
        TYPES.forEach(type -> row.add(types.contains(type) ? "yes" : "-"));
        Set<ScalarType> others = EnumSet.complementOf(EnumSet.copyOf(TYPES));
        Set<ScalarType> supported = EnumSet.copyOf(others);
        supported.retainAll(types);
        if (types.isEmpty()) {
            row.add("no tensor");
        } else if (supported.isEmpty()) {
            row.add("-");
        } else if (supported.equals(others)) {
            row.add("all");
        } else {
            row.add(
                    Arrays.stream(ScalarType.values())
                            .filter(supported::contains)
                            .map(SupportCommand::name)
                            .collect(Collectors.joining(", ")));
        }
        return row;
    }
}
