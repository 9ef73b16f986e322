// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.AbstractList;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * What Python does with values: null, Boolean, Long, BigInteger, Double, String, List, Map, and the
 * types nested here.
 */
final class Values {

    private static final int MAX_INPUT_DEPTH = 100;
    private static final int MAX_NAME = 200; // characters of a missing one in a message
    private static final Table DICT_METHODS =
            new Table("method")
                    .add("keys", (run, d, a) -> new Sequence("dict_keys", keys(run, d)))
                    .add("values", (run, d, a) -> new Sequence("dict_values", values(run, d)))
                    .add("items", (run, d, a) -> new Sequence("dict_items", items(run, d)))
                    .add("get key ?default", (run, d, a) -> get(run, d, a.get(0), a.get(1, null)));
    private static final Map<String, Table> METHODS =
            Map.of("str", Strings.METHODS, "dict", DICT_METHODS);

    /** Attributes that change a value, by type. */
    private static final Map<String, Set<String>> MUTATORS =
            Map.of(
                    "list", names("append clear extend insert pop remove reverse sort"),
                    "dict", names("clear pop popitem setdefault update"));

    /** Attributes that Python or Jinja2 has, and that are refused by name, by type. */
    private static final Map<String, Set<String>> REFUSED =
            Map.of(
                    "str",
                    names(
                            "casefold center encode expandtabs format_map isalnum isascii isdecimal"
                                    + " isidentifier islower isnumeric isprintable isspace istitle"
                                    + " isupper maketrans rfind rindex rjust rpartition swapcase"
                                    + " translate zfill"),
                    "list",
                    names("copy count index"),
                    "tuple",
                    names("count grouper index list"),
                    "dict",
                    names("copy fromkeys"),
                    "function",
                    names("arguments caller catch_kwargs catch_varargs name"),
                    "loop",
                    names("changed depth depth0"));

    /** Compares two values. */
    interface Comparison {
        boolean holds(Run run, Object a, Object b);
    }

    static final Map<String, Comparison> COMPARISONS =
            Map.of(
                    "==", Values::areEqual,
                    "!=", (run, a, b) -> !areEqual(run, a, b),
                    "in", Values::isIn,
                    "not in", (run, a, b) -> !isIn(run, a, b),
                    "<", (run, a, b) -> isOrdered(run, a, b, order -> order < 0),
                    "<=", (run, a, b) -> isOrdered(run, a, b, order -> order <= 0),
                    ">", (run, a, b) -> isOrdered(run, a, b, order -> order > 0),
                    ">=", (run, a, b) -> isOrdered(run, a, b, order -> order >= 0));

    private Values() {}

    private static Set<String> names(String names) {
        return Set.of(names.split(" "));
    }

    /** A function, a method of a value, or a macro. */
    interface Callable {
        Object call(Run run, Args args);
    }

    /** A missing value: it prints nothing, and most else that is done with it is an error. */
    record Undefined(String name, String reason) {

        Undefined(String name) {
            this(name, "'" + name + "' is undefined");
        }
    }

    /** An escaped text, or one that is safe: it can be printed, and little else. */
    record Markup(String text) {}

    /** Elements that can be iterated over once, as with Python's generators. */
    record Once(Iterator<Object> elements) {}

    /** Variables that a template can change. Equal only to itself. */
    static final class Namespace {
        final Map<String, Object> attributes = new LinkedHashMap<>();
    }

    /** An immutable list: a tuple, a range, or the keys, values or items of a dictionary. */
    static final class Sequence extends AbstractList<Object> {

        final String type;
        private final List<Object> elements;

        Sequence(String type, List<Object> elements) {
            this.type = type;
            this.elements = elements;
        }

        @Override
        public Object get(int index) {
            return elements.get(index);
        }

        @Override
        public int size() {
            return elements.size();
        }
    }

    static Sequence tuple(Object... elements) {
        return new Sequence("tuple", Arrays.asList(elements));
    }

    /** Returns elements as a list, or as a sequence of the type of another value. */
    private static List<Object> like(Object other, List<Object> elements) {
        return other instanceof Sequence same ? new Sequence(same.type, elements) : elements;
    }

    /** Returns the value for a Java object: strings, numbers, booleans, lists, maps and null. */
    static Object of(Object object, int depth) {
        if (depth > MAX_INPUT_DEPTH) {
            throw new TemplateError("a variable is nested more than %d deep", MAX_INPUT_DEPTH);
        }
        if (object == null || object instanceof Boolean || object instanceof CharSequence) {
            return object instanceof CharSequence ? object.toString() : object;
        }
        if (object instanceof Number number) { // Gson's LazilyParsedNumber may be an integer.
            boolean isReal = object instanceof Double || object instanceof Float;
            Object integer = isReal ? null : Numbers.parseInteger(number.toString());
            return integer != null ? integer : (Object) number.doubleValue();
        }
        if (object instanceof Map<?, ?> map) {
            Map<Object, Object> dict = new LinkedHashMap<>();
            map.forEach((key, value) -> dict.put(of(key, depth + 1), of(value, depth + 1)));
            return map instanceof Template.Arguments ? new Template.Arguments(dict) : dict;
        }
        if (object instanceof Collection<?> collection) {
            List<Object> list = new ArrayList<>();
            collection.forEach(each -> list.add(of(each, depth + 1)));
            return list;
        }
        throw new TemplateError(
                "a variable is a %s; supported are strings, numbers, booleans, lists and maps",
                object.getClass().getName());
    }

    /** Returns the name of Python's type. */
    static String type(Object value) {
        if (value == null || value instanceof Boolean) {
            return value == null ? "NoneType" : "bool";
        }
        if (Numbers.isNumber(value)) {
            return value instanceof Double ? "float" : "int";
        }
        if (value instanceof List) {
            return value instanceof Sequence sequence ? sequence.type : "list";
        }
        if (value instanceof Map || value instanceof Callable) {
            return value instanceof Map ? "dict" : "function";
        }
        String name = value.getClass().getSimpleName();
        return switch (name) {
            case "String" -> "str";
            case "Once" -> "generator";
            case "Markup" -> name;
            default -> name.toLowerCase(Locale.ROOT);
        };
    }

    static boolean isTrue(Object value) {
        if (value instanceof Boolean flag) {
            return flag;
        }
        return value instanceof Number number
                ? number.doubleValue() != 0
                : value != null && !(hasLength(value) && length(value) == 0);
    }

    private static boolean hasLength(Object value) {
        return value instanceof Collection
                || value instanceof Map
                || value instanceof String
                || value instanceof Markup
                || value instanceof Undefined;
    }

    static long length(Object value) {
        if (!hasLength(value)) {
            throw new TemplateError("a value of type %s has no length", type(value));
        }
        if (value instanceof Collection<?> collection) {
            return collection.size();
        }
        if (value instanceof Map<?, ?> map) {
            return map.size();
        }
        String text = value instanceof Markup markup ? markup.text : value.toString();
        return value instanceof Undefined ? 0 : Strings.length(text);
    }

    static boolean isIterable(Object value) {
        return hasLength(value) || value instanceof Once;
    }

    private static boolean isList(Object value) {
        return type(value).equals("list") || type(value).equals("tuple");
    }

    /** Returns whether a value has indices, as a list or a text, but not a dictionary's keys. */
    static boolean isSequence(Object value) {
        return hasLength(value) && !type(value).startsWith("dict_");
    }

    /** Returns the elements of an iterable value, which may be that list. */
    @SuppressWarnings("unchecked") // A value's list holds any values.
    static List<Object> list(Run run, Object value) {
        return value instanceof List ? (List<Object>) value : elements(run, value);
    }

    static List<Object> elements(Run run, Object value) {
        if (value instanceof String text) {
            return Strings.characters(run, text);
        }
        if (!isIterable(value) || value instanceof Markup) {
            throw new TemplateError("a value of type %s cannot be iterated over", type(value));
        }
        if (value instanceof Map || value instanceof Undefined) {
            return value instanceof Map ? keys(run, value) : new ArrayList<>();
        }
        List<Object> elements = new ArrayList<>();
        Iterator<?> iterator =
                value instanceof Once once ? once.elements : ((List<?>) value).iterator();
        while (iterator.hasNext()) {
            elements.add(iterator.next());
            run.requireElement(elements.size());
        }
        return elements;
    }

    static Iterator<Object> iterator(Run run, Object value) {
        return value instanceof Once once ? once.elements : list(run, value).iterator();
    }

    /** Returns {@code str(value)}. */
    static String text(Run run, Object value) {
        if (value instanceof String || value instanceof Undefined) {
            return value instanceof String text ? text : "";
        }
        return value instanceof Markup markup ? markup.text : new Repr(run).write(value);
    }

    static String requireText(Object value) {
        if (value instanceof String || value instanceof Markup) {
            return value instanceof Markup markup ? markup.text : (String) value;
        }
        throw wrong(value, "a text is needed, not a %s", type(value));
    }

    static boolean areEqual(Run run, Object a, Object b) {
        run.step();
        if (a == b) {
            return !Numbers.isNan(a);
        }
        if (Numbers.isNumber(a) && Numbers.isNumber(b)) {
            return !Numbers.isNan(a) && !Numbers.isNan(b) && Numbers.compare(a, b) == 0;
        }
        if (a instanceof String x && b instanceof String y) {
            run.step(x.length() >> 6);
            return x.equals(y);
        }
        boolean areViews =
                a instanceof List && b instanceof List && !(isSequence(a) && isSequence(b));
        if (a instanceof Markup || b instanceof Markup || areViews) {
            throw new TemplateError("a comparison of %s and %s is not supported", type(a), type(b));
        }
        run.enter();
        boolean equal = a instanceof Undefined && b instanceof Undefined;
        if (a instanceof Map<?, ?> x && b instanceof Map<?, ?> y && x.size() == y.size()) {
            equal =
                    x.keySet().stream()
                            .allMatch(k -> y.containsKey(k) && areEqual(run, x.get(k), y.get(k)));
        } else if (a instanceof List<?> x && b instanceof List<?> y && x.size() == y.size()) {
            equal =
                    type(a).equals(type(b))
                            && IntStream.range(0, x.size())
                                    .allMatch(i -> areEqual(run, x.get(i), y.get(i)));
        }
        run.leave();
        return equal;
    }

    private static boolean isOrdered(Run run, Object a, Object b, IntPredicate holds) {
        run.step();
        if (Numbers.isNumber(a) && Numbers.isNumber(b)) {
            return !Numbers.isNan(a) && !Numbers.isNan(b) && holds.test(Numbers.compare(a, b));
        }
        if (a instanceof String x && b instanceof String y) {
            return holds.test(Strings.compare(run, x, y));
        }
        if (isList(a) && isList(b)) {
            throw new TemplateError("an order of lists is not supported");
        }
        throw unsupported("<", a, b);
    }

    private static TemplateError unsupported(String operator, Object a, Object b) {
        return wrong(
                b instanceof Undefined && !(a instanceof Undefined) ? b : a,
                "'%s' is not supported between %s and %s",
                operator,
                type(a),
                type(b));
    }

    /** Returns the error for a value: of its name if it is undefined. */
    static TemplateError wrong(Object value, String format, Object... arguments) {
        return value instanceof Undefined undefined
                ? new TemplateError("%s", undefined.reason)
                : new TemplateError(format, arguments);
    }

    /** Sorts elements by their keys, as Python's {@code sorted}. */
    static List<Object> sorted(Run run, List<Object> elements, List<Object> keys, boolean reverse) {
        try {
            return new ArrayList<>(
                    IntStream.range(0, keys.size())
                            .boxed()
                            .sorted(
                                    (i, j) -> {
                                        Object a = keys.get(reverse ? j : i);
                                        Object b = keys.get(reverse ? i : j);
                                        boolean isLess = isOrdered(run, a, b, order -> order < 0);
                                        boolean isMore =
                                                !isLess && isOrdered(run, a, b, order -> order > 0);
                                        return isLess ? -1 : isMore ? 1 : 0;
                                    })
                            .map(elements::get)
                            .toList());
        } catch (IllegalArgumentException e) { // Java's sort throws it if NaNs have no order.
            throw new TemplateError("the list cannot be sorted: its elements have no order");
        }
    }

    /** Returns {@code element in container}. */
    private static boolean isIn(Run run, Object element, Object container) {
        if (container instanceof String text) {
            if (!(element instanceof String part)) {
                throw wrong(element, "'in <str>' needs a str, not %s", type(element));
            }
            run.step(text.length() >> 4);
            return Strings.find(run, text, part, 0) >= 0;
        }
        if (container instanceof Map<?, ?> dict) {
            return dict.containsKey(key(run, element));
        }
        Iterator<Object> elements = iterator(run, container);
        while (elements.hasNext()) {
            if (areEqual(run, element, elements.next())) {
                return true;
            }
        }
        return false;
    }

    static Object binary(Run run, String operator, Object a, Object b) {
        run.step();
        if (operator.equals("~")) {
            return concatenation(run, text(run, a), text(run, b));
        }
        if (Numbers.isNumber(a) && Numbers.isNumber(b)) {
            return Numbers.binary(operator, a, b);
        }
        if (operator.equals("%") && a instanceof String format) {
            return Strings.percent(run, format, b);
        }
        if (operator.equals("*") && (Numbers.isInteger(a) || Numbers.isInteger(b))) {
            boolean isFirst = Numbers.isInteger(a);
            return repeat(run, isFirst ? b : a, isFirst ? a : b);
        }
        if (operator.equals("+") && isList(a) && type(a).equals(type(b))) {
            List<Object> sum = new ArrayList<>((List<?>) a);
            run.requireSize(sum.size() + length(b));
            sum.addAll((List<?>) b);
            return like(a, sum);
        }
        // A tool call's arguments become JSON when they are added to a text.
        Object x = a instanceof Template.Arguments && b instanceof String ? Json.of(run, a) : a;
        Object y = b instanceof Template.Arguments && a instanceof String ? Json.of(run, b) : b;
        if (operator.equals("+") && x instanceof String begin && y instanceof String end) {
            return concatenation(run, begin, end);
        }
        throw unsupported(operator, a, b);
    }

    private static String concatenation(Run run, String begin, String end) {
        run.requireLength((long) begin.length() + end.length());
        return begin + end;
    }

    private static Object repeat(Run run, Object value, Object times) {
        int count = Math.max(0, Numbers.toInt(times));
        if (value instanceof String text) {
            run.requireLength(text.length() * (long) count);
            return text.repeat(count);
        }
        if (!isList(value)) {
            throw unsupported("*", value, times);
        }
        run.requireSize(length(value) * count);
        List<Object> repeated = new ArrayList<>();
        for (int i = 0; i < count && length(value) > 0; i++) {
            repeated.addAll((List<?>) value);
        }
        return like(value, repeated);
    }

    static Object number(Object value) {
        if (!Numbers.isNumber(value)) {
            throw wrong(value, "a number is needed, not a %s", type(value));
        }
        return value;
    }

    /** Returns a bound of a slice within a range; negative ones count from the end. */
    private static int bound(Object index, int otherwise, int least, int most, int length) {
        int value = index == null ? otherwise : Numbers.toInt(index);
        int counted = index != null && value < 0 ? value + length : value;
        return Math.max(least, Math.min(most, counted));
    }

    static Object slice(Run run, Object value, Object begin, Object end, Object step) {
        boolean isText = value instanceof String;
        if (!isText && !(value instanceof List && isSequence(value))) {
            throw wrong(value, "a value of type %s has no slices", type(value));
        }
        countText(run, value);
        int length = (int) length(value);
        int by = step == null ? 1 : Numbers.toInt(step);
        if (by == 0) {
            throw new TemplateError("the step of a slice is 0");
        }
        boolean forward = by > 0;
        int least = forward ? 0 : -1;
        int most = forward ? length : length - 1;
        int first = bound(begin, forward ? 0 : most, least, most, length);
        int last = bound(end, forward ? length : -1, least, most, length);
        if (isText && by == 1) {
            return run.created(Strings.part((String) value, first, Math.max(first, last)));
        }
        List<Object> elements = list(run, value);
        List<Object> part = new ArrayList<>();
        for (long i = first; forward ? i < last : i > last; i += by) {
            part.add(elements.get((int) i));
        }
        run.requireSize(part.size());
        return isText ? Strings.join(run, "", part) : like(value, part);
    }

    /** Counts the steps of reading a value, if it is a text. */
    private static void countText(Run run, Object value) {
        run.step(value instanceof String text ? text.length() >> 6 : 0);
    }

    /** Returns {@code value[key]}. */
    static Object item(Run run, Object value, Object key) {
        countText(run, value);
        if (value instanceof Undefined) {
            throw wrong(value, "");
        }
        Object found = Args.ABSENT;
        if (value instanceof Map && !(key instanceof List || key instanceof Map)) {
            found = get(run, value, key, Args.ABSENT);
        } else if ((value instanceof List || value instanceof String)
                && isSequence(value)
                && Numbers.isInteger(key)) {
            int length = (int) length(value);
            int index = Numbers.toInt(key);
            index = index < 0 ? index + length : index;
            if (index >= 0 && index < length) {
                found =
                        value instanceof List<?> list
                                ? list.get(index)
                                : Strings.part((String) value, index, index + 1);
            }
        }
        found = found == Args.ABSENT && key instanceof String s ? ownAttribute(value, s) : found;
        return found == Args.ABSENT ? missing(value, key) : found;
    }

    /** Returns {@code value.name}. */
    static Object attribute(Run run, Object value, String name) {
        run.step();
        if (value instanceof Undefined && !name.matches("__\\w+__")) {
            throw wrong(value, ""); // The sandbox hides other attributes.
        }
        Object found = ownAttribute(value, name);
        if (found == Args.ABSENT && value instanceof Map) {
            found = get(run, value, name, Args.ABSENT);
        }
        return found == Args.ABSENT ? missing(value, name) : found;
    }

    private static Undefined missing(Object value, Object key) {
        Object all = Numbers.isNumber(key) || key instanceof String ? key : type(key);
        String name = all.toString();
        name = name.substring(0, Math.min(name.length(), MAX_NAME));
        String format = "a value of type %s has no attribute or element '%s'";
        return new Undefined(name, format.formatted(type(value), name));
    }

    /** Returns an attribute that is no element; {@link Args#ABSENT} if there is none. */
    private static Object ownAttribute(Object value, String name) {
        String type = type(value);
        if (REFUSED.getOrDefault(type, Set.of()).contains(name)) {
            throw new TemplateError("%s of a %s is not supported", name, type);
        }
        if (MUTATORS.getOrDefault(type, Set.of()).contains(name)) {
            String format = "a template may not call '%s' of a %s, which changes it";
            return new Undefined(name, format.formatted(name, type));
        }
        if (value instanceof Namespace namespace) {
            return namespace.attributes.getOrDefault(name, Args.ABSENT);
        }
        if (value instanceof Loop loop) {
            return loop.attribute(name);
        }
        Table methods = METHODS.get(type);
        return methods == null || !methods.has(name)
                ? Args.ABSENT
                : (Callable) (run, args) -> methods.call(run, name, value, args);
    }

    private static List<Object> keys(Run run, Object dict) {
        run.requireSize(length(dict));
        return new ArrayList<>(((Map<?, ?>) dict).keySet());
    }

    private static List<Object> values(Run run, Object dict) {
        run.requireSize(length(dict));
        return new ArrayList<>(((Map<?, ?>) dict).values());
    }

    static List<Object> items(Run run, Object dict) {
        run.requireSize(length(dict));
        run.allocate(length(dict) * (Run.OBJECT + 2 * Run.ELEMENT));
        List<Object> items = new ArrayList<>();
        ((Map<?, ?>) dict).forEach((key, value) -> items.add(tuple(key, value)));
        return items;
    }

    private static Object get(Run run, Object dict, Object key, Object otherwise) {
        Object own = key(run, key);
        Map<?, ?> map = (Map<?, ?>) dict;
        return map.containsKey(own) ? map.get(own) : otherwise;
    }

    /** Returns the key of a map for a key of Python, where 1, 1.0 and True are the same. */
    static Object key(Run run, Object key) {
        countText(run, key);
        if (key instanceof Boolean) {
            return Numbers.integer(key);
        }
        if (key instanceof Double real && real == Math.rint(real) && Double.isFinite(real)) {
            return Numbers.truncate(real);
        }
        if (key == null || key instanceof String || Numbers.isNumber(key)) {
            return key;
        }
        throw new TemplateError("a value of type %s is a key, which is not supported", type(key));
    }

    /** Returns a dictionary of keys and values, which follow each other. */
    static Map<Object, Object> dict(Run run, Stream<Object> keysAndValues) {
        Map<Object, Object> dict = new LinkedHashMap<>();
        Iterator<Object> iterator = keysAndValues.iterator();
        while (iterator.hasNext()) {
            Object key = iterator.next();
            Object own = key(run, key);
            if (own != key) {
                throw new TemplateError("%s is a key, which is not supported", text(run, key));
            }
            run.requireElement(dict.size());
            dict.put(own, iterator.next());
        }
        return dict;
    }

    static Object call(Run run, Object function, Args args) {
        run.step();
        if (function instanceof Callable callable) {
            return callable.call(run, args);
        }
        if (function instanceof Loop) {
            throw new TemplateError("the call of a recursive loop is not supported");
        }
        throw wrong(function, "a value of type %s cannot be called", type(function));
    }
}
