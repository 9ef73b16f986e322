// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.math.BigDecimal;
import java.math.RoundingMode;
import java.text.Normalizer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.IntPredicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Python's methods of strings. A string is a sequence of code points. */
final class Strings {

    static final Table METHODS = new Table("method");

    /** Methods that Python has, and that are refused by name. */
    static final Set<String> REFUSED =
            Set.of(
                    ("casefold center encode expandtabs format_map isalnum isascii isdecimal"
                                    + " isidentifier islower isnumeric isprintable isspace istitle"
                                    + " isupper maketrans rfind rindex rjust rpartition swapcase"
                                    + " translate zfill")
                            .split(" "));

    private static final int PREFIX = 16; // characters of a part that are searched without steps
    private static final Pattern SPACES = Pattern.compile("[\t-\r\\x1c-\\x20\\x85\\p{Z}]+");
    private static final Pattern LINE_BREAK =
            Pattern.compile("\r\n|[\n-\r\\x1c-\\x1e\\x85\\u2028\\u2029]");
    private static final Pattern CASED =
            Pattern.compile("[\\p{IsLowercase}\\p{IsUppercase}\\p{Lt}]+");
    private static final Pattern PERCENT =
            Pattern.compile("%(?:\\.(\\d{1,2})(?=f))?(.)?", Pattern.DOTALL);
    private static final Pattern FIELD =
            Pattern.compile("\\{\\{|\\}\\}|\\{([A-Za-z_]\\w*|\\d{0,6})\\}|[{}]");

    /** Computes a method's result. */
    private interface Body {
        Object apply(Run run, String text, Args args);
    }

    private static void add(String signature, Body body) {
        METHODS.add(signature, (run, s, args) -> body.apply(run, run.read((String) s), args));
    }

    static {
        add("capitalize", (run, s, a) -> capitalize(s));
        add("lower", (run, s, a) -> lower(s));
        add("upper", (run, s, a) -> upper(s));
        add("title", (run, s, a) -> title(s));
        add("strip ?chars", (run, s, a) -> strip(s, a.text(0, null), true, true));
        add("lstrip ?chars", (run, s, a) -> strip(s, a.text(0, null), true, false));
        add("rstrip ?chars", (run, s, a) -> strip(s, a.text(0, null), false, true));
        add("ljust width ?fill", (r, s, a) -> pad(r, s, a.integer(0, 0), a.text(1, " "), false));
        add("split ?sep ?maxsplit", (r, s, a) -> split(r, s, a.text(0, null), a.integer(1, -1)));
        add(
                "rsplit ?sep ?maxsplit",
                (r, s, a) -> splitEnd(r, s, a.text(0, null), a.integer(1, -1)));
        add("splitlines", (run, s, a) -> lines(run, s));
        add("partition sep", (run, s, a) -> partition(run, s, a.text(0)));
        add(
                "replace old new ?count",
                (r, s, a) -> replace(r, s, a.text(0), a.text(1), a.integer(2, -1)));
        add(
                "removeprefix prefix",
                (r, s, a) -> s.startsWith(a.text(0)) ? s.substring(a.text(0).length()) : s);
        add(
                "removesuffix suffix",
                (r, s, a) ->
                        s.endsWith(a.text(0))
                                ? s.substring(0, s.length() - a.text(0).length())
                                : s);
        add("join iterable", (run, s, a) -> join(run, s, Values.elements(run, a.get(0))));
        add("startswith prefix", (r, s, a) -> affixes(a).stream().anyMatch(s::startsWith));
        add("endswith suffix", (r, s, a) -> affixes(a).stream().anyMatch(s::endsWith));
        add("count sub", (run, s, a) -> count(run, s, required(a.text(0))));
        add("find sub", (run, s, a) -> index(run, s, a.text(0)));
        add(
                "index sub",
                (run, s, a) -> {
                    long index = index(run, s, a.text(0));
                    if (index < 0) {
                        throw new TemplateError("substring not found");
                    }
                    return index;
                });
        add("isalpha", (run, s, a) -> all(s, Character::isLetter));
        add("isdigit", (run, s, a) -> all(s, Strings::isDigit));
        add("format *", Strings::format);
    }

    private Strings() {}

    static boolean isSpace(int c) {
        return c >= 9 && c <= 13
                || c >= 0x1c && c <= 0x20
                || c == 0x85
                || c >= 0xa0 && Character.isSpaceChar(c);
    }

    static int length(String text) {
        return text.codePointCount(0, text.length());
    }

    static List<Object> characters(Run run, String text) {
        List<Object> characters = new ArrayList<>();
        run.requireLength(text.length());
        run.requireSize(length(text) * 3L); // An element is an object, too.
        text.codePoints().forEach(c -> characters.add(Character.toString(c)));
        return characters;
    }

    /** Returns the part between two indices of code points. */
    static String part(String text, int begin, int end) {
        int first = text.offsetByCodePoints(0, begin);
        return text.substring(first, text.offsetByCodePoints(first, end - begin));
    }

    /** Strips characters, or whitespace if {@code characters} is null. */
    static String strip(String text, String characters, boolean left, boolean right) {
        IntPredicate strips =
                characters == null ? Strings::isSpace : c -> characters.indexOf(c) >= 0;
        int begin = 0;
        int end = text.length();
        while (left && begin < end && strips.test(text.codePointAt(begin))) {
            begin += Character.charCount(text.codePointAt(begin));
        }
        while (right && end > begin && strips.test(text.codePointBefore(end))) {
            end -= Character.charCount(text.codePointBefore(end));
        }
        return text.substring(begin, end);
    }

    static String upper(String text) {
        return text.toUpperCase(Locale.ROOT);
    }

    static String lower(String text) {
        return text.toLowerCase(Locale.ROOT);
    }

    static String capitalize(String text) {
        if (text.isEmpty()) {
            return text;
        }
        int first = text.codePointAt(0);
        String upper = upper(Character.toString(first));
        String title =
                length(upper) == 1
                        ? Character.toString(Character.toTitleCase(first))
                        : upper.substring(0, 1) + lower(upper.substring(1));
        // A letter before the rest, because a sigma is in its final form only after a letter.
        return title + lower("a" + text.substring(Character.charCount(first))).substring(1);
    }

    private static String title(String text) {
        return CASED.matcher(text)
                .replaceAll(word -> Matcher.quoteReplacement(capitalize(word.group())));
    }

    static List<Object> lines(Run run, String text) {
        List<Object> lines = split(run, text, LINE_BREAK, -1);
        if (lines.get(lines.size() - 1).equals("")) {
            lines.remove(lines.size() - 1);
        }
        return lines;
    }

    private static List<Object> split(Run run, String text, Pattern separator, int limit) {
        List<Object> parts = new ArrayList<>();
        Matcher matcher = separator.matcher(text);
        int begin = 0;
        while (parts.size() != limit && matcher.find()) {
            add(run, parts, text.substring(begin, matcher.start()));
            begin = matcher.end();
        }
        add(run, parts, text.substring(begin));
        return parts;
    }

    private static void add(Run run, List<Object> parts, String part) {
        run.requireElement(parts.size());
        parts.add(run.created(part));
    }

    /** Splits at whitespace or a separator, at most {@code limit} times if not negative. */
    static List<Object> split(Run run, String text, String separator, int limit) {
        if (separator == null) {
            String rest = strip(text, null, true, limit < 0);
            List<Object> parts = split(run, rest, SPACES, limit);
            if (parts.get(parts.size() - 1).equals("")) {
                parts.remove(parts.size() - 1);
            }
            return parts;
        }
        List<Object> parts = new ArrayList<>();
        int begin = 0;
        int end = find(run, text, required(separator), 0);
        while (end >= 0 && parts.size() != limit) {
            add(run, parts, text.substring(begin, end));
            begin = end + separator.length();
            end = find(run, text, separator, begin);
        }
        add(run, parts, text.substring(begin));
        return parts;
    }

    private static List<Object> splitEnd(Run run, String text, String separator, int limit) {
        if (limit < 0) {
            return split(run, text, separator, limit);
        }
        String reversed = separator == null ? null : reverse(separator);
        List<Object> parts = split(run, reverse(text), reversed, limit);
        parts.replaceAll(part -> reverse((String) part));
        Collections.reverse(parts);
        return parts;
    }

    static String reverse(String text) {
        return new StringBuilder(text).reverse().toString();
    }

    private static String required(String part) {
        if (part.isEmpty()) {
            throw new TemplateError("an empty text to search for is not supported");
        }
        return part;
    }

    private static Object partition(Run run, String text, String separator) {
        List<Object> parts = split(run, text, separator, 1);
        return parts.size() == 1
                ? Values.tuple(text, "", "")
                : Values.tuple(parts.get(0), separator, parts.get(1));
    }

    static String replace(Run run, String text, String old, String other, int limit) {
        StringBuilder replaced = new StringBuilder();
        int begin = 0;
        int end = find(run, text, required(old), 0);
        for (int n = 0; end >= 0 && n != limit; n++) {
            run.append(replaced, text.substring(begin, end));
            run.append(replaced, other);
            begin = end + old.length();
            end = find(run, text, old, begin);
        }
        run.append(replaced, text.substring(begin));
        return replaced.toString();
    }

    /**
     * Returns the first index of a part, from an index on; -1 if there is none. Counts steps for
     * each place where the text equals the prefix of a long part, which bounds the search.
     */
    static int find(Run run, String text, String part, int from) {
        String prefix = part.substring(0, Math.min(part.length(), PREFIX));
        int found = text.indexOf(prefix, from);
        while (found >= 0 && part.length() > PREFIX) {
            run.step(1 + (part.length() >> 6));
            if (text.startsWith(part, found)) {
                break;
            }
            found = text.indexOf(prefix, found + 1);
        }
        return found;
    }

    private static long index(Run run, String text, String part) {
        int found = find(run, text, part, 0);
        return found < 0 ? -1 : text.codePointCount(0, found);
    }

    private static long count(Run run, String text, String part) {
        long count = 0;
        int found = find(run, text, part, 0);
        while (found >= 0) {
            count++;
            found = find(run, text, part, found + part.length());
        }
        return count;
    }

    /** Compares texts by code points, as Python does. */
    static int compare(Run run, String a, String b) {
        int length = Math.min(a.length(), b.length());
        run.step(length >> 5);
        for (int i = 0; i < length; i++) {
            char x = a.charAt(i);
            char y = b.charAt(i);
            if (x != y) {
                boolean isPair = Character.isSurrogate(x) != Character.isSurrogate(y);
                return isPair ? (Character.isSurrogate(x) ? 1 : -1) : Character.compare(x, y);
            }
        }
        return Integer.compare(a.length(), b.length());
    }

    /** Pads to a number of code points, on the right or on both sides. */
    static String pad(Run run, String text, int width, String fill, boolean centers) {
        if (length(fill) != 1) {
            throw new TemplateError("the fill character must be exactly one character");
        }
        int padding = Math.max(0, Math.max(0, width) - length(text));
        run.requireLength(text.length() + (long) padding * fill.length());
        // Python's center has the odd space on the left if the width is odd.
        int before = centers ? padding / 2 + (padding & width & 1) : 0;
        return fill.repeat(before) + text + fill.repeat(padding - before);
    }

    private static boolean all(String text, IntPredicate test) {
        return !text.isEmpty() && text.codePoints().allMatch(test);
    }

    private static boolean isDigit(int c) {
        String plain = Normalizer.normalize(Character.toString(c), Normalizer.Form.NFKC);
        return plain.length() == 1 && Character.isDigit(plain.charAt(0)) || Character.isDigit(c);
    }

    private static List<String> affixes(Args args) {
        List<?> given =
                args.get(0) instanceof Values.Sequence tuple ? tuple : List.of(args.text(0));
        return given.stream().map(each -> Args.of(each).text(0)).toList();
    }

    static String join(Run run, String separator, List<Object> parts) {
        StringBuilder joined = new StringBuilder();
        for (int i = 0; i < parts.size(); i++) {
            run.append(joined, i == 0 ? "" : separator);
            run.append(joined, Args.of(parts.get(i)).text(0));
        }
        return joined.toString();
    }

    /** Returns an indentation: a text, or a number of spaces. */
    static String indent(Run run, Object width) {
        int spaces = width instanceof String ? 0 : Math.max(0, Numbers.toInt(width));
        run.requireLength(spaces);
        return width instanceof String text ? text : " ".repeat(spaces);
    }

    /** Returns {@code format % value}, for %s, %d, %f, %.2f and %%. */
    static String percent(Run run, String format, Object value) {
        boolean isTuple = value instanceof Values.Sequence;
        List<?> all = isTuple ? (List<?>) value : Collections.singletonList(value);
        Iterator<?> values = all.iterator();
        StringBuilder text = new StringBuilder();
        Matcher directive = PERCENT.matcher(format);
        int end = 0;
        while (directive.find()) {
            run.append(text, format.substring(end, directive.start()));
            end = directive.end();
            String type = String.valueOf(directive.group(2));
            if (!List.of("s", "d", "f", "%").contains(type)) {
                throw new TemplateError("the format %s is not supported", directive.group());
            }
            if (!type.equals("%") && !values.hasNext()) {
                throw new TemplateError("the format has more fields than values");
            }
            int digits = directive.group(1) == null ? 6 : Integer.parseInt(directive.group(1));
            run.append(text, type.equals("%") ? "%" : field(run, type, digits, values.next()));
        }
        boolean needsAll =
                isTuple
                        || !(value instanceof Map
                                || value instanceof List
                                || value instanceof Values.Undefined);
        if (needsAll && values.hasNext()) {
            throw new TemplateError("not all values are used by the format");
        }
        run.append(text, format.substring(end));
        return text.toString();
    }

    private static String field(Run run, String type, int digits, Object value) {
        if (type.equals("s")) {
            return Values.text(run, value);
        }
        if (!Numbers.isNumber(value)) {
            throw new TemplateError("%%%s needs a number, not %s", type, Values.typeName(value));
        }
        if (type.equals("d")) {
            return Numbers.text(Numbers.truncate(value));
        }
        double real = Numbers.real(value);
        if (!Double.isFinite(real)) {
            return Numbers.text(real);
        }
        BigDecimal fixed = new BigDecimal(Math.abs(real)).setScale(digits, RoundingMode.HALF_EVEN);
        return (Math.copySign(1, real) < 0 ? "-" : "") + fixed.toPlainString();
    }

    /** Returns {@code text.format(*args, **kwargs)}, for fields {}, {0} and {name}. */
    private static String format(Run run, String text, Args args) {
        StringBuilder formatted = new StringBuilder();
        Matcher field = FIELD.matcher(text);
        int end = 0;
        int next = 0;
        boolean isNumbered = false;
        while (field.find()) {
            run.append(formatted, text.substring(end, field.start()));
            end = field.end();
            String name = field.group(1);
            if (name == null && field.group().length() < 2) {
                throw new TemplateError(
                        "a format has a field other than {}, {0} and {name}, which is not"
                                + " supported");
            }
            if (name == null) {
                formatted.append(field.group().charAt(0));
                continue;
            }
            boolean hasNumber = name.matches("\\d+");
            isNumbered |= hasNumber;
            int index = hasNumber ? Integer.parseInt(name) : name.isEmpty() ? next++ : -1;
            Object value =
                    index < 0
                            ? args.named().getOrDefault(name, Args.ABSENT)
                            : args.get(index, Args.ABSENT);
            if (value == Args.ABSENT || isNumbered && next > 0) {
                throw new TemplateError("the format has no value for the field {%s}", name);
            }
            run.append(formatted, Values.text(run, value));
        }
        run.append(formatted, text.substring(end));
        return formatted.toString();
    }
}
