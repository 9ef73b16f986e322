// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The terms of one grammar over bytes. A term is the state of the automaton: its derivative by a
 * byte is the state after that byte (Brzozowski, 1964, <a
 * href="https://doi.org/10.1145/321239.321249">doi:10.1145/321239.321249</a>). Equal terms are the
 * same object, so each derivative is computed once. References make grammars recursive: the rest of
 * a sequence is the automaton's stack. Not thread-safe.
 */
final class Terms {

    /** The upper bound of a repetition without one. */
    static final int UNBOUNDED = Integer.MAX_VALUE;

    /** Limits the memory and the time of one grammar; see {@link #size}. */
    static final int MAX_SIZE = 1_000_000;

    /** Limits the stack: a thread of 1 MiB has about 1,800 levels. */
    static final int MAX_DEPTH = 1_000;

    private static final int TERM_SIZE = 10; // A term takes the memory of 10 references to it.

    private static final int BYTES = 256;

    /** What a term matches. */
    enum Kind {
        /** Nothing, not even the empty text. */
        NONE,
        /** The empty text. */
        EMPTY,
        /** One byte of a set. */
        BYTE,
        /** One part after the other. */
        SEQUENCE,
        /** Any of the parts. */
        CHOICE,
        /** A part, from {@code min} to {@code max} times. */
        REPEAT,
        /** What both parts match. */
        BOTH,
        /** What the part does not match. */
        NOT,
        /** The part. Masks of lexemes are cached, because many states begin with the same one. */
        LEXEME,
        /** The part, which is set after the reference was created. */
        REFERENCE
    }

    private record Key(Kind kind, List<Term> parts, BitSet bytes, int min, int max) {}

    private final Map<Key, Term> terms = new LinkedHashMap<>(); // parts before wholes
    private final Map<List<Integer>, Boolean> intersecting = new HashMap<>();
    private final Map<Term, String> references = new LinkedHashMap<>(); // and places in schemas

    // No set of bytes tells the bytes of a class apart, so they have the same derivatives. A new
    // set may split a class: one part keeps its index.
    private final int[] classes = new int[BYTES]; // of the bytes
    private final int[] examples = new int[BYTES]; // a byte of each class
    private int classCount = 1;
    private int size;
    private int depth;

    final Term none = term(Kind.NONE, List.of(), null, 0, 0, false);
    final Term empty = term(Kind.EMPTY, List.of(), null, 0, 0, true);

    final class Term {

        final Kind kind;
        private final int id = terms.size() + references.size();
        private final boolean nullable;
        private final BitSet bytes; // of BYTE, otherwise null
        private final int min;
        private final int max;
        private List<Term> parts;
        private Term[] derivatives = {}; // by class, null until computed
        private boolean deriving;

        private Term(
                Kind kind, List<Term> parts, BitSet bytes, int min, int max, boolean nullable) {
            this.kind = kind;
            this.parts = parts;
            this.bytes = bytes;
            this.min = min;
            this.max = max;
            this.nullable = nullable;
        }

        boolean isNullable() {
            return nullable;
        }

        @Override
        public int hashCode() {
            return id; // Equal terms are the same object.
        }

        List<Term> parts() {
            return parts;
        }

        private Term part() {
            return parts.get(0);
        }

        /** Sets what a reference matches: a text that is not empty. */
        void define(Term body) {
            parts = List.of(body);
        }

        /**
         * Returns the term for what may follow a byte; {@link #none} if the byte is wrong. Throws
         * if a reference begins with itself.
         */
        Term derive(int b) {
            int index = classes[b];
            Term known = index < derivatives.length ? derivatives[index] : null;
            if (known == null) {
                if (deriving) {
                    throw wrong(this, "the reference refers to itself");
                }
                grow(parts.size() / 4);
                deriving = kind == Kind.REFERENCE;
                descend();
                try {
                    known = derivative(b);
                } finally {
                    ascend();
                    deriving = false; // Also after too many states.
                }
                if (index >= derivatives.length) {
                    derivatives = Arrays.copyOf(derivatives, classCount);
                }
                derivatives[index] = known;
            }
            return known;
        }

        private Term derivative(int b) {
            return switch (kind) {
                case NONE, EMPTY -> none;
                case BYTE -> bytes.get(b) ? empty : none;
                case SEQUENCE -> {
                    Term rest = parts.get(1);
                    Term first = sequence(part().derive(b), rest);
                    yield part().nullable ? choice(List.of(first, rest.derive(b))) : first;
                }
                case CHOICE -> {
                    List<Term> next = new ArrayList<>(parts.size());
                    for (Term each : parts) {
                        Term derived = each.derive(b);
                        if (derived != none) {
                            next.add(derived);
                        }
                    }
                    yield next.size() == 1 ? next.get(0) : choice(next);
                }
                case REPEAT -> {
                    int most = max == UNBOUNDED ? max : max - 1;
                    yield sequence(part().derive(b), repeat(part(), Math.max(0, min - 1), most));
                }
                case BOTH -> both(part().derive(b), parts.get(1).derive(b));
                case NOT -> not(part().derive(b));
                case LEXEME -> lexeme(part().derive(b));
                case REFERENCE -> part().derive(b);
            };
        }
    }

    /** Returns a measure of the memory that the terms take, and of the time to derive them. */
    int size() {
        return size;
    }

    /** Begins a recursion into the parts of a term; {@link #ascend} ends it. */
    void descend() {
        if (depth == MAX_DEPTH) {
            throw new IllegalArgumentException(
                    "it has too many optional parts in a row; simplify it");
        }
        depth++;
    }

    void ascend() {
        depth--;
    }

    private void grow(int by) {
        size += by;
        if (size > MAX_SIZE) {
            throw new IllegalArgumentException("it has too many states; simplify it");
        }
    }

    private Term term(
            Kind kind, List<Term> parts, BitSet bytes, int min, int max, boolean nullable) {
        Key key = new Key(kind, parts, bytes, min, max);
        Term known = terms.get(key);
        grow(known == null ? TERM_SIZE + parts.size() : 1 + parts.size() / 4);
        if (known == null) {
            known = new Term(kind, parts, bytes, min, max, nullable);
            terms.put(key, known);
            if (kind == Kind.BYTE) {
                splitClasses(bytes);
            }
        }
        return known;
    }

    private void splitClasses(BitSet bytes) {
        int[] inside = new int[BYTES];
        int[] sizes = new int[BYTES];
        for (int b = 0; b < BYTES; b++) {
            sizes[classes[b]]++;
            inside[classes[b]] += bytes.get(b) ? 1 : 0;
        }
        int[] indices = new int[BYTES]; // of the parts inside of the set
        for (int i = classCount - 1; i >= 0; i--) {
            boolean splits = inside[i] > 0 && inside[i] < sizes[i];
            indices[i] = splits ? classCount++ : i;
        }
        for (int b = 0; b < BYTES; b++) {
            classes[b] = bytes.get(b) ? indices[classes[b]] : classes[b];
            examples[classes[b]] = b;
        }
    }

    Term range(int first, int last) {
        BitSet bytes = new BitSet(BYTES);
        bytes.set(first, last + 1);
        return term(Kind.BYTE, List.of(), bytes, 0, 0, false);
    }

    Term literal(String text) {
        if (!StandardCharsets.UTF_8.newEncoder().canEncode(text)) {
            throw new IllegalArgumentException("a text has an unpaired surrogate");
        }
        byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
        Term result = empty;
        for (int i = utf8.length - 1; i >= 0; i--) {
            int b = Byte.toUnsignedInt(utf8[i]);
            result = sequence(range(b, b), result);
        }
        return result;
    }

    /** Returns a term for one code point of a set, in UTF-8. Surrogates are left out. */
    Term codePoints(BitSet set) {
        List<Term> ranges = new ArrayList<>();
        int[] limits = {0, 0x80, 0x800, 0xD800, 0xE000, 0x10000, 0x110000};
        for (int i = 0; i + 1 < limits.length; i++) {
            int first = limits[i] == 0xD800 ? -1 : set.nextSetBit(limits[i]);
            while (first >= 0 && first < limits[i + 1]) {
                int end = Math.min(set.nextClearBit(first), limits[i + 1]);
                ranges.add(utf8(utf8(first), utf8(end - 1), 0));
                first = set.nextSetBit(end);
            }
        }
        return choice(ranges);
    }

    private static byte[] utf8(int codePoint) {
        return Character.toString(codePoint).getBytes(StandardCharsets.UTF_8);
    }

    /** Returns a term for the bytes from an index on, between two texts of equal length. */
    private Term utf8(byte[] first, byte[] last, int index) {
        int low = Byte.toUnsignedInt(first[index]);
        int high = Byte.toUnsignedInt(last[index]);
        if (index == first.length - 1) {
            return range(low, high);
        }
        if (low == high) {
            return sequence(range(low, low), utf8(first, last, index + 1));
        }
        byte[] lowest = first.clone();
        byte[] highest = last.clone();
        for (int i = index + 1; i < first.length; i++) {
            lowest[i] = (byte) 0x80;
            highest[i] = (byte) 0xBF;
        }
        List<Term> parts = new ArrayList<>();
        parts.add(sequence(range(low, low), utf8(first, highest, index + 1)));
        if (low + 1 < high) {
            parts.add(sequence(range(low + 1, high - 1), utf8(lowest, highest, index + 1)));
        }
        parts.add(sequence(range(high, high), utf8(lowest, last, index + 1)));
        return choice(parts);
    }

    Term sequence(Term... parts) {
        Term result = empty;
        for (int i = parts.length - 1; i >= 0; i--) {
            result = sequence(parts[i], result);
        }
        return result;
    }

    private Term sequence(Term first, Term rest) {
        if (first == none || rest == none) {
            return none;
        }
        if (first == empty || rest == empty) {
            return first == empty ? rest : first;
        }
        if (first.kind == Kind.SEQUENCE) { // A loop, because sequences are long.
            List<Term> heads = new ArrayList<>();
            Term last = first;
            while (last.kind == Kind.SEQUENCE) {
                heads.add(last.part());
                last = last.parts.get(1);
            }
            Term result = sequence(last, rest);
            for (int i = heads.size() - 1; i >= 0; i--) {
                result = sequence(heads.get(i), result);
            }
            return result;
        }
        boolean nullable = first.nullable && rest.nullable;
        return term(Kind.SEQUENCE, List.of(first, rest), null, 0, 0, nullable);
    }

    Term choice(Collection<Term> parts) {
        List<Term> flat = new ArrayList<>();
        BitSet bytes = new BitSet(BYTES);
        for (Term part : parts) {
            for (Term each : part.kind == Kind.CHOICE ? part.parts : List.of(part)) {
                if (each.kind == Kind.BYTE) {
                    bytes.or(each.bytes);
                } else if (each != none) {
                    flat.add(each);
                }
            }
        }
        if (!bytes.isEmpty()) {
            flat.add(term(Kind.BYTE, List.of(), bytes, 0, 0, false));
        }
        flat.sort((a, b) -> Integer.compare(a.id, b.id)); // Fast: it consists of sorted lists.
        List<Term> sorted = new ArrayList<>(flat.size());
        for (Term each : flat) {
            if (sorted.isEmpty() || sorted.get(sorted.size() - 1) != each) {
                sorted.add(each);
            }
        }
        if (sorted.size() < 2) {
            return sorted.isEmpty() ? none : sorted.get(0);
        }
        boolean nullable = sorted.stream().anyMatch(Term::isNullable);
        return term(Kind.CHOICE, sorted, null, 0, 0, nullable);
    }

    Term optional(Term part) {
        return choice(List.of(empty, part));
    }

    /** {@code max} may be {@link #UNBOUNDED}. */
    Term repeat(Term part, int min, int max) {
        if (max == 0 || part == empty || (part == none && min == 0)) {
            return empty;
        }
        if (part == none || (min == 1 && max == 1)) {
            return part;
        }
        int least = part.nullable ? 0 : min;
        return term(Kind.REPEAT, List.of(part), null, least, max, least == 0);
    }

    /** Returns a term for what two parts without references both match. */
    Term both(Term first, Term second) {
        if (first == none || second == none || !intersect(first, second)) {
            return none;
        }
        boolean nullable = first.nullable && second.nullable;
        return term(Kind.BOTH, List.of(first, second), null, 0, 0, nullable);
    }

    /** Returns whether a text exists that both terms match. */
    private boolean intersect(Term first, Term second) {
        List<Integer> key = List.of(first.id, second.id);
        Boolean known = intersecting.get(key);
        if (known == null) {
            known = searchIntersection(first, second);
            intersecting.put(key, known);
        }
        return known;
    }

    private boolean searchIntersection(Term first, Term second) {
        if (first.nullable && second.nullable) {
            return true;
        }
        Set<Long> seen = new HashSet<>();
        Deque<Term[]> open = new ArrayDeque<>();
        open.add(new Term[] {first, second});
        while (!open.isEmpty()) {
            Term[] pair = open.remove();
            for (int i = 0; i < classCount; i++) {
                Term one = pair[0].derive(examples[i]);
                Term other = one == none ? none : pair[1].derive(examples[i]);
                if (other == none) {
                    continue;
                }
                if (one.nullable && other.nullable) {
                    return true;
                }
                if (seen.add((long) one.id << Integer.SIZE | other.id)) {
                    open.add(new Term[] {one, other});
                }
            }
        }
        return false;
    }

    /** Returns a term for all texts but those of a part without references. */
    Term not(Term part) {
        return part.kind == Kind.NOT
                ? part.part()
                : term(Kind.NOT, List.of(part), null, 0, 0, !part.nullable);
    }

    /** Marks a part whose masks are cached: a string or a number, for example. */
    Term lexeme(Term part) {
        return part == none || part == empty
                ? part
                : term(Kind.LEXEME, List.of(part), null, 0, 0, part.nullable);
    }

    /**
     * Returns a term to be {@linkplain Term#define defined} later; errors name its place in a JSON
     * schema.
     */
    Term reference(String place) {
        Term reference = new Term(Kind.REFERENCE, List.of(), null, 0, 0, false);
        references.put(reference, place);
        return reference;
    }

    private IllegalArgumentException wrong(Term reference, String problem) {
        return new IllegalArgumentException(
                "the JSON schema at " + references.get(reference) + ": " + problem);
    }

    /**
     * Checks a grammar whose references are all defined. Throws if a reference begins with itself
     * or never ends, or if no text matches.
     */
    void check(Term root) {
        references.keySet().forEach(reference -> reference.derive('{'));
        Set<Term> matching = new HashSet<>(); // those known to match a text
        int before = -1;
        while (!references.isEmpty() && matching.size() > before) {
            before = matching.size();
            List.of(terms.values(), references.keySet()).stream()
                    .flatMap(Collection::stream)
                    .filter(term -> isMatching(term, matching))
                    .forEach(matching::add);
        }
        for (Term reference : references.keySet()) {
            if (!matching.contains(reference)) {
                throw wrong(reference, "no value is valid, or its recursion never ends");
            }
        }
        if (root == none) {
            throw new IllegalArgumentException("no text matches");
        }
    }

    private static boolean isMatching(Term term, Set<Term> matching) {
        return term.nullable
                || switch (term.kind) {
                    case NONE, EMPTY -> false;
                    case BYTE, BOTH, NOT -> true; // BOTH is not made of disjoint terms.
                    case CHOICE -> term.parts.stream().anyMatch(matching::contains);
                    default -> matching.containsAll(term.parts);
                };
    }
}
