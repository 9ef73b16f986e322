// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.function.Predicate;

/** The variable {@code loop}. Selects later elements only if the template asks for them. */
final class Loop {

    private final Run run;
    private final List<Object> read;
    private final Iterator<Object> rest;
    private int index = -1;

    private Loop(Run run, List<Object> read, Iterator<Object> rest) {
        this.run = run;
        this.read = read;
        this.rest = rest;
    }

    /** Begins a loop over elements that pass a test, or over all if {@code test} is null. */
    static Loop over(Run run, List<Object> elements, Predicate<Object> test) {
        return test == null
                ? new Loop(run, elements, Collections.emptyIterator())
                : new Loop(run, new ArrayList<>(), elements.stream().filter(test).iterator());
    }

    /** Begins the next iteration; returns whether there is one. */
    boolean next() {
        run.step();
        return has(++index);
    }

    Object element() {
        return read.get(index);
    }

    private boolean has(int at) {
        while (read.size() <= at && rest.hasNext()) {
            run.requireElement(read.size());
            read.add(rest.next());
        }
        return at >= 0 && at < read.size();
    }

    private long length() {
        has(Integer.MAX_VALUE);
        return read.size();
    }

    private Object at(int at) {
        return has(at) ? read.get(at) : new Values.Undefined("", "there is no such item");
    }

    /** Returns an attribute; {@link Args#ABSENT} if there is none. */
    Object attribute(String name) {
        return switch (name) {
            case "index" -> index + 1L;
            case "index0" -> (long) index;
            case "revindex" -> length() - index;
            case "revindex0" -> length() - index - 1;
            case "first" -> index == 0;
            case "last" -> !has(index + 1);
            case "length" -> length();
            case "previtem" -> at(index - 1);
            case "nextitem" -> at(index + 1);
            case "cycle" -> (Values.Callable) (any, args) -> cycle(args.positional());
            default -> Args.ABSENT;
        };
    }

    private Object cycle(List<Object> values) {
        if (values.isEmpty()) {
            throw new TemplateError("loop.cycle needs values");
        }
        return values.get(index % values.size());
    }
}
