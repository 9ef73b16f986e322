// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;

/**
 * The variable {@code loop}: the index of the current iteration and the elements next to it. Reads
 * the next element early only if the template asks for it.
 */
final class Loop implements Iterator<Object>, Values.Callable {

    private final Run run;
    private final Values.Callable recursion;
    private final int depth;
    private Iterator<Object> elements;
    private boolean lookedAhead; // next holds an element
    private Object next;
    private Object current;
    private Object previous;
    private long index = -1;
    private long length; // -1 if it is not known
    private List<Object> lastChanged; // null if changed() was not called

    /**
     * Begins a loop.
     *
     * @param length the number of elements; -1 if it has to be counted
     * @param depth how many iterations of the same recursive loop are around this one
     * @param recursion runs the loop for another value; null if the loop is not recursive
     */
    Loop(Run run, Iterator<Object> elements, long length, int depth, Values.Callable recursion) {
        this.run = run;
        this.elements = elements;
        this.length = length;
        this.depth = depth;
        this.recursion = recursion;
    }

    @Override
    public boolean hasNext() {
        return lookedAhead || elements.hasNext();
    }

    @Override
    public Object next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        run.step();
        previous = current;
        current = lookedAhead ? next : elements.next();
        lookedAhead = false;
        index++;
        return current;
    }

    int depth() {
        return depth;
    }

    long length() {
        if (length < 0) {
            List<Object> rest = Values.elements(run, new Values.Once(elements));
            length = rest.size() + index + 1 + (lookedAhead ? 1 : 0);
            elements = rest.iterator();
        }
        return length;
    }

    /** Reads the next element early; returns whether there is one. */
    private boolean lookAhead() {
        if (!lookedAhead && elements.hasNext()) {
            next = elements.next();
            lookedAhead = true;
        }
        return lookedAhead;
    }

    /** Returns an attribute: null if there is none, {@link Values#NONE} if it is None. */
    Object attribute(String name) {
        return switch (name) {
            case "index" -> index + 1;
            case "index0" -> index;
            case "revindex" -> length() - index;
            case "revindex0" -> length() - index - 1;
            case "first" -> index == 0;
            case "last" -> !lookAhead();
            case "length" -> length();
            case "depth" -> depth + 1L;
            case "depth0" -> (long) depth;
            case "previtem" ->
                    index == 0
                            ? new Values.Undefined(name, "there is no previous item")
                            : previous == null ? Values.NONE : previous;
            case "nextitem" ->
                    lookAhead()
                            ? (next == null ? Values.NONE : next)
                            : new Values.Undefined(name, "there is no next item");
            case "cycle" -> new Values.Function(name, (run, args) -> cycle(args));
            case "changed" -> new Values.Function(name, (run, args) -> isChanged(args));
            default -> null;
        };
    }

    private Object cycle(Args args) {
        List<Object> values = args.positional();
        if (values.isEmpty() || !args.named().isEmpty()) {
            throw new TemplateError("loop.cycle needs values");
        }
        return values.get((int) (index % values.size()));
    }

    private Object isChanged(Args args) {
        List<Object> now = new ArrayList<>(args.positional());
        boolean changed = lastChanged == null || !Values.areEqual(run, now, lastChanged);
        lastChanged = changed ? now : lastChanged;
        return changed;
    }

    @Override
    public Object call(Run run, Args args) {
        if (recursion == null) {
            throw new TemplateError("this loop is not marked as recursive");
        }
        return recursion.call(run, args);
    }

    @Override
    public String toString() {
        return "<LoopContext " + (index + 1) + "/" + length() + ">";
    }
}
