// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.nativeops.host.Required;

/**
 * The bytes of a model's tokens, as a trie in preorder. Finds the tokens that a {@link Grammar}
 * allows next, and caches what it found for recent grammars. Thread-safe.
 */
public final class Vocabulary {

    private static final int MAX_GRAMMARS = 32;
    private static final int MAX_LEXEMES = 128; // of a grammar
    private static final int MAX_SIZE = Terms.MAX_SIZE / 3; // of a grammar that is used again

    private final List<byte[]> tokens;
    private final int size;
    // Of each node. Node 0 is the root.
    private byte[] labels = new byte[1024];
    private int[] depths = new int[1024];
    private int[] ends = new int[1024]; // the node after the subtree
    private int[] firstTokens = new int[1024]; // -1 if no token ends here
    private int nodes = 1;
    private final int[] equalTokens; // of each token: the next one with the same bytes, or -1

    private final Map<Grammar, Masks> masks = recent(MAX_GRAMMARS);

    /** Returns a map that keeps the entries that were used last. */
    private static <K, V> Map<K, V> recent(int maxSize) {
        return new LinkedHashMap<>(16, 0.75f, true) {
            private static final long serialVersionUID = 1;

            @Override
            protected boolean removeEldestEntry(Map.Entry<K, V> eldest) {
                return size() > maxSize;
            }
        };
    }

    /**
     * {@code tokens} are the bytes of each token, null for those that no grammar allows, such as
     * special tokens; {@code size} is the number of tokens of the model, which may differ from the
     * tokenizer's.
     */
    public Vocabulary(List<byte[]> tokens, int size) {
        this.tokens = Required.argument("Vocabulary: tokens", tokens);
        this.size = size;
        equalTokens = new int[size];
        List<Integer> sorted = new ArrayList<>();
        for (int token = 0; token < Math.min(size, tokens.size()); token++) {
            if (tokens.get(token) != null && tokens.get(token).length > 0) {
                sorted.add(token);
            }
        }
        sorted.sort((a, b) -> Arrays.compareUnsigned(tokens.get(a), tokens.get(b)));
        firstTokens[0] = -1;
        byte[] before = {};
        int[] path = {0}; // the nodes of the bytes of `before`
        for (int token : sorted) {
            byte[] bytes = tokens.get(token);
            int shared = Arrays.mismatch(before, bytes);
            shared = shared < 0 ? bytes.length : shared;
            path = Arrays.copyOf(path, bytes.length + 1);
            for (int i = shared; i < bytes.length; i++) {
                path[i + 1] = addNode(bytes[i], i + 1);
            }
            int node = path[bytes.length];
            equalTokens[token] = firstTokens[node];
            firstTokens[node] = token;
            before = bytes;
        }
        ends[0] = nodes;
        int[] open = new int[Arrays.stream(depths).max().orElse(0) + 2];
        for (int node = nodes - 1; node > 0; node--) { // open[d]: the next node of depth d or less
            int depth = depths[node];
            ends[node] = open[depth] == 0 ? nodes : open[depth];
            Arrays.fill(open, depth, open.length, node);
        }
    }

    private int addNode(byte label, int depth) {
        if (nodes == labels.length) {
            labels = Arrays.copyOf(labels, 2 * nodes);
            depths = Arrays.copyOf(depths, 2 * nodes);
            ends = Arrays.copyOf(ends, 2 * nodes);
            firstTokens = Arrays.copyOf(firstTokens, 2 * nodes);
        }
        labels[nodes] = label;
        depths[nodes] = depth;
        firstTokens[nodes] = -1;
        return nodes++;
    }

    /** Returns the bytes of a token; empty if no grammar allows it. */
    byte[] bytes(int token) {
        byte[] bytes = token < tokens.size() ? tokens.get(token) : null;
        return bytes == null ? new byte[0] : bytes;
    }

    synchronized Masks masks(Grammar grammar) {
        Masks known = masks.get(grammar);
        if (known == null || known.grammar.terms().size() > MAX_SIZE) {
            known = new Masks(known == null ? grammar : grammar.copy());
            masks.remove(grammar);
            masks.put(grammar, known);
        }
        return known;
    }

    /**
     * The masks of the terms of one grammar. Synchronizes on the terms, because the vocabularies of
     * several models may have the same grammar.
     */
    final class Masks {

        final Grammar grammar;
        private final Map<Terms.Term, Lexeme> lexemes = recent(MAX_LEXEMES);

        /** The tokens that stay within a lexeme, and the nodes where it may end, or null. */
        private record Lexeme(int[] allowed, Set<Integer> ends) {}

        /** A term whose texts begin at a node, and whether the nodes where they end are needed. */
        private record Start(Terms.Term term, int node, boolean needsEnds) {}

        private Masks(Grammar grammar) {
            this.grammar = grammar;
        }

        /** Returns the state after a token; null if the token is not allowed. */
        Terms.Term derive(Terms.Term state, int token) {
            Terms terms = grammar.terms();
            byte[] bytes = bytes(token);
            Terms.Term next = bytes.length == 0 ? terms.none : state;
            synchronized (terms) {
                for (byte b : bytes) {
                    next = next.derive(Byte.toUnsignedInt(b));
                }
            }
            return next == terms.none ? null : next;
        }

        /** Returns a bit for each token of the vocabulary: whether it is allowed in a state. */
        int[] mask(Terms.Term state) {
            int[] mask = new int[(size + Integer.SIZE - 1) / Integer.SIZE];
            synchronized (grammar.terms()) {
                allow(new Start(state, 0, false), mask, new HashMap<>());
            }
            return mask;
        }

        /**
         * Adds the tokens below a node that begin a text of the term. A token that goes on after
         * the end of the text is not among them. Returns the nodes at which a text of the term may
         * end, if they are needed. {@code known} has the results of this mask, so that terms which
         * are reached many ways are walked once.
         */
        private Set<Integer> allow(Start start, int[] mask, Map<Start, Set<Integer>> known) {
            Set<Integer> ends = known.get(start);
            if (ends == null) {
                ends = new LinkedHashSet<>();
                known.put(start, ends);
                grammar.terms().descend();
                try {
                    addEnds(start, mask, known, ends);
                } finally {
                    grammar.terms().ascend();
                }
            }
            return ends;
        }

        private void addEnds(
                Start start, int[] mask, Map<Start, Set<Integer>> known, Set<Integer> ends) {
            Terms.Term term = start.term;
            boolean needsEnds = start.needsEnds;
            switch (term.kind) {
                case SEQUENCE -> {
                    Terms.Term rest = term.parts().get(1);
                    Start first = new Start(term.parts().get(0), start.node, true);
                    for (int end : allow(first, mask, known)) {
                        ends.addAll(allow(new Start(rest, end, needsEnds), mask, known));
                    }
                }
                case CHOICE, REFERENCE -> {
                    for (Terms.Term part : term.parts()) {
                        Start each = new Start(part, start.node, needsEnds);
                        ends.addAll(allow(each, mask, known));
                    }
                }
                case LEXEME -> {
                    if (start.node > 0) {
                        walk(start, mask, ends);
                        return;
                    }
                    Lexeme lexeme = lexemes.get(term);
                    if (lexeme == null || needsEnds && lexeme.ends == null) {
                        Set<Integer> all = new LinkedHashSet<>();
                        lexeme = new Lexeme(new int[mask.length], needsEnds ? all : null);
                        walk(start, lexeme.allowed, all);
                        lexemes.put(term, lexeme);
                    }
                    for (int i = 0; i < mask.length; i++) {
                        mask[i] |= lexeme.allowed[i];
                    }
                    if (needsEnds) {
                        ends.addAll(lexeme.ends);
                    }
                }
                default -> walk(start, mask, ends);
            }
        }

        private void walk(Start start, int[] mask, Set<Integer> textEnds) {
            Terms.Term term = start.term;
            int node = start.node;
            if (start.needsEnds && term.isNullable()) {
                textEnds.add(node);
            }
            Terms.Term none = grammar.terms().none;
            Terms.Term[] path = {term, null, null, null, null, null, null, null};
            int next = node + 1;
            while (next < ends[node]) {
                int depth = depths[next] - depths[node];
                Terms.Term state = path[depth - 1].derive(Byte.toUnsignedInt(labels[next]));
                if (state == none) {
                    next = ends[next];
                    continue;
                }
                if (depth == path.length) {
                    path = Arrays.copyOf(path, 2 * depth);
                }
                path[depth] = state;
                int token = firstTokens[next];
                for (; token >= 0; token = equalTokens[token]) {
                    mask[token / Integer.SIZE] |= 1 << token;
                }
                if (start.needsEnds && state.isNullable()) {
                    textEnds.add(next);
                }
                next++;
            }
        }
    }
}
