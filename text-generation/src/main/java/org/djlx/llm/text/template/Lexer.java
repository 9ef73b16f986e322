// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.math.BigInteger;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Divides a source into tokens, with Jinja2's options {@code trim_blocks} and {@code
 * lstrip_blocks}.
 */
final class Lexer {

    enum Kind {
        TEXT, // between tags
        NAME,
        LITERAL, // a string or number
        SYMBOL, // an operator, or what begins or ends a tag
        EOF
    }

    /**
     * A token.
     *
     * @param text the token as in the source; empty for TEXT and EOF
     * @param value the value of a literal, or the text between tags; null otherwise
     */
    record Token(Kind kind, String text, Object value, int line) {}

    private static final int MAX_DIGITS = 100;
    private static final Pattern TAG =
            Pattern.compile(
                    "\\{%[-+]?[\\s\\x1c-\\x1f]*raw[\\s\\x1c-\\x1f]*(?<raw>-?)%\\}|\\{[{%#][-+]?",
                    Pattern.UNICODE_CHARACTER_CLASS);
    private static final Pattern END_RAW =
            Pattern.compile(
                    "\\{%([-+]?)\\s*endraw\\s*([-+]?)%\\}", Pattern.UNICODE_CHARACTER_CLASS);
    private static final String REAL = "(?<!\\.)D(?:\\.D(?:[eE][-+]?D)?|[eE][-+]?D)";
    private static final Pattern TOKEN =
            Pattern.compile(
                    (("(?<real>" + REAL + ")|(?<integer>0[bBoOxX]\\w*+|D)")
                                    .replace("D", "\\d(?:_?\\d)*+"))
                            + "|(?<name>[\\p{L}\\p{Nl}_][\\p{L}\\p{Nl}\\p{M}\\p{Nd}\\p{Pc}]*+)"
                            + "|(?<string>'(?:[^'\\\\]|\\\\.)*+'|\"(?:[^\"\\\\]|\\\\.)*+\")"
                            + "|//|\\*\\*|==|!=|>=|<=|[-+/*%~\\[\\](){}<>=.:|,;]",
                    Pattern.DOTALL);
    private static final Pattern ESCAPE =
            Pattern.compile("\\\\(?:[xuU]((?<=x).{2}|(?<=u).{4}|(?<=U).{8})|(.))", Pattern.DOTALL);

    private final String source;
    private final List<Token> tokens = new ArrayList<>();
    private int position;
    private int line = 1;
    private int counted; // the position up to which line breaks are counted
    private boolean beginsLine = true; // whether a line begins at the position

    private Lexer(String source) {
        String lines = source.replace("\r\n", "\n").replace('\r', '\n');
        this.source = lines.endsWith("\n") ? lines.substring(0, lines.length() - 1) : lines;
    }

    /** Returns the tokens of a template; the last is EOF. Comments and raw tags are left out. */
    static List<Token> tokens(String source) {
        Lexer lexer = new Lexer(source);
        try {
            lexer.read();
        } catch (TemplateError e) {
            lexer.countTo(lexer.position);
            throw new TemplateError("line %d: %s", lexer.line, e.getMessage());
        }
        return lexer.tokens;
    }

    private void read() {
        Matcher tag = TAG.matcher(source);
        while (tag.find(position)) {
            String begin = tag.group();
            text(tag.start(), begin.substring(2, Math.min(3, begin.length())), begin.charAt(1));
            position = tag.end();
            if (tag.group("raw") != null) {
                afterTag(tag.group("raw").isEmpty() ? "+" : "-");
                Matcher end = END_RAW.matcher(source);
                if (!end.find(position)) {
                    throw new TemplateError("a raw block has no {%% endraw %%}");
                }
                text(end.start(), end.group(1), '%');
                position = end.end();
                afterTag(end.group(2));
            } else if (begin.charAt(1) == '#') {
                int end = source.indexOf("#}", position);
                if (end < 0) {
                    throw new TemplateError("a comment has no #}");
                }
                String last = source.substring(Math.max(position, end - 1), end);
                position = end + 2;
                afterTag(last);
            } else {
                add(Kind.SYMBOL, begin.substring(0, 2), null, position);
                tag(begin.charAt(1) == '{' ? "}}" : "%}");
            }
        }
        text(source.length(), "+", '{');
        add(Kind.EOF, "", null, position);
    }

    /** Adds the text up to a tag of a kind, without the whitespace that the tag removes. */
    private void text(int end, String sign, char kind) {
        String text = source.substring(position, end);
        if (sign.equals("-")) {
            text = Strings.strip(text, null, false, true);
        } else if (!sign.equals("+") && kind != '{') {
            int begin = text.lastIndexOf('\n') + 1;
            boolean isIndent = Strings.strip(text.substring(begin), null, true, false).isEmpty();
            text = isIndent && (begin > 0 || beginsLine) ? text.substring(0, begin) : text;
        }
        if (!text.isEmpty()) {
            add(Kind.TEXT, "", text, end);
        }
    }

    /** Skips the whitespace that the end of a block tag or comment removes. */
    private void afterTag(String sign) {
        if (sign.equals("-")) {
            skipSpace();
        } else if (!sign.equals("+") && source.startsWith("\n", position)) {
            position++;
        }
        beginsLine = source.charAt(position - 1) == '\n';
    }

    private void skipSpace() {
        while (position < source.length() && Strings.isSpace(source.charAt(position))) {
            position++;
        }
    }

    private void tag(String end) {
        int open = 0; // brackets
        boolean isBlock = end.equals("%}");
        Matcher matcher = TOKEN.matcher(source).useTransparentBounds(true);
        while (true) {
            skipSpace();
            boolean isSigned =
                    source.startsWith("-", position) || isBlock && source.startsWith("+", position);
            int at = isSigned ? position + 1 : position;
            if (open == 0 && source.startsWith(end, at)) {
                String sign = source.substring(position, at);
                add(Kind.SYMBOL, end, null, at + 2);
                beginsLine = false;
                if (isBlock || isSigned) {
                    afterTag(sign);
                }
                return;
            }
            if (position == source.length()) {
                throw new TemplateError("a tag has no %s", end);
            }
            if (!matcher.region(position, source.length()).lookingAt()) {
                String found = source.substring(position, source.offsetByCodePoints(position, 1));
                throw new TemplateError("unexpected character %s", found);
            }
            String token = matcher.group();
            open += "([{".contains(token) ? 1 : ")]}".contains(token) ? -1 : 0;
            if (open < 0) {
                throw new TemplateError("unexpected %s", token);
            }
            Object value = literal(matcher);
            boolean isName = matcher.group("name") != null;
            Kind kind = isName ? Kind.NAME : value == null ? Kind.SYMBOL : Kind.LITERAL;
            add(kind, token, value, matcher.end());
        }
    }

    /** Returns the value of a literal, or null for another token. */
    private static Object literal(Matcher token) {
        String text = token.group();
        if (token.group("string") != null) {
            return ESCAPE.matcher(text.substring(1, text.length() - 1))
                    .replaceAll(found -> Matcher.quoteReplacement(unescape(found)));
        }
        String number = text.replace("_", "");
        if (token.group("real") != null) {
            return Double.valueOf(number);
        }
        if (token.group("integer") == null) {
            return null;
        }
        boolean isHex = number.matches("0[xX]\\p{XDigit}+");
        boolean isDecimal = number.matches("0+|[1-9]\\d*");
        if (!isHex && !isDecimal || number.length() > MAX_DIGITS) {
            throw new TemplateError(
                    "the number %s is not supported: it may be decimal or begin with 0x, and have"
                            + " %d digits",
                    number, MAX_DIGITS);
        }
        return Numbers.narrow(new BigInteger(number.substring(isHex ? 2 : 0), isHex ? 16 : 10));
    }

    private static String unescape(MatchResult escape) {
        try {
            if (escape.group(1) != null) {
                return Character.toString(Integer.parseInt(escape.group(1), 16));
            }
        } catch (IllegalArgumentException e) { // These are no hexadecimal digits of a character.
            throw new TemplateError("%s is no character", escape.group());
        }
        String letter = escape.group(2);
        int index = "\\'\"nrt".indexOf(letter);
        if (index < 0 && letter.matches("[0-7abfvxuUN]")) {
            throw new TemplateError("the escape %s in a string is not supported", escape.group());
        }
        return index >= 0
                ? "\\'\"\n\r\t".substring(index, index + 1)
                : letter.equals("\n") ? "" : escape.group();
    }

    private void add(Kind kind, String text, Object value, int end) {
        countTo(position);
        tokens.add(new Token(kind, text, value, line));
        position = end;
    }

    private void countTo(int end) {
        line += (int) source.substring(counted, end).chars().filter(c -> c == '\n').count();
        counted = end;
    }
}
