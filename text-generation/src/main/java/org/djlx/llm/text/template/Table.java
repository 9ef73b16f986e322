// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Filters, tests, or methods of a type: functions of a value and arguments, by name. */
final class Table {

    /** Computes the result for a value and arguments. */
    interface Body {
        Object apply(Run run, Object value, Args args);
    }

    private record Entry(Body body, int required, List<String> parameters) {}

    private final String kind; // for errors
    private final Map<String, Entry> entries = new HashMap<>();

    Table(String kind) {
        this.kind = kind;
    }

    /**
     * Adds a function.
     *
     * @param signature names with {@code |} between them, and parameters: {@code ?} begins one that
     *     has a default, {@code *} stands for any arguments
     */
    Table add(String signature, Body body) {
        List<String> words = List.of(signature.split(" "));
        List<String> parameters =
                words.stream().skip(1).map(word -> word.replace("?", "")).toList();
        int required = (int) words.stream().skip(1).filter(word -> !word.startsWith("?")).count();
        boolean any = parameters.contains("*");
        for (String name : words.get(0).split("\\|")) {
            entries.put(name, new Entry(body, required, any ? null : parameters));
        }
        return this;
    }

    boolean has(String name) {
        return entries.containsKey(name);
    }

    Object call(Run run, String name, Object value, Args args) {
        Entry entry = entries.get(name);
        if (entry == null) {
            throw new TemplateError("the %s %s is not supported", kind, name);
        }
        run.step();
        List<String> parameters = entry.parameters;
        Args bound = parameters == null ? args : args.bind(name, entry.required, parameters);
        Object result = entry.body.apply(run, value, bound);
        boolean isNew = value instanceof String && result != value;
        return isNew && result instanceof String text ? run.created(text) : result;
    }
}
