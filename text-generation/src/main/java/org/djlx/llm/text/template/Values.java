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

/**
 * What Python does with values: null, Boolean, Long, BigInteger, Double, String, List, Map, and the
 * types nested here. The Undefined of a missing variable or entry prints nothing, and most else
 * that is done with it is an error.
 */
final class Values {

    private static final Set<String> MUTATORS =
            Set.of(
                    ("append clear extend insert pop popitem remove reverse setdefault sort update")
                            .split(" "));
    private static final Set<String> OF_MACROS =
            Set.of("arguments", "caller", "catch_kwargs", "catch_varargs", "name");
    private static final int MAX_INPUT_DEPTH = 100;
    private static final int MAX_NAME = 200; // characters of a missing one in a message

    private static final Table DICT_METHODS =
            new Table("method")
                    .add("keys", (run, d, a) -> view("dict_keys", keys(run, d)))
                    .add("values", (run, d, a) -> view("dict_values", values(run, d)))
                    .add("items", (run, d, a) -> view("dict_items", items(run, d)))
                    .add("get key ?default", (run, d, a) -> get(run, d, a.get(0), a.get(1, null)))
                    .add("copy", (run, d, a) -> dict(run, Args.of(d)));
    private static final Table LIST_METHODS =
            new Table("method")
                    .add("count value", (run, l, a) -> count(run, (List<?>) l, a.get(0)))
                    .add("index value", (run, l, a) -> index(run, (List<?>) l, a.get(0)))
                    .add("copy", (run, l, a) -> elements(run, l));

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
                    "<", (run, a, b) -> isOrdered(run, "<", a, b, order -> order < 0),
                    "<=", (run, a, b) -> isOrdered(run, "<=", a, b, order -> order <= 0),
                    ">", (run, a, b) -> isOrdered(run, ">", a, b, order -> order > 0),
                    ">=", (run, a, b) -> isOrdered(run, ">=", a, b, order -> order >= 0));

    private Values() {}

    /** A function, a method of a value, or a macro. */
    interface Callable {
        Object call(Run run, Args args);
    }

    /** A missing value. */
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

        private final String kind;
        private final List<Object> elements;

        private Sequence(String kind, List<Object> elements) {
            this.kind = kind;
            this.elements = elements;
        }

        String kind() {
            return kind;
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

    private static Sequence view(String kind, List<Object> elements) {
        return new Sequence(kind, elements);
    }

    static Sequence range(long start, long step, int size) {
        return new Sequence(
                "range",
                new AbstractList<>() {
                    @Override
                    public Object get(int index) {
                        return start + step * index;
                    }

                    @Override
                    public int size() {
                        return size;
                    }
                });
    }

    /** Returns elements as a list, or as a sequence of the kind of another value. */
    static List<Object> like(Object other, List<Object> elements) {
        return other instanceof Sequence sequence
                ? new Sequence(sequence.kind, elements)
                : elements;
    }

    /** Returns the value for a Java object: strings, numbers, booleans, lists, maps and null. */
    static Object of(Object object, int depth) {
        if (depth > MAX_INPUT_DEPTH) {
            throw new TemplateError("a variable is nested more than %d deep", MAX_INPUT_DEPTH);
        }
        if (object == null || object instanceof Boolean) {
            return object;
        }
        if (object instanceof CharSequence) {
            return object.toString();
        }
        if (object instanceof Number number) { // Gson's LazilyParsedNumber may be an integer.
            boolean isReal = object instanceof Double || object instanceof Float;
            Object integer = isReal ? null : Numbers.parseInteger(number.toString());
            return integer != null ? integer : (Object) number.doubleValue();
        }
        if (object instanceof Map<?, ?> map) {
            Map<Object, Object> dict =
                    map instanceof Template.Arguments
                            ? new Template.Arguments(Map.of())
                            : new LinkedHashMap<>();
            map.forEach((key, value) -> dict.put(of(key, depth + 1), of(value, depth + 1)));
            return dict;
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

    static String typeName(Object value) {
        if (value == null || value instanceof Boolean) {
            return value == null ? "NoneType" : "bool";
        }
        if (Numbers.isNumber(value)) {
            return value instanceof Double ? "float" : "int";
        }
        if (value instanceof List) {
            return value instanceof Sequence sequence ? sequence.kind : "list";
        }
        if (value instanceof Map || value instanceof Callable) {
            return value instanceof Map ? "dict" : "function";
        }
        if (value instanceof Once) {
            return "generator";
        }
        String name = value.getClass().getSimpleName();
        return value instanceof Markup
                ? name
                : name.replace("String", "str").toLowerCase(Locale.ROOT);
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
        return value instanceof List
                || value instanceof Map
                || value instanceof String
                || value instanceof Markup
                || value instanceof Undefined;
    }

    static long length(Object value) {
        if (value instanceof List || value instanceof Map) {
            return value instanceof List<?> list ? list.size() : ((Map<?, ?>) value).size();
        }
        if (value instanceof String || value instanceof Markup) {
            return Strings.length(value instanceof Markup markup ? markup.text : (String) value);
        }
        if (value instanceof Undefined) {
            return 0;
        }
        throw new TemplateError("a value of type %s has no length", typeName(value));
    }

    static boolean isIterable(Object value) {
        return hasLength(value) || value instanceof Once;
    }

    /** Returns whether a value is a list or a tuple. */
    private static boolean isList(Object value) {
        return typeName(value).equals("list") || typeName(value).equals("tuple");
    }

    /** Returns whether a value is a list with indices: no keys, values or items. */
    private static boolean isIndexed(Object value) {
        return value instanceof List && !typeName(value).startsWith("dict_");
    }

    static boolean isSequence(Object value) {
        return hasLength(value) && (!(value instanceof List) || isIndexed(value));
    }

    /** Returns the elements of an iterable value, which may be that list. */
    @SuppressWarnings("unchecked") // A value's list holds any values.
    static List<Object> list(Run run, Object value) {
        return value instanceof List ? (List<Object>) value : elements(run, value);
    }

    /** Returns the elements of an iterable value, as a new list. */
    static List<Object> elements(Run run, Object value) {
        List<Object> elements = new ArrayList<>();
        Iterator<Object> iterator = iterator(run, value);
        while (iterator.hasNext()) {
            elements.add(iterator.next());
            run.requireElement(elements.size());
        }
        return elements;
    }

    @SuppressWarnings("unchecked") // A value's list holds any values.
    static Iterator<Object> iterator(Run run, Object value) {
        if (value instanceof List) {
            return ((List<Object>) value).iterator();
        }
        if (value instanceof Map) {
            return keys(run, value).iterator();
        }
        if (value instanceof Once once) {
            return once.elements;
        }
        if (value instanceof String text) {
            return Strings.characters(run, text).iterator();
        }
        if (value instanceof Undefined) {
            return List.of().iterator();
        }
        throw new TemplateError("a value of type %s cannot be iterated over", typeName(value));
    }

    /** Returns {@code str(value)}. */
    static String text(Run run, Object value) {
        if (value instanceof String || value instanceof Undefined) {
            return value instanceof String text ? text : "";
        }
        return value instanceof Markup markup ? markup.text : Repr.of(run, value);
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
                a instanceof List && b instanceof List && !(isIndexed(a) && isIndexed(b));
        if (a instanceof Markup || b instanceof Markup || areViews) {
            throw new TemplateError(
                    "a comparison of %s and %s is not supported", typeName(a), typeName(b));
        }
        run.enter();
        try {
            if (a instanceof Map<?, ?> x && b instanceof Map<?, ?> y) {
                return x.size() == y.size()
                        && x.keySet().stream()
                                .allMatch(k -> y.containsKey(k) && isSame(run, x.get(k), y.get(k)));
            }
            return a instanceof Undefined && b instanceof Undefined
                    || a instanceof List<?> x
                            && b instanceof List<?> y
                            && typeName(a).equals(typeName(b))
                            && x.size() == y.size()
                            && difference(run, x, y) == x.size();
        } finally {
            run.leave();
        }
    }

    /** Returns whether elements are the same object, or equal. */
    private static boolean isSame(Run run, Object a, Object b) {
        return a == b || areEqual(run, a, b);
    }

    /** Returns the first index at which lists differ; the shorter one's size if there is none. */
    private static int difference(Run run, List<?> a, List<?> b) {
        int i = 0;
        while (i < Math.min(a.size(), b.size()) && isSame(run, a.get(i), b.get(i))) {
            i++;
        }
        return i;
    }

    private static boolean isOrdered(
            Run run, String operator, Object a, Object b, IntPredicate holds) {
        run.step();
        if (Numbers.isNumber(a) && Numbers.isNumber(b)) {
            return !Numbers.isNan(a) && !Numbers.isNan(b) && holds.test(Numbers.compare(a, b));
        }
        if (a instanceof String x && b instanceof String y) {
            return holds.test(Strings.compare(run, x, y));
        }
        if (!isList(a) || !typeName(a).equals(typeName(b))) {
            throw unsupported(operator, a, b);
        }
        List<?> x = (List<?>) a;
        List<?> y = (List<?>) b;
        run.enter();
        try {
            int i = difference(run, x, y);
            return i < Math.min(x.size(), y.size())
                    ? isOrdered(run, operator, x.get(i), y.get(i), holds)
                    : holds.test(Integer.compare(x.size(), y.size()));
        } finally {
            run.leave();
        }
    }

    private static TemplateError unsupported(String operator, Object a, Object b) {
        String format = "'%s' is not supported between %s and %s";
        return undefinedOr(
                b instanceof Undefined && !(a instanceof Undefined) ? b : a,
                format,
                operator,
                typeName(a),
                typeName(b));
    }

    /** Returns the error for a value: of its name if it is undefined. */
    private static TemplateError undefinedOr(Object value, String format, Object... arguments) {
        return value instanceof Undefined undefined
                ? new TemplateError("%s", undefined.reason)
                : new TemplateError(format, arguments);
    }

    /** Sorts elements by their keys, as Python's {@code sorted}. */
    static List<Object> sorted(Run run, List<Object> elements, List<Object> keys, boolean reverse) {
        List<Integer> order = new ArrayList<>();
        for (int i = 0; i < keys.size(); i++) {
            order.add(i);
        }
        Comparison less = COMPARISONS.get("<");
        try {
            order.sort(
                    (i, j) -> {
                        Object a = keys.get(reverse ? j : i);
                        Object b = keys.get(reverse ? i : j);
                        return less.holds(run, a, b) ? -1 : less.holds(run, b, a) ? 1 : 0;
                    });
        } catch (IllegalArgumentException e) { // Java's sort throws it if NaNs have no order.
            throw new TemplateError("the list cannot be sorted: its elements have no order");
        }
        List<Object> sorted = new ArrayList<>();
        order.forEach(i -> sorted.add(elements.get(i)));
        return sorted;
    }

    /** Returns {@code element in container}. */
    private static boolean isIn(Run run, Object element, Object container) {
        if (container instanceof String text) {
            if (!(element instanceof String part)) {
                throw undefinedOr(element, "'in <str>' needs a str, not %s", typeName(element));
            }
            run.step(text.length() >> 4);
            return Strings.find(run, text, part, 0) >= 0;
        }
        if (container instanceof Map<?, ?> dict) {
            return dict.containsKey(key(run, element));
        }
        countText(run, element);
        Iterator<Object> elements = iterator(run, container);
        while (elements.hasNext()) {
            if (isSame(run, element, elements.next())) {
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
        if (operator.equals("*") && Numbers.isInteger(Numbers.isInteger(a) ? a : b)) {
            boolean isFirst = Numbers.isInteger(a);
            return repeat(run, isFirst ? b : a, isFirst ? a : b);
        }
        if (operator.equals("+") && isList(a) && typeName(a).equals(typeName(b))) {
            List<Object> sum = new ArrayList<>((List<?>) a);
            run.requireSize(sum.size() + length(b));
            sum.addAll((List<?>) b);
            return like(a, sum);
        }
        if (operator.equals("+")) {
            Object x = b instanceof String ? jsonIfArguments(run, a) : a;
            Object y = a instanceof String ? jsonIfArguments(run, b) : b;
            if (x instanceof String begin && y instanceof String end) {
                return concatenation(run, begin, end);
            }
        }
        throw unsupported(operator, a, b);
    }

    private static String concatenation(Run run, String begin, String end) {
        run.requireLength((long) begin.length() + end.length());
        return begin + end;
    }

    private static Object jsonIfArguments(Run run, Object value) {
        return value instanceof Template.Arguments ? Json.of(run, value, Args.of()) : value;
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
        List<?> list = (List<?>) value;
        run.requireSize(list.size() * (long) count);
        List<Object> repeated = new ArrayList<>();
        for (int i = 0; i < count && !list.isEmpty(); i++) {
            repeated.addAll(list);
        }
        return like(value, repeated);
    }

    static Object negate(Object value) {
        if (!Numbers.isNumber(value)) {
            throw undefinedOr(value, "a %s cannot be negated", typeName(value));
        }
        return Numbers.negate(value);
    }

    /** Returns a bound of a slice within a range; negative ones count from the end. */
    private static int bound(Object index, int otherwise, int least, int most, int length) {
        if (index == null) {
            return otherwise;
        }
        int value = Numbers.toInt(index);
        return Math.max(least, Math.min(most, value < 0 ? value + length : value));
    }

    static Object slice(Run run, Object value, Object begin, Object end, Object step) {
        if (!(value instanceof String) && !isIndexed(value)) {
            throw undefinedOr(value, "a value of type %s has no slices", typeName(value));
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
        if (value instanceof String text && by == 1) {
            return run.created(last <= first ? "" : Strings.part(text, first, last));
        }
        List<?> elements =
                value instanceof String text ? Strings.characters(run, text) : (List<?>) value;
        List<Object> part = new ArrayList<>();
        for (long i = first; forward ? i < last : i > last; i += by) {
            part.add(elements.get((int) i));
        }
        run.requireSize(part.size());
        return value instanceof String ? Strings.join(run, "", part) : like(value, part);
    }

    /** Counts the steps of reading or comparing a value, if it is a text. */
    private static void countText(Run run, Object value) {
        run.step(value instanceof String text ? text.length() >> 6 : 0);
    }

    /** Returns {@code value[key]}. */
    static Object item(Run run, Object value, Object key) {
        countText(run, value);
        Object found = Args.ABSENT;
        if (value instanceof Map && !(key instanceof List || key instanceof Map)) {
            found = get(run, value, key, Args.ABSENT);
        } else if ((value instanceof String || isIndexed(value)) && Numbers.isInteger(key)) {
            int length = (int) length(value);
            int index = Numbers.toInt(key);
            index = index < 0 ? index + length : index;
            if (index >= 0 && index < length) {
                return value instanceof List<?> list
                        ? list.get(index)
                        : Strings.part((String) value, index, index + 1);
            }
        } else if (value instanceof Undefined) {
            throw undefinedOr(value, "");
        }
        if (found == Args.ABSENT && key instanceof String name) {
            found = ownAttribute(value, name);
        }
        return found == Args.ABSENT ? missing(value, key) : found;
    }

    /** Returns {@code value.name}. */
    static Object attribute(Run run, Object value, String name) {
        run.step();
        if (value instanceof Undefined && !name.matches("__\\w+__")) {
            throw undefinedOr(value, ""); // The sandbox hides other attributes.
        }
        Object found = ownAttribute(value, name);
        if (found == Args.ABSENT && value instanceof Map) {
            found = get(run, value, name, Args.ABSENT);
        }
        return found == Args.ABSENT ? missing(value, name) : found;
    }

    private static Undefined missing(Object value, Object key) {
        Object shown = Numbers.isNumber(key) ? key : typeName(key);
        String all = key instanceof String text ? text : String.valueOf(shown);
        String name = all.substring(0, Math.min(all.length(), MAX_NAME));
        String format = "a value of type %s has no attribute or element '%s'";
        return new Undefined(name, format.formatted(typeName(value), name));
    }

    /** Returns an attribute that is no element; {@link Args#ABSENT} if there is none. */
    private static Object ownAttribute(Object value, String name) {
        if (value instanceof Namespace namespace) {
            return namespace.attributes.getOrDefault(name, Args.ABSENT);
        }
        if (value instanceof Loop loop) {
            return loop.attribute(name);
        }
        boolean isText = value instanceof String;
        boolean isGroup = value instanceof Sequence && Set.of("grouper", "list").contains(name);
        if (isText && Strings.REFUSED.contains(name)
                || isGroup
                || value instanceof Callable && OF_MACROS.contains(name)) {
            throw new TemplateError(
                    "the %s %s of a %s is not supported",
                    isText ? "method" : "attribute", name, isText ? "text" : typeName(value));
        }
        Table methods =
                isText
                        ? Strings.METHODS
                        : value instanceof Map
                                ? DICT_METHODS
                                : isIndexed(value) ? LIST_METHODS : null;
        if (methods == null || isText && MUTATORS.contains(name)) {
            return Args.ABSENT;
        }
        boolean isMutable = value instanceof Map || typeName(value).equals("list");
        if (isMutable && MUTATORS.contains(name)) {
            String format = "a template may not call '%s' of a %s, which changes it";
            return new Undefined(name, format.formatted(name, typeName(value)));
        }
        return !methods.has(name) || name.equals("copy") && !isMutable
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

    /** Returns pairs of keys and values. */
    static List<Object> items(Run run, Object dict) {
        run.requireSize(length(dict) * 4); // An element is a list, too.
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
        throw new TemplateError(
                "a value of type %s is a key, which is not supported", typeName(key));
    }

    private static void put(Run run, Map<Object, Object> dict, Object key, Object value) {
        Object own = key(run, key);
        if (key instanceof Boolean || key instanceof Double && own != key) {
            throw new TemplateError("%s is a key, which is not supported", Repr.of(run, key));
        }
        run.requireElement(dict.size());
        dict.put(own, value);
    }

    /** Returns a dictionary of keys and values, one after the other. */
    static Map<Object, Object> dict(Run run, Iterator<Object> items) {
        Map<Object, Object> dict = new LinkedHashMap<>();
        while (items.hasNext()) {
            put(run, dict, items.next(), items.next());
        }
        return dict;
    }

    /** Returns Python's {@code dict(*args, **kwargs)}. */
    static Map<Object, Object> dict(Run run, Args args) {
        Args positional = new Args(args.positional(), Map.of());
        Object from = positional.bind("dict", 0, List.of("pairs")).get(0, Map.of());
        List<Object> pairs = from instanceof Map ? items(run, from) : elements(run, from);
        Map<Object, Object> dict = new LinkedHashMap<>();
        for (Object each : pairs) {
            List<Object> pair = list(run, each);
            if (pair.size() != 2) {
                throw new TemplateError("dict() needs pairs");
            }
            put(run, dict, pair.get(0), pair.get(1));
        }
        args.named().forEach((name, value) -> put(run, dict, name, value));
        return dict;
    }

    private static long count(Run run, List<?> list, Object searched) {
        return list.stream().filter(each -> isSame(run, searched, each)).count();
    }

    private static long index(Run run, List<?> list, Object searched) {
        for (int i = 0; i < list.size(); i++) {
            if (isSame(run, searched, list.get(i))) {
                return i;
            }
        }
        throw new TemplateError("a list does not have the element searched for");
    }

    static Object call(Run run, Object function, Args args) {
        run.step();
        if (function instanceof Callable callable) {
            return callable.call(run, args);
        }
        if (function instanceof Loop) {
            throw new TemplateError("the call of a recursive loop is not supported");
        }
        throw undefinedOr(function, "a value of type %s cannot be called", typeName(function));
    }
}
