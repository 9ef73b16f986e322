// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Variables by name, within those of an enclosing scope. */
final class Scope {

    /** A local variable before its assignment: hides an outer variable of that name. */
    private static final Object HIDDEN = new Object();

    final Run run;
    private final Scope parent; // null for the scope of the template's variables
    private final Map<String, Object> variables = new HashMap<>();

    Scope(Run run) {
        this.run = run;
        this.parent = null;
    }

    /** Creates an inner scope, in which these names are local from the start. */
    Scope(Scope parent, List<String> locals) {
        this.run = parent.run;
        this.parent = parent;
        run.step(locals.size());
        locals.forEach(name -> variables.put(name, HIDDEN));
    }

    Object get(String name) {
        for (Scope scope = this; scope != null; scope = scope.parent) {
            Object value = scope.variables.getOrDefault(name, Args.ABSENT);
            if (value != Args.ABSENT) {
                return value == HIDDEN ? new Values.Undefined(name) : value;
            }
        }
        return new Values.Undefined(name);
    }

    void set(String name, Object value) {
        variables.put(name, value);
    }
}
