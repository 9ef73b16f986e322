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

    private static final int MAX_DIGITS = 100;
    private static final Pattern TAG =
            Pattern.compile(
                    "\\{%[-+]?[\\s\\x1c-\\x1f]*raw[\\s\\x1c-\\x1f]*(?<raw>-?)%\\}|\\{[{%#][-+]?",
                    Pattern.UNICODE_CHARACTER_CLASS);
    private static final Pattern END_RAW =
            Pattern.compile(
                    "\\{%([-+]?)\\s*endraw\\s*([-+]?)%\\}", Pattern.UNICODE_CHARACTER_CLASS);
    private static final String DIGITS = "\\d(?:_?\\d)*+";
    private static final Pattern TOKEN =
            Pattern.compile(
                    ("(?<real>(?<!\\.)D(?:\\.D(?:[eE][-+]?D)?|[eE][-+]?D))".replace("D", DIGITS)
                            + "|(?<integer>0[bBoOxX]\\w*+|D)".replace("D", DIGITS)
                            + "|(?<name>[\\p{L}\\p{Nl}_][\\p{L}\\p{Nl}\\p{M}\\p{Nd}\\p{Pc}]*+)"
                            + "|(?<string>'(?:[^'\\\\]|\\\\.)*+'|\"(?:[^\"\\\\]|\\\\.)*+\")"
                            + "|//|\\*\\*|==|!=|>=|<=|[-+/*%~\\[\\](){}<>=.:|,;]"),
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
            String sign = begin.length() > 2 ? begin.substring(2, 3) : "";
            text(tag.start(), sign, begin.charAt(1) != '{');
            position = tag.end();
            if (tag.group("raw") != null) {
                afterTag(tag.group("raw").isEmpty() ? "+" : "-");
                Matcher end = END_RAW.matcher(source);
                if (!end.find(position)) {
                    throw new TemplateError("a raw block has no {%% endraw %%}");
                }
                text(end.start(), end.group(1), true);
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
                add(Type.BEGIN, begin.substring(0, 2), position);
                tag(begin.charAt(1) == '{' ? "}}" : "%}");
            }
        }
        text(source.length(), "+", false);
        add(Type.EOF, "", source.length());
    }

    /** Adds the text up to a tag, without the whitespace that the tag removes. */
    private void text(int end, String sign, boolean stripsIndent) {
        String text = source.substring(position, end);
        if (sign.equals("-")) {
            text = Strings.strip(text, null, false, true);
        } else if (!sign.equals("+") && stripsIndent) {
            int begin = text.lastIndexOf('\n') + 1;
            boolean isIndent = Strings.strip(text.substring(begin), null, true, false).isEmpty();
            text = isIndent && (begin > 0 || beginsLine) ? text.substring(0, begin) : text;
        }
        if (!text.isEmpty()) {
            add(Type.TEXT, text, end);
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
        Matcher matcher = TOKEN.matcher(source).useTransparentBounds(true);
        while (true) {
            skipSpace();
            boolean isBlock = end.equals("%}");
            boolean isSigned =
                    source.startsWith("-", position) || isBlock && source.startsWith("+", position);
            int at = isSigned ? position + 1 : position;
            if (open == 0 && source.startsWith(end, at)) {
                String sign = source.substring(position, at);
                add(Type.END, end, at + 2);
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
            if (matcher.group("real") != null) {
                number(token, Double.valueOf(token.replace("_", "")));
            } else if (matcher.group("integer") != null) {
                number(token, integer(token.replace("_", "")));
            } else if (matcher.group("name") != null) {
                add(Type.NAME, token, matcher.end());
            } else if (matcher.group("string") != null) {
                String text = unescape(token.substring(1, token.length() - 1));
                add(Type.STRING, text, matcher.end());
            } else {
                open += "([{".contains(token) ? 1 : ")]}".contains(token) ? -1 : 0;
                if (open < 0) {
                    throw new TemplateError("unexpected %s", token);
                }
                add(Type.OPERATOR, token, matcher.end());
            }
        }
    }

    private static Object integer(String token) {
        boolean isHex = token.matches("0[xX]\\p{XDigit}+");
        String digits = isHex ? token.substring(2) : token;
        if (!isHex && !token.matches("0+|[1-9]\\d*") || digits.length() > MAX_DIGITS) {
            throw new TemplateError(
                    "the number %s is not supported: it may be decimal or begin with 0x, and have"
                            + " %d digits",
                    token, MAX_DIGITS);
        }
        return Numbers.narrow(new BigInteger(digits, isHex ? 16 : 10));
    }

    private static String unescape(String text) {
        return ESCAPE.matcher(text).replaceAll(found -> Matcher.quoteReplacement(unescape(found)));
    }

    private static String unescape(MatchResult escape) {
        try {
            if (escape.group(1) != null) {
                return Character.toString(Integer.parseInt(escape.group(1), 16));
            }
        } catch (IllegalArgumentException e) { // These are no hexadecimal digits of a character.
            throw new TemplateError("%s is no character", escape.group());
        }
        return switch (escape.group(2)) {
            case "\\", "'", "\"" -> escape.group(2);
            case "\n" -> "";
            case "n" -> "\n";
            case "r" -> "\r";
            case "t" -> "\t";
            case "0", "1", "2", "3", "4", "5", "6", "7", "a", "b", "f", "v", "x", "u", "U", "N" ->
                    throw new TemplateError(
                            "the escape %s in a string is not supported", escape.group());
            default -> escape.group();
        };
    }

    private void number(String text, Object value) {
        countTo(position);
        tokens.add(new Token(Type.NUMBER, text, value, line));
        position += text.length();
    }

    private void add(Type type, String text, int end) {
        countTo(position);
        tokens.add(new Token(type, text, null, line));
        position = end;
    }

    private void countTo(int end) {
        line += (int) source.substring(counted, end).chars().filter(c -> c == '\n').count();
        counted = end;
    }
}
