// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.time.LocalDateTime;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The functions of Jinja2, and those that transformers adds for chat templates. */
final class Globals {

    private static final int MAX_RANGE = 100_000; // as in Jinja2's sandbox
    private static final Pattern DIRECTIVE = Pattern.compile("%(-?)(.?)", Pattern.DOTALL);

    private Globals() {}

    static void define(Scope scope) {
        define(scope, "range", (run, args) -> range(args));
        define(scope, "dict", Values::dict);
        define(scope, "namespace", Globals::namespace);
        define(
                scope,
                "raise_exception",
                (run, args) -> {
                    Object message = args.bind("raise_exception", 1, List.of("message")).get(0);
                    throw new TemplateError.Raised(Values.text(run, message));
                });
        define(
                scope,
                "strftime_now",
                (run, args) -> {
                    String format = args.bind("strftime_now", 1, List.of("format")).text(0);
                    run.step(format.length() * 10L);
                    return run.created(strftime(format, LocalDateTime.now()));
                });
        for (String name : List.of("cycler", "joiner", "lipsum")) {
            define(
                    scope,
                    name,
                    (run, args) -> {
                        throw new TemplateError("the function %s is not supported", name);
                    });
        }
    }

    private static void define(Scope scope, String name, Values.Callable function) {
        scope.set(name, function);
    }

    private static Object namespace(Run run, Args args) {
        Values.Namespace namespace = new Values.Namespace();
        Values.dict(run, args)
                .forEach((name, value) -> namespace.attributes.put(Args.of(name).text(0), value));
        return namespace;
    }

    private static Object range(Args args) {
        Args bound = args.bind("range", 1, List.of("start", "stop", "step"));
        boolean hasStart = bound.get(1) != Args.ABSENT;
        long start = hasStart ? Numbers.integer(bound.get(0)) : 0;
        long stop = Numbers.integer(bound.get(hasStart ? 1 : 0));
        long step = Numbers.integer(bound.get(2, 1L));
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
        return Values.range(start, step, (int) size);
    }

    /** Formats a time as Python's strftime, most of whose letters are Java's. */
    static String strftime(String format, LocalDateTime time) {
        return DIRECTIVE
                .matcher(format)
                .replaceAll(
                        found -> {
                            String letter = found.group(2);
                            if (letter.isEmpty() || !"aAbBdDeFhHIjmMpRSTyY%".contains(letter)) {
                                throw new TemplateError(
                                        "%s of strftime_now is not supported", found.group());
                            }
                            String directive =
                                    letter.equals("%")
                                            ? "%%"
                                            : (letter.equals("p") ? "%T" : "%t") + letter;
                            String text = String.format(Locale.US, directive, time);
                            text = letter.equals("e") ? "%2s".formatted(text) : text;
                            boolean isShort = !found.group(1).isEmpty();
                            return Matcher.quoteReplacement(
                                    isShort ? text.replaceFirst("^[0 ]+(?=.)", "") : text);
                        });
    }
}
