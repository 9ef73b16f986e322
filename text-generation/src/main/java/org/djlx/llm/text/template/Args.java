// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Arguments of a call. */
record Args(List<Object> positional, Map<String, Object> named) {

    /** An argument that was not given. */
    static final Object ABSENT = new Object();

    static Args of(Object... positional) {
        return new Args(Arrays.asList(positional), Map.of());
    }

    Args from(int index) {
        return new Args(positional.subList(index, positional.size()), named);
    }

    /**
     * Binds the arguments to parameters, of which the first {@code required} have no default;
     * {@link #ABSENT} if one is not given. Errors name the function.
     */
    Args bind(String function, int required, List<String> parameters) {
        if (positional.size() > parameters.size()) {
            throw new TemplateError(
                    "%s takes at most %d arguments, not %d",
                    function, parameters.size(), positional.size());
        }
        List<Object> bound = new ArrayList<>(positional);
        Map<String, Object> left = new LinkedHashMap<>(named);
        for (String parameter : parameters.subList(bound.size(), parameters.size())) {
            if (!left.containsKey(parameter) && bound.size() < required) {
                throw new TemplateError("%s needs the argument %s", function, parameter);
            }
            bound.add(left.containsKey(parameter) ? left.remove(parameter) : ABSENT);
        }
        if (!left.isEmpty()) {
            throw new TemplateError(
                    "%s has no argument %s, or it is given twice",
                    function, left.keySet().iterator().next());
        }
        return new Args(bound, Map.of());
    }

    Object get(int index) {
        return positional.get(index);
    }

    Object get(int index, Object otherwise) {
        Object value = index < positional.size() ? positional.get(index) : ABSENT;
        return value == ABSENT ? otherwise : value;
    }

    boolean isTrue(int index) {
        return Values.isTrue(get(index, false));
    }

    String text(int index) {
        return Values.requireText(get(index));
    }

    /** Returns a text; {@code otherwise} if the argument is None or not given. */
    String text(int index, String otherwise) {
        return get(index, null) == null ? otherwise : text(index);
    }

    int integer(int index, int otherwise) {
        return get(index, null) == null ? otherwise : Numbers.toInt(get(index));
    }
}
