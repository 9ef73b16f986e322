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
    private final boolean sorts;

    private Json(Run run, Args args) {
        super(run);
        ascii = args.isTrue(0);
        sorts = args.isTrue(3);
        if (args.get(1, null) != null) {
            String indent = Strings.indent(run, args.get(1));
            comma = ",";
            lineBreak =
                    depth -> {
                        run.requireLength((long) indent.length() * depth);
                        return "\n" + indent.repeat(depth);
                    };
        }
        if (args.get(2, null) != null) {
            Args separators = new Args(Values.list(run, args.get(2)), Map.of());
            separators = separators.bind("separators", 2, List.of("comma", "colon"));
            comma = separators.text(0);
            colon = separators.text(1);
        }
    }

    static String of(Run run, Object value) {
        return new Json(run, Args.of()).write(value);
    }

    /**
     * Calls the filter.
     *
     * @param args {@code ensure_ascii}, {@code indent}, {@code separators}, {@code sort_keys}
     */
    static String filter(Run run, Object value, Args args) {
        return new Json(run, args).write(value);
    }

    @Override
    String[] brackets(List<?> list) {
        boolean isArray = List.of("list", "tuple").contains(Values.type(list));
        return isArray ? new String[] {"[", "]"} : new String[] {plain(list)};
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
    String plain(Object value) {
        if (value == null || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (!Numbers.isNumber(value)) {
            throw new TemplateError(
                    "a value of type %s cannot be written as JSON", Values.type(value));
        }
        String number = Numbers.text(value);
        return number.equals("nan") ? "NaN" : number.replace("inf", "Infinity");
    }

    @Override
    String quote(String string) {
        StringBuilder json = new StringBuilder("\"");
        string.codePoints().forEach(c -> json.append(escaped(c)));
        return json.append('"').toString();
    }

    private String escaped(int c) {
        int index = "\"\\\n\r\t\b\f".indexOf(c);
        if (index >= 0) {
            return "\\" + "\"\\nrtbf".charAt(index);
        }
        // An unpaired surrogate stands for another character.
        boolean isStandIn = Character.getType(c) == Character.SURROGATE;
        String text = Character.toString(c);
        if (c >= ' ' && (!ascii || c <= '~' || isStandIn)) {
            return text;
        }
        String first = "\\u" + HexFormat.of().toHexDigits(text.charAt(0));
        return text.length() == 1
                ? first
                : first + "\\u" + HexFormat.of().toHexDigits(text.charAt(1));
    }
}
