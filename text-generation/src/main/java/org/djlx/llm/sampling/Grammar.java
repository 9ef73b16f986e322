// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import com.google.gson.JsonObject;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.function.Function;
import org.djlx.nativeops.host.Required;

/**
 * The texts that a generation may have (structured output). Grammars made from equal arguments are
 * equal. Immutable.
 *
 * <p>A generator samples only tokens that continue to a text of the grammar, and ends when the text
 * is complete and nothing can follow it. Where a text may end but also go on, the model's
 * end-of-text token is allowed, too. A generation that reaches its maximum length is cut anywhere.
 *
 * <p>JSON is written with one space or line break at most where whitespace is allowed; after a line
 * break up to 32 spaces indent the next line.
 */
public final class Grammar {

    private final List<Object> source; // its kind and arguments; equal for equal grammars
    private final Function<Terms, Terms.Term> maker;
    private final Terms terms = new Terms();
    private Terms.Term root; // null until it is needed

    private Grammar(Function<Terms, Terms.Term> maker, Object... source) {
        this.source = List.of(source);
        this.maker = maker;
    }

    /**
     * Returns a grammar that is compiled now, to check it. Combinations of checked grammars are
     * compiled when they are first used.
     */
    private static Grammar checked(Function<Terms, Terms.Term> maker, Object... source) {
        Grammar grammar = new Grammar(maker, source);
        Terms.Term root = grammar.root();
        for (int b = 0; b < 256; b++) { // Also the first step, which may be too deep.
            root.derive(b);
        }
        return grammar;
    }

    /** {@return any JSON object} */
    public static Grammar jsonObject() {
        return checked(terms -> new JsonSchema(terms, new JsonObject()).anyObject(), "object");
    }

    /**
     * Allows JSON values that are valid by a schema.
     *
     * <ul>
     *   <li>Dialects: JSON Schema 2020-12 and those of draft 7. {@code $ref} may name a place in
     *       the schema, also recursively.
     *   <li>Properties are written in the order of the schema. If {@code properties} is there and
     *       {@code additionalProperties} is not, no other properties are written. Names of
     *       additional properties have no escapes.
     *   <li>{@code anyOf}, {@code oneOf}, {@code $ref} and {@code allOf} with one schema stand
     *       alone, beside annotations such as {@code title}, and {@code x-} keywords. The
     *       alternatives of {@code oneOf} differ in their types, or in the constants of a property
     *       that all require. {@code not} is not supported.
     *   <li>{@code nullable} adds null. {@code uniqueItems} is for items with an {@code enum} of up
     *       to 8 values, {@code multipleOf} for 0.1, 0.01 and so on and for integers up to 20,
     *       perhaps with zeros behind them, alone, with a minimum of 0 or between close bounds.
     *   <li>Numbers have 15 digits before and 17 after the point at most; integers have 18.
     *   <li>{@code pattern} searches, as in JSON Schema; see {@link #regex} for what it may have.
     *   <li>The automaton has a limit of states: about 700 optional properties in one object, or
     *       1,200 required ones.
     * </ul>
     *
     * @throws IllegalArgumentException if the schema is wrong, or has a keyword that is not
     *     supported; the message names the keyword and its place
     */
    public static Grammar jsonSchema(JsonObject schema) {
        JsonObject copy = Required.argument("the schema", schema).deepCopy();
        return checked(terms -> new JsonSchema(terms, copy).compile(), "schema", copy);
    }

    /**
     * Allows one of some texts, none of them empty.
     *
     * @throws IllegalArgumentException if there is no text, or a text is empty or null
     */
    public static Grammar choice(List<String> texts) {
        if (texts == null
                || texts.isEmpty()
                || texts.stream().anyMatch(text -> text == null || text.isEmpty())) {
            throw new IllegalArgumentException("the texts to choose from are null, none or empty");
        }
        List<String> copy = List.copyOf(texts);
        return checked(
                terms -> terms.lexeme(terms.choice(copy.stream().map(terms::literal).toList())),
                "choice",
                copy);
    }

    /**
     * Allows texts that a regular expression matches from their first to their last character:
     * alternatives, groups, classes, repetitions and escapes as in {@code java.util.regex}.
     * Lookaround, back references, word boundaries, Unicode properties, flags and possessive
     * repetitions are not supported.
     *
     * @throws IllegalArgumentException if the expression is wrong or not supported; the message
     *     names the part
     */
    public static Grammar regex(String regex) {
        Required.argument("the regular expression", regex);
        return checked(
                terms -> terms.lexeme(Regex.compile(terms, regex, terms::codePoints, false)),
                "regex",
                regex);
    }

    /**
     * Allows texts that one {@linkplain #regex(String) regular expression} matches and another one
     * does not.
     *
     * @throws IllegalArgumentException if an expression is wrong or not supported, or no text is
     *     allowed
     */
    public static Grammar regex(String regex, String except) {
        Required.argument("the regular expression", regex);
        Required.argument("the regular expression of texts that are not allowed", except);
        return checked(
                terms -> {
                    Terms.Term all = Regex.compile(terms, regex, terms::codePoints, false);
                    Terms.Term not = Regex.compile(terms, except, terms::codePoints, false);
                    return terms.lexeme(terms.both(all, terms.not(not)));
                },
                "regex",
                regex,
                except);
    }

    /** Allows texts of some grammars, one after the other. */
    public static Grammar sequence(Grammar... parts) {
        List<Grammar> all = copy(Required.argument("the array of grammars", parts));
        return new Grammar(
                terms ->
                        terms.sequence(
                                all.stream()
                                        .map(each -> each.maker.apply(terms))
                                        .toArray(Terms.Term[]::new)),
                "sequence",
                all);
    }

    /** Allows texts of any of some grammars. */
    public static Grammar anyOf(List<Grammar> alternatives) {
        List<Grammar> all =
                copy(
                        Required.argument("the list of grammars", alternatives)
                                .toArray(Grammar[]::new));
        return new Grammar(
                terms -> terms.choice(all.stream().map(each -> each.maker.apply(terms)).toList()),
                "anyOf",
                all);
    }

    /**
     * {@return a grammar for one or more texts of this grammar, with the separator between two of
     * them}
     */
    public Grammar separatedBy(String separator) {
        Required.argument("the separator", separator);
        return new Grammar(
                terms -> {
                    Terms.Term one = maker.apply(terms);
                    Terms.Term more = terms.sequence(terms.literal(separator), one);
                    return terms.sequence(one, terms.repeat(more, 0, Terms.UNBOUNDED));
                },
                "separatedBy",
                this,
                separator);
    }

    private static List<Grammar> copy(Grammar[] grammars) {
        if (grammars.length == 0 || Arrays.asList(grammars).contains(null)) {
            throw new IllegalArgumentException("there is no grammar, or one of them is null");
        }
        return List.of(grammars);
    }

    /** Returns an equal grammar without computed states. */
    Grammar copy() {
        return new Grammar(maker, source.toArray());
    }

    Terms terms() {
        return terms;
    }

    synchronized Terms.Term root() {
        if (root == null) {
            root = maker.apply(terms);
            terms.check(root);
        }
        return root;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Grammar grammar && source.equals(grammar.source);
    }

    @Override
    public int hashCode() {
        return Objects.hash(source);
    }

    @Override
    public String toString() {
        return "grammar" + source;
    }
}
