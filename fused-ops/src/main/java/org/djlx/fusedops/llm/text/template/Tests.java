// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.List;
import java.util.Map;
import java.util.Set;

/** Jinja2's tests, by name. */
final class Tests {

    private static final Map<String, String> COMPARISONS =
            Map.ofEntries(
                    Map.entry("==", "=="),
                    Map.entry("eq", "=="),
                    Map.entry("equalto", "=="),
                    Map.entry("!=", "!="),
                    Map.entry("ne", "!="),
                    Map.entry(">", ">"),
                    Map.entry("gt", ">"),
                    Map.entry("greaterthan", ">"),
                    Map.entry(">=", ">="),
                    Map.entry("ge", ">="),
                    Map.entry("<", "<"),
                    Map.entry("lt", "<"),
                    Map.entry("lessthan", "<"),
                    Map.entry("<=", "<="),
                    Map.entry("le", "<="),
                    Map.entry("in", "in"));
    private static final Set<String> OTHERS =
            Set.of(
                    "boolean",
                    "callable",
                    "defined",
                    "divisibleby",
                    "escaped",
                    "even",
                    "false",
                    "filter",
                    "float",
                    "integer",
                    "iterable",
                    "lower",
                    "mapping",
                    "none",
                    "number",
                    "odd",
                    "sameas",
                    "sequence",
                    "string",
                    "test",
                    "true",
                    "undefined",
                    "upper");
    static final Set<String> NAMES;

    static {
        Set<String> names = new java.util.HashSet<>(OTHERS);
        names.addAll(COMPARISONS.keySet());
        NAMES = Set.copyOf(names);
    }

    private Tests() {}

    /** Returns whether {@code value is name(args)}. */
    static boolean holds(Run run, String name, Object value, Args args) {
        run.step();
        String comparison = COMPARISONS.get(name);
        if (comparison != null || name.equals("divisibleby") || name.equals("sameas")) {
            Object other =
                    args.bind(
                                    name,
                                    1,
                                    name.equals("divisibleby")
                                            ? "num"
                                            : name.equals("in") ? "seq" : "other")
                            .get(0);
            return comparison != null
                    ? Parser.compare(run, comparison, value, other)
                    : name.equals("sameas")
                            ? isSame(run, value, other)
                            : isRest(run, value, other, 0L);
        }
        args.bind(name, 0);
        return switch (name) {
            case "boolean" -> value instanceof Boolean;
            case "callable" ->
                    value instanceof Values.Callable || value instanceof Values.Undefined;
            case "defined" -> !(value instanceof Values.Undefined);
            case "escaped" -> value instanceof Values.Markup;
            case "even" -> isRest(run, value, 2L, 0L);
            case "odd" -> isRest(run, value, 2L, 1L);
            case "false" -> Boolean.FALSE.equals(value);
            case "true" -> Boolean.TRUE.equals(value);
            case "filter" -> value instanceof String filter && Filters.NAMES.contains(filter);
            case "test" -> value instanceof String test && NAMES.contains(test);
            case "float" -> value instanceof Double;
            case "integer" -> Numbers.isInteger(value) && !(value instanceof Boolean);
            case "iterable" -> Values.isIterable(value);
            case "lower", "upper" -> {
                String text = run.counted(Values.text(run, value));
                run.step(text.length() >> 3);
                yield Strings.isCase(text, name.equals("upper"));
            }
            case "mapping" -> value instanceof Values.Dict;
            case "none" -> value == null;
            case "number" -> Numbers.isNumber(value);
            case "sequence" ->
                    value instanceof List
                            || value instanceof Values.Dict
                            || value instanceof Values.Undefined
                            || Values.isText(value);
            case "string" -> Values.isText(value);
            case "undefined" -> value instanceof Values.Undefined;
            default -> throw new TemplateError("the test %s is not supported", name);
        };
    }

    private static boolean isRest(Run run, Object value, Object divisor, Object rest) {
        return Values.areEqual(run, Values.binary(run, "%", value, divisor), rest);
    }

    /** Returns whether values are one object; equal numbers and texts are taken for one. */
    private static boolean isSame(Run run, Object a, Object b) {
        return a == b
                || a != null
                        && b != null
                        && a.getClass() == b.getClass()
                        && (Numbers.isNumber(a) || a instanceof String)
                        && Values.areEqual(run, a, b);
    }
}
