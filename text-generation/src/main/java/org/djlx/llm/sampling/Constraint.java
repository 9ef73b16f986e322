// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import org.djlx.nativeops.host.Required;

/** The state of one sequence whose text follows a {@link Grammar}. Not thread-safe. */
public final class Constraint {

    private final Vocabulary.Masks masks;
    private final int[] stopTokens;
    private Terms.Term state;

    /**
     * Creates a constraint at the beginning of a text. Stop tokens are allowed where a text of the
     * grammar may end.
     */
    public Constraint(Grammar grammar, Vocabulary vocabulary, int... stopTokens) {
        Required.argument("Constraint: vocabulary", vocabulary);
        masks = vocabulary.masks(Required.argument("Constraint: grammar", grammar));
        state = masks.grammar.root();
        this.stopTokens = Required.argument("Constraint: stopTokens", stopTokens).clone();
    }

    /**
     * {@return a bit for each token of the model, token 0 in the lowest bit of the first element: 1
     * if the token may be the next one}
     */
    public int[] mask() {
        return mask(state);
    }

    private int[] mask(Terms.Term from) {
        int[] mask = masks.mask(from);
        if (from.isNullable()) {
            for (int token : stopTokens) {
                mask[token / Integer.SIZE] |= 1 << token;
            }
        }
        return mask;
    }

    /**
     * Starts to compute the {@link #mask} of the next token on another thread, while the device
     * computes the step. The result waits for the mask, which is empty if it cannot be computed.
     * Thread-safe.
     */
    public Supplier<int[]> prepare() {
        Terms.Term from = state;
        return CompletableFuture.supplyAsync(() -> mask(from)).exceptionally(e -> new int[0])::join;
    }

    /**
     * Continues after a token that does not stop.
     *
     * @throws IllegalArgumentException if the token is not allowed, or the grammar has too many
     *     states
     */
    public void accept(int token) {
        Terms.Term after = masks.derive(state, token);
        Required.check(
                after != null,
                "no token continues the text of the grammar: tokens are missing in the"
                        + " vocabulary, or other options forbid them, or the grammar has too many"
                        + " states");
        state = after;
    }

    /** Returns whether the grammar allows a token next, by the bytes of the token alone. */
    boolean allows(int token) {
        return masks.derive(state, token) != null;
    }

    /** {@return whether the text is complete and nothing can follow it} */
    public boolean isComplete() {
        return state.kind == Terms.Kind.EMPTY;
    }
}
