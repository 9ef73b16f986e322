// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.time.LocalDateTime;
import java.time.format.DateTimeFormatter;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The functions of Jinja2, and those that transformers adds for chat templates. */
final class Globals {

    private static final int MAX_RANGE = 100_000; // as in Jinja2's sandbox

    /** Patterns of Java's DateTimeFormatter, by letter of Python's strftime. */
    private static final Map<String, String> PATTERNS =
            Map.ofEntries(
                    Map.entry("Y", "yyyy"),
                    Map.entry("m", "MM"),
                    Map.entry("d", "dd"),
                    Map.entry("H", "HH"),
                    Map.entry("M", "mm"),
                    Map.entry("S", "ss"),
                    Map.entry("y", "yy"),
                    Map.entry("j", "DDD"),
                    Map.entry("b", "MMM"),
                    Map.entry("h", "MMM"),
                    Map.entry("B", "MMMM"),
                    Map.entry("a", "EEE"),
                    Map.entry("A", "EEEE"),
                    Map.entry("p", "a"),
                    Map.entry("I", "hh"),
                    Map.entry("f", "SSSSSS"),
                    Map.entry("F", "yyyy-MM-dd"),
                    Map.entry("T", "HH:mm:ss"),
                    Map.entry("R", "HH:mm"),
                    Map.entry("D", "MM/dd/yy"),
                    Map.entry("e", "ppd"),
                    Map.entry("u", "e"));

    private static final Pattern DIRECTIVE = Pattern.compile("%(-?)(.?)", Pattern.DOTALL);

    private Globals() {}

    /** Defines the functions. */
    static void define(Scope scope) {
        define(scope, "range", (run, args) -> range(args));
        define(scope, "dict", Values::dict);
        define(scope, "namespace", (run, args) -> Values.namespace(Values.dict(run, args)));
        define(scope, "cycler", (run, args) -> cycler(args));
        define(scope, "joiner", (run, args) -> joiner(args));
        define(scope, "raise_exception", Globals::raise);
        define(
                scope,
                "strftime_now",
                (run, args) -> {
                    String format = args.bind("strftime_now", 1, "format").requiredText(0);
                    run.step(format.length() * 10L);
                    return run.counted(strftime(format, LocalDateTime.now()));
                });
        define(
                scope,
                "lipsum",
                (run, args) -> {
                    throw new TemplateError("the function lipsum is not supported");
                });
    }

    private static void define(Scope scope, String name, Values.Callable function) {
        scope.set(name, new Values.Function(name, function));
    }

    private static Object raise(Run run, Args args) {
        throw new TemplateError.Raised(
                Values.text(run, args.bind("raise_exception", 1, "message").get(0)));
    }

    private static Object range(Args args) {
        Args bound = args.bind("range", 1, "_", "_", "_");
        long first = Numbers.integer(bound.get(0));
        long start = bound.has(1) ? first : 0;
        long stop = bound.has(1) ? Numbers.integer(bound.get(1)) : first;
        long step = bound.has(2) ? Numbers.integer(bound.get(2)) : 1;
        if (step == 0) {
            throw new TemplateError("the step of a range is 0");
        }
        if (Math.max(Math.abs(start), Math.max(Math.abs(stop), Math.abs(step))) >> 40 != 0) {
            throw new TemplateError("a range with bounds beyond 40 bits is not supported");
        }
        long size = Math.max(0, (stop - start + step - Long.signum(step)) / step);
        if (size > MAX_RANGE) {
            throw new TemplateError(
                    "a range has %d elements; at most %d are allowed", size, MAX_RANGE);
        }
        return new Values.Range(start, step, (int) size);
    }

    private static Object cycler(Args args) {
        List<Object> values = args.positional();
        if (values.isEmpty() || !args.named().isEmpty()) {
            throw new TemplateError("cycler needs values");
        }
        Values.Dict none = new Values.Dict();
        Values.Namespace cycler = Values.namespace(none);
        int[] position = new int[1];
        Map<String, Object> attributes = cycler.attributes();
        attributes.put("current", values.get(0));
        attributes.put(
                "next",
                new Values.Function(
                        "next",
                        (run, empty) -> {
                            Object value = values.get(position[0]);
                            position[0] = (position[0] + 1) % values.size();
                            attributes.put("current", values.get(position[0]));
                            return value;
                        }));
        attributes.put(
                "reset",
                new Values.Function(
                        "reset",
                        (run, empty) -> {
                            position[0] = 0;
                            attributes.put("current", values.get(0));
                            return null;
                        }));
        return cycler;
    }

    private static Object joiner(Args args) {
        String separator =
                args.bind("joiner", 0, "sep").has(0)
                        ? args.bind("joiner", 0, "sep").requiredText(0)
                        : ", ";
        boolean[] used = new boolean[1];
        return new Values.Function(
                "joiner",
                (run, empty) -> {
                    String text = used[0] ? separator : "";
                    used[0] = true;
                    return text;
                });
    }

    /** Formats a time as Python's strftime. */
    static String strftime(String format, LocalDateTime time) {
        return DIRECTIVE
                .matcher(format)
                .replaceAll(
                        found -> {
                            String letter = found.group(2);
                            String pattern = PATTERNS.get(letter);
                            if (pattern == null) {
                                int index = "%nt".indexOf(letter);
                                if (index < 0 || letter.isEmpty()) {
                                    throw new TemplateError(
                                            "strftime_now has no %s", found.group());
                                }
                                return "%\n\t".substring(index, index + 1);
                            }
                            String text =
                                    DateTimeFormatter.ofPattern(pattern, Locale.US).format(time);
                            text =
                                    letter.equals("u")
                                            ? String.valueOf(time.getDayOfWeek().getValue())
                                            : text;
                            return Matcher.quoteReplacement(
                                    found.group(1).isEmpty()
                                            ? text
                                            : text.replaceFirst("^[0 ]+(?=.)", ""));
                        });
    }
}
