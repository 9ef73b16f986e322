// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.HexFormat;
import java.util.List;

/** Python's {@code json.dumps}, as transformers' filter {@code tojson} calls it. */
final class Json {

    private final Run run;
    private final boolean ascii;
    private final String indent; // null for a single line
    private final String comma;
    private final String colon;
    private final boolean sorts;
    private final StringBuilder json = new StringBuilder();

    private Json(Run run, boolean ascii, String indent, String comma, String colon, boolean sorts) {
        this.run = run;
        this.ascii = ascii;
        this.indent = indent;
        this.comma = comma;
        this.colon = colon;
        this.sorts = sorts;
    }

    /** Returns a value as JSON in one line. */
    static String write(Run run, Object value) {
        return write(run, value, Args.of());
    }

    /** Calls the filter for a value. */
    static String write(Run run, Object value, Args arguments) {
        Args args =
                arguments.bind("tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys");
        Object width = args.get(1, null);
        int spaces =
                width == null || width instanceof String ? 0 : Math.max(0, Numbers.toInt(width));
        run.requireLength(spaces);
        String indent =
                width == null || width instanceof String ? (String) width : " ".repeat(spaces);
        List<Object> separators =
                args.get(2, null) == null
                        ? List.of(indent == null ? ", " : ",", ": ")
                        : Values.elements(run, args.get(2));
        if (separators.size() != 2) {
            throw new TemplateError("separators of tojson must be two texts");
        }
        Args two = new Args(separators, java.util.Map.of());
        Json json =
                new Json(
                        run,
                        Values.isTrue(args.get(0, false)),
                        indent,
                        two.requiredText(0),
                        two.requiredText(1),
                        Values.isTrue(args.get(3, false)));
        json.value(value, 0);
        return run.counted(json.json.toString());
    }

    private void value(Object value, int depth) {
        run.requireLength(json.length() > Run.MAX_LENGTH ? Long.MAX_VALUE : 0);
        run.enter();
        try {
            if (value instanceof Values.Dict dict) {
                List<Object> items = dict.items();
                items = sorts ? Values.sorted(run, items, dict.keys(), false) : items;
                all("{", items, "}", depth);
            } else if (value instanceof List<?> list && !(value instanceof Values.Range)) {
                all("[", list, "]", depth);
            } else if (value instanceof String string) {
                text(string);
            } else if (value instanceof Values.Markup markup) {
                text(markup.text());
            } else {
                run.step(value instanceof Double ? 100 : 10);
                json.append(plain(value));
            }
        } finally {
            run.leave();
        }
    }

    private static String plain(Object value) {
        if (value == null || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (!Numbers.isNumber(value)) {
            throw new TemplateError(
                    "a value of type %s cannot be written as JSON", Values.typeName(value));
        }
        return switch (Numbers.text(value)) {
            case "nan" -> "NaN";
            case "inf" -> "Infinity";
            case "-inf" -> "-Infinity";
            default -> Numbers.text(value);
        };
    }

    private void all(String begin, List<?> elements, String end, int depth) {
        json.append(begin);
        String separator = "";
        for (Object each : elements) {
            json.append(separator);
            breakLine(depth + 1);
            if (begin.equals("{")) {
                List<?> item = (List<?>) each;
                text(item.get(0) instanceof String key ? key : plain(item.get(0)));
                json.append(colon);
                value(item.get(1), depth + 1);
            } else {
                value(each, depth + 1);
            }
            separator = comma;
        }
        if (!elements.isEmpty()) {
            breakLine(depth);
        }
        json.append(end);
    }

    private void breakLine(int depth) {
        if (indent != null) {
            run.requireLength(
                    json.length() + indent.length() * (long) depth > Run.MAX_LENGTH
                            ? Long.MAX_VALUE
                            : 0);
            json.append('\n').append(indent.repeat(depth));
        }
    }

    private void text(String text) {
        run.requireLength(text.length());
        run.step(text.length() >> 2);
        json.append('"');
        for (int i = 0; i < text.length(); ) {
            int c = text.codePointAt(i);
            int count = Character.charCount(c);
            // An unpaired surrogate stands for another character: see ControlTokens.
            boolean isStandIn = count == 1 && Character.isSurrogate((char) c);
            int escaped = "\"\\\n\r\t\b\f".indexOf(c);
            if (escaped >= 0) {
                json.append('\\').append("\"\\nrtbf".charAt(escaped));
            } else if (c < ' ' || ascii && c > '~' && !isStandIn) {
                for (int k = i; k < i + count; k++) {
                    json.append("\\u").append(HexFormat.of().toHexDigits(text.charAt(k)));
                }
            } else {
                json.appendCodePoint(c);
            }
            i += count;
        }
        json.append('"');
    }
}
