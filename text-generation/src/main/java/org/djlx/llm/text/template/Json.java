// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

/** Writes a value as Python's {@code json.dumps} does, which is transformers' {@code tojson}. */
final class Json extends Repr {

    private final boolean ascii;
    private final String indent; // null for a single line
    private final String comma;
    private final String colon;
    private final boolean sorts;

    /**
     * Creates a writer.
     *
     * @param args {@code ensure_ascii}, {@code indent}, {@code separators}, {@code sort_keys}
     */
    private Json(Run run, Args args) {
        super(run);
        this.ascii = args.isTrue(0);
        this.indent = args.get(1, null) == null ? null : Strings.indent(run, args.get(1));
        Object given = args.get(2, null);
        List<Object> separators =
                given == null
                        ? List.of(indent == null ? ", " : ",", ": ")
                        : Values.elements(run, given);
        if (separators.size() != 2) {
            throw new TemplateError("separators of tojson must be two texts");
        }
        Args two = new Args(separators, Map.of());
        this.comma = two.text(0);
        this.colon = two.text(1);
        this.sorts = args.isTrue(3);
    }

    static String of(Run run, Object value, Args args) {
        return new Json(run, args).write(value);
    }

    @Override
    String brackets(List<?> list) {
        return !(list instanceof Values.Sequence tuple) || tuple.kind().equals("tuple")
                ? "[ ]"
                : plain(list);
    }

    @Override
    Collection<?> entries(Map<?, ?> map) {
        List<Object> entries = new ArrayList<>(map.entrySet());
        List<Object> keys = new ArrayList<>(map.keySet());
        return sorts ? Values.sorted(run, entries, keys, false) : entries;
    }

    @Override
    Object key(Object key) {
        return key instanceof String ? key : plain(key);
    }

    @Override
    String comma() {
        return comma;
    }

    @Override
    String colon() {
        return colon;
    }

    @Override
    String lineBreak(int depth) {
        if (indent == null) {
            return "";
        }
        run.requireLength((long) indent.length() * depth);
        return "\n" + indent.repeat(depth);
    }

    @Override
    String plain(Object value) {
        if (value == null || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (!Numbers.isNumber(value)) {
            throw new TemplateError(
                    "a value of type %s cannot be written as JSON", Values.typeName(value));
        }
        String number = Numbers.text(value);
        return number.equals("nan") ? "NaN" : number.replace("inf", "Infinity");
    }

    @Override
    String quote(String string) {
        StringBuilder json = new StringBuilder("\"");
        string.codePoints()
                .forEach(
                        c -> {
                            // An unpaired surrogate stands for another character.
                            boolean isStandIn = Character.getType(c) == Character.SURROGATE;
                            int escaped = "\"\\\n\r\t\b\f".indexOf(c);
                            if (escaped >= 0) {
                                json.append('\\').append("\"\\nrtbf".charAt(escaped));
                            } else if (c < ' ' || ascii && c > '~' && !isStandIn) {
                                for (char unit : Character.toChars(c)) {
                                    json.append("\\u").append(HexFormat.of().toHexDigits(unit));
                                }
                            } else {
                                json.appendCodePoint(c);
                            }
                        });
        return json.append('"').toString();
    }
}
