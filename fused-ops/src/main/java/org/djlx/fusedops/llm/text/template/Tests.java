// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.List;

/** Jinja2's tests, by name. */
final class Tests {

    static final Table ALL = new Table("the test");

    static {
        for (String names :
                List.of(
                        "== eq equalto",
                        "!= ne",
                        "> gt greaterthan",
                        ">= ge",
                        "< lt lessthan",
                        "<= le")) {
            String operator = names.split(" ")[0];
            ALL.add(names, 1, "other", (r, v, a) -> Parser.compare(r, operator, v, a.get(0)));
        }
        ALL.add("in", 1, "seq", (run, v, a) -> Values.isIn(run, v, a.get(0)))
                .add("divisibleby", 1, "num", (run, v, a) -> isRest(run, v, a.get(0), 0L))
                .add("even", 0, "", (run, v, a) -> isRest(run, v, 2L, 0L))
                .add("odd", 0, "", (run, v, a) -> isRest(run, v, 2L, 1L))
                .add("sameas", 1, "other", (run, v, a) -> isSame(run, v, a.get(0)))
                .add("boolean", 0, "", (run, v, a) -> v instanceof Boolean)
                .add("true", 0, "", (run, v, a) -> Boolean.TRUE.equals(v))
                .add("false", 0, "", (run, v, a) -> Boolean.FALSE.equals(v))
                .add("none", 0, "", (run, v, a) -> v == null)
                .add("defined", 0, "", (run, v, a) -> !(v instanceof Values.Undefined))
                .add("undefined", 0, "", (run, v, a) -> v instanceof Values.Undefined)
                .add("float", 0, "", (run, v, a) -> v instanceof Double)
                .add("integer", 0, "", (r, v, a) -> Numbers.isInteger(v) && !(v instanceof Boolean))
                .add("number", 0, "", (run, v, a) -> Numbers.isNumber(v))
                .add(
                        "string",
                        0,
                        "",
                        (r, v, a) -> v instanceof String || v instanceof Values.Markup)
                .add("lower", 0, "", (run, v, a) -> isCase(run, v, false))
                .add("upper", 0, "", (run, v, a) -> isCase(run, v, true))
                .add("mapping", 0, "", (run, v, a) -> v instanceof Values.Dict)
                .add("iterable", 0, "", (run, v, a) -> Values.isIterable(v))
                .add("sequence", 0, "", (run, v, a) -> isSequence(v))
                .add("callable", 0, "", (run, v, a) -> isCallable(v));
    }

    private Tests() {}

    private static boolean isCase(Run run, Object value, boolean upper) {
        String text = run.counted(Values.text(run, value));
        run.step(text.length() >> 3);
        return Strings.isCase(text, upper);
    }

    private static boolean isCallable(Object value) {
        return value instanceof Values.Callable || value instanceof Values.Undefined;
    }

    private static boolean isSequence(Object value) {
        return Values.isIterable(value)
                && !(value instanceof Values.View
                        || value instanceof Loop
                        || value instanceof Values.Once);
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
