// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.IntPredicate;

/** Python's methods of strings. A string is a sequence of code points. */
final class Strings {

    static final Set<String> METHODS =
            Set.of(
                    "capitalize",
                    "casefold",
                    "center",
                    "count",
                    "endswith",
                    "expandtabs",
                    "find",
                    "format",
                    "index",
                    "isalnum",
                    "isalpha",
                    "isascii",
                    "isdecimal",
                    "isdigit",
                    "islower",
                    "isnumeric",
                    "isprintable",
                    "isspace",
                    "istitle",
                    "isupper",
                    "join",
                    "ljust",
                    "lower",
                    "lstrip",
                    "partition",
                    "removeprefix",
                    "removesuffix",
                    "replace",
                    "rfind",
                    "rindex",
                    "rjust",
                    "rpartition",
                    "rsplit",
                    "rstrip",
                    "split",
                    "splitlines",
                    "startswith",
                    "strip",
                    "swapcase",
                    "title",
                    "upper",
                    "zfill");
    private static final String LINE_BREAKS = "\n\r\u000b\f\u001c\u001d\u001e\u0085\u2028\u2029";

    private static final int PREFIX = 16; // characters of a part that are searched without steps

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

    private static String swapCase(String text) {
        StringBuilder swapped = new StringBuilder();
        for (int i = 0; i < text.length(); ) {
            int c = text.codePointAt(i);
            String one = Character.toString(c);
            swapped.append(
                    Character.isUpperCase(c)
                            ? lowerAt(text, i)
                            : Character.isLowerCase(c) ? upper(one) : one);
            i += one.length();
        }
        return swapped.toString();
    }

    static List<Object> lines(String text, boolean keepsEnds) {
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
        return lines;
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
    private static List<Object> rightSplit(Run run, String text, String separator, int limit) {
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

    private static boolean isTitle(String text) {
        boolean inWord = false;
        boolean found = false;
        for (int c : text.codePoints().toArray()) {
            boolean upper = Character.isUpperCase(c) || Character.isTitleCase(c);
            if (upper ? inWord : Character.isLowerCase(c) && !inWord) {
                return false;
            }
            inWord = isCased(c);
            found |= inWord;
        }
        return found;
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

    /** Calls a method of a string, one of {@link #METHODS}. */
    static Object call(Run run, String text, String method, Args args) {
        run.step(1 + (text.length() >> 3));
        if (method.startsWith("is")) {
            args.bind(method, 0);
            return is(text, method);
        }
        return switch (method) {
            case "format" -> Formats.format(run, text, args);
            case "capitalize", "casefold", "lower", "swapcase", "title", "upper" -> {
                args.bind(method, 0);
                yield run.counted(changeCase(text, method));
            }
            case "strip", "lstrip", "rstrip" -> {
                String characters = args.bind(method, 0, "").text(0);
                yield strip(text, characters, !method.equals("rstrip"), !method.equals("lstrip"));
            }
            case "center", "ljust", "rjust" -> {
                Args bound = args.bind(method, 1, "", "");
                int left = method.equals("ljust") ? 0 : method.equals("rjust") ? 1 : 2;
                String fill = bound.has(1) ? bound.requiredText(1) : " ";
                yield pad(run, text, Numbers.toInt(bound.get(0)), fill, left);
            }
            case "zfill" -> {
                int width = Numbers.toInt(args.bind(method, 1, "").get(0));
                boolean signed = text.startsWith("-") || text.startsWith("+");
                String sign = signed ? text.substring(0, 1) : "";
                yield sign
                        + pad(
                                run,
                                text.substring(sign.length()),
                                Math.max(sign.length(), width) - sign.length(),
                                "0",
                                1);
            }
            case "expandtabs" ->
                    expandTabs(run, text, args.bind(method, 0, "tabsize").integer(0, 8));
            case "split", "rsplit" -> {
                Args bound = args.bind(method, 0, "sep", "maxsplit");
                int limit = bound.integer(1, -1);
                yield method.equals("split")
                        ? split(run, text, bound.text(0), limit)
                        : rightSplit(run, text, bound.text(0), limit);
            }
            case "splitlines" -> {
                Args bound = args.bind(method, 0, "keepends");
                yield run.counted(lines(text, Values.isTrue(bound.get(0, false))));
            }
            case "partition", "rpartition" -> {
                String separator = args.bind(method, 1, "").requiredText(0);
                requireSeparator(separator);
                boolean right = method.equals("rpartition");
                int at = right ? findLast(run, text, separator) : find(run, text, separator, 0);
                yield at < 0
                        ? Values.tuple(right ? "" : text, "", right ? text : "")
                        : Values.tuple(
                                text.substring(0, at),
                                separator,
                                text.substring(at + separator.length()));
            }
            case "replace" -> {
                Args bound = args.bind(method, 2, "", "", "");
                yield replace(
                        run,
                        text,
                        bound.requiredText(0),
                        bound.requiredText(1),
                        bound.integer(2, -1));
            }
            case "removeprefix" -> {
                String prefix = args.bind(method, 1, "").requiredText(0);
                yield text.startsWith(prefix) ? text.substring(prefix.length()) : text;
            }
            case "removesuffix" -> {
                String suffix = args.bind(method, 1, "").requiredText(0);
                yield text.endsWith(suffix)
                        ? text.substring(0, text.length() - suffix.length())
                        : text;
            }
            case "join" -> {
                StringBuilder joined = new StringBuilder();
                String separator = "";
                for (Object part : Values.elements(run, args.bind(method, 1, "").get(0))) {
                    String next = Args.of(part).requiredText(0);
                    run.requireLength(
                            joined.length() + (long) separator.length() + next.length()
                                            > Run.MAX_LENGTH
                                    ? Long.MAX_VALUE
                                    : separator.length() + next.length());
                    joined.append(separator).append(next);
                    separator = text;
                }
                yield joined.toString();
            }
            default -> search(run, text, method, args.bind(method, 1, "", "", ""));
        };
    }

    /**
     * Calls a method whose last two arguments limit the text: startswith, endswith, find, index,
     * count.
     */
    private static Object search(Run run, String text, String method, Args args) {
        int length = length(text);
        int begin = Values.bound(args.get(1, null), 0, length);
        int end = Values.bound(args.get(2, null), length, length);
        boolean inside =
                begin <= end
                        && (!args.has(1)
                                || args.get(1) == null
                                || Numbers.toInt(args.get(1)) <= length);
        String part = inside ? part(text, begin, end) : null;
        if (method.equals("startswith") || method.equals("endswith")) {
            List<?> all =
                    args.get(0) instanceof Values.Tuple tuple
                            ? tuple
                            : List.of(args.requiredText(0));
            for (Object each : all) {
                String affix = Args.of(each).requiredText(0);
                if (part != null
                        && (method.equals("endswith")
                                ? part.endsWith(affix)
                                : part.startsWith(affix))) {
                    return true;
                }
            }
            return false;
        }
        String searched = args.requiredText(0);
        if (method.equals("count")) {
            return part == null
                    ? 0L
                    : searched.isEmpty() ? length(part) + 1L : count(run, part, searched);
        }
        int found =
                part == null
                        ? -1
                        : method.startsWith("r")
                                ? findLast(run, part, searched)
                                : find(run, part, searched, 0);
        if (found < 0 && method.endsWith("index")) {
            throw new TemplateError("substring not found");
        }
        return found < 0 ? -1L : (long) begin + part.codePointCount(0, found);
    }

    private static String changeCase(String text, String method) {
        return switch (method) {
            case "capitalize" -> capitalize(text);
            case "casefold" -> lower(text).replace("\u00df", "ss").replace('\u03c2', '\u03c3');
            case "lower" -> lower(text);
            case "swapcase" -> swapCase(text);
            case "title" -> title(text);
            default -> upper(text);
        };
    }

    private static Object is(String text, String method) {
        return switch (method) {
            case "isalnum" -> all(text, c -> Character.isLetter(c) || isDigit(c) || isNumeric(c));
            case "isalpha" -> all(text, Character::isLetter);
            case "isascii" -> text.codePoints().allMatch(c -> c < 128);
            case "isdecimal" -> all(text, Character::isDigit);
            case "isdigit" -> all(text, Strings::isDigit);
            case "islower" -> isCase(text, false);
            case "isnumeric" -> all(text, Strings::isNumeric);
            case "isprintable" -> text.codePoints().allMatch(Strings::isPrintable);
            case "isspace" -> all(text, Strings::isSpace);
            case "istitle" -> isTitle(text);
            default -> isCase(text, true);
        };
    }

    private static String expandTabs(Run run, String text, int size) {
        StringBuilder expanded = new StringBuilder();
        int column = 0;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '\t') {
                int spaces = size <= 0 ? 0 : size - column % size;
                run.requireLength(expanded.length() + (long) spaces);
                expanded.append(" ".repeat(spaces));
                column += spaces;
            } else {
                expanded.append(c);
                column =
                        c == '\n' || c == '\r' ? 0 : column + (Character.isLowSurrogate(c) ? 0 : 1);
            }
        }
        return expanded.toString();
    }
}
