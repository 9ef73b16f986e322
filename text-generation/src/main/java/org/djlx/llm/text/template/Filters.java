// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.UnaryOperator;
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

    private interface OfText {
        Object apply(Run run, String text, Args args);
    }

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

    private static void test(String signature, Table.Body body) {
        TESTS.add(signature, body);
    }

    static {
        add("default|d ?default_value ?boolean", (run, v, a) -> otherwise(v, a));
        add("tojson ?ensure_ascii ?indent ?separators ?sort_keys", Json::filter);
        add("length|count", (run, v, a) -> Values.length(v instanceof String s ? run.read(s) : v));
        add("items", (run, v, a) -> items(run, v));
        add("string", (run, v, a) -> Values.text(run, v));
        add("safe", (run, v, a) -> new Values.Markup(Values.text(run, v)));
        add("abs", (run, v, a) -> absolute(v));
        add("int ?default", (run, v, a) -> integer(run, v, a.get(0, 0L)));
        add("float ?default", (run, v, a) -> real(run, v, a.get(0, 0.0)));
        add("round ?precision", (r, v, a) -> Numbers.round(Values.number(v), a.integer(0, 0)));
        add("format *", (run, v, a) -> format(run, Values.text(run, v), a));
        add("first", (run, v, a) -> first(Values.iterator(run, v)));
        add("last", (run, v, a) -> at(run, v, 1));
        add("random", (run, v, a) -> at(run, v, ThreadLocalRandom.current().nextDouble()));
        add("reverse", (run, v, a) -> reverse(run, v));
        add("dictsort", (run, v, a) -> sortDict(run, v));
        add("truncate ?length ?killwords ?end", Filters::truncate);
        add("indent ?width ?first ?blank", Filters::indent);
        add("map *", Filters::map);
        add("select *", (run, v, a) -> select(run, v, a, each -> each, true));
        add("reject *", (run, v, a) -> select(run, v, a, each -> each, false));
        add("selectattr *", (run, v, a) -> selectAttribute(run, v, a, true));
        add("rejectattr *", (run, v, a) -> selectAttribute(run, v, a, false));
        text("e|escape|forceescape", (run, s, a) -> escape(run, s));
        text("lower", (run, s, a) -> Strings.lower(s));
        text("upper", (run, s, a) -> Strings.upper(s));
        text("capitalize", (run, s, a) -> Strings.capitalize(s));
        text("title", (run, s, a) -> Strings.replaceWords(s, TITLE_WORD, Filters::titleCase));
        text("trim ?chars", (run, s, a) -> Strings.strip(s, a.text(0, null), true, true));
        text("center ?width", (run, s, a) -> Strings.pad(run, s, a.integer(0, 80), true));
        text("wordcount", (run, s, a) -> WORD.matcher(s).results().count());
        text("striptags", (run, s, a) -> stripTags(run, s));
        add("urlencode", (run, v, a) -> urlEncode(run, v));
        text("replace old new ?count", Strings::replace);
        list("list", (run, l, a) -> l);
        list("join ?d ?attribute", Filters::join);
        list("sort ?reverse ?case_sensitive ?attribute", Filters::sort);
        list("max", (run, l, a) -> best(run, l, ">"));
        list("min", (run, l, a) -> best(run, l, "<"));
        list("unique", (run, l, a) -> unique(run, l));
        list("sum ?attribute", (run, l, a) -> sum(run, l, path(run, a.get(0, null), null)));
        list("groupby attribute", (run, l, a) -> groups(run, l, path(run, a.text(0), null)));
        list("batch linecount", (run, l, a) -> batches(l, Math.max(1, a.integer(0, 1))));
        list("slice slices", (run, l, a) -> slices(run, l, a.integer(0, 1)));
        String comparisons = "==|eq|equalto !=|ne >|gt|greaterthan >=|ge <|lt|lessthan <=|le in";
        for (String names : comparisons.split(" ")) {
            Values.Comparison comparison = Values.COMPARISONS.get(names.split("\\|")[0]);
            test(names + " other", (run, v, a) -> comparison.holds(run, v, a.get(0)));
        }
        test("divisibleby num", (run, v, a) -> hasRest(run, v, a.get(0), 0L));
        test("even", (run, v, a) -> hasRest(run, v, 2L, 0L));
        test("odd", (run, v, a) -> hasRest(run, v, 2L, 1L));
        test("boolean", (run, v, a) -> v instanceof Boolean);
        test("true", (run, v, a) -> Boolean.TRUE.equals(v));
        test("false", (run, v, a) -> Boolean.FALSE.equals(v));
        test("none", (run, v, a) -> v == null);
        test("defined", (run, v, a) -> !(v instanceof Values.Undefined));
        test("undefined", (run, v, a) -> v instanceof Values.Undefined);
        test("float", (run, v, a) -> v instanceof Double);
        test("integer", (run, v, a) -> Numbers.isInteger(v) && !(v instanceof Boolean));
        test("number", (run, v, a) -> Numbers.isNumber(v));
        test("string", (run, v, a) -> v instanceof String || v instanceof Values.Markup);
        test("mapping", (run, v, a) -> v instanceof Map);
        test("iterable", (run, v, a) -> Values.isIterable(v));
        test("sequence", (run, v, a) -> Values.isSequence(v));
        test(
                "callable",
                (run, v, a) -> v instanceof Values.Callable || v instanceof Values.Undefined);
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
        return new Values.Markup(Values.text(run, FILTERS.call(run, name, markup.text(), args)));
    }

    /** Returns {@code value is name(args)}. */
    static boolean test(Run run, String name, Object value, Args args) {
        return (Boolean) TESTS.call(run, name, value, args);
    }

    private static boolean hasRest(Run run, Object value, Object divisor, Object rest) {
        return Values.areEqual(run, Values.binary(run, "%", value, divisor), rest);
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
            throw new TemplateError("items needs a dictionary, not %s", Values.type(value));
        }
        return once(value instanceof Map ? Values.items(run, value) : List.of());
    }

    private static Values.Markup escape(Run run, String text) {
        String escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;");
        escaped = escaped.replace("\"", "&#34;").replace("'", "&#39;");
        return new Values.Markup(run.created(escaped));
    }

    private static Object absolute(Object value) {
        Object number = Values.number(value);
        return number instanceof Double real
                ? (Object) Math.abs(real)
                : Numbers.binary("*", number, Numbers.integer(number) < 0 ? -1L : 1L);
    }

    private static Object integer(Run run, Object value, Object otherwise) {
        boolean isInteger = Numbers.isInteger(value);
        Object integer = value instanceof String text ? Numbers.parseInteger(run.read(text)) : null;
        if (isInteger || integer != null) {
            return isInteger ? Numbers.truncate(value) : integer;
        }
        Object real = real(run, value, null);
        return real == null || Numbers.isNan(real) ? otherwise : Numbers.truncate(real);
    }

    private static Object real(Run run, Object value, Object otherwise) {
        if (value instanceof Values.Undefined) {
            throw Values.wrong(value, "");
        }
        Double parsed = value instanceof String text ? Numbers.parseReal(run.read(text)) : null;
        return Numbers.isNumber(value)
                ? (Object) Numbers.real(value)
                : parsed == null ? otherwise : parsed;
    }

    private static Object format(Run run, String format, Args args) {
        if (!args.named().isEmpty()) {
            throw new TemplateError("names of values in the filter format are not supported");
        }
        return Strings.percent(run, format, Values.tuple(args.positional().toArray()));
    }

    private static Object first(Iterator<Object> elements) {
        return elements.hasNext()
                ? elements.next()
                : new Values.Undefined("", "there is no first item");
    }

    /** Returns the element at a place between 0, the first, and 1, the last. */
    private static Object at(Run run, Object value, double place) {
        if (!Values.isSequence(value) || value instanceof Map) {
            throw new TemplateError("last and random need a list, not %s", Values.type(value));
        }
        List<Object> all = Values.list(run, value);
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

    private static String titleCase(String word) {
        int rest = word.offsetByCodePoints(0, 1);
        return Strings.upper(word.substring(0, rest)) + Strings.lower(word.substring(rest));
    }

    private static String indent(Run run, Object value, Args args) {
        String text = run.read(Values.requireText(value));
        String indent = Strings.indent(run, args.get(0, 4L));
        List<Object> lines = Strings.lines(run, text + "\n");
        for (int i = 0; i < lines.size(); i++) {
            boolean indents = args.isTrue(i == 0 ? 1 : 2) || i > 0 && !lines.get(i).equals("");
            lines.set(i, indents ? Values.binary(run, "+", indent, lines.get(i)) : lines.get(i));
        }
        return Strings.join(run, "\n", lines);
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
        String cut = Strings.part(run.read(Values.requireText(value)), 0, (int) kept);
        int space = args.isTrue(1) ? -1 : cut.lastIndexOf(' ');
        return (space < 0 ? cut : cut.substring(0, space)) + end;
    }

    private static String stripTags(Run run, String html) {
        String text = html.replaceAll("<[^<>]*+>", "");
        if (text.indexOf('&') >= 0 || text.indexOf('<') >= 0 || html.contains("<!--")) {
            throw new TemplateError(
                    "the filter striptags of a text with comments, & or < is not supported");
        }
        return Strings.join(run, " ", Strings.split(run, text, null, -1));
    }

    private static String urlEncode(Run run, Object value) {
        if (value instanceof List || value instanceof Map || value instanceof Values.Once) {
            throw new TemplateError("urlencode of a %s is not supported", Values.type(value));
        }
        String text = Values.text(run, value);
        run.requireLength(text.length() * 9L);
        String form = URLEncoder.encode(text, StandardCharsets.UTF_8);
        form = form.replace("+", "%20").replace("*", "%2A");
        return form.replace("%7E", "~").replace("%2F", "/");
    }

    /** Returns a function for the value at a path, such as {@code a.b.0}, or null for no path. */
    private static UnaryOperator<Object> path(Run run, Object path, Object otherwise) {
        List<Object> keys = new ArrayList<>();
        if (path instanceof String text) {
            keys.addAll(Strings.split(run, text, ".", -1));
            keys.replaceAll(
                    key ->
                            ((String) key).matches("\\d+")
                                    ? Numbers.parseInteger((String) key)
                                    : key);
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
        List<Object> all = new ArrayList<>(elements);
        all.replaceAll(function);
        return all;
    }

    /** Returns the elements of a value, which are computed when the iteration reaches them. */
    private static Stream<Object> stream(Run run, Object value) {
        List<Object> none = List.of();
        Iterator<Object> elements = Values.iterator(run, Values.isTrue(value) ? value : none);
        Iterable<Object> iterable = () -> elements;
        return StreamSupport.stream(iterable.spliterator(), false);
    }

    private static Object map(Run run, Object value, Args args) {
        boolean hasFilter = !args.positional().isEmpty();
        Args rest = hasFilter ? args.from(1) : args.bind("map", 1, List.of("attribute", "default"));
        String filter = hasFilter ? args.text(0) : null;
        UnaryOperator<Object> function =
                hasFilter
                        ? each -> filter(run, filter, each, rest)
                        : path(run, rest.get(0), rest.get(1, null));
        return new Values.Once(stream(run, value).map(function).iterator());
    }

    private static Object selectAttribute(Run run, Object value, Args args, boolean selects) {
        if (args.positional().isEmpty()) {
            throw new TemplateError("the name of an attribute to select by is missing");
        }
        return select(run, value, args.from(1), path(run, args.get(0), null), selects);
    }

    private static Object select(
            Run run, Object value, Args args, UnaryOperator<Object> of, boolean selects) {
        boolean hasTest = !args.positional().isEmpty();
        Args rest = hasTest ? args.from(1) : args;
        UnaryOperator<Object> test =
                hasTest ? tested -> test(run, args.text(0), tested, rest) : tested -> tested;
        return new Values.Once(
                stream(run, value)
                        .filter(each -> Values.isTrue(test.apply(of.apply(each))) == selects)
                        .iterator());
    }

    private static Object join(Run run, List<Object> elements, Args args) {
        UnaryOperator<Object> path = path(run, args.get(1, null), null);
        List<Object> texts = all(elements, each -> Values.text(run, path.apply(each)));
        return Strings.join(run, Values.text(run, args.get(0, "")), texts);
    }

    private static Object sort(Run run, List<Object> elements, Args args) {
        if (args.get(2, null) instanceof String path && path.indexOf(',') >= 0) {
            throw new TemplateError("sort by several attributes is not supported: %s", path);
        }
        UnaryOperator<Object> path = path(run, args.get(2, null), null);
        List<Object> keys = all(elements, path);
        keys = args.isTrue(1) ? keys : all(keys, each -> ignoreCase(run, each));
        return Values.sorted(run, elements, keys, args.isTrue(0));
    }

    private static Object sortDict(Run run, Object value) {
        if (!(value instanceof Map<?, ?> dict)) {
            throw new TemplateError("dictsort needs a dictionary, not %s", Values.type(value));
        }
        List<Object> keys = all(new ArrayList<>(dict.keySet()), each -> ignoreCase(run, each));
        return Values.sorted(run, Values.items(run, value), keys, false);
    }

    private static Object best(Run run, List<Object> elements, String operator) {
        Values.Comparison better = Values.COMPARISONS.get(operator);
        Object best = new Values.Undefined("", "there is no item");
        for (Object each : elements) {
            boolean isFirst = best instanceof Values.Undefined;
            best =
                    isFirst || better.holds(run, ignoreCase(run, each), ignoreCase(run, best))
                            ? each
                            : best;
        }
        return best;
    }

    private static Object unique(Run run, List<Object> elements) {
        Set<Object> seen = new HashSet<>();
        elements.removeIf(each -> !seen.add(Values.key(run, ignoreCase(run, each))));
        return once(elements);
    }

    private static Object sum(Run run, List<Object> elements, UnaryOperator<Object> path) {
        Object sum = 0L;
        for (Object each : elements) {
            sum = Values.binary(run, "+", sum, path.apply(each));
        }
        return sum;
    }

    /** Returns pairs of a key and the elements that have it, by key. */
    private static Object groups(Run run, List<Object> elements, UnaryOperator<Object> path) {
        Map<Object, List<Object>> groups = new LinkedHashMap<>();
        for (Object each : elements) {
            Object key = Values.key(run, ignoreCase(run, path.apply(each)));
            groups.computeIfAbsent(key, none -> new ArrayList<>()).add(each);
        }
        List<Object> keys = new ArrayList<>(groups.keySet());
        return all(
                Values.sorted(run, keys, keys, false),
                key -> Values.tuple(path.apply(groups.get(key).get(0)), groups.get(key)));
    }

    private static Object batches(List<Object> elements, int size) {
        List<Object> batches = new ArrayList<>();
        for (long begin = 0; begin < elements.size(); begin += size) {
            int end = (int) Math.min(elements.size(), begin + size);
            batches.add(new ArrayList<>(elements.subList((int) begin, end)));
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
