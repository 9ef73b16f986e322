// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.function.IntFunction;

/** Writes a value as Python's {@code repr} does. */
class Repr {

    final Run run;
    String comma = ", ";
    String colon = ": ";
    IntFunction<String> lineBreak = depth -> ""; // before an element at a depth; none
    private final StringBuilder text = new StringBuilder();

    Repr(Run run) {
        this.run = run;
    }

    final String write(Object value) {
        write(value, 0);
        return text.toString();
    }

    private void write(Object value, int depth) {
        run.enter();
        if (value instanceof Map<?, ?> map) {
            writeAll("{", entries(map), "}", depth);
        } else if (value instanceof List<?> list) {
            String[] brackets = brackets(list);
            writeAll(brackets[0], list, brackets[1], depth);
        } else if (value instanceof String string) {
            append(quote(run.read(string)));
        } else {
            run.step(value instanceof Double ? 100 : 10);
            append(plain(value));
        }
        run.leave();
    }

    private void writeAll(String begin, Collection<?> elements, String end, int depth) {
        append(begin);
        String separator = "";
        for (Object each : elements) {
            append(separator);
            breakLine(depth + 1);
            if (each instanceof Map.Entry<?, ?> entry) {
                write(key(entry.getKey()), depth + 1);
                append(colon);
            }
            write(each instanceof Map.Entry<?, ?> entry ? entry.getValue() : each, depth + 1);
            separator = comma;
        }
        if (!elements.isEmpty()) {
            breakLine(depth);
        }
        append(end);
    }

    private void breakLine(int depth) {
        String line = lineBreak.apply(depth);
        if (!line.isEmpty()) {
            append(line);
        }
    }

    private void append(String part) {
        run.append(text, part);
    }

    /** Returns what stands before and after the elements of a list. */
    String[] brackets(List<?> list) {
        String type = Values.type(list);
        return switch (type) {
            case "list" -> new String[] {"[", "]"};
            case "tuple" -> new String[] {"(", list.size() == 1 ? ",)" : ")"};
            case "range" -> throw new TemplateError("the text of a range is not supported");
            default -> new String[] {type + "([", "])"};
        };
    }

    Collection<?> entries(Map<?, ?> map) {
        return map.entrySet();
    }

    Object key(Object key) {
        return key;
    }

    /** Returns the text of a value that is no text, list or dictionary. */
    String plain(Object value) {
        if (value == null || value instanceof Boolean) {
            return value == null ? "None" : (Boolean) value ? "True" : "False";
        }
        if (Numbers.isNumber(value) || value instanceof Values.Undefined) {
            return Numbers.isNumber(value) ? Numbers.text(value) : "Undefined";
        }
        throw new TemplateError("the text of a %s is not supported", Values.type(value));
    }

    String quote(String string) {
        char quote = string.indexOf('\'') >= 0 && string.indexOf('"') < 0 ? '"' : '\'';
        StringBuilder quoted = new StringBuilder().append(quote);
        string.codePoints().forEach(c -> quoted.append(escaped(c, quote)));
        return quoted.append(quote).toString();
    }

    private static String escaped(int c, char quote) {
        if (c == '\t' || c == '\n' || c == '\r') {
            return c == '\t' ? "\\t" : c == '\n' ? "\\n" : "\\r";
        }
        if (isPrintable(c)) {
            return (c == quote || c == '\\' ? "\\" : "") + Character.toString(c);
        }
        int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
        String begin = digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
        return begin + HexFormat.of().toHexDigits(c, digits);
    }

    /** Unpaired surrogates are printable, because they stand for other characters. */
    private static boolean isPrintable(int c) {
        int type = Character.getType(c);
        return c == ' '
                || !Character.isSpaceChar(c)
                        && type != Character.CONTROL
                        && type != Character.FORMAT
                        && type != Character.PRIVATE_USE
                        && type != Character.UNASSIGNED;
    }
}
