// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Arguments of a call.
 *
 * @param named by name, in their order
 */
record Args(List<Object> positional, Map<String, Object> named) {

    /** An argument that was not given. */
    private static final Object ABSENT = new Object();

    static Args of(Object... positional) {
        List<Object> list = new ArrayList<>();
        Collections.addAll(list, positional);
        return new Args(list, Map.of());
    }

    /** Returns the arguments from an index on. */
    Args from(int index) {
        return new Args(
                positional.subList(Math.min(index, positional.size()), positional.size()), named);
    }

    /**
     * Binds the arguments to parameters.
     *
     * @param function the name of the function, for errors
     * @param required the number of parameters without a default, which come first
     * @param names the parameters; {@code _} can be given by position only
     * @return the arguments by parameter
     */
    Args bind(String function, int required, String... names) {
        if (positional.size() > names.length) {
            throw new TemplateError(
                    "%s takes at most %d arguments, not %d",
                    function, names.length, positional.size());
        }
        List<Object> bound = new ArrayList<>(positional);
        Map<String, Object> left = new LinkedHashMap<>(named);
        for (int i = bound.size(); i < names.length; i++) {
            boolean named = !names[i].equals("_") && left.containsKey(names[i]);
            bound.add(named ? left.remove(names[i]) : ABSENT);
            if (i < required && bound.get(i) == ABSENT) {
                throw new TemplateError("%s needs the argument %s", function, names[i]);
            }
        }
        if (!left.isEmpty()) {
            throw new TemplateError(
                    "%s has no argument %s, or it is given twice",
                    function, left.keySet().iterator().next());
        }
        return new Args(bound, Map.of());
    }

    boolean has(int index) {
        return index < positional.size() && positional.get(index) != ABSENT;
    }

    Object get(int index) {
        return positional.get(index);
    }

    Object get(int index, Object otherwise) {
        return has(index) ? positional.get(index) : otherwise;
    }

    /** Returns an argument that must be a text; null if it is None or was not given. */
    String text(int index) {
        Object value = get(index, null);
        if (value == null || value instanceof String) {
            return (String) value;
        }
        throw new TemplateError("an argument must be a text, not %s", Values.typeName(value));
    }

    /** Returns an argument that must be a text and must be given. */
    String requiredText(int index) {
        String text = text(index);
        if (text == null) {
            throw new TemplateError("an argument must be a text, not NoneType");
        }
        return text;
    }

    int integer(int index, int otherwise) {
        return has(index) ? Numbers.toInt(get(index)) : otherwise;
    }
}
