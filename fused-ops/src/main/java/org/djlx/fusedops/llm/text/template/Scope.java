// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Variables by name, within those of an enclosing scope. */
final class Scope {

    /** Hides a variable of an enclosing scope until this one is assigned. */
    private static final Object HIDDEN = new Object();

    final Run run;
    private final Scope parent; // null for that of the template's variables
    private final Map<String, Object> variables = new HashMap<>();

    Scope(Run run) {
        this.run = run;
        this.parent = null;
    }

    /** Creates a scope whose own variables hide, from the start, those outside it. */
    Scope(Scope parent, List<String> hidden) {
        this.run = parent.run;
        this.parent = parent;
        run.step(hidden.size());
        hidden.forEach(name -> variables.put(name, HIDDEN));
    }

    Object get(String name) {
        for (Scope scope = this; scope != null; scope = scope.parent) {
            Object value = scope.variables.get(name);
            if (value != null || scope.variables.containsKey(name)) {
                return value == HIDDEN ? new Values.Undefined(name) : value;
            }
        }
        return new Values.Undefined(name);
    }

    void set(String name, Object value) {
        variables.put(name, value);
    }
}
