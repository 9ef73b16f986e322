// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.math.BigDecimal;
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

/**
 * What Python does with values: null, Boolean, Long, BigInteger, Double, String, List, and the
 * types nested here. The Undefined of a missing variable or entry prints nothing, and most else
 * that is done with it is an error.
 */
final class Values {

    private static final Set<String> LIST_MUTATORS =
            Set.of("append clear extend insert pop remove reverse sort".split(" "));
    private static final Set<String> DICT_MUTATORS =
            Set.of("clear pop popitem setdefault update".split(" "));
    static final Object NONE = new Object(); // of attributes whose value is None
    private static final int MAX_INPUT_DEPTH = 100;
    private static final int MAX_NAME = 200; // characters of a missing one in a message

    private Values() {}

    /** Something that a template can call. */
    interface Callable {

        Object call(Run run, Args args);
    }

    /** A function, or a method of a value, by name. */
    record Function(String name, Callable body) implements Callable {

        @Override
        public Object call(Run run, Args args) {
            run.step();
            return body.call(run, args);
        }
    }

    /** A missing value. */
    record Undefined(String name, String reason) {

        Undefined(String name) {
            this(name, "'" + name + "' is undefined");
        }

        TemplateError error() {
            return new TemplateError("%s", reason);
        }
    }

    /** An escaped text, or one that is safe: it can be printed, and little else. */
    record Markup(String text) {}

    /** Elements that can be iterated over once, as with Python's generators. */
    record Once(Iterator<Object> elements) {}

    /** Variables that a template can change. Equal only to itself. */
    record Namespace(Map<String, Object> attributes) {

        @Override
        public boolean equals(Object other) {
            return this == other;
        }

        @Override
        public int hashCode() {
            return System.identityHashCode(this);
        }
    }

    /** An immutable list. Elements may have names, as in Python's namedtuple. */
    static final class Tuple extends AbstractList<Object> {

        private final List<Object> elements;
        private final List<String> names;

        Tuple(List<Object> elements, String... names) {
            this.elements = elements;
            this.names = List.of(names);
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

    static Tuple tuple(Object... elements) {
        return new Tuple(Arrays.asList(elements));
    }

    /** Python's range. */
    static final class Range extends AbstractList<Object> {

        private final long start;
        private final long step;
        private final int size;

        Range(long start, long step, int size) {
            this.start = start;
            this.step = step;
            this.size = size;
        }

        @Override
        public Object get(int index) {
            return start + step * index;
        }

        @Override
        public int size() {
            return size;
        }
    }

    /** A dictionary with Python's equality of keys: 1, 1.0 and True are one key. */
    static final class Dict {

        private record Entry(Object key, Object value) {}

        private static final int MAX_KEY =
                100; // elements of a tuple that is a key, nested ones included

        private final Map<Object, Entry> entries = new LinkedHashMap<>();
        private final boolean isJsonText;

        Dict() {
            this(false);
        }

        /**
         * Creates a dictionary.
         *
         * @param isJsonText whether it becomes JSON when it is added to a text
         */
        Dict(boolean isJsonText) {
            this.isJsonText = isJsonText;
        }

        void put(Object key, Object value) {
            Object javaKey = javaKey(key);
            Entry old = entries.get(javaKey);
            entries.put(javaKey, new Entry(old == null ? key : old.key, value));
        }

        void putAll(Dict other) {
            other.entries.values().forEach(entry -> put(entry.key, entry.value));
        }

        boolean has(Object key) {
            return entries.containsKey(javaKey(key));
        }

        Object get(Object key, Object otherwise) {
            Entry entry = entries.get(javaKey(key));
            return entry == null ? otherwise : entry.value;
        }

        int size() {
            return entries.size();
        }

        List<Object> keys() {
            return new ArrayList<>(entries.values().stream().map(Entry::key).toList());
        }

        List<Object> values() {
            List<Object> values = new ArrayList<>();
            entries.values().forEach(entry -> values.add(entry.value));
            return values;
        }

        List<Object> items() {
            List<Object> items = new ArrayList<>();
            entries.values().forEach(entry -> items.add(tuple(entry.key, entry.value)));
            return items;
        }

        /** Returns a Java object whose equals and hashCode follow Python's equality of keys. */
        private static Object javaKey(Object key) {
            return javaKey(key, new int[1]);
        }

        private static Object javaKey(Object key, int[] count) {
            if (key instanceof List<?> list && key instanceof Tuple) {
                List<Object> keys = new ArrayList<>();
                for (Object each : list) {
                    if (++count[0] > MAX_KEY) {
                        throw new TemplateError(
                                "a tuple with more than %d elements is a key", MAX_KEY);
                    }
                    keys.add(javaKey(each, count));
                }
                return keys;
            }
            if (key instanceof List
                    || key instanceof Dict
                    || key instanceof View
                    || key instanceof Markup) {
                throw new TemplateError("a %s cannot be a key", typeName(key));
            }
            if (key instanceof Double real && real == Math.rint(real) && Double.isFinite(real)) {
                return Numbers.narrow(new BigDecimal(real).toBigInteger());
            }
            return key instanceof Boolean
                    ? (Object) Numbers.integer(key)
                    : key instanceof Undefined ? Undefined.class.getName() : key;
        }
    }

    /** The keys, values or items of a dictionary. */
    record View(String kind, Dict dict) {

        List<Object> elements() {
            return kind.equals("keys")
                    ? dict.keys()
                    : kind.equals("values") ? dict.values() : dict.items();
        }
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
        if (object instanceof Double || object instanceof Float || object instanceof BigDecimal) {
            return ((Number) object).doubleValue();
        }
        if (object instanceof Number number) { // an integer, or Gson's LazilyParsedNumber
            Object integer = Numbers.parseInteger(number.toString());
            return integer != null ? integer : (Object) number.doubleValue();
        }
        if (object instanceof Map<?, ?> map) {
            Dict dict = new Dict(map instanceof Template.Arguments);
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
        if (value == null) {
            return "NoneType";
        }
        if (value instanceof View view) {
            return "dict_" + view.kind;
        }
        String name = value.getClass().getSimpleName();
        return switch (name) {
            case "Boolean" -> "bool";
            case "Long", "BigInteger" -> "int";
            case "Double" -> "float";
            case "String" -> "str";
            case "ArrayList" -> "list";
            case "Markup" -> name;
            default -> name.toLowerCase(Locale.ROOT);
        };
    }

    static boolean isTrue(Object value) {
        if (value instanceof Boolean flag) {
            return flag;
        }
        if (Numbers.isNumber(value)) {
            return Numbers.isNan(value) || Numbers.compare(value, 0L) != 0;
        }
        return value != null && !(hasLength(value) && length(value) == 0);
    }

    private static boolean hasLength(Object value) {
        return value instanceof List
                || value instanceof Dict
                || value instanceof View
                || value instanceof String
                || value instanceof Markup
                || value instanceof Undefined
                || value instanceof Loop;
    }

    static long length(Object value) {
        if (value instanceof List<?> list) {
            return list.size();
        }
        if (value instanceof String || value instanceof Markup) {
            return Strings.length(value instanceof Markup markup ? markup.text : (String) value);
        }
        if (value instanceof Dict dict) {
            return dict.size();
        }
        if (value instanceof View view) {
            return view.dict.size();
        }
        if (value instanceof Loop loop) {
            return loop.length();
        }
        if (value instanceof Undefined) {
            return 0;
        }
        throw new TemplateError("a value of type %s has no length", typeName(value));
    }

    static boolean isIterable(Object value) {
        return hasLength(value) || value instanceof Once;
    }

    /** Returns the elements of an iterable value. */
    static List<Object> elements(Run run, Object value) {
        List<Object> elements = new ArrayList<>();
        Iterator<Object> iterator = iterator(run, value);
        while (iterator.hasNext()) {
            elements.add(iterator.next());
            run.requireSize(0);
            if (elements.size() > Run.MAX_ELEMENTS) {
                run.requireSize(elements.size());
            }
        }
        return elements;
    }

    @SuppressWarnings("unchecked") // A value's list holds any values.
    static Iterator<Object> iterator(Run run, Object value) {
        if (value instanceof List) {
            return ((List<Object>) value).iterator();
        }
        if (value instanceof Once once) {
            return once.elements;
        }
        if (value instanceof Undefined) {
            return List.of().iterator();
        }
        if (value instanceof String text) {
            return Strings.characters(run, text).iterator();
        }
        if (value instanceof Dict dict) {
            return run.counted(dict.keys()).iterator();
        }
        if (value instanceof View view) {
            return run.counted(view.elements()).iterator();
        }
        throw new TemplateError("a value of type %s cannot be iterated over", typeName(value));
    }

    /** Returns {@code str(value)}. */
    static String text(Run run, Object value) {
        if (value instanceof String text) {
            return text;
        }
        if (value instanceof Markup markup) {
            return markup.text;
        }
        StringBuilder text = new StringBuilder();
        if (!(value instanceof Undefined)) {
            represent(run, text, value);
        }
        return text.toString();
    }

    /** Appends {@code repr(value)}. */
    static void represent(Run run, StringBuilder text, Object value) {
        run.requireLength(text.length() > Run.MAX_LENGTH ? Long.MAX_VALUE : 0);
        run.enter();
        try {
            if (value == null || value instanceof Boolean) {
                text.append(value == null ? "None" : (Boolean) value ? "True" : "False");
            } else if (Numbers.isNumber(value)) {
                run.step(value instanceof Double ? 100 : 10);
                text.append(Numbers.text(value));
            } else if (value instanceof String string) {
                run.requireLength(string.length());
                run.step(string.length() >> 2);
                Strings.quote(text, string);
            } else if (value instanceof Undefined) {
                text.append("Undefined");
            } else if (value instanceof Range range) {
                long stop = range.start + range.step * range.size;
                text.append("range(").append(range.start).append(", ").append(stop);
                text.append(range.step == 1 ? ")" : ", " + range.step + ")");
            } else if (value instanceof List<?> list) {
                boolean tuple = value instanceof Tuple;
                String end = !tuple ? "]" : list.size() == 1 ? ",)" : ")";
                representAll(run, text, tuple ? "(" : "[", list, end);
            } else if (value instanceof Dict dict) {
                representDict(run, text, dict);
            } else if (value instanceof View view) {
                text.append("dict_").append(view.kind);
                representAll(run, text, "([", view.elements(), "])");
            } else if (value instanceof Namespace namespace) {
                text.append("<Namespace ");
                Dict dict = new Dict();
                namespace.attributes.forEach(dict::put);
                representDict(run, text, dict);
                text.append('>');
            } else if (value instanceof Loop loop) {
                text.append(loop);
            } else if (value instanceof Markup) {
                throw new TemplateError("an escaped text in a list is not supported");
            } else {
                String name = value instanceof Function function ? " " + function.name : "";
                text.append('<').append(typeName(value)).append(name).append('>');
            }
        } finally {
            run.leave();
        }
    }

    private static void representAll(
            Run run, StringBuilder text, String begin, List<?> list, String end) {
        text.append(begin);
        for (int i = 0; i < list.size(); i++) {
            text.append(i == 0 ? "" : ", ");
            represent(run, text, list.get(i));
        }
        text.append(end);
    }

    private static void representDict(Run run, StringBuilder text, Dict dict) {
        String separator = "{";
        for (Dict.Entry entry : dict.entries.values()) {
            text.append(separator);
            represent(run, text, entry.key);
            text.append(": ");
            represent(run, text, entry.value);
            separator = ", ";
        }
        text.append(dict.size() == 0 ? "{}" : "}");
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
        if (a instanceof Markup || b instanceof Markup || a instanceof View && b instanceof View) {
            throw new TemplateError(
                    "a comparison of %s and %s is not supported", typeName(a), typeName(b));
        }
        run.enter();
        try {
            return a instanceof Undefined && b instanceof Undefined
                    || a instanceof List<?> x
                            && b instanceof List<?> y
                            && a.getClass() == b.getClass()
                            && x.size() == y.size()
                            && difference(run, x, y) == x.size()
                    || a instanceof Dict v && b instanceof Dict w && areEqual(run, v, w);
        } finally {
            run.leave();
        }
    }

    private static boolean areEqual(Run run, Dict a, Dict b) {
        boolean equal = a.size() == b.size();
        for (Map.Entry<Object, Dict.Entry> entry : a.entries.entrySet()) {
            Dict.Entry other = b.entries.get(entry.getKey());
            if (!equal || other == null || !isSame(run, entry.getValue().value, other.value)) {
                return false;
            }
        }
        return equal;
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

    /** Returns {@code a operator b}, for one of the operators {@code < <= > >=}. */
    static boolean isOrdered(Run run, String operator, Object a, Object b) {
        run.step();
        int order;
        if (Numbers.isNumber(a) && Numbers.isNumber(b)) {
            if (Numbers.isNan(a) || Numbers.isNan(b)) {
                return false;
            }
            order = Numbers.compare(a, b);
        } else if (a instanceof String x && b instanceof String y) {
            order = Strings.compare(run, x, y);
        } else if (isSequence(a) && isSequence(b) && a.getClass() == b.getClass()) {
            List<?> x = (List<?>) a;
            List<?> y = (List<?>) b;
            run.enter();
            try {
                int i = difference(run, x, y);
                if (i < Math.min(x.size(), y.size())) {
                    return isOrdered(run, operator, x.get(i), y.get(i));
                }
                order = Integer.compare(x.size(), y.size());
            } finally {
                run.leave();
            }
        } else {
            throw unsupported(operator, a, b);
        }
        return switch (operator) {
            case "<" -> order < 0;
            case "<=" -> order <= 0;
            case ">" -> order > 0;
            default -> order >= 0;
        };
    }

    private static TemplateError unsupported(String operator, Object a, Object b) {
        String format = "'%s' is not supported between %s and %s";
        return undefinedOr(a, b, format, operator, typeName(a), typeName(b));
    }

    private static TemplateError undefinedOr(
            Object a, Object b, String format, Object... arguments) {
        return a instanceof Undefined undefined
                ? undefined.error()
                : b instanceof Undefined other
                        ? other.error()
                        : new TemplateError(format, arguments);
    }

    /** Sorts elements by their keys, as Python's {@code sorted}. */
    static List<Object> sorted(Run run, List<Object> elements, List<Object> keys, boolean reverse) {
        List<Integer> order = new ArrayList<>();
        for (int i = 0; i < keys.size(); i++) {
            order.add(i);
        }
        try {
            order.sort(
                    (i, j) -> {
                        Object a = keys.get(reverse ? j : i);
                        Object b = keys.get(reverse ? i : j);
                        return isOrdered(run, "<", a, b) ? -1 : isOrdered(run, "<", b, a) ? 1 : 0;
                    });
        } catch (IllegalArgumentException e) { // Java's sort throws it if NaNs have no order.
            throw new TemplateError("the list cannot be sorted: its elements have no order");
        }
        List<Object> sorted = new ArrayList<>();
        order.forEach(i -> sorted.add(elements.get(i)));
        return sorted;
    }

    /** Returns {@code element in container}. */
    static boolean isIn(Run run, Object element, Object container) {
        if (container instanceof String text) {
            if (!(element instanceof String part)) {
                throw undefinedOr(
                        element, null, "'in <str>' needs a str, not %s", typeName(element));
            }
            run.step(text.length() >> 4);
            return Strings.find(run, text, part, 0) >= 0;
        }
        countText(run, element);
        if (container instanceof Dict dict) {
            return dict.has(element);
        }
        if (container instanceof View view && view.kind.equals("keys")) {
            return view.dict.has(element);
        }
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
        if (Numbers.isNumber(a) && Numbers.isNumber(b)) {
            return Numbers.binary(operator, a, b);
        }
        if (operator.equals("%") && a instanceof String format) {
            return Strings.percent(run, format, b);
        }
        if (operator.equals("*") && isRepeatable(a) && Numbers.isInteger(b)) {
            return repeat(run, a, Numbers.toInt(b));
        }
        if (operator.equals("*") && isRepeatable(b) && Numbers.isInteger(a)) {
            return repeat(run, b, Numbers.toInt(a));
        }
        if (operator.equals("+")) {
            Object x =
                    a instanceof Dict dict && dict.isJsonText && b instanceof String
                            ? Json.write(run, a)
                            : a;
            Object y =
                    b instanceof Dict dict && dict.isJsonText && a instanceof String
                            ? Json.write(run, b)
                            : b;
            if (x instanceof String s && y instanceof String t) {
                run.requireLength((long) s.length() + t.length());
                return s + t;
            }
            if (isSequence(a) && isSequence(b) && a.getClass() == b.getClass()) {
                List<Object> sum = new ArrayList<>((List<?>) a);
                run.requireSize(sum.size() + length(b));
                sum.addAll((List<?>) b);
                return like(a, sum);
            }
        }
        throw unsupported(operator, a, b);
    }

    /** Returns whether a value is a list or a tuple. */
    private static boolean isSequence(Object value) {
        return value instanceof List && !(value instanceof Range);
    }

    private static boolean isRepeatable(Object value) {
        return value instanceof String || isSequence(value);
    }

    /** Returns elements as a tuple or a list, as {@code sequence} is. */
    private static Object like(Object sequence, List<Object> elements) {
        return sequence instanceof Tuple ? new Tuple(elements) : elements;
    }

    private static Object repeat(Run run, Object value, int times) {
        int count = Math.max(0, times);
        if (value instanceof String text) {
            run.requireLength(text.length() * (long) count);
            return text.repeat(count);
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
            throw undefinedOr(value, null, "a %s cannot be negated", typeName(value));
        }
        return Numbers.negate(value);
    }

    /** Returns a bound of a slice, from 0 to a length; negative ones count from the end. */
    static int bound(Object index, int otherwise, int length) {
        return bound(index, otherwise, 0, length);
    }

    private static int bound(Object index, int otherwise, int least, int most) {
        if (index == null) {
            return otherwise;
        }
        int length = least < 0 ? most + 1 : most;
        int value = Numbers.toInt(index);
        return Math.max(least, Math.min(most, value < 0 ? value + length : value));
    }

    static Object slice(Run run, Object value, Object begin, Object end, Object step) {
        if (!(value instanceof String) && !(value instanceof List)) {
            throw undefinedOr(value, null, "a value of type %s has no slices", typeName(value));
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
        int first = bound(begin, forward ? 0 : most, least, most);
        int last = bound(end, forward ? length : -1, least, most);
        if (value instanceof String text && by == 1) {
            return run.counted(last <= first ? "" : Strings.part(text, first, last));
        }
        List<?> elements =
                value instanceof String text ? Strings.characters(run, text) : (List<?>) value;
        List<Object> part = new ArrayList<>();
        for (long i = first; forward ? i < last : i > last; i += by) {
            part.add(elements.get((int) i));
        }
        run.counted(part);
        if (value instanceof Range range) {
            return new Range(
                    length == 0 ? 0 : range.start + range.step * first,
                    range.step * by,
                    part.size());
        }
        if (!(value instanceof String)) {
            return like(value, part);
        }
        StringBuilder text = new StringBuilder();
        part.forEach(text::append);
        return text.toString();
    }

    /** Counts the steps of reading or comparing a value, if it is a text. */
    static void countText(Run run, Object value) {
        run.step(value instanceof String text ? text.length() >> 6 : 0);
    }

    /** Returns {@code value[key]}. */
    static Object item(Run run, Object value, Object key) {
        countText(run, value);
        countText(run, key);
        if (value instanceof Undefined undefined) {
            throw undefined.error();
        }
        if (value instanceof Dict dict && !(key instanceof ArrayList) && !(key instanceof Dict)) {
            if (dict.has(key)) {
                return dict.get(key, null);
            }
        } else if ((value instanceof List || value instanceof String) && Numbers.isInteger(key)) {
            int length = (int) length(value);
            int index = Numbers.toInt(key);
            index = index < 0 ? index + length : index;
            if (index >= 0 && index < length) {
                return value instanceof List<?> list
                        ? list.get(index)
                        : Strings.part((String) value, index, index + 1);
            }
        }
        Object attribute = key instanceof String name ? ownAttribute(value, name) : null;
        return attribute == NONE ? null : attribute != null ? attribute : missing(value, key);
    }

    /** Returns {@code value.name}. */
    static Object attribute(Run run, Object value, String name) {
        run.step();
        if (value instanceof Undefined undefined && !name.matches("__\\w+__")) {
            throw undefined.error(); // The sandbox hides other attributes.
        }
        Object attribute = ownAttribute(value, name);
        if (attribute != null) {
            return attribute == NONE ? null : attribute;
        }
        return value instanceof Dict dict && dict.has(name)
                ? dict.get(name, null)
                : missing(value, name);
    }

    private static Undefined missing(Object value, Object key) {
        Object shown = Numbers.isNumber(key) ? key : typeName(key);
        String all = key instanceof String text ? text : String.valueOf(shown);
        String name = all.substring(0, Math.min(all.length(), MAX_NAME));
        String format = "a value of type %s has no attribute or element '%s'";
        return new Undefined(name, format.formatted(typeName(value), name));
    }

    /** Returns an attribute that is no element: null if there is none, NONE if it is None. */
    private static Object ownAttribute(Object value, String name) {
        if (value instanceof Namespace namespace) {
            Object attribute = namespace.attributes.get(name);
            return attribute == null && namespace.attributes.containsKey(name) ? NONE : attribute;
        }
        if (value instanceof Loop loop) {
            return loop.attribute(name);
        }
        if (value instanceof Macro macro) {
            return macro.attribute(name);
        }
        if (value instanceof Tuple tuple && tuple.names.contains(name)) {
            return tuple.get(tuple.names.indexOf(name));
        }
        if (value instanceof String && Strings.REFUSED.contains(name)) {
            throw new TemplateError("the method %s of a text is not supported", name);
        }
        boolean isDict = value instanceof Dict;
        if (isDict && DICT_MUTATORS.contains(name)
                || value instanceof ArrayList && LIST_MUTATORS.contains(name)) {
            String format = "a template may not call '%s' of a %s, which changes it";
            return new Undefined(name, format.formatted(name, typeName(value)));
        }
        Table methods =
                value instanceof String
                        ? Strings.METHODS
                        : isDict ? DICT_METHODS : value instanceof List ? LIST_METHODS : null;
        return methods == null
                        || !methods.has(name)
                        || name.equals("copy") && (value instanceof Tuple || value instanceof Range)
                ? null
                : new Function(name, (run, args) -> methods.call(run, name, value, args));
    }

    private static final Table DICT_METHODS =
            new Table("the method")
                    .add("keys", 0, "", (run, d, a) -> new View("keys", (Dict) d))
                    .add("values", 0, "", (run, d, a) -> new View("values", (Dict) d))
                    .add("items", 0, "", (run, d, a) -> new View("items", (Dict) d))
                    .add("get", 1, "_ _", Values::get)
                    .add("copy", 0, "", (run, d, a) -> dict(run, Args.of(d)));
    private static final Table LIST_METHODS =
            new Table("the method")
                    .add("copy", 0, "", (run, l, a) -> new ArrayList<>(run.counted((List<?>) l)))
                    .add("count", 1, "_", (run, l, a) -> count(run, (List<?>) l, a.get(0)))
                    .add("index", 1, "_ _ _", (run, l, a) -> find(run, (List<?>) l, a));

    private static Object get(Run run, Object dict, Args args) {
        countText(run, args.get(0));
        return ((Dict) dict).get(args.get(0), args.get(1, null));
    }

    private static long count(Run run, List<?> list, Object searched) {
        return list.stream().filter(each -> isSame(run, searched, each)).count();
    }

    private static long find(Run run, List<?> list, Args args) {
        int end = bound(args.get(2, null), list.size(), list.size());
        for (int i = bound(args.get(1, null), 0, list.size()); i < end; i++) {
            if (isSame(run, args.get(0), list.get(i))) {
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
        throw undefinedOr(
                function, null, "a value of type %s cannot be called", typeName(function));
    }

    /** Returns Python's {@code dict(*args, **kwargs)}. */
    static Dict dict(Run run, Args args) {
        Dict dict = new Dict();
        Object from = new Args(args.positional(), Map.of()).bind("dict", 0, "_").get(0, new Dict());
        if (from instanceof Dict other) {
            run.requireSize(other.size());
            dict.putAll(other);
        } else {
            for (Object each : elements(run, from)) {
                List<Object> pair = elements(run, each);
                if (pair.size() != 2) {
                    throw new TemplateError("dict() needs pairs");
                }
                dict.put(pair.get(0), pair.get(1));
            }
        }
        args.named().forEach(dict::put);
        return dict;
    }

    /** Returns a new namespace with attributes of a dictionary. */
    static Namespace namespace(Dict attributes) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (Dict.Entry entry : attributes.entries.values()) {
            if (!(entry.key instanceof String name)) {
                throw new TemplateError(
                        "an attribute's name must be a text, not %s", typeName(entry.key));
            }
            map.put(name, entry.value);
        }
        return new Namespace(map);
    }
}
