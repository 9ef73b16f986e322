// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A macro, or the body of a call block, with the scope that it was defined in. */
final class Macro implements Values.Callable {

    /**
     * A macro as in the source.
     *
     * @param parameters the names
     * @param defaults the defaults of the last parameters
     * @param special those of caller, varargs and kwargs that the body reads
     */
    record Definition(
            String name,
            List<String> parameters,
            List<Parser.Expression> defaults,
            Set<String> special,
            Parser.Block body) {}

    private final Definition definition;
    private final Scope scope;

    Macro(Definition definition, Scope scope) {
        this.definition = definition;
        this.scope = scope;
    }

    @Override
    public Object call(Run run, Args args) {
        List<String> parameters = definition.parameters;
        List<Object> given = args.positional();
        Map<String, Object> named = new LinkedHashMap<>(args.named());
        Scope inner = definition.body.scope(scope);
        List<Integer> missing = new ArrayList<>();
        for (int i = 0; i < parameters.size(); i++) {
            String name = parameters.get(i);
            if (i < given.size()) {
                inner.set(name, given.get(i));
            } else if (named.containsKey(name)) {
                inner.set(name, named.remove(name));
            } else {
                missing.add(i);
            }
        }
        boolean isParameter = parameters.contains("caller");
        if (definition.special.contains("caller") && !isParameter) {
            Object caller = named.remove("caller");
            inner.set(
                    "caller",
                    caller == null ? new Values.Undefined("caller", "No caller defined") : caller);
        }
        if (definition.special.contains("kwargs")) {
            Values.Dict dict = new Values.Dict();
            named.forEach(dict::put);
            inner.set("kwargs", dict);
        } else if (!named.isEmpty()) {
            throw new TemplateError(
                    "the macro %s has no argument %s, or it is given twice",
                    definition.name, named.keySet().iterator().next());
        }
        if (definition.special.contains("varargs")) {
            inner.set("varargs", new Values.Tuple(args.from(parameters.size()).positional()));
        } else if (given.size() > parameters.size()) {
            throw new TemplateError(
                    "the macro %s takes at most %d arguments, not %d",
                    definition.name, parameters.size(), given.size());
        }
        run.enter();
        try {
            for (int i : missing) {
                int index = i - parameters.size() + definition.defaults.size();
                String name = parameters.get(i);
                inner.set(
                        name,
                        index >= 0
                                ? definition.defaults.get(index).value(inner)
                                : new Values.Undefined(
                                        name, "the argument " + name + " was not given"));
            }
            return definition.body.capture(inner);
        } finally {
            run.leave();
        }
    }

    /** Returns an attribute; null if there is none. */
    Object attribute(String name) {
        return switch (name) {
            case "name" -> definition.name;
            case "arguments" -> Values.tuple(definition.parameters.toArray());
            case "catch_kwargs" -> definition.special.contains("kwargs");
            case "catch_varargs" -> definition.special.contains("varargs");
            case "caller" -> definition.special.contains("caller");
            default -> null;
        };
    }
}
