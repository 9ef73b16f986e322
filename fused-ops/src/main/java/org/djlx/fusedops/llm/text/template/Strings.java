// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.math.BigDecimal;
import java.math.RoundingMode;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.IntPredicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Python's methods of strings. A string is a sequence of code points. */
final class Strings {

    static final Table METHODS = new Table("the method");

    /** Methods that Python has, and that are refused by name. */
    static final Set<String> REFUSED =
            Set.of(
                    ("casefold center encode expandtabs format_map isascii isdecimal isidentifier"
                                    + " isnumeric isprintable istitle maketrans rindex swapcase"
                                    + " translate")
                            .split(" "));

    private static final Pattern PERCENT =
            Pattern.compile("%(?:\\(([^)]*)\\))?(?:\\.(\\d{1,2}))?(.)?", Pattern.DOTALL);
    private static final Pattern FIELD =
            Pattern.compile("\\{\\{|\\}\\}|\\{([A-Za-z_]\\w*|\\d{0,6})\\}|[{}]");

    /** Computes a method's result. */
    private interface Body {
        Object apply(Run run, String text, Args args);
    }

    private static void add(String names, int required, String parameters, Body body) {
        METHODS.add(
                names,
                required,
                parameters,
                (run, value, args) -> {
                    String text = (String) value;
                    run.step(text.length() >> 3);
                    Object result = body.apply(run, text, args);
                    return result instanceof String s ? run.counted(s) : result;
                });
    }

    static {
        add("format", 0, "*", Strings::format);
        add("capitalize", 0, "", (run, s, a) -> capitalize(s));
        add("lower", 0, "", (run, s, a) -> lower(s));
        add("upper", 0, "", (run, s, a) -> upper(s));
        add("title", 0, "", (run, s, a) -> title(s));
        add("strip", 0, "_", (run, s, a) -> strip(s, a.text(0), true, true));
        add("lstrip", 0, "_", (run, s, a) -> strip(s, a.text(0), true, false));
        add("rstrip", 0, "_", (run, s, a) -> strip(s, a.text(0), false, true));
        add("ljust", 1, "_ _", (run, s, a) -> pad(run, s, a.integer(0, 0), fill(a), 0));
        add("rjust", 1, "_ _", (run, s, a) -> pad(run, s, a.integer(0, 0), fill(a), 1));
        add("zfill", 1, "_", (run, s, a) -> fillZeros(run, s, a.integer(0, 0)));
        add("split", 0, "sep maxsplit", (r, s, a) -> split(r, s, a.text(0), a.integer(1, -1)));
        add("rsplit", 0, "sep maxsplit", (r, s, a) -> splitEnd(r, s, a.text(0), a.integer(1, -1)));
        add(
                "splitlines",
                0,
                "keepends",
                (run, s, a) -> lines(run, s, Values.isTrue(a.get(0, false))));
        add("partition", 1, "_", (run, s, a) -> partition(run, s, a.requiredText(0), false));
        add("rpartition", 1, "_", (run, s, a) -> partition(run, s, a.requiredText(0), true));
        add(
                "replace",
                2,
                "_ _ _",
                (run, s, a) ->
                        replace(run, s, a.requiredText(0), a.requiredText(1), a.integer(2, -1)));
        add("removeprefix", 1, "_", (run, s, a) -> withoutPrefix(s, a.requiredText(0)));
        add("removesuffix", 1, "_", (run, s, a) -> withoutSuffix(s, a.requiredText(0)));
        add("join", 1, "_", (run, s, a) -> join(run, s, Values.elements(run, a.get(0))));
        add("startswith", 1, "_ _ _", (run, s, a) -> hasAffix(s, a, true));
        add("endswith", 1, "_ _ _", (run, s, a) -> hasAffix(s, a, false));
        add("count", 1, "_ _ _", (run, s, a) -> countWithin(run, s, a));
        add("find", 1, "_ _ _", (run, s, a) -> find(run, s, a, false));
        add("rfind", 1, "_ _ _", (run, s, a) -> find(run, s, a, true));
        add("index", 1, "_ _ _", (run, s, a) -> index(run, s, a));
        add("isalnum", 0, "", (run, s, a) -> all(s, c -> Character.isLetter(c) || isNumeric(c)));
        add("isalpha", 0, "", (run, s, a) -> all(s, Character::isLetter));
        add("isdigit", 0, "", (run, s, a) -> all(s, Strings::isDigit));
        add("isspace", 0, "", (run, s, a) -> all(s, Strings::isSpace));
        add("islower", 0, "", (run, s, a) -> isCase(s, false));
        add("isupper", 0, "", (run, s, a) -> isCase(s, true));
    }

    private static final int PREFIX = 16; // characters of a part that are searched without steps
    private static final String LINE_BREAKS = "\n\r\u000b\f\u001c\u001d\u001e\u0085\u2028\u2029";

    private Strings() {}

    static boolean isSpace(int c) {
        return c >= 9 && c <= 13
                || c >= 0x1c && c <= 0x20
                || c == 0x85
                || c >= 0xa0 && Character.isSpaceChar(c);
    }

    static boolean isSpace(String text) {
        return text.codePoints().allMatch(Strings::isSpace);
    }

    static int length(String text) {
        return text.codePointCount(0, text.length());
    }

    static boolean isSimple(String text) {
        return length(text) == text.length();
    }

    static List<Object> characters(Run run, String text) {
        run.requireSize(length(text));
        List<Object> characters = new ArrayList<>();
        text.codePoints().forEach(c -> characters.add(Character.toString(c)));
        return characters;
    }

    static String reverse(String text) {
        return new StringBuilder(text).reverse().toString();
    }

    /** Returns the part between two indices of code points. */
    static String part(String text, int begin, int end) {
        return isSimple(text)
                ? text.substring(begin, end)
                : text.substring(
                        text.offsetByCodePoints(0, begin), text.offsetByCodePoints(0, end));
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
        return text.substring(begin, Math.max(begin, end));
    }

    static String upper(String text) {
        return text.toUpperCase(Locale.ROOT);
    }

    static String lower(String text) {
        return text.toLowerCase(Locale.ROOT);
    }

    /** Returns the title case of a character. */
    private static String titleCase(int c) {
        String upper = upper(Character.toString(c));
        return upper.codePointCount(0, upper.length()) == 1
                ? Character.toString(Character.toTitleCase(c))
                : upper.substring(0, 1) + lower(upper.substring(1));
    }

    static String capitalize(String text) {
        if (text.isEmpty()) {
            return text;
        }
        int first = Character.charCount(text.codePointAt(0));
        // A letter before the rest, because a sigma is in its final form only after a letter.
        String rest = lower("a" + text.substring(first)).substring(1);
        return titleCase(text.codePointAt(0)) + rest;
    }

    private static boolean isCased(int c) {
        return Character.isUpperCase(c) || Character.isLowerCase(c) || Character.isTitleCase(c);
    }

    private static String title(String text) {
        StringBuilder title = new StringBuilder();
        boolean inWord = false;
        for (int i = 0; i < text.length(); ) {
            int c = text.codePointAt(i);
            title.append(inWord ? lowerAt(text, i) : titleCase(c));
            inWord = isCased(c);
            i += Character.charCount(c);
        }
        return title.toString();
    }

    private static String lowerAt(String text, int index) {
        int c = text.codePointAt(index);
        if (c != '\u03a3') {
            return lower(Character.toString(c));
        }
        String next = index + 1 < text.length() ? text.substring(index + 1, index + 2) : "";
        // With its neighbours, because a sigma has another form at the end of a word.
        return lower("a" + Character.toString(c) + next).substring(1, 2);
    }

    static List<Object> lines(Run run, String text, boolean keepsEnds) {
        List<Object> lines = new ArrayList<>();
        int begin = 0;
        while (begin < text.length()) {
            int end = begin;
            while (end < text.length() && LINE_BREAKS.indexOf(text.charAt(end)) < 0) {
                end++;
            }
            int next = Math.min(text.length(), text.startsWith("\r\n", end) ? end + 2 : end + 1);
            lines.add(text.substring(begin, keepsEnds ? next : end));
            begin = next;
        }
        return run.counted(lines);
    }

    /**
     * Splits at whitespace ({@code separator} null) or a separator, at most {@code limit} times if
     * not negative.
     */
    static List<Object> split(Run run, String text, String separator, int limit) {
        List<Object> parts = new ArrayList<>();
        int begin = 0;
        if (separator == null) {
            while (true) {
                while (begin < text.length() && isSpace(text.charAt(begin))) {
                    begin++;
                }
                if (begin == text.length()) {
                    return parts;
                }
                int end = parts.size() == limit ? text.length() : begin;
                while (end < text.length() && !isSpace(text.charAt(end))) {
                    end++;
                }
                String part = text.substring(begin, end);
                parts.add(parts.size() == limit ? strip(part, null, false, true) : part);
                run.requireSize(parts.size() >> 10); // checks the count while it grows
                begin = end;
            }
        }
        requireSeparator(separator);
        int end = find(run, text, separator, 0);
        while (end >= 0 && parts.size() != limit) {
            parts.add(text.substring(begin, end));
            run.requireSize(0);
            begin = end + separator.length();
            end = find(run, text, separator, begin);
        }
        parts.add(text.substring(begin));
        return run.counted(parts);
    }

    private static void requireSeparator(String separator) {
        if (separator.isEmpty()) {
            throw new TemplateError("a text cannot be divided at an empty text");
        }
    }

    /** Splits from the right. */
    private static List<Object> splitEnd(Run run, String text, String separator, int limit) {
        if (limit < 0) {
            return split(run, text, separator, limit);
        }
        String reversed = separator == null ? null : reverse(separator);
        List<Object> parts = new ArrayList<>();
        for (Object part : split(run, reverse(text), reversed, limit)) {
            parts.add(0, reverse((String) part));
            run.step(1 + (parts.size() >> 6));
        }
        return parts;
    }

    static String replace(Run run, String text, String old, String other, int limit) {
        long most = old.isEmpty() ? text.length() + 1L : text.length() / old.length();
        long added = Math.max(0, other.length() - old.length());
        if (added * most + text.length() > Run.MAX_LENGTH) { // it may be too long
            most = old.isEmpty() ? length(text) + 1L : count(run, text, old);
            run.requireLength(text.length() + added * Math.min(most, limit < 0 ? most : limit));
        }
        run.step((text.length() >> 3) + 1);
        if (limit < 0 && !old.isEmpty() && old.length() <= PREFIX) {
            return run.counted(text.replace(old, other));
        }
        StringBuilder replaced = new StringBuilder();
        int position = 0;
        for (int n = 0; n != limit; n++) {
            int found = old.isEmpty() && n == 0 ? 0 : -1;
            if (old.isEmpty() && n > 0 && position < text.length()) {
                found = text.offsetByCodePoints(position, 1);
            } else if (!old.isEmpty()) {
                found = find(run, text, old, position);
            }
            if (found < 0) {
                break;
            }
            replaced.append(text, position, found).append(other);
            position = found + old.length();
        }
        return run.counted(replaced.append(text.substring(position)).toString());
    }

    /**
     * Returns the first index of a part, from an index on; -1 if there is none. Counts steps for
     * each place where the text equals the prefix of a long part, which bounds the search.
     */
    static int find(Run run, String text, String part, int from) {
        String prefix = part.substring(0, Math.min(part.length(), PREFIX));
        int found = text.indexOf(prefix, from);
        while (found >= 0 && !matches(run, text, part, found)) {
            found = text.indexOf(prefix, found + 1);
        }
        return found;
    }

    /** Returns the last index of a part; -1 if there is none. */
    private static int findLast(Run run, String text, String part) {
        String prefix = part.substring(0, Math.min(part.length(), PREFIX));
        int found = text.lastIndexOf(prefix);
        while (found >= 0 && !matches(run, text, part, found)) {
            found = text.lastIndexOf(prefix, found - 1);
        }
        return found;
    }

    private static boolean matches(Run run, String text, String part, int index) {
        if (part.length() <= PREFIX) {
            return true;
        }
        run.step(1 + (part.length() >> 6));
        return text.startsWith(part, index);
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

    private static long count(Run run, String text, String part) {
        long count = 0;
        for (int i = find(run, text, part, 0);
                i >= 0;
                i = find(run, text, part, i + part.length())) {
            count++;
        }
        return count;
    }

    /**
     * Pads to a number of code points, with {@code left} of the padding on the left: 0, 1, or 2 for
     * half of it.
     */
    static String pad(Run run, String text, int width, String fill, int left) {
        if (length(fill) != 1) {
            throw new TemplateError("the fill character must be exactly one character");
        }
        int length = length(text);
        int padding = Math.max(0, Math.max(0, width) - length);
        run.requireLength(text.length() + (long) padding * fill.length());
        // Python's center has the odd space on the left if the width is odd.
        int before = left == 0 ? 0 : left == 1 ? padding : padding / 2 + (padding & width & 1);
        return fill.repeat(before) + text + fill.repeat(padding - before);
    }

    private static boolean all(String text, IntPredicate test) {
        return !text.isEmpty() && text.codePoints().allMatch(test);
    }

    static boolean isCase(String text, boolean upper) {
        return text.codePoints().anyMatch(Strings::isCased)
                && text.codePoints()
                        .noneMatch(
                                c ->
                                        Character.isTitleCase(c)
                                                || (upper
                                                        ? Character.isLowerCase(c)
                                                        : Character.isUpperCase(c)));
    }

    private static boolean isNumeric(int c) {
        int type = Character.getType(c);
        return type == Character.DECIMAL_DIGIT_NUMBER
                || type == Character.LETTER_NUMBER
                || type == Character.OTHER_NUMBER
                || Character.isIdeographic(c) && Character.getNumericValue(c) >= 0;
    }

    private static boolean isDigit(int c) {
        return Character.isDigit(c)
                || "\u00b2\u00b3\u00b9".indexOf(c) >= 0
                || c == 0x2070
                || c >= 0x2074 && c <= 0x2079
                || c >= 0x2080 && c <= 0x2089
                || c >= 0x2460 && c <= 0x2468;
    }

    /** Returns whether a character is printable. Unpaired surrogates are: see ControlTokens. */
    static boolean isPrintable(int c) {
        return switch (Character.getType(c)) {
            case Character.CONTROL,
                    Character.FORMAT,
                    Character.PRIVATE_USE,
                    Character.UNASSIGNED,
                    Character.LINE_SEPARATOR,
                    Character.PARAGRAPH_SEPARATOR ->
                    false;
            case Character.SPACE_SEPARATOR -> c == ' ';
            default -> true;
        };
    }

    /** Appends {@code repr(text)}. */
    static void quote(StringBuilder quoted, String text) {
        char quote = text.indexOf('\'') >= 0 && text.indexOf('"') < 0 ? '"' : '\'';
        quoted.append(quote);
        for (int i = 0; i < text.length(); ) {
            int c = text.codePointAt(i);
            i += Character.charCount(c);
            int escaped = "\t\n\r".indexOf(c);
            if (c == quote || c == '\\') {
                quoted.append('\\').appendCodePoint(c);
            } else if (escaped >= 0) {
                quoted.append('\\').append("tnr".charAt(escaped));
            } else if (isPrintable(c)) {
                quoted.appendCodePoint(c);
            } else {
                int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
                quoted.append('\\').append(digits == 2 ? 'x' : digits == 4 ? 'u' : 'U');
                quoted.append(HexFormat.of().toHexDigits(c, digits));
            }
        }
        quoted.append(quote);
    }

    private static String fill(Args args) {
        return args.has(1) ? args.requiredText(1) : " ";
    }

    private static String fillZeros(Run run, String text, int width) {
        String sign = text.startsWith("-") || text.startsWith("+") ? text.substring(0, 1) : "";
        int rest = Math.max(sign.length(), width) - sign.length();
        return sign + pad(run, text.substring(sign.length()), rest, "0", 1);
    }

    private static Object partition(Run run, String text, String separator, boolean right) {
        requireSeparator(separator);
        int at = right ? findLast(run, text, separator) : find(run, text, separator, 0);
        if (at < 0) {
            return Values.tuple(right ? "" : text, "", right ? text : "");
        }
        return Values.tuple(
                text.substring(0, at), separator, text.substring(at + separator.length()));
    }

    private static String withoutPrefix(String text, String prefix) {
        return text.startsWith(prefix) ? text.substring(prefix.length()) : text;
    }

    private static String withoutSuffix(String text, String suffix) {
        return text.endsWith(suffix) ? text.substring(0, text.length() - suffix.length()) : text;
    }

    static String join(Run run, String separator, List<Object> parts) {
        StringBuilder joined = new StringBuilder();
        for (int i = 0; i < parts.size(); i++) {
            run.append(joined, i == 0 ? "" : separator);
            run.append(joined, Args.of(parts.get(i)).requiredText(0));
        }
        return joined.toString();
    }

    /** Returns the part of a text that the last two arguments name; null if it is outside. */
    private static String within(String text, Args args) {
        int length = length(text);
        int begin = begin(text, args);
        int end = Values.bound(args.get(2, null), length, length);
        boolean outside = args.get(1, null) != null && Numbers.toInt(args.get(1)) > length;
        return begin > end || outside ? null : part(text, begin, end);
    }

    private static int begin(String text, Args args) {
        return Values.bound(args.get(1, null), 0, length(text));
    }

    private static boolean hasAffix(String text, Args args, boolean first) {
        String part = within(text, args);
        List<?> affixes =
                args.get(0) instanceof Values.Tuple tuple ? tuple : List.of(args.requiredText(0));
        boolean found = false;
        for (Object each : affixes) {
            String affix = Args.of(each).requiredText(0);
            found |= part != null && (first ? part.startsWith(affix) : part.endsWith(affix));
            if (found) {
                break;
            }
        }
        return found;
    }

    private static long countWithin(Run run, String text, Args args) {
        String searched = args.requiredText(0);
        String part = within(text, args);
        return part == null
                ? 0
                : searched.isEmpty() ? length(part) + 1L : count(run, part, searched);
    }

    private static long find(Run run, String text, Args args, boolean right) {
        String searched = args.requiredText(0);
        String part = within(text, args);
        int found =
                part == null
                        ? -1
                        : right ? findLast(run, part, searched) : find(run, part, searched, 0);
        return found < 0 ? -1 : (long) begin(text, args) + part.codePointCount(0, found);
    }

    private static long index(Run run, String text, Args args) {
        long found = find(run, text, args, false);
        if (found < 0) {
            throw new TemplateError("substring not found");
        }
        return found;
    }

    /** Returns {@code format % value}, for s, r, d, i, f and %, without flags and widths. */
    static String percent(Run run, String format, Object value) {
        boolean isTuple = value instanceof Values.Tuple;
        Iterator<?> values = (isTuple ? (List<?>) value : Args.of(value).positional()).iterator();
        StringBuilder text = new StringBuilder();
        Matcher directive = PERCENT.matcher(format);
        int end = 0;
        while (directive.find()) {
            run.append(text, format.substring(end, directive.start()));
            end = directive.end();
            String name = directive.group(1);
            String type = directive.group(3) == null ? "" : directive.group(3);
            String precision = directive.group(2);
            if (directive.group().equals("%%")) {
                text.append('%');
                continue;
            }
            if (type.isEmpty()
                    || !"srdif".contains(type)
                    || precision != null && !type.equals("f")) {
                throw new TemplateError("the format %s is not supported", directive.group());
            }
            if (name != null && !(value instanceof Values.Dict dict && dict.has(name))) {
                throw new TemplateError("the format needs a dictionary with %s", name);
            }
            if (name == null && !values.hasNext()) {
                throw new TemplateError("the format has more fields than values");
            }
            Object argument = name == null ? values.next() : ((Values.Dict) value).get(name, null);
            run.append(text, directive(run, type, precision, argument));
        }
        boolean needsAll =
                isTuple
                        || !(value instanceof Values.Dict
                                || value instanceof List
                                || value instanceof Values.Undefined);
        if (needsAll && values.hasNext()) {
            throw new TemplateError("not all values are used by the format");
        }
        return run.counted(text.append(format.substring(end)).toString());
    }

    private static String directive(Run run, String type, String precision, Object value) {
        if (type.equals("s")) {
            return Values.text(run, value);
        }
        if (type.equals("r")) {
            StringBuilder text = new StringBuilder();
            Values.represent(run, text, value);
            return text.toString();
        }
        if (!Numbers.isNumber(value)) {
            throw new TemplateError("%%%s needs a number, not %s", type, Values.typeName(value));
        }
        if (!type.equals("f")) {
            boolean real = value instanceof Double;
            return Numbers.text(real ? Numbers.truncate((Double) value) : Numbers.round(value, 0));
        }
        double real = Numbers.real(value);
        if (!Double.isFinite(real)) {
            return Numbers.text(real);
        }
        int digits = precision == null ? 6 : Integer.parseInt(precision);
        String fixed =
                new BigDecimal(Math.abs(real))
                        .setScale(digits, RoundingMode.HALF_EVEN)
                        .toPlainString();
        return (Math.copySign(1, real) < 0 ? "-" : "") + fixed;
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
            if (name == null) {
                if (field.group().length() < 2) {
                    throw new TemplateError(
                            "a format has a field other than {}, {0} and {name}, which is not"
                                    + " supported");
                }
                formatted.append(field.group().charAt(0));
                continue;
            }
            boolean isName = !name.isEmpty() && !Character.isDigit(name.charAt(0));
            int index = isName || name.isEmpty() ? next : Integer.parseInt(name);
            next += name.isEmpty() ? 1 : 0;
            isNumbered |= !isName && !name.isEmpty();
            boolean given =
                    isName ? args.named().containsKey(name) : index < args.positional().size();
            if (!given || isNumbered && next > 0) {
                throw new TemplateError("the format has no value for the field {%s}", name);
            }
            Object value = isName ? args.named().get(name) : args.get(index);
            run.append(formatted, Values.text(run, value));
        }
        return formatted.append(text.substring(end)).toString();
    }
}
