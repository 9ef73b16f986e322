// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;

/** The variable {@code loop}. Reads later elements only if the template asks for them. */
final class Loop {

    private final Run run;
    private final List<Object> read;
    private final Iterator<Object> rest;
    private int index = -1;

    /** Begins a loop over a list. */
    Loop(Run run, List<Object> elements) {
        this.run = run;
        this.read = elements;
        this.rest = Collections.emptyIterator();
    }

    /** Begins a loop over elements that are computed when it reaches them. */
    Loop(Run run, Iterator<Object> elements) {
        this.run = run;
        this.read = new ArrayList<>();
        this.rest = elements;
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
            case "changed", "depth", "depth0" ->
                    throw new TemplateError("loop.%s is not supported", name);
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
