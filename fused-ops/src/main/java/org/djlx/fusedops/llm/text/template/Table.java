// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.HashMap;
import java.util.Map;

/** Methods of a type, filters or tests, by name. */
final class Table {

    /** Computes the result for a value and arguments. */
    interface Body {
        Object apply(Run run, Object value, Args args);
    }

    private record Entry(Body body, int required, String[] parameters) {}

    private final String kind; // for errors
    private final Map<String, Entry> entries = new HashMap<>();

    Table(String kind) {
        this.kind = kind;
    }

    /**
     * Adds a function under several names.
     *
     * @param required how many parameters have no default
     * @param parameters names, with spaces between them; {@code _} can be given by position only,
     *     {@code *} stands for any arguments
     */
    Table add(String names, int required, String parameters, Body body) {
        String[] all = parameters.isEmpty() ? new String[0] : parameters.split(" ");
        for (String name : names.split(" ")) {
            entries.put(name, new Entry(body, required, parameters.equals("*") ? null : all));
        }
        return this;
    }

    boolean has(String name) {
        return entries.containsKey(name);
    }

    Object call(Run run, String name, Object value, Args args) {
        Entry entry = entries.get(name);
        if (entry == null) {
            throw new TemplateError("%s %s is not supported", kind, name);
        }
        run.step();
        String[] names = entry.parameters;
        return entry.body.apply(
                run, value, names == null ? args : args.bind(name, entry.required, names));
    }
}
