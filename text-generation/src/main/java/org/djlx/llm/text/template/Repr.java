// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

/** Writes a value as Python's {@code repr} does. */
class Repr {

    final Run run;
    private final StringBuilder text = new StringBuilder();

    Repr(Run run) {
        this.run = run;
    }

    static String of(Run run, Object value) {
        return new Repr(run).write(value);
    }

    final String write(Object value) {
        write(value, 0);
        return text.toString();
    }

    private void write(Object value, int depth) {
        run.enter();
        try {
            if (value instanceof Map<?, ?> map) {
                writeAll("{", entries(map), "}", depth);
            } else if (value instanceof List<?> list) {
                String brackets = brackets(list);
                int middle = brackets.indexOf(' ');
                String end = brackets.substring(middle + 1);
                writeAll(brackets.substring(0, middle), list, end, depth);
            } else if (value instanceof String string) {
                append(quote(run.read(string)));
            } else {
                run.step(value instanceof Double ? 100 : 10);
                append(plain(value));
            }
        } finally {
            run.leave();
        }
    }

    private void writeAll(String begin, Collection<?> elements, String end, int depth) {
        append(begin);
        String separator = "";
        for (Object each : elements) {
            append(separator + lineBreak(depth + 1));
            if (each instanceof Map.Entry<?, ?> entry) {
                write(key(entry.getKey()), depth + 1);
                append(colon());
            }
            write(each instanceof Map.Entry<?, ?> entry ? entry.getValue() : each, depth + 1);
            separator = comma();
        }
        append((elements.isEmpty() ? "" : lineBreak(depth)) + end);
    }

    private void append(String part) {
        run.append(text, part);
    }

    /** Returns what stands before and after the elements of a list, with a space between them. */
    String brackets(List<?> list) {
        if (!(list instanceof Values.Sequence sequence)) {
            return "[ ]";
        }
        return switch (sequence.kind()) {
            case "tuple" -> sequence.size() == 1 ? "( ,)" : "( )";
            case "range" -> throw new TemplateError("the text of a range is not supported");
            default -> sequence.kind() + "([ ])";
        };
    }

    Collection<?> entries(Map<?, ?> map) {
        return map.entrySet();
    }

    Object key(Object key) {
        return key;
    }

    String comma() {
        return ", ";
    }

    String colon() {
        return ": ";
    }

    String lineBreak(int depth) {
        return "";
    }

    /** Returns the text of a value that is no text, list or dictionary. */
    String plain(Object value) {
        if (value == null || value instanceof Boolean) {
            return value == null ? "None" : (Boolean) value ? "True" : "False";
        }
        if (Numbers.isNumber(value) || value instanceof Values.Undefined) {
            return Numbers.isNumber(value) ? Numbers.text(value) : "Undefined";
        }
        throw new TemplateError("the text of a %s is not supported", Values.typeName(value));
    }

    String quote(String string) {
        char quote = string.indexOf('\'') >= 0 && string.indexOf('"') < 0 ? '"' : '\'';
        StringBuilder quoted = new StringBuilder().append(quote);
        string.codePoints()
                .forEach(
                        c -> {
                            int escaped = "\t\n\r".indexOf(c);
                            if (c == quote || c == '\\') {
                                quoted.append('\\').appendCodePoint(c);
                            } else if (escaped >= 0) {
                                quoted.append('\\').append("tnr".charAt(escaped));
                            } else if (isPrintable(c)) {
                                quoted.appendCodePoint(c);
                            } else {
                                int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
                                quoted.append(digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U");
                                quoted.append(HexFormat.of().toHexDigits(c, digits));
                            }
                        });
        return quoted.append(quote).toString();
    }

    /** Unpaired surrogates are printable, because they stand for other characters. */
    private static boolean isPrintable(int c) {
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
}
