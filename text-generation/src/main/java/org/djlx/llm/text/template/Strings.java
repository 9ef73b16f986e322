// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.text.Normalizer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import java.util.function.IntPredicate;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Python's methods of strings. A string is a sequence of code points. */
final class Strings {

    static final Table METHODS = new Table("method");

    private static final int PREFIX = 16; // characters of a part that are searched without steps
    private static final Pattern SPACES = Pattern.compile("[\t-\r\\x1c-\\x20\\x85\\p{Z}]+");
    private static final Pattern LINE_BREAK =
            Pattern.compile("\r\n|[\n-\r\\x1c-\\x1e\\x85\\u2028\\u2029]");
    private static final Pattern WORD =
            Pattern.compile("[\\p{IsLowercase}\\p{IsUppercase}\\p{Lt}]+");
    private static final Pattern PERCENT = Pattern.compile("%(.?)", Pattern.DOTALL);
    private static final Pattern FIELD =
            Pattern.compile("\\{\\{|\\}\\}|\\{([A-Za-z_]\\w*|\\d*)\\}|[{}]");

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
        add("title", (run, s, a) -> replaceWords(s, WORD, Strings::capitalize));
        add("strip ?chars", (run, s, a) -> strip(s, a.text(0, null), true, true));
        add("lstrip ?chars", (run, s, a) -> strip(s, a.text(0, null), true, false));
        add("rstrip ?chars", (run, s, a) -> strip(s, a.text(0, null), false, true));
        add("ljust width", (run, s, a) -> pad(run, s, a.integer(0, 0), false));
        add("split ?sep ?maxsplit", (r, s, a) -> split(r, s, a.text(0, null), a.integer(1, -1)));
        add(
                "rsplit ?sep ?maxsplit",
                (r, s, a) -> splitEnd(r, s, a.text(0, null), a.integer(1, -1)));
        add("splitlines", (run, s, a) -> lines(run, s));
        add("partition sep", (run, s, a) -> partition(run, s, a.text(0)));
        add("replace old new ?count", Strings::replace);
        add("removeprefix prefix", (run, s, a) -> s.substring(length(s.startsWith(a.text(0)), a)));
        add(
                "removesuffix suffix",
                (run, s, a) -> s.substring(0, s.length() - length(s.endsWith(a.text(0)), a)));
        add("join iterable", (run, s, a) -> join(run, s, Values.list(run, a.get(0))));
        add("startswith prefix", (r, s, a) -> affixes(a).stream().anyMatch(s::startsWith));
        add("endswith suffix", (r, s, a) -> affixes(a).stream().anyMatch(s::endsWith));
        add("count sub", (run, s, a) -> split(run, s, a.text(0), -1).size() - 1L);
        add("find sub", (run, s, a) -> index(run, s, a.text(0)));
        add("index sub", (run, s, a) -> requireFound(index(run, s, a.text(0))));
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
        run.requireSize(length(text));
        run.allocate((long) length(text) * Run.OBJECT);
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
            begin = text.offsetByCodePoints(begin, 1);
        }
        while (right && end > begin && strips.test(text.codePointBefore(end))) {
            end = text.offsetByCodePoints(end, -1);
        }
        return text.substring(begin, end);
    }

    /** Returns the length of an affix; 0 if the text does not have it. */
    private static int length(boolean has, Args affix) {
        return has ? affix.text(0).length() : 0;
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

    static String replaceWords(String text, Pattern word, Function<String, String> replacement) {
        return word.matcher(text)
                .replaceAll(found -> Matcher.quoteReplacement(replacement.apply(found.group())));
    }

    static List<Object> lines(Run run, String text) {
        return split(run, text, LINE_BREAK, -1);
    }

    /** Splits at matches; leaves out an empty last part. */
    private static List<Object> split(Run run, String text, Pattern separator, int limit) {
        List<Object> parts = new ArrayList<>();
        Matcher matcher = separator.matcher(text);
        int begin = 0;
        while (parts.size() != limit && matcher.find()) {
            add(run, parts, text.substring(begin, matcher.start()));
            begin = matcher.end();
        }
        if (begin < text.length()) {
            add(run, parts, text.substring(begin));
        }
        return parts;
    }

    private static void add(Run run, List<Object> parts, String part) {
        run.requireElement(parts.size());
        parts.add(run.created(part));
    }

    /** Splits at whitespace or a separator, at most {@code limit} times if not negative. */
    static List<Object> split(Run run, String text, String separator, int limit) {
        if (separator == null) {
            return split(run, strip(text, null, true, false), SPACES, limit);
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
        boolean found = parts.size() > 1;
        return Values.tuple(parts.get(0), found ? separator : "", found ? parts.get(1) : "");
    }

    static Object replace(Run run, String text, Args args) {
        List<Object> parts = split(run, text, args.text(0), args.integer(2, -1));
        return join(run, args.text(1), parts);
    }

    /**
     * Returns the first index of a part, from an index on; -1 if there is none. Counts steps for
     * each place where the text equals the prefix of a long part, which bounds the search.
     */
    static int find(Run run, String text, String part, int from) {
        String prefix = part.substring(0, Math.min(part.length(), PREFIX));
        int found = text.indexOf(prefix, from);
        while (found >= 0 && part.length() > PREFIX && !text.startsWith(part, found)) {
            run.step(1 + (part.length() >> 6));
            found = text.indexOf(prefix, found + 1);
        }
        return found;
    }

    private static long index(Run run, String text, String part) {
        int found = find(run, text, part, 0);
        return found < 0 ? -1 : text.codePointCount(0, found);
    }

    private static long requireFound(long index) {
        if (index < 0) {
            throw new TemplateError("substring not found");
        }
        return index;
    }

    /** Compares texts by code points, as Python does. */
    static int compare(Run run, String a, String b) {
        run.step(Math.min(a.length(), b.length()) >> 5);
        int i = 0;
        while (i < Math.min(a.length(), b.length()) && a.charAt(i) == b.charAt(i)) {
            i++;
        }
        return i == Math.min(a.length(), b.length())
                ? Integer.compare(a.length(), b.length())
                : Integer.compare(a.codePointAt(i), b.codePointAt(i));
    }

    /** Pads with spaces to a number of code points, on the right or on both sides. */
    static String pad(Run run, String text, int width, boolean centers) {
        int padding = Math.max(0, Math.max(0, width) - length(text));
        run.requireLength((long) text.length() + padding);
        // Python's center has the odd space on the left if the width is odd.
        int before = centers ? padding / 2 + (padding & width & 1) : 0;
        return " ".repeat(before) + text + " ".repeat(padding - before);
    }

    private static boolean all(String text, IntPredicate test) {
        return !text.isEmpty() && text.codePoints().allMatch(test);
    }

    private static boolean isDigit(int c) {
        String plain = Normalizer.normalize(Character.toString(c), Normalizer.Form.NFKC);
        return length(plain) == 1 && Character.isDigit(plain.codePointAt(0));
    }

    private static List<String> affixes(Args args) {
        boolean isTuple = Values.type(args.get(0)).equals("tuple");
        List<?> given = isTuple ? (List<?>) args.get(0) : List.of(args.text(0));
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

    private static String replaceFields(
            Run run, Pattern field, String format, Function<MatchResult, String> value) {
        StringBuilder text = new StringBuilder();
        Matcher matcher = field.matcher(format);
        int end = 0;
        while (matcher.find()) {
            run.append(text, format.substring(end, matcher.start()));
            run.append(text, value.apply(matcher));
            end = matcher.end();
        }
        run.append(text, format.substring(end));
        return text.toString();
    }

    /** Returns {@code format % value}, for %s, %d and %%. */
    static String percent(Run run, String format, Object value) {
        boolean isTuple = Values.type(value).equals("tuple");
        List<?> all = isTuple ? (List<?>) value : Collections.singletonList(value);
        Iterator<?> values = all.iterator();
        String text =
                replaceFields(
                        run,
                        PERCENT,
                        format,
                        field -> {
                            String type = field.group(1);
                            if (type.isEmpty() || !"sd%".contains(type)) {
                                throw new TemplateError(
                                        "the format %s is not supported", field.group());
                            }
                            if (!type.equals("%") && !values.hasNext()) {
                                throw new TemplateError("the format has more fields than values");
                            }
                            Object next = type.equals("%") ? "%" : values.next();
                            return type.equals("d")
                                    ? Numbers.text(Numbers.truncate(Values.number(next)))
                                    : Values.text(run, next);
                        });
        boolean mayBeLeft =
                !isTuple
                        && (value instanceof Map
                                || value instanceof List
                                || value instanceof Values.Undefined);
        if (!mayBeLeft && values.hasNext()) {
            throw new TemplateError("not all values are used by the format");
        }
        return text;
    }

    /** Returns {@code text.format(*args, **kwargs)}, for fields {} and {name}. */
    private static String format(Run run, String text, Args args) {
        Iterator<Object> values = args.positional().iterator();
        return replaceFields(
                run,
                FIELD,
                text,
                field -> {
                    String name = field.group(1);
                    if (name == null && field.group().length() > 1) {
                        return field.group().substring(1);
                    }
                    if (name == null || name.matches("\\d+")) {
                        throw new TemplateError(
                                "a format has a field other than {} and {name}, which is not"
                                        + " supported");
                    }
                    if (name.isEmpty() ? !values.hasNext() : !args.named().containsKey(name)) {
                        throw new TemplateError("the format has no value for the field {%s}", name);
                    }
                    return Values.text(
                            run, name.isEmpty() ? values.next() : args.named().get(name));
                });
    }
}
