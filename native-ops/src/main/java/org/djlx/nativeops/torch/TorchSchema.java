// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The parts of an operator's schema that Java needs: {@code space::name(Tensor a, float b, *, int
 * c=0) -> Tensor}. libtorch checks the rest.
 */
record TorchSchema(String namespace, String name, List<Type> arguments) {

    /** The types that the stable C ABI passes in all supported versions. */
    enum Type {
        TENSOR("Tensor"),
        INT("int"),
        FLOAT("float"),
        BOOL("bool");

        final String text;

        Type(String text) {
            this.text = text;
        }
    }

    private static final Pattern SCHEMA =
            Pattern.compile("(\\w+)::(\\w+)\\(([^()]*)\\)\\s*->\\s*Tensor");

    static TorchSchema parse(String schema) {
        Matcher matcher = SCHEMA.matcher(String.valueOf(schema));
        if (!matcher.matches()) {
            throw new IllegalArgumentException(
                    "the schema must be of the form 'space::name(Tensor a, int b=0) -> Tensor', not"
                            + " "
                            + schema);
        }
        List<Type> types = new ArrayList<>();
        for (String argument : matcher.group(3).split(",")) {
            String text = argument.strip();
            if (!text.isEmpty() && !text.equals("*")) {
                types.add(type(text.split("\\s+")[0], schema));
            }
        }
        return new TorchSchema(matcher.group(1), matcher.group(2), List.copyOf(types));
    }

    private static Type type(String text, String schema) {
        for (Type type : Type.values()) {
            if (type.text.equals(text)) {
                return type;
            }
        }
        throw new IllegalArgumentException(
                String.format(
                        "arguments must be Tensor, int, float or bool, not %s as in %s",
                        text, schema));
    }
}
