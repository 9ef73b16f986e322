// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.UnaryOperator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/** Jinja2's filters and tests, by name. */
final class Filters {

    private static final Table FILTERS = new Table("filter");
    private static final Table TESTS = new Table("test");
    private static final Set<String> OF_MARKUP = Set.of("default", "safe", "string", "trim");
    private static final Pattern TITLE_WORD =
            Pattern.compile("[^-\\s({\\[<]+", Pattern.UNICODE_CHARACTER_CLASS);
    private static final Pattern WORD = Pattern.compile("\\w+", Pattern.UNICODE_CHARACTER_CLASS);

    /** A filter of a text. */
    private interface OfText {
        Object apply(Run run, String text, Args args);
    }

    /** A filter of elements. */
    private interface OfElements {
        Object apply(Run run, List<Object> elements, Args args);
    }

    private static void add(String signature, Table.Body body) {
        FILTERS.add(signature, body);
    }

    private static void text(String signature, OfText body) {
        add(signature, (run, v, a) -> body.apply(run, run.read(Values.text(run, v)), a));
    }

    private static void list(String signature, OfElements body) {
        add(signature, (run, v, a) -> body.apply(run, Values.elements(run, v), a));
    }

    static {
        add("default|d ?default_value ?boolean", (run, v, a) -> otherwise(v, a));
        add("tojson ?ensure_ascii ?indent ?separators ?sort_keys", Json::of);
        add("length|count", (run, v, a) -> Values.length(v instanceof String s ? run.read(s) : v));
        add("items", (run, v, a) -> items(run, v));
        add("string", (run, v, a) -> Values.text(run, v));
        add("safe", (run, v, a) -> new Values.Markup(Values.text(run, v)));
        add("abs", (run, v, a) -> absolute(v));
        add("int ?default", (run, v, a) -> integer(run, v, a.get(0, 0L)));
        add("float ?default", (run, v, a) -> real(run, v, a.get(0, 0.0)));
        add("round ?precision", (run, v, a) -> round(v, a.integer(0, 0)));
        add("format *", (run, v, a) -> Strings.percent(run, Values.text(run, v), values(a)));
        add("first", (run, v, a) -> first(Values.iterator(run, v)));
        add("last", (run, v, a) -> at(run, v, 1));
        add("random", (run, v, a) -> at(run, v, ThreadLocalRandom.current().nextDouble()));
        add("reverse", (run, v, a) -> reverse(run, v));
        add("dictsort", (run, v, a) -> sortDict(run, v));
        add("truncate ?length ?killwords ?end", Filters::truncate);
        add("indent ?width ?first ?blank", Filters::indent);
        add("urlencode", (run, v, a) -> urlEncode(run, v));
        add("map *", Filters::map);
        add("select *", (run, v, a) -> select(run, v, a, false, true));
        add("reject *", (run, v, a) -> select(run, v, a, false, false));
        add("selectattr *", (run, v, a) -> select(run, v, a, true, true));
        add("rejectattr *", (run, v, a) -> select(run, v, a, true, false));
        text("e|escape|forceescape", (run, s, a) -> escape(run, s));
        text("lower", (run, s, a) -> Strings.lower(s));
        text("upper", (run, s, a) -> Strings.upper(s));
        text("capitalize", (run, s, a) -> Strings.capitalize(s));
        text("title", (run, s, a) -> title(s));
        text("trim ?chars", (run, s, a) -> Strings.strip(s, a.text(0, null), true, true));
        text("center ?width", (run, s, a) -> Strings.pad(run, s, a.integer(0, 80), " ", true));
        text("wordcount", (run, s, a) -> WORD.matcher(s).results().count());
        text("striptags", (run, s, a) -> stripTags(run, s));
        text(
                "replace old new ?count",
                (r, s, a) -> Strings.replace(r, s, a.text(0), a.text(1), a.integer(2, -1)));
        list("list", (run, l, a) -> l);
        list("join ?d ?attribute", Filters::join);
        list("sort ?reverse ?case_sensitive ?attribute", Filters::sort);
        list("max", (run, l, a) -> best(run, l, ">"));
        list("min", (run, l, a) -> best(run, l, "<"));
        list("unique", (run, l, a) -> unique(run, l));
        list("sum ?attribute ?start", Filters::sum);
        list("groupby attribute", (run, l, a) -> groups(run, l, path(run, a.text(0), null)));
        list("batch linecount", (run, l, a) -> batches(l, Math.max(1, a.integer(0, 1))));
        list("slice slices", (run, l, a) -> slices(run, l, a.integer(0, 1)));
        for (String names :
                List.of(
                        "==|eq|equalto",
                        "!=|ne",
                        ">|gt|greaterthan",
                        ">=|ge",
                        "<|lt|lessthan",
                        "<=|le",
                        "in")) {
            Values.Comparison comparison = Values.COMPARISONS.get(names.split("\\|")[0]);
            TESTS.add(names + " other", (run, v, a) -> comparison.holds(run, v, a.get(0)));
        }
        TESTS.add("divisibleby num", (run, v, a) -> hasRest(run, v, a.get(0), 0L))
                .add("even", (run, v, a) -> hasRest(run, v, 2L, 0L))
                .add("odd", (run, v, a) -> hasRest(run, v, 2L, 1L))
                .add("sameas other", (run, v, a) -> v == constant(a.get(0)))
                .add("boolean", (run, v, a) -> v instanceof Boolean)
                .add("true", (run, v, a) -> Boolean.TRUE.equals(v))
                .add("false", (run, v, a) -> Boolean.FALSE.equals(v))
                .add("none", (run, v, a) -> v == null)
                .add("defined", (run, v, a) -> !(v instanceof Values.Undefined))
                .add("undefined", (run, v, a) -> v instanceof Values.Undefined)
                .add("float", (run, v, a) -> v instanceof Double)
                .add("integer", (r, v, a) -> Numbers.isInteger(v) && !(v instanceof Boolean))
                .add("number", (run, v, a) -> Numbers.isNumber(v))
                .add("string", (r, v, a) -> v instanceof String || v instanceof Values.Markup)
                .add("mapping", (run, v, a) -> v instanceof Map)
                .add("iterable", (run, v, a) -> Values.isIterable(v))
                .add("sequence", (run, v, a) -> Values.isSequence(v))
                .add("callable", (run, v, a) -> isCallable(v));
    }

    private Filters() {}

    /** Returns {@code value|name(args)}. */
    static Object filter(Run run, String name, Object value, Args args) {
        if (!(value instanceof Values.Markup markup)) {
            return FILTERS.call(run, name, value, args);
        }
        if (!OF_MARKUP.contains(name)) {
            throw new TemplateError("the filter %s of an escaped text is not supported", name);
        }
        return new Values.Markup((String) FILTERS.call(run, name, markup.text(), args));
    }

    /** Returns {@code value is name(args)}. */
    static boolean test(Run run, String name, Object value, Args args) {
        return (Boolean) TESTS.call(run, name, value, args);
    }

    private static boolean isCallable(Object value) {
        return value instanceof Values.Callable || value instanceof Values.Undefined;
    }

    private static Object constant(Object value) {
        if (value != null && !(value instanceof Boolean)) {
            throw new TemplateError(
                    "the test sameas of a %s is not supported", Values.typeName(value));
        }
        return value;
    }

    private static boolean hasRest(Run run, Object value, Object divisor, Object rest) {
        Object own = Values.binary(run, "%", value, divisor);
        return Values.COMPARISONS.get("==").holds(run, own, rest);
    }

    private static Values.Once once(List<Object> elements) {
        return new Values.Once(elements.iterator());
    }

    private static Object otherwise(Object value, Args args) {
        boolean isFalse = args.isTrue(1) && !Values.isTrue(value);
        return value instanceof Values.Undefined || isFalse ? args.get(0, "") : value;
    }

    private static Object items(Run run, Object value) {
        if (!(value instanceof Map) && !(value instanceof Values.Undefined)) {
            throw new TemplateError("items needs a dictionary, not %s", Values.typeName(value));
        }
        return once(value instanceof Map ? Values.items(run, value) : List.of());
    }

    private static Values.Markup escape(Run run, String text) {
        String escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;");
        escaped = escaped.replace("\"", "&#34;").replace("'", "&#39;");
        return new Values.Markup(run.created(escaped));
    }

    private static Object absolute(Object value) {
        Object negated = Values.negate(value);
        return Numbers.compare(negated, 0L) < 0 ? Values.negate(negated) : negated;
    }

    /** Returns a number, or the number in a text: an integer if it is one; null if it is none. */
    private static Object number(Run run, Object value) {
        if (value instanceof Values.Undefined undefined) {
            throw new TemplateError("%s", undefined.reason());
        }
        if (!(value instanceof String text)) {
            return Numbers.isNumber(value) ? value : null;
        }
        Object integer = Numbers.parseInteger(run.read(text));
        return integer == null ? Numbers.parseReal(text) : integer;
    }

    private static Object integer(Run run, Object value, Object otherwise) {
        Object number = number(run, value);
        return number == null || Numbers.isNan(number) ? otherwise : Numbers.truncate(number);
    }

    private static Object real(Run run, Object value, Object otherwise) {
        Object number = number(run, value);
        Object parsed = value instanceof String text ? Numbers.parseReal(text) : number;
        return parsed == null ? otherwise : (Object) Numbers.real(parsed);
    }

    private static Object round(Object value, int digits) {
        if (!Numbers.isNumber(value)) {
            throw new TemplateError("a value of type %s cannot be rounded", Values.typeName(value));
        }
        return Numbers.round(value, digits);
    }

    private static Object values(Args args) {
        if (!args.named().isEmpty()) {
            throw new TemplateError("names of values in the filter format are not supported");
        }
        return Values.tuple(args.positional().toArray());
    }

    private static Object first(Iterator<Object> elements) {
        return elements.hasNext()
                ? elements.next()
                : new Values.Undefined("", "there is no first item");
    }

    /** Returns the element at a place between 0, the first, and 1, the last. */
    private static Object at(Run run, Object value, double place) {
        if (!Values.isSequence(value) || value instanceof Map) {
            throw new TemplateError("last and random need a list, not %s", Values.typeName(value));
        }
        List<Object> all = Values.elements(run, value);
        return all.isEmpty()
                ? new Values.Undefined("", "there is no item")
                : all.get((int) Math.min(all.size() - 1, place * all.size()));
    }

    private static Object reverse(Run run, Object value) {
        if (value instanceof String text) {
            return Strings.reverse(run.read(text));
        }
        List<Object> reversed = Values.elements(run, value);
        Collections.reverse(reversed);
        return value instanceof Values.Once ? reversed : once(reversed);
    }

    private static String title(String text) {
        return TITLE_WORD
                .matcher(text)
                .replaceAll(
                        found -> {
                            String word = found.group();
                            int rest = word.offsetByCodePoints(0, 1);
                            return Matcher.quoteReplacement(
                                    Strings.upper(word.substring(0, rest))
                                            + Strings.lower(word.substring(rest)));
                        });
    }

    private static String indent(Run run, Object value, Args args) {
        if (!(value instanceof String lines)) {
            throw new TemplateError("indent needs a text, not %s", Values.typeName(value));
        }
        String indent = Strings.indent(run, args.get(0, 4L));
        List<Object> all = Strings.lines(run, run.read(lines) + "\n");
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < all.size(); i++) {
            String line = (String) all.get(i);
            boolean indents = args.isTrue(i == 0 ? 1 : 2) || i > 0 && !line.isEmpty();
            run.append(text, (i == 0 ? "" : "\n") + (indents ? indent : ""));
            run.append(text, line);
        }
        return text.toString();
    }

    private static Object truncate(Run run, Object value, Args args) {
        int length = args.integer(0, 255);
        String end = args.text(2, "...");
        long kept = (long) length - Strings.length(end);
        if (kept < 0) {
            throw new TemplateError("truncate to %d, which is less than %s", length, end);
        }
        if (Values.length(value) <= length + 5L) {
            return value;
        }
        if (!(value instanceof String text)) {
            throw new TemplateError("truncate needs a text, not %s", Values.typeName(value));
        }
        String cut = Strings.part(run.read(text), 0, (int) kept);
        int space = args.isTrue(1) ? -1 : cut.lastIndexOf(' ');
        return (space < 0 ? cut : cut.substring(0, space)) + end;
    }

    private static String stripTags(Run run, String html) {
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
                return run.created(rest.append(text, position, text.length()).toString());
            }
            rest.append(text, position, from);
            position = to + end.length();
        }
    }

    private static String urlEncode(Run run, Object value) {
        if (!(value instanceof String text)) {
            throw new TemplateError(
                    "urlencode of a %s is not supported, only of a text", Values.typeName(value));
        }
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
        return value instanceof String text ? run.created(Strings.lower(text)) : value;
    }

    private static List<Object> all(List<Object> elements, UnaryOperator<Object> function) {
        return new ArrayList<>(elements.stream().map(function).toList());
    }

    /** Returns the elements of a value, which are computed when the iteration reaches them. */
    private static Stream<Object> stream(Run run, Object value) {
        Iterator<Object> elements =
                Values.isTrue(value) ? Values.iterator(run, value) : Collections.emptyIterator();
        Iterable<Object> iterable = () -> elements;
        return StreamSupport.stream(iterable.spliterator(), false);
    }

    private static Object map(Run run, Object value, Args args) {
        boolean hasFilter = !args.positional().isEmpty();
        Args of = hasFilter ? args.from(1) : args.bind("map", 1, List.of("attribute", "default"));
        String filter = hasFilter ? args.text(0) : null;
        UnaryOperator<Object> function =
                hasFilter
                        ? each -> filter(run, filter, each, of)
                        : path(run, of.get(0), of.get(1, null));
        return new Values.Once(stream(run, value).map(function).iterator());
    }

    private static Object select(
            Run run, Object value, Args args, boolean ofAttribute, boolean selects) {
        if (ofAttribute && args.positional().isEmpty()) {
            throw new TemplateError("the name of an attribute to select by is missing");
        }
        UnaryOperator<Object> of = path(run, ofAttribute ? args.get(0) : null, null);
        Args rest = args.from(ofAttribute ? 1 : 0);
        boolean hasTest = !rest.positional().isEmpty();
        return new Values.Once(
                stream(run, value)
                        .filter(
                                each -> {
                                    Object tested = of.apply(each);
                                    return selects
                                            == (hasTest
                                                    ? test(run, rest.text(0), tested, rest.from(1))
                                                    : Values.isTrue(tested));
                                })
                        .iterator());
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
        UnaryOperator<Object> path = path(run, args.get(2, null), null);
        boolean ignoresCase = !args.isTrue(1);
        // As in Jinja2, keys are lists, in which undefined elements are equal.
        List<Object> keys =
                all(
                        elements,
                        each -> {
                            Object key = path.apply(each);
                            return Arrays.asList(ignoresCase ? ignoreCase(run, key) : key);
                        });
        return Values.sorted(run, elements, keys, args.isTrue(0));
    }

    private static Object sortDict(Run run, Object value) {
        if (!(value instanceof Map<?, ?> dict)) {
            throw new TemplateError("dictsort needs a dictionary, not %s", Values.typeName(value));
        }
        List<Object> keys = all(new ArrayList<>(dict.keySet()), each -> ignoreCase(run, each));
        return Values.sorted(run, Values.items(run, value), keys, false);
    }

    private static Object best(Run run, List<Object> elements, String operator) {
        Values.Comparison better = Values.COMPARISONS.get(operator);
        return elements.stream()
                .reduce(
                        (best, each) ->
                                better.holds(run, ignoreCase(run, each), ignoreCase(run, best))
                                        ? each
                                        : best)
                .orElseGet(() -> new Values.Undefined("", "there is no item"));
    }

    private static Object unique(Run run, List<Object> elements) {
        Set<Object> seen = new HashSet<>();
        List<Object> unique = new ArrayList<>(elements);
        unique.removeIf(each -> !seen.add(Values.key(run, ignoreCase(run, each))));
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

    /** Returns pairs of a key and the elements that have it, by key. */
    private static Object groups(Run run, List<Object> elements, UnaryOperator<Object> path) {
        List<Object> keys = all(elements, each -> ignoreCase(run, path.apply(each)));
        List<Object> groups = new ArrayList<>();
        List<Object> group = null;
        Object last = null;
        for (Object each : Values.sorted(run, elements, keys, false)) {
            Object own = ignoreCase(run, path.apply(each));
            if (group == null || !Values.areEqual(run, own, last)) {
                group = new ArrayList<>();
                groups.add(Values.tuple(path.apply(each), group));
            }
            group.add(each);
            last = own;
        }
        return groups;
    }

    private static Object batches(List<Object> elements, int size) {
        List<Object> batches = new ArrayList<>();
        for (int begin = 0; begin < elements.size(); begin += size) {
            int end = (int) Math.min(elements.size(), begin + (long) size);
            batches.add(new ArrayList<>(elements.subList(begin, end)));
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
