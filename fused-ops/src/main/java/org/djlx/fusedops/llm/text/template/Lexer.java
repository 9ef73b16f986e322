// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.math.BigInteger;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Divides a source into tokens, with Jinja2's options {@code trim_blocks} and {@code
 * lstrip_blocks}.
 */
final class Lexer {

    enum Type {
        TEXT, // between tags
        BEGIN, // of a print or block tag
        END,
        NAME,
        STRING,
        NUMBER,
        OPERATOR,
        EOF
    }

    /**
     * A token.
     *
     * @param text the token as in the source; for STRING and TEXT, the value
     * @param number the value of a number; null otherwise
     */
    record Token(Type type, String text, Object number, int line) {

        boolean is(Type type, String text) {
            return this.type == type && this.text.equals(text);
        }
    }

    private static final Pattern TAG =
            Pattern.compile(
                    "(?<raw>\\{%[-+]?[\\s\\x1c-\\x1f]*raw[\\s\\x1c-\\x1f]*-?%\\})|(?<tag>\\{[{%#][-+]?)",
                    Pattern.UNICODE_CHARACTER_CLASS);
    private static final Pattern END_RAW =
            Pattern.compile(
                    "\\{%([-+]?)\\s*endraw\\s*([-+]?)%\\}", Pattern.UNICODE_CHARACTER_CLASS);
    private static final Pattern FLOAT =
            Pattern.compile(
                    "(?<!\\.)(?:\\d++_)*+\\d++(?:(?:\\.(?:\\d++_)*+\\d++)?[eE][+-]?(?:\\d++_)*+\\d++"
                        + "|\\.(?:\\d++_)*+\\d++)");
    private static final Pattern INTEGER =
            Pattern.compile(
                    "0[bB](?:_?[01])++|0[oO](?:_?[0-7])++|0[xX](?:_?[0-9a-fA-F])++"
                            + "|[1-9](?:_?\\d)*+|0(?:_?0)*+");
    private static final Pattern NAME =
            Pattern.compile("[\\p{L}\\p{Nl}_][\\p{L}\\p{Nl}\\p{Mn}\\p{Mc}\\p{Nd}\\p{Pc}]*+");
    private static final Pattern STRING =
            Pattern.compile("'(?:[^'\\\\]|\\\\.)*+'|\"(?:[^\"\\\\]|\\\\.)*+\"", Pattern.DOTALL);
    private static final Pattern OPERATOR =
            Pattern.compile("//|\\*\\*|==|!=|>=|<=|[-+/*%~\\[\\](){}<>=.:|,;]");
    private static final Pattern ESCAPE =
            Pattern.compile(
                    "\\\\(?:([0-7]{1,3})|x(\\p{XDigit}{2})|u(\\p{XDigit}{4})|U(\\p{XDigit}{8})|(.))",
                    Pattern.DOTALL);

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
        while (position < source.length()) {
            if (!tag.find(position)) {
                add(Type.TEXT, source.substring(position), source.length());
                break;
            }
            String begin = tag.group();
            char kind = begin.charAt(1);
            char sign = begin.length() > 2 ? begin.charAt(2) : ' ';
            text(tag.start(), sign, kind != '{');
            position = tag.end();
            if (tag.group("raw") != null) {
                if (begin.charAt(begin.length() - 3) == '-') {
                    skipSpace();
                }
                raw();
            } else if (kind == '#') {
                int end = source.indexOf("#}", position);
                if (end < 0) {
                    throw new TemplateError("a comment has no #}");
                }
                char last = end > position ? source.charAt(end - 1) : ' ';
                position = end + 2;
                afterTag(last);
            } else {
                add(Type.BEGIN, begin.substring(0, 2), position);
                tag(kind == '{' ? "}}" : "%}");
            }
        }
        add(Type.EOF, "", source.length());
    }

    /** Adds the text up to a tag, without the whitespace that the tag removes. */
    private void text(int end, char sign, boolean stripsIndent) {
        String text = source.substring(position, end);
        if (sign == '-') {
            text = Strings.strip(text, null, false, true);
        } else if (sign != '+' && stripsIndent) {
            int begin = text.lastIndexOf('\n') + 1;
            if ((begin > 0 || beginsLine) && Strings.isSpace(text.substring(begin))) {
                text = text.substring(0, begin);
            }
        }
        if (!text.isEmpty()) {
            add(Type.TEXT, text, end);
        }
    }

    private void raw() {
        beginsLine = source.charAt(position - 1) == '\n';
        Matcher end = END_RAW.matcher(source);
        if (!end.find(position)) {
            throw new TemplateError("a raw block has no {%% endraw %%}");
        }
        text(end.start(), end.group(1).isEmpty() ? ' ' : end.group(1).charAt(0), true);
        position = end.end();
        afterTag(end.group(2).isEmpty() ? ' ' : end.group(2).charAt(0));
    }

    /** Skips the whitespace that the end of a block tag or comment removes. */
    private void afterTag(char sign) {
        if (sign == '-') {
            skipSpace();
        } else if (sign != '+' && source.startsWith("\n", position)) {
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
        Deque<Character> open = new ArrayDeque<>();
        Matcher matcher = FLOAT.matcher(source);
        matcher.useTransparentBounds(true);
        while (true) {
            skipSpace();
            char sign = position < source.length() ? source.charAt(position) : ' ';
            boolean signed = sign == '-' || sign == '+' && end.equals("%}");
            int at = signed ? position + 1 : position;
            if (open.isEmpty() && source.startsWith(end, at)) {
                add(Type.END, end, at);
                position = at + 2;
                if (sign == '-' || end.equals("%}")) {
                    afterTag(sign);
                } else {
                    beginsLine = false;
                }
                return;
            }
            if (position == source.length()) {
                throw new TemplateError("a tag has no %s", end);
            }
            matcher.region(position, source.length());
            if (matcher.usePattern(FLOAT).lookingAt()) {
                String digits = matcher.group().replace("_", "");
                number(matcher, Double.parseDouble(digits));
            } else if (matcher.usePattern(INTEGER).lookingAt()) {
                number(matcher, integer(matcher.group().replace("_", "")));
            } else if (matcher.usePattern(NAME).lookingAt()) {
                add(Type.NAME, matcher.group(), matcher.end());
            } else if (matcher.usePattern(STRING).lookingAt()) {
                String quoted = matcher.group();
                add(Type.STRING, unescape(quoted.substring(1, quoted.length() - 1)), matcher.end());
            } else if (matcher.usePattern(OPERATOR).lookingAt()) {
                String operator = matcher.group();
                balance(operator.charAt(0), open);
                add(Type.OPERATOR, operator, matcher.end());
            } else {
                String found = source.substring(position, source.offsetByCodePoints(position, 1));
                throw new TemplateError("unexpected character %s", found);
            }
        }
    }

    private static void balance(char bracket, Deque<Character> open) {
        switch (bracket) {
            case '(' -> open.push(')');
            case '[' -> open.push(']');
            case '{' -> open.push('}');
            case ')', ']', '}' -> {
                if (open.isEmpty() || open.pop() != bracket) {
                    throw new TemplateError("unexpected %s", bracket);
                }
            }
            default -> {} // not a bracket
        }
    }

    private static Object integer(String digits) {
        int radix =
                switch (digits.length() > 1 ? digits.toLowerCase(Locale.ROOT).charAt(1) : ' ') {
                    case 'b' -> 2;
                    case 'o' -> 8;
                    case 'x' -> 16;
                    default -> 10;
                };
        if (digits.length() > 100) {
            throw new TemplateError("a number has more than 100 digits, which is not supported");
        }
        return Numbers.narrow(new BigInteger(radix == 10 ? digits : digits.substring(2), radix));
    }

    private static String unescape(String text) {
        if (text.indexOf('\\') < 0) {
            return text;
        }
        Matcher escape = ESCAPE.matcher(text);
        StringBuilder unescaped = new StringBuilder();
        while (escape.find()) {
            escape.appendReplacement(unescaped, "");
            String other = escape.group(5);
            if (other == null) {
                int radix = escape.group(1) == null ? 16 : 8;
                int group =
                        radix == 8
                                ? 1
                                : escape.group(2) != null ? 2 : escape.group(3) != null ? 3 : 4;
                long character = Long.parseLong(escape.group(group), radix);
                if (character > Character.MAX_CODE_POINT) {
                    throw new TemplateError("%s is no character", escape.group());
                }
                unescaped.appendCodePoint((int) character);
                continue;
            }
            int index = "\\'\"abfnrtv\n".indexOf(other);
            if (index >= 0) {
                unescaped.append("\\'\"\u0007\b\f\n\r\t\u000b", index, Math.min(index + 1, 10));
            } else if (other.matches("[xuUN]")) {
                throw new TemplateError("the escape \\%s in a string is not complete", other);
            } else {
                unescaped.append(escape.group());
            }
        }
        return escape.appendTail(unescaped).toString();
    }

    private void number(Matcher matcher, Object value) {
        add(Type.NUMBER, matcher.group(), value, matcher.end());
    }

    private void add(Type type, String text, int end) {
        add(type, text, null, end);
    }

    private void add(Type type, String text, Object number, int end) {
        countTo(position);
        tokens.add(new Token(type, text, number, line));
        position = end;
    }

    private void countTo(int end) {
        for (; counted < end; counted++) {
            if (source.charAt(counted) == '\n') {
                line++;
            }
        }
    }
}
