// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.UnaryOperator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Jinja2's filters, by name. */
final class Filters {

    static final Table ALL = new Table("the filter");

    /** What can be done with an escaped text. */
    private static final Set<String> OF_MARKUP =
            Set.of("count d default e escape length lower safe string trim upper".split(" "));

    private static final Pattern WORD_BEGIN =
            Pattern.compile("[-\\s({\\[<]+", Pattern.UNICODE_CHARACTER_CLASS);
    private static final Pattern WORD = Pattern.compile("\\w+", Pattern.UNICODE_CHARACTER_CLASS);

    /** A filter of a text. */
    private interface OfText {
        Object apply(Run run, String text, Args args);
    }

    /** A filter of elements. */
    private interface OfElements {
        Object apply(Run run, List<Object> elements, Args args);
    }

    private static void text(String names, int required, String parameters, OfText body) {
        ALL.add(
                names,
                required,
                parameters,
                (run, value, args) -> {
                    String text = run.counted(Values.text(run, value));
                    run.step(text.length() >> 3);
                    return body.apply(run, text, args);
                });
    }

    private static void list(String names, int required, String parameters, OfElements body) {
        ALL.add(
                names,
                required,
                parameters,
                (run, value, args) -> body.apply(run, Values.elements(run, value), args));
    }

    static {
        ALL.add("default d", 0, "default_value boolean", (run, v, a) -> otherwise(v, a))
                .add("tojson", 0, "ensure_ascii indent separators sort_keys", Json::write)
                .add("length count", 0, "", (run, v, a) -> length(run, v))
                .add("items", 0, "", (run, v, a) -> once(items(run, v)))
                .add("string", 0, "", (run, v, a) -> Values.text(run, v))
                .add("safe", 0, "", (run, v, a) -> new Values.Markup(Values.text(run, v)))
                .add("e escape forceescape", 0, "", (run, v, a) -> escape(run, v))
                .add("abs", 0, "", (run, v, a) -> absolute(run, v))
                .add("int", 0, "default", (run, v, a) -> integer(run, v, a))
                .add("float", 0, "default", (run, v, a) -> real(run, v, a))
                .add("round", 0, "precision method", (run, v, a) -> round(run, v, a))
                .add("attr", 1, "name", (run, v, a) -> attribute(run, v, a.requiredText(0)))
                .add("format", 0, "*", Filters::format)
                .add("first", 0, "", (run, v, a) -> first(Values.iterator(run, v)))
                .add("last", 0, "", (run, v, a) -> last(run, v))
                .add("random", 0, "", (run, v, a) -> random(run, v))
                .add("reverse", 0, "", (run, v, a) -> reverse(run, v))
                .add("dictsort", 0, "case_sensitive by reverse", Filters::sortDict)
                .add("truncate", 0, "length killwords end leeway", Filters::truncate)
                .add("indent", 0, "width first blank", Filters::indent)
                .add("map", 0, "*", Filters::map)
                .add("select", 0, "*", (run, v, a) -> select(run, v, a, false, true))
                .add("reject", 0, "*", (run, v, a) -> select(run, v, a, false, false))
                .add("selectattr", 0, "*", (run, v, a) -> select(run, v, a, true, true))
                .add("rejectattr", 0, "*", (run, v, a) -> select(run, v, a, true, false));
        text("lower", 0, "", (run, s, a) -> Strings.lower(s));
        text("upper", 0, "", (run, s, a) -> Strings.upper(s));
        text("capitalize", 0, "", (run, s, a) -> Strings.capitalize(s));
        text("title", 0, "", (run, s, a) -> title(s));
        text("trim", 0, "chars", (run, s, a) -> Strings.strip(s, a.text(0), true, true));
        text("center", 0, "width", (run, s, a) -> Strings.pad(run, s, a.integer(0, 80), " ", 2));
        text("wordcount", 0, "", (run, s, a) -> WORD.matcher(s).results().count());
        text("striptags", 0, "", Filters::stripTags);
        ALL.add("urlencode", 0, "", (run, v, a) -> urlEncode(run, v));
        text("replace", 2, "old new count", Filters::replace);
        list("list", 0, "", (run, l, a) -> l);
        list("join", 0, "d attribute", Filters::join);
        list("sort", 0, "reverse case_sensitive attribute", Filters::sort);
        list("max", 0, "case_sensitive attribute", (run, l, a) -> best(run, l, a, ">"));
        list("min", 0, "case_sensitive attribute", (run, l, a) -> best(run, l, a, "<"));
        list("unique", 0, "case_sensitive attribute", Filters::unique);
        list("sum", 0, "attribute start", Filters::sum);
        list("groupby", 1, "attribute", (run, l, a) -> groups(run, l, path(run, a.get(0), null)));
        list("batch", 1, "linecount", (run, l, a) -> batches(l, Numbers.toInt(a.get(0))));
        list("slice", 1, "slices", (run, l, a) -> slices(run, l, Numbers.toInt(a.get(0))));
    }

    private Filters() {}

    /** Returns {@code value|name(args)}. */
    static Object call(Run run, String name, Object value, Args args) {
        if (value instanceof Values.Markup markup && !name.equals("forceescape")) {
            if (!OF_MARKUP.contains(name) && ALL.has(name)) {
                throw new TemplateError("the filter %s of an escaped text is not supported", name);
            }
            if (name.equals("e") || name.equals("escape")) {
                return value;
            }
            Object result = ALL.call(run, name, markup.text(), args);
            return result instanceof String text ? new Values.Markup(text) : result;
        }
        return ALL.call(run, name, value, args);
    }

    private static Values.Once once(List<Object> elements) {
        return new Values.Once(elements.iterator());
    }

    private static long length(Run run, Object value) {
        Values.countText(run, value);
        return Values.length(value);
    }

    private static Object otherwise(Object value, Args args) {
        boolean isFalse = Values.isTrue(args.get(1, false)) && !Values.isTrue(value);
        return value instanceof Values.Undefined || isFalse ? args.get(0, "") : value;
    }

    private static List<Object> items(Run run, Object value) {
        if (!(value instanceof Values.Dict) && !(value instanceof Values.Undefined)) {
            throw new TemplateError("items needs a dictionary, not %s", Values.typeName(value));
        }
        return value instanceof Values.Dict dict ? run.counted(dict.items()) : List.of();
    }

    private static Values.Markup escape(Run run, Object value) {
        String text = run.counted(Values.text(run, value));
        text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;");
        return new Values.Markup(text.replace("\"", "&#34;").replace("'", "&#39;"));
    }

    private static Object absolute(Run run, Object value) {
        Object negated = Values.negate(value);
        boolean negative = !(value instanceof Double) && Values.isOrdered(run, "<", value, 0L);
        return value instanceof Double real
                ? (Object) Math.abs(real)
                : negative ? negated : Values.negate(negated);
    }

    private static void requireDefined(Run run, Object value) {
        run.step(value instanceof String text ? text.length() >> 3 : 0);
        if (value instanceof Values.Undefined undefined) {
            throw undefined.error();
        }
    }

    private static Object integer(Run run, Object value, Args args) {
        requireDefined(run, value);
        Object integer =
                value instanceof String text
                        ? Numbers.parseInteger(text)
                        : Numbers.isInteger(value) ? Numbers.round(value, 0) : null;
        Double real =
                value instanceof String text && integer == null
                        ? Numbers.parseReal(text)
                        : value instanceof Double number ? number : null;
        if (real != null && !real.isNaN()) {
            return Numbers.truncate(real);
        }
        return integer == null ? args.get(0, 0L) : integer;
    }

    private static Object real(Run run, Object value, Args args) {
        requireDefined(run, value);
        Double parsed = value instanceof String text ? Numbers.parseReal(text) : null;
        return Numbers.isNumber(value)
                ? (Object) Numbers.real(value)
                : parsed == null ? args.get(0, 0.0) : parsed;
    }

    private static Object round(Run run, Object value, Args args) {
        requireDefined(run, value);
        int digits = args.integer(0, 0);
        String method = args.has(1) ? args.requiredText(1) : "common";
        if (!List.of("common", "ceil", "floor").contains(method)) {
            throw new TemplateError("round by common, ceil or floor, not %s", method);
        }
        if (!Numbers.isNumber(value)) {
            throw new TemplateError("a value of type %s cannot be rounded", Values.typeName(value));
        }
        if (method.equals("common")) {
            return Numbers.round(value, digits);
        }
        Object unit = Numbers.binary("**", 10L, (long) digits);
        double scaled = Numbers.real(Numbers.binary("*", value, unit));
        double whole = method.equals("ceil") ? Math.ceil(scaled) : Math.floor(scaled);
        return Numbers.binary("/", Numbers.truncate(whole), unit);
    }

    private static Object attribute(Run run, Object value, String name) {
        if (value instanceof Values.Dict dict && dict.has(name)) { // Elements are no attributes.
            Object method = Values.attribute(run, new Values.Dict(), name);
            return method instanceof Values.Undefined ? method : Values.attribute(run, value, name);
        }
        return Values.attribute(run, value, name);
    }

    private static Object format(Run run, Object value, Args args) {
        if (!args.positional().isEmpty() && !args.named().isEmpty()) {
            throw new TemplateError("format takes values or names, not both");
        }
        Values.Dict dict = new Values.Dict();
        args.named().forEach(dict::put);
        Object values = dict.size() > 0 ? dict : new Values.Tuple(args.positional());
        return Strings.percent(run, Values.text(run, value), values);
    }

    private static Object first(Iterator<Object> elements) {
        return elements.hasNext()
                ? elements.next()
                : new Values.Undefined("first", "there is no first item");
    }

    private static Object last(Run run, Object value) {
        if (value instanceof Values.Once) {
            throw new TemplateError("last needs a list, not %s", Values.typeName(value));
        }
        List<Object> all = Values.elements(run, value);
        return all.isEmpty()
                ? new Values.Undefined("last", "there is no last item")
                : all.get(all.size() - 1);
    }

    private static Object random(Run run, Object value) {
        if (value instanceof Values.Once || value instanceof Values.Dict) {
            throw new TemplateError("random needs a list, not %s", Values.typeName(value));
        }
        List<Object> all = Values.elements(run, value);
        return all.isEmpty()
                ? new Values.Undefined("random", "there is no random item")
                : all.get(ThreadLocalRandom.current().nextInt(all.size()));
    }

    private static Object reverse(Run run, Object value) {
        if (value instanceof String text) {
            return run.counted(Strings.reverse(text));
        }
        List<Object> reversed = Values.elements(run, value);
        Collections.reverse(reversed);
        return value instanceof Values.Once ? reversed : once(reversed);
    }

    private static Object replace(Run run, String text, Args args) {
        int count = args.get(2, null) == null ? -1 : args.integer(2, -1);
        String old = Values.text(run, args.get(0));
        return Strings.replace(run, text, old, Values.text(run, args.get(1)), count);
    }

    private static String title(String text) {
        StringBuilder title = new StringBuilder();
        Matcher begin = WORD_BEGIN.matcher(text);
        int end = 0;
        while (end < text.length()) {
            boolean found = begin.find(end);
            int next = found ? begin.start() : text.length();
            if (next > end) {
                int first = text.offsetByCodePoints(end, 1);
                title.append(Strings.upper(text.substring(end, first)));
                title.append(Strings.lower(text.substring(first, next)));
            }
            title.append(found ? begin.group() : "");
            end = found ? begin.end() : next;
        }
        return title.toString();
    }

    private static String indent(Run run, Object value, Args args) {
        if (!(value instanceof String lines)) {
            throw new TemplateError("indent needs a text, not %s", Values.typeName(value));
        }
        Object width = args.get(0, 4L);
        int spaces = width instanceof String ? 0 : Math.max(0, Numbers.toInt(width));
        run.requireLength(spaces);
        String indent = width instanceof String prefix ? prefix : " ".repeat(spaces);
        List<Object> all = Strings.lines(run, lines + "\n", false);
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < all.size(); i++) {
            String line = (String) all.get(i);
            boolean indents =
                    Values.isTrue(args.get(i == 0 ? 1 : 2, false)) || i > 0 && !line.isEmpty();
            run.append(text, (i == 0 ? "" : "\n") + (indents ? indent : ""));
            run.append(text, line);
        }
        return text.toString();
    }

    private static Object truncate(Run run, Object value, Args args) {
        int length = args.integer(0, 255);
        String end = args.has(2) ? args.requiredText(2) : "...";
        int leeway = args.get(3, null) == null ? 5 : args.integer(3, 5);
        long kept = (long) length - Strings.length(end);
        if (kept < 0 || leeway < 0) {
            throw new TemplateError("truncate to %d, with %s and leeway %d", length, end, leeway);
        }
        if (Values.length(value) <= (long) length + leeway) {
            return value;
        }
        if (!(value instanceof String text)) {
            throw new TemplateError("truncate needs a text, not %s", Values.typeName(value));
        }
        String cut = Strings.part(text, 0, (int) kept);
        int space = Values.isTrue(args.get(1, false)) ? -1 : cut.lastIndexOf(' ');
        return (space < 0 ? cut : cut.substring(0, space)) + end;
    }

    private static String stripTags(Run run, String html, Args args) {
        String text = without(run, without(run, html, "<!--", "-->"), "<", ">");
        if (text.indexOf('&') >= 0) {
            throw new TemplateError("the filter striptags of a text with & is not supported");
        }
        return Strings.join(run, " ", Strings.split(run, text, null, -1));
    }

    /** Removes each range from one text to the next of another text, such as a comment. */
    private static String without(Run run, String text, String begin, String end) {
        StringBuilder rest = new StringBuilder();
        int position = 0;
        while (true) {
            run.step();
            int from = text.indexOf(begin, position);
            int to = from < 0 ? -1 : text.indexOf(end, from);
            if (to < 0) {
                return rest.append(text, position, text.length()).toString();
            }
            rest.append(text, position, from);
            position = to + end.length();
        }
    }

    private static String urlEncode(Run run, Object value) {
        if (!(value instanceof String)
                && Values.isIterable(value)
                && !(value instanceof Values.Undefined)) {
            throw new TemplateError(
                    "urlencode of a %s is not supported, only of a text", Values.typeName(value));
        }
        String text = Values.text(run, value);
        run.requireLength(text.length() * 3L);
        StringBuilder quoted = new StringBuilder();
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            char c = (char) (b & 0xff);
            boolean plain = c < 128 && (Character.isLetterOrDigit(c) || "_.-~/".indexOf(c) >= 0);
            quoted.append(
                    plain
                            ? String.valueOf(c)
                            : "%" + HexFormat.of().withUpperCase().toHexDigits(b));
        }
        return quoted.toString();
    }

    /** Returns a function for the value at a path, such as {@code a.b.0}, or null for no path. */
    private static UnaryOperator<Object> path(Run run, Object path, Object otherwise) {
        List<Object> keys = new ArrayList<>();
        if (path instanceof String text) {
            for (Object part : Strings.split(run, text, ".", -1)) {
                String key = (String) part;
                keys.add(key.matches("\\d+") ? Numbers.parseInteger(key) : key);
            }
        } else if (path != null) {
            keys.add(path);
        }
        return value -> {
            Object found = value;
            for (Object key : keys) {
                found = Values.item(run, found, key);
                found = found instanceof Values.Undefined && otherwise != null ? otherwise : found;
            }
            return found;
        };
    }

    private static Object ignoreCase(Run run, Object value) {
        return value instanceof String text ? run.counted(Strings.lower(text)) : value;
    }

    private static UnaryOperator<Object> key(Run run, Object path, Object caseSensitive) {
        UnaryOperator<Object> value = path(run, path, null);
        return Values.isTrue(caseSensitive) ? value : each -> ignoreCase(run, value.apply(each));
    }

    private static List<Object> all(List<Object> elements, UnaryOperator<Object> function) {
        List<Object> all = new ArrayList<>();
        elements.forEach(each -> all.add(function.apply(each)));
        return all;
    }

    private static Object map(Run run, Object value, Args args) {
        if (!Values.isTrue(value)) {
            return once(List.of());
        }
        UnaryOperator<Object> function;
        if (args.positional().isEmpty() && args.named().containsKey("attribute")) {
            Args bound = args.bind("map", 0, "attribute", "default");
            function = path(run, bound.get(0), bound.get(1, null));
        } else if (args.positional().isEmpty()) {
            throw new TemplateError("map needs the name of a filter, or attribute");
        } else {
            String filter = args.requiredText(0);
            function = each -> call(run, filter, each, args.from(1));
        }
        Iterator<Object> all = Values.iterator(run, value);
        return new Values.Once(
                new Iterator<>() {
                    @Override
                    public boolean hasNext() {
                        return all.hasNext();
                    }

                    @Override
                    public Object next() {
                        return function.apply(all.next());
                    }
                });
    }

    private static Object select(
            Run run, Object value, Args args, boolean ofAttribute, boolean selects) {
        if (!Values.isTrue(value)) {
            return once(List.of());
        }
        if (ofAttribute && args.positional().isEmpty()) {
            throw new TemplateError("the name of an attribute to select by is missing");
        }
        UnaryOperator<Object> of = path(run, ofAttribute ? args.get(0) : null, null);
        Args rest = args.from(ofAttribute ? 1 : 0);
        return new Values.Once(
                new Parser.Selected(
                        Values.iterator(run, value),
                        each -> {
                            Object tested = of.apply(each);
                            boolean holds =
                                    rest.positional().isEmpty()
                                            ? Values.isTrue(tested)
                                            : (Boolean)
                                                    Tests.ALL.call(
                                                            run,
                                                            rest.requiredText(0),
                                                            tested,
                                                            rest.from(1));
                            return holds == selects;
                        }));
    }

    private static Object join(Run run, List<Object> elements, Args args) {
        UnaryOperator<Object> path = path(run, args.get(1, null), null);
        String separator = Values.text(run, args.get(0, ""));
        return Strings.join(
                run, separator, all(elements, each -> Values.text(run, path.apply(each))));
    }

    private static Object sort(Run run, List<Object> elements, Args args) {
        if (args.get(2, null) instanceof String path && path.indexOf(',') >= 0) {
            throw new TemplateError("sort by several attributes is not supported: %s", path);
        }
        UnaryOperator<Object> key = key(run, args.get(2, null), args.get(1, false));
        // As in Jinja2, keys are lists, in which undefined elements are equal.
        List<Object> keys = all(elements, each -> new ArrayList<>(Arrays.asList(key.apply(each))));
        return Values.sorted(run, elements, keys, Values.isTrue(args.get(0, false)));
    }

    private static Object sortDict(Run run, Object value, Args args) {
        String by = args.has(1) ? args.requiredText(1) : "key";
        if (!(value instanceof Values.Dict dict) || !Set.of("key", "value").contains(by)) {
            throw new TemplateError("dictsort sorts a dictionary by key or value");
        }
        List<Object> keys =
                all(
                        by.equals("key") ? dict.keys() : dict.values(),
                        key(run, null, args.get(0, false)));
        return Values.sorted(
                run, run.counted(dict.items()), keys, Values.isTrue(args.get(2, false)));
    }

    private static Object best(Run run, List<Object> elements, Args args, String operator) {
        UnaryOperator<Object> key = key(run, args.get(1, null), args.get(0, false));
        Object best = new Values.Undefined("best", "there is no item");
        for (int i = 0; i < elements.size(); i++) {
            Object each = elements.get(i);
            boolean better =
                    i == 0 || Values.isOrdered(run, operator, key.apply(each), key.apply(best));
            best = better ? each : best;
        }
        return best;
    }

    private static Object unique(Run run, List<Object> elements, Args args) {
        UnaryOperator<Object> key = key(run, args.get(1, null), args.get(0, false));
        Values.Dict seen = new Values.Dict();
        List<Object> unique = new ArrayList<>();
        for (Object each : elements) {
            Object of = key.apply(each);
            if (!seen.has(of)) {
                seen.put(of, null);
                unique.add(each);
            }
        }
        return once(unique);
    }

    private static Object sum(Run run, List<Object> elements, Args args) {
        UnaryOperator<Object> path = path(run, args.get(0, null), null);
        Object sum = args.get(1, 0L);
        if (sum instanceof String) {
            throw new TemplateError("sum adds no texts");
        }
        for (Object each : elements) {
            sum = Values.binary(run, "+", sum, path.apply(each));
        }
        return sum;
    }

    private static Object groups(Run run, List<Object> elements, UnaryOperator<Object> path) {
        List<Object> keys = all(elements, each -> ignoreCase(run, path.apply(each)));
        List<Object> groups = new ArrayList<>();
        List<Object> group = null;
        Object last = null;
        for (Object each : Values.sorted(run, elements, keys, false)) {
            Object own = ignoreCase(run, path.apply(each));
            if (group == null || !Values.areEqual(run, own, last)) {
                group = new ArrayList<>();
                groups.add(
                        new Values.Tuple(
                                new ArrayList<>(Arrays.asList(path.apply(each), group)),
                                "grouper",
                                "list"));
            }
            group.add(each);
            last = own;
        }
        return groups;
    }

    private static Object batches(List<Object> elements, int size) {
        List<Object> batches = new ArrayList<>();
        List<Object> batch = new ArrayList<>();
        for (Object each : elements) {
            if (batch.size() == size) {
                batches.add(batch);
                batch = new ArrayList<>();
            }
            batch.add(each);
        }
        if (!batch.isEmpty()) {
            batches.add(batch);
        }
        return once(batches);
    }

    private static Object slices(Run run, List<Object> elements, int count) {
        if (count <= 0) {
            throw new TemplateError("slice needs a number above 0, not %d", count);
        }
        run.requireSize(count);
        List<Object> slices = new ArrayList<>();
        int begin = 0;
        for (int i = 0; i < count; i++) {
            int end = begin + elements.size() / count + (i < elements.size() % count ? 1 : 0);
            slices.add(new ArrayList<>(elements.subList(begin, end)));
            begin = end;
        }
        return once(slices);
    }
}
