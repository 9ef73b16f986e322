// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.time.LocalDateTime;
import java.util.AbstractList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** The functions of Jinja2, and those that transformers adds for chat templates. */
final class Globals {

    private static final int MAX_RANGE = 100_000; // as in Jinja2's sandbox
    private static final Pattern DIRECTIVE = Pattern.compile("%(-?)(.?)", Pattern.DOTALL);

    private static final Table FUNCTIONS =
            new Table("function")
                    .add("range start ?stop ?step", (run, none, args) -> range(args))
                    .add("dict *", (run, none, args) -> dict(run, args))
                    .add("namespace *", (run, none, args) -> namespace(run, args))
                    .add("strftime_now format", (run, none, args) -> now(run, args.text(0)))
                    .add(
                            "raise_exception message",
                            (run, none, args) -> {
                                throw new TemplateError.Raised(Values.text(run, args.get(0)));
                            });

    private Globals() {}

    static void define(Scope scope) {
        String names = "range dict namespace strftime_now raise_exception cycler joiner lipsum";
        for (String name : names.split(" ")) {
            Values.Callable function = (run, args) -> FUNCTIONS.call(run, name, null, args);
            scope.set(name, function);
        }
    }

    private static Map<Object, Object> dict(Run run, Args args) {
        args.bind("dict and namespace", 0, List.copyOf(args.named().keySet()));
        return Values.dict(
                run,
                args.named().entrySet().stream()
                        .flatMap(each -> Stream.of(each.getKey(), each.getValue())));
    }

    private static Object namespace(Run run, Args args) {
        Values.Namespace namespace = new Values.Namespace();
        dict(run, args).forEach((name, value) -> namespace.attributes.put((String) name, value));
        return namespace;
    }

    private static Object range(Args args) {
        boolean hasStart = args.get(1) != Args.ABSENT;
        long start = hasStart ? Numbers.integer(args.get(0)) : 0;
        long stop = Numbers.integer(args.get(hasStart ? 1 : 0));
        long step = Numbers.integer(args.get(2, 1L));
        long most = Math.max(Math.abs(start), Math.max(Math.abs(stop), Math.abs(step)));
        if (step == 0 || most >> 40 != 0) {
            throw new TemplateError(
                    "a range with a step of 0 or bounds beyond 40 bits is not supported");
        }
        long size = Math.max(0, (stop - start + step - Long.signum(step)) / step);
        if (size > MAX_RANGE) {
            throw new TemplateError(
                    "a range has %d elements; at most %d are allowed", size, MAX_RANGE);
        }
        return new Values.Sequence(
                "range",
                new AbstractList<>() {
                    @Override
                    public Object get(int index) {
                        return start + step * index;
                    }

                    @Override
                    public int size() {
                        return (int) size;
                    }
                });
    }

    private static String now(Run run, String format) {
        run.step(format.length() * 10L);
        return run.created(strftime(format, LocalDateTime.now()));
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
                            String begin =
                                    letter.equals("p") ? "%T" : letter.equals("%") ? "%" : "%t";
                            String text = String.format(Locale.US, begin + letter, time);
                            text = letter.equals("e") ? "%2s".formatted(text) : text;
                            boolean isShort = !found.group(1).isEmpty();
                            return Matcher.quoteReplacement(
                                    isShort ? text.replaceFirst("^[0 ]+(?=.)", "") : text);
                        });
    }
}
