// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/** Variables by name, within those of an enclosing scope. */
final class Scope {

    /** A local variable before its assignment: hides an outer variable of that name. */
    private static final Object HIDDEN = new Object();

    final Run run;
    private final Function<String, Object> outer; // values of names that are not here
    private final Map<String, Object> variables = new HashMap<>();

    Scope(Run run) {
        this.run = run;
        outer = Values.Undefined::new;
    }

    /** Creates an inner scope, in which these names are local from the start. */
    Scope(Scope parent, List<String> locals) {
        run = parent.run;
        outer = parent::get;
        run.step(locals.size());
        locals.forEach(name -> variables.put(name, HIDDEN));
    }

    Object get(String name) {
        Object value = variables.getOrDefault(name, Args.ABSENT);
        if (value == Args.ABSENT) {
            return outer.apply(name);
        }
        return value == HIDDEN ? new Values.Undefined(name) : value;
    }

    void set(String name, Object value) {
        variables.put(name, value);
    }
}
