// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
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

    static final Set<String> NAMES =
            Set.of(
                    "abs",
                    "attr",
                    "batch",
                    "capitalize",
                    "center",
                    "count",
                    "d",
                    "default",
                    "dictsort",
                    "e",
                    "escape",
                    "first",
                    "float",
                    "forceescape",
                    "format",
                    "groupby",
                    "indent",
                    "int",
                    "items",
                    "join",
                    "last",
                    "length",
                    "list",
                    "lower",
                    "map",
                    "max",
                    "min",
                    "random",
                    "reject",
                    "rejectattr",
                    "replace",
                    "reverse",
                    "round",
                    "safe",
                    "select",
                    "selectattr",
                    "slice",
                    "sort",
                    "string",
                    "striptags",
                    "sum",
                    "title",
                    "tojson",
                    "trim",
                    "truncate",
                    "unique",
                    "upper",
                    "urlencode",
                    "wordcount");
    private static final Pattern WORD_BEGIN =
            Pattern.compile("[-\\s({\\[<]+", Pattern.UNICODE_CHARACTER_CLASS);
    private static final Pattern WORD = Pattern.compile("\\w+", Pattern.UNICODE_CHARACTER_CLASS);
    private static final Pattern ENTITY =
            Pattern.compile("&(?:(lt|gt|amp|quot|apos)|#(\\d{1,7})|#[xX](\\p{XDigit}{1,6})|\\w+);");

    private Filters() {}

    /** Returns {@code value|name(args)}. */
    static Object call(Run run, String name, Object value, Args args) {
        run.step();
        return switch (name) {
            case "default", "d" -> {
                Args bound = args.bind(name, 0, "default_value", "boolean");
                boolean missing = value instanceof Values.Undefined;
                boolean isFalse = Values.isTrue(bound.get(1, false)) && !Values.isTrue(value);
                yield missing || isFalse ? bound.get(0, "") : value;
            }
            case "tojson" -> Json.write(run, value, args);
            case "items" -> {
                args.bind(name, 0);
                if (!(value instanceof Values.Dict) && !(value instanceof Values.Undefined)) {
                    throw new TemplateError(
                            "items needs a dictionary, not %s", Values.typeName(value));
                }
                yield once(
                        value instanceof Values.Dict dict ? run.counted(dict.items()) : List.of());
            }
            case "length", "count" -> {
                args.bind(name, 0);
                Values.countText(run, value);
                yield Values.length(value);
            }
            case "string" -> {
                args.bind(name, 0);
                yield value instanceof Values.Markup ? value : Values.text(run, value);
            }
            case "safe" -> {
                args.bind(name, 0);
                yield new Values.Markup(Values.text(run, value));
            }
            case "e", "escape", "forceescape" -> {
                args.bind(name, 0);
                boolean again = name.equals("forceescape") || !(value instanceof Values.Markup);
                yield Values.escape(again ? run.counted(Values.text(run, value)) : value);
            }
            case "abs", "int", "float", "round" -> number(run, name, value, args);
            case "attr" -> attribute(run, value, args);
            case "format" -> {
                if (!args.positional().isEmpty() && !args.named().isEmpty()) {
                    throw new TemplateError("format takes values or names, not both");
                }
                Values.Dict dict = new Values.Dict();
                args.named().forEach(dict::put);
                Object values = dict.size() > 0 ? dict : new Values.Tuple(args.positional());
                yield Formats.percent(run, Values.text(run, value), values);
            }
            case "capitalize",
                    "center",
                    "indent",
                    "lower",
                    "replace",
                    "striptags",
                    "title",
                    "trim",
                    "truncate",
                    "upper",
                    "urlencode",
                    "wordcount" ->
                    text(run, name, value, args);
            case "map" -> map(run, value, args);
            case "select", "reject", "selectattr", "rejectattr" -> select(run, name, value, args);
            default -> list(run, name, value, args);
        };
    }

    private static Values.Once once(List<Object> elements) {
        return new Values.Once(elements.iterator());
    }

    private static Object number(Run run, String name, Object value, Args args) {
        if (value instanceof Values.Undefined undefined) {
            throw undefined.error();
        }
        run.step(Values.isText(value) ? Values.text(run, value).length() >> 3 : 0);
        switch (name) {
            case "abs":
                args.bind(name, 0);
                if (value instanceof Double real) {
                    return Math.abs(real);
                }
                boolean negative =
                        Numbers.isInteger(value) && Values.isOrdered(run, "<", value, 0L);
                return Values.negate(negative ? value : Values.negate(value));
            case "int":
                Args bound = args.bind(name, 0, "default", "base");
                Object integer = integer(value, bound.integer(1, 10));
                return integer == null ? bound.get(0, 0L) : integer;
            case "float":
                Object otherwise = args.bind(name, 0, "default").get(0, 0.0);
                Double parsed =
                        Values.isText(value) ? Numbers.parseReal(Values.text(run, value)) : null;
                return Numbers.isNumber(value)
                        ? (Object) Numbers.real(value)
                        : parsed == null ? otherwise : parsed;
            default: // round
                Args rounding = args.bind(name, 0, "precision", "method");
                int digits = rounding.integer(0, 0);
                String method = rounding.has(1) ? rounding.requiredText(1) : "common";
                if (!List.of("common", "ceil", "floor").contains(method)) {
                    throw new TemplateError("round by common, ceil or floor, not %s", method);
                }
                if (!Numbers.isNumber(value)) {
                    throw new TemplateError(
                            "a value of type %s cannot be rounded", Values.typeName(value));
                }
                if (method.equals("common")) {
                    return Numbers.round(value, digits);
                }
                Object unit = Numbers.binary("**", 10L, (long) digits);
                double scaled = Numbers.real(Numbers.binary("*", value, unit));
                Object whole =
                        Numbers.truncate(
                                method.equals("ceil") ? Math.ceil(scaled) : Math.floor(scaled));
                return Numbers.binary("/", whole, unit);
        }
    }

    private static Object integer(Object value, int base) {
        if (value instanceof Double real) {
            return real.isNaN() ? null : Numbers.truncate(real);
        }
        if (Numbers.isInteger(value)) {
            return Numbers.narrow(Numbers.big(value));
        }
        if (!Values.isText(value)) {
            return null;
        }
        String text = value instanceof Values.Markup markup ? markup.text() : (String) value;
        Object integer = Numbers.parseInteger(text, base);
        Double real = integer == null ? Numbers.parseReal(text) : null;
        return real == null || real.isNaN() ? integer : Numbers.truncate(real);
    }

    private static Object attribute(Run run, Object value, Args args) {
        String name = args.bind("attr", 1, "name").requiredText(0);
        if (value instanceof Values.Dict dict && dict.has(name)) { // Elements are no attributes.
            Object method = Values.attribute(run, new Values.Dict(), name);
            return method instanceof Values.Undefined ? method : Values.attribute(run, value, name);
        }
        return Values.attribute(run, value, name);
    }

    private static Object text(Run run, String name, Object value, Args args) {
        String text = run.counted(Values.text(run, value));
        run.step(text.length() >> 3);
        return switch (name) {
            case "capitalize", "lower", "upper" ->
                    Strings.call(run, text, name, args.bind(name, 0));
            case "center" -> {
                int width = args.bind(name, 0, "width").integer(0, 80);
                yield Strings.pad(run, text, width, " ", 2);
            }
            case "indent" -> indent(run, value, args.bind(name, 0, "width", "first", "blank"));
            case "replace" -> {
                Args bound = args.bind(name, 2, "old", "new", "count");
                String old = Values.text(run, bound.get(0));
                int count = bound.get(2, null) == null ? -1 : bound.integer(2, -1);
                yield Strings.replace(run, text, old, Values.text(run, bound.get(1)), count);
            }
            case "striptags" -> {
                args.bind(name, 0);
                yield stripTags(run, text);
            }
            case "title" -> {
                args.bind(name, 0);
                yield title(text);
            }
            case "trim" -> Strings.strip(text, args.bind(name, 0, "chars").text(0), true, true);
            case "truncate" -> truncate(run, value, args);
            case "urlencode" -> {
                args.bind(name, 0);
                yield urlEncode(run, value);
            }
            default -> { // wordcount
                args.bind(name, 0);
                yield WORD.matcher(text).results().count();
            }
        };
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
        if (!Values.isText(value)) {
            throw new TemplateError("indent needs a text, not %s", Values.typeName(value));
        }
        Object width = args.get(0, 4L);
        int spaces = Values.isText(width) ? 0 : Math.max(0, Numbers.toInt(width));
        run.requireLength(spaces);
        String indent = Values.isText(width) ? Values.text(run, width) : " ".repeat(spaces);
        List<Object> lines = run.counted(Strings.lines(Values.text(run, value) + "\n", false));
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < lines.size(); i++) {
            String line = (String) lines.get(i);
            boolean indents =
                    i == 0
                            ? Values.isTrue(args.get(1, false))
                            : Values.isTrue(args.get(2, false)) || !line.isEmpty();
            run.requireLength(
                    text.length() + (long) indent.length() > Run.MAX_LENGTH
                            ? Long.MAX_VALUE
                            : indent.length());
            text.append(i == 0 ? "" : "\n").append(indents ? indent : "").append(line);
        }
        return text.toString();
    }

    private static Object truncate(Run run, Object value, Args args) {
        Args bound = args.bind("truncate", 0, "length", "killwords", "end", "leeway");
        int length = bound.integer(0, 255);
        String end = bound.has(2) ? bound.requiredText(2) : "...";
        int leeway = bound.get(3, null) == null ? 5 : bound.integer(3, 5);
        long kept = (long) length - Strings.length(end);
        if (kept < 0 || leeway < 0) {
            throw new TemplateError("truncate to %d, with %s and leeway %d", length, end, leeway);
        }
        if (Values.length(value) <= (long) length + leeway) {
            return value;
        }
        if (!Values.isText(value)) {
            throw new TemplateError("truncate needs a text, not %s", Values.typeName(value));
        }
        String cut = Strings.part(Values.text(run, value), 0, (int) kept);
        int space = Values.isTrue(bound.get(1, false)) ? -1 : cut.lastIndexOf(' ');
        return (space < 0 ? cut : cut.substring(0, space)) + end;
    }

    private static String stripTags(Run run, String html) {
        String text = without(run, without(run, html, "<!--", "-->"), "<", ">");
        List<String> words = new ArrayList<>();
        Strings.split(run, text, null, -1).forEach(word -> words.add((String) word));
        return ENTITY.matcher(String.join(" ", words))
                .replaceAll(
                        found -> {
                            String plain;
                            if (found.group(1) != null) {
                                plain =
                                        "<>&\"'"
                                                .substring(
                                                        "lt gt amp quotapos".indexOf(found.group(1))
                                                                / 3)
                                                .substring(0, 1);
                            } else if (found.group(2) != null || found.group(3) != null) {
                                boolean decimal = found.group(2) != null;
                                int c =
                                        Integer.parseInt(
                                                found.group(decimal ? 2 : 3), decimal ? 10 : 16);
                                plain =
                                        Character.isValidCodePoint(c)
                                                ? Character.toString(c)
                                                : "\uFFFD";
                            } else {
                                throw new TemplateError(
                                        "the entity %s is not supported", found.group());
                            }
                            return Matcher.quoteReplacement(plain);
                        });
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
        if (Values.isText(value) || !Values.isIterable(value)) {
            return quoteUrl(run, Values.text(run, value), false);
        }
        List<String> pairs = new ArrayList<>();
        for (Object each :
                value instanceof Values.Dict dict ? dict.items() : Values.elements(run, value)) {
            List<Object> pair = Values.elements(run, each);
            if (pair.size() != 2) {
                throw new TemplateError("urlencode needs pairs");
            }
            pairs.add(
                    quoteUrl(run, Values.text(run, pair.get(0)), true)
                            + "="
                            + quoteUrl(run, Values.text(run, pair.get(1)), true));
        }
        return run.counted(String.join("&", pairs));
    }

    private static String quoteUrl(Run run, String text, boolean isQuery) {
        run.requireLength(text.length() * 3L);
        StringBuilder quoted = new StringBuilder();
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            char c = (char) (b & 0xff);
            boolean plain =
                    c < 128
                            && (Character.isLetterOrDigit(c)
                                    || "_.-~".indexOf(c) >= 0
                                    || c == '/' && !isQuery);
            quoted.append(
                    plain
                            ? String.valueOf(c)
                            : c == ' ' && isQuery
                                    ? "+"
                                    : "%" + HexFormat.of().withUpperCase().toHexDigits((byte) c));
        }
        return quoted.toString();
    }

    /**
     * Returns a function that finds the value at a path of attributes, such as {@code a.b.0}. If
     * the path is null, it returns its argument.
     */
    private static UnaryOperator<Object> path(Run run, Object path, Object otherwise) {
        List<Object> keys = new ArrayList<>();
        if (path instanceof String text) {
            for (Object part : Strings.split(run, text, ".", -1)) {
                String key = (String) part;
                keys.add(key.matches("\\d+") ? Numbers.parseInteger(key, 10) : key);
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

    private static Object map(Run run, Object value, Args args) {
        if (!Values.isTrue(value)) {
            return once(List.of());
        }
        UnaryOperator<Object> function;
        if (args.positional().isEmpty() && args.named().containsKey("attribute")) {
            Args bound = args.bind("map", 0, "attribute", "default");
            function = path(run, bound.get(0), bound.get(1, null));
        } else {
            if (args.positional().isEmpty()) {
                throw new TemplateError("map needs the name of a filter, or attribute");
            }
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

    private static Object select(Run run, String name, Object value, Args args) {
        if (!Values.isTrue(value)) {
            return once(List.of());
        }
        boolean ofAttribute = name.endsWith("attr");
        if (ofAttribute && args.positional().isEmpty()) {
            throw new TemplateError("%s needs the name of an attribute", name);
        }
        UnaryOperator<Object> of = path(run, ofAttribute ? args.get(0) : null, null);
        Args rest = args.from(ofAttribute ? 1 : 0);
        boolean selects = name.startsWith("select");
        return new Values.Once(
                new Parser.Selected(
                        Values.iterator(run, value),
                        each -> {
                            Object tested = of.apply(each);
                            boolean holds =
                                    rest.positional().isEmpty()
                                            ? Values.isTrue(tested)
                                            : Tests.holds(
                                                    run,
                                                    rest.requiredText(0),
                                                    tested,
                                                    rest.from(1));
                            return holds == selects;
                        }));
    }

    /** Calls a filter of lists. */
    private static Object list(Run run, String name, Object value, Args args) {
        switch (name) {
            case "first":
                args.bind(name, 0);
                Iterator<Object> elements = Values.iterator(run, value);
                return elements.hasNext()
                        ? elements.next()
                        : new Values.Undefined(name, "there is no first item");
            case "reverse":
                args.bind(name, 0);
                if (Values.isText(value)) {
                    return run.counted(Strings.reverse(Values.text(run, value)));
                }
                List<Object> reversed = Values.elements(run, value);
                Collections.reverse(reversed);
                return value instanceof Values.Once ? reversed : once(reversed);
            case "join":
                Args joining = args.bind(name, 0, "d", "attribute");
                UnaryOperator<Object> joined = path(run, joining.get(1, null), null);
                List<Object> texts = new ArrayList<>();
                for (Object each : Values.elements(run, value)) {
                    texts.add(Values.text(run, joined.apply(each)));
                }
                return Strings.call(
                        run, Values.text(run, joining.get(0, "")), name, Args.of(texts));
            case "dictsort":
                return sortDict(run, value, args.bind(name, 0, "case_sensitive", "by", "reverse"));
            case "last", "random":
                args.bind(name, 0);
                if (value instanceof Values.Once
                        || name.equals("random") && value instanceof Values.Dict) {
                    throw new TemplateError(
                            "%s needs a list, not %s", name, Values.typeName(value));
                }
                List<Object> all = Values.elements(run, value);
                int index = all.size() - 1;
                index =
                        index > 0 && name.equals("random")
                                ? ThreadLocalRandom.current().nextInt(all.size())
                                : index;
                return index < 0
                        ? new Values.Undefined(name, "there is no " + name + " item")
                        : all.get(index);
            default:
                return ofElements(run, name, Values.elements(run, value), args);
        }
    }

    private static Object ofElements(Run run, String name, List<Object> elements, Args args) {
        return switch (name) {
            case "list" -> {
                args.bind(name, 0);
                yield elements;
            }
            case "sort" -> {
                Args bound = args.bind(name, 0, "reverse", "case_sensitive", "attribute");
                Object attribute = bound.get(2, null);
                List<UnaryOperator<Object>> paths = new ArrayList<>();
                for (Object each :
                        attribute instanceof String text
                                ? Strings.split(run, text, ",", -1)
                                : Collections.singletonList(attribute)) {
                    paths.add(path(run, each, null));
                }
                boolean exact = Values.isTrue(bound.get(1, false));
                List<Object> keys = new ArrayList<>();
                for (Object element : elements) {
                    List<Object> key = new ArrayList<>();
                    paths.forEach(
                            path ->
                                    key.add(
                                            exact
                                                    ? path.apply(element)
                                                    : ignoreCase(run, path.apply(element))));
                    keys.add(key);
                }
                yield Values.sorted(run, elements, keys, Values.isTrue(bound.get(0, false)));
            }
            case "max", "min" -> {
                Args bound = args.bind(name, 0, "case_sensitive", "attribute");
                UnaryOperator<Object> key =
                        key(run, path(run, bound.get(1, null), null), bound.get(0, false));
                Object best = new Values.Undefined(name, "there is no item");
                for (int i = 0; i < elements.size(); i++) {
                    String operator = name.equals("max") ? ">" : "<";
                    boolean better =
                            i == 0
                                    || Values.isOrdered(
                                            run,
                                            operator,
                                            key.apply(elements.get(i)),
                                            key.apply(best));
                    best = better ? elements.get(i) : best;
                }
                yield best;
            }
            case "unique" -> {
                Args bound = args.bind(name, 0, "case_sensitive", "attribute");
                UnaryOperator<Object> key =
                        key(run, path(run, bound.get(1, null), null), bound.get(0, false));
                Values.Dict seen = new Values.Dict();
                List<Object> unique = new ArrayList<>();
                for (Object each : elements) {
                    Object of = key.apply(each);
                    if (!seen.has(of)) {
                        seen.put(of, null);
                        unique.add(each);
                    }
                }
                yield once(unique);
            }
            case "sum" -> {
                Args bound = args.bind(name, 0, "attribute", "start");
                UnaryOperator<Object> of = path(run, bound.get(0, null), null);
                Object sum = bound.get(1, 0L);
                if (Values.isText(sum)) {
                    throw new TemplateError("sum adds no texts");
                }
                for (Object each : elements) {
                    sum = Values.binary(run, "+", sum, of.apply(each));
                }
                yield sum;
            }
            case "groupby" ->
                    groups(
                            run,
                            elements,
                            args.bind(name, 1, "attribute", "default", "case_sensitive"));
            case "batch" -> {
                Args bound = args.bind(name, 1, "linecount", "fill_with");
                int size = Numbers.toInt(bound.get(0));
                List<Object> batches = new ArrayList<>();
                List<Object> batch = new ArrayList<>();
                for (Object each : elements) {
                    if (batch.size() == size) {
                        batches.add(batch);
                        batch = new ArrayList<>();
                    }
                    batch.add(each);
                }
                Object fill = bound.get(1, null);
                if (!batch.isEmpty()) {
                    run.requireSize(fill == null ? 0 : size);
                    while (fill != null && batch.size() < size) {
                        batch.add(fill);
                    }
                    batches.add(batch);
                }
                yield once(batches);
            }
            case "slice" -> {
                Args bound = args.bind(name, 1, "slices", "fill_with");
                int count = Numbers.toInt(bound.get(0));
                if (count == 0) {
                    throw new TemplateError("slice needs a number above 0");
                }
                run.requireSize(Math.max(0, count));
                List<Object> slices = new ArrayList<>();
                int begin = 0;
                for (int i = 0; i < count; i++) {
                    boolean isLonger = i < elements.size() % count;
                    int end = begin + elements.size() / count + (isLonger ? 1 : 0);
                    List<Object> slice = new ArrayList<>(elements.subList(begin, end));
                    if (bound.get(1, null) != null && !isLonger) {
                        slice.add(bound.get(1));
                    }
                    slices.add(slice);
                    begin = end;
                }
                yield once(slices);
            }
            default -> throw new TemplateError("the filter %s is not supported", name);
        };
    }

    private static UnaryOperator<Object> key(
            Run run, UnaryOperator<Object> path, Object caseSensitive) {
        return Values.isTrue(caseSensitive) ? path : value -> ignoreCase(run, path.apply(value));
    }

    private static Object sortDict(Run run, Object value, Args args) {
        String by = args.has(1) ? args.requiredText(1) : "key";
        if (!(value instanceof Values.Dict dict) || !Set.of("key", "value").contains(by)) {
            throw new TemplateError("dictsort sorts a dictionary by key or value");
        }
        List<Object> keys = new ArrayList<>();
        for (Object each : by.equals("key") ? dict.keys() : dict.values()) {
            keys.add(Values.isTrue(args.get(0, false)) ? each : ignoreCase(run, each));
        }
        return Values.sorted(
                run, run.counted(dict.items()), keys, Values.isTrue(args.get(2, false)));
    }

    private static Object groups(Run run, List<Object> elements, Args args) {
        UnaryOperator<Object> path = path(run, args.get(0), args.get(1, null));
        UnaryOperator<Object> key = key(run, path, args.get(2, false));
        List<Object> keys = new ArrayList<>();
        elements.forEach(each -> keys.add(key.apply(each)));
        List<Object> groups = new ArrayList<>();
        List<Object> group = null;
        Object last = null;
        for (Object each : Values.sorted(run, elements, keys, false)) {
            Object own = key.apply(each);
            if (group == null || !Values.areEqual(run, own, last)) {
                group = new ArrayList<>();
                groups.add(
                        new Values.Tuple(
                                new ArrayList<>(java.util.Arrays.asList(path.apply(each), group)),
                                "grouper",
                                "list"));
            }
            group.add(each);
            last = own;
        }
        return groups;
    }
}
