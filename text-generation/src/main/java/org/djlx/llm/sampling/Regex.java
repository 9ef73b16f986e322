// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;

/**
 * Compiles a regular expression to a term. {@link Grammar#regex} says what is supported. Anchors
 * may stand at the ends of top-level alternatives.
 */
final class Regex {

    private static final int MAX_REPETITIONS = 10_000;
    private static final int MAX_DEPTH = 100;
    private static final int CODE_POINTS = Character.MAX_CODE_POINT + 1;
    private static final Pattern REPETITION =
            Pattern.compile("\\{(\\d{1,5})(?:(,)(\\d{1,5})?)?\\}");

    private final Terms terms;
    private final String regex;
    private final Function<BitSet, Terms.Term> encoder;
    private final boolean searches;
    private int at;
    private int depth;

    private Regex(
            Terms terms, String regex, Function<BitSet, Terms.Term> encoder, boolean searches) {
        this.terms = terms;
        this.regex = regex;
        this.encoder = encoder;
        this.searches = searches;
    }

    /**
     * Compiles a regular expression.
     *
     * @param encoder returns the term for one code point of a set
     * @param searches whether text before and after a match is allowed where the expression has no
     *     anchor
     */
    static Terms.Term compile(
            Terms terms, String regex, Function<BitSet, Terms.Term> encoder, boolean searches) {
        Regex parser = new Regex(terms, regex, encoder, searches);
        Terms.Term term = parser.alternatives();
        if (parser.at < regex.length()) {
            throw parser.wrong("an unmatched ')'");
        }
        return term;
    }

    private IllegalArgumentException wrong(String what) {
        return new IllegalArgumentException(
                "the regular expression " + regex + " has " + what + " at index " + at);
    }

    private boolean take(String text) {
        boolean found = regex.startsWith(text, at);
        at += found ? text.length() : 0;
        return found;
    }

    private int next() {
        if (at == regex.length()) {
            throw wrong("an open '(', '[' or '\\'");
        }
        int codePoint = regex.codePointAt(at);
        at += Character.charCount(codePoint);
        return codePoint;
    }

    private Terms.Term alternatives() {
        List<Terms.Term> alternatives = new ArrayList<>();
        do {
            alternatives.add(alternative());
        } while (take("|"));
        return terms.choice(alternatives);
    }

    private Terms.Term alternative() {
        boolean isTop = depth == 0;
        List<Terms.Term> items = new ArrayList<>();
        boolean anchored = isTop && take("^");
        items.add(searches && isTop && !anchored ? any() : terms.empty);
        anchored = false;
        while (at < regex.length() && "|)".indexOf(regex.charAt(at)) < 0) {
            if (isTop && take("$")) {
                anchored = true;
                if (at < regex.length() && regex.charAt(at) != '|') {
                    throw wrong("'$' before the end");
                }
            } else {
                items.add(repeated(item()));
            }
        }
        items.add(searches && isTop && !anchored ? any() : terms.empty);
        return terms.sequence(items.toArray(Terms.Term[]::new));
    }

    private Terms.Term any() {
        return terms.repeat(encoder.apply(except(new BitSet())), 0, Terms.UNBOUNDED);
    }

    private Terms.Term repeated(Terms.Term item) {
        int min;
        int max = Terms.UNBOUNDED;
        Matcher matcher = REPETITION.matcher(regex).region(at, regex.length());
        if (take("*")) {
            min = 0;
        } else if (take("+")) {
            min = 1;
        } else if (take("?")) {
            min = 0;
            max = 1;
        } else if (matcher.lookingAt()) {
            min = Integer.parseInt(matcher.group(1));
            String most = matcher.group(matcher.group(2) == null ? 1 : 3);
            max = most == null ? max : Integer.parseInt(most);
            if (min > max || min > MAX_REPETITIONS || most != null && max > MAX_REPETITIONS) {
                throw wrong("a repetition that is not in order or above " + MAX_REPETITIONS);
            }
            at = matcher.end();
        } else {
            return item;
        }
        if (!take("?") && at < regex.length() && "*+{".indexOf(regex.charAt(at)) >= 0) {
            throw wrong("a second repetition, which is not supported,");
        }
        return terms.repeat(item, min, max);
    }

    private Terms.Term item() {
        if (take("(")) {
            if (take("?")) {
                Matcher name =
                        Pattern.compile(":|<\\w+>").matcher(regex).region(at, regex.length());
                if (!name.lookingAt()) {
                    throw wrong("lookaround or a flag, which is not supported,");
                }
                at = name.end();
            }
            if (++depth > MAX_DEPTH) {
                throw wrong("groups nested more than " + MAX_DEPTH + " deep");
            }
            Terms.Term inside = alternatives();
            depth--;
            if (!take(")")) {
                throw wrong("no ')'");
            }
            return inside;
        }
        if (take(".")) {
            return encoder.apply(except(of("\n\r\u0085\u2028\u2029")));
        }
        if (take("[")) {
            return encoder.apply(characterClass());
        }
        if (take("\\")) {
            return encoder.apply(escape());
        }
        int start = at;
        int codePoint = next();
        if ("*+?{^$".indexOf(codePoint) >= 0) {
            at = start;
            throw wrong("'" + Character.toString(codePoint) + "', which is not supported there,");
        }
        return encoder.apply(of(Character.toString(codePoint)));
    }

    private static BitSet of(String codePoints) {
        BitSet set = new BitSet();
        codePoints.codePoints().forEach(set::set);
        return set;
    }

    private static BitSet range(int... firstsAndLasts) {
        BitSet set = new BitSet();
        for (int i = 0; i < firstsAndLasts.length; i += 2) {
            set.set(firstsAndLasts[i], firstsAndLasts[i + 1] + 1);
        }
        return set;
    }

    private static BitSet except(BitSet set) {
        BitSet rest = (BitSet) set.clone();
        rest.flip(0, CODE_POINTS);
        return rest;
    }

    private BitSet characterClass() {
        boolean negated = take("^");
        BitSet set = new BitSet();
        while (!take("]")) {
            BitSet first = classItem();
            boolean isRange = regex.startsWith("-", at) && !regex.startsWith("-]", at);
            if (isRange && first.cardinality() == 1) {
                at++;
                BitSet last = classItem();
                if (last.cardinality() != 1 || last.nextSetBit(0) < first.nextSetBit(0)) {
                    throw wrong("a range that is not in order");
                }
                set.set(first.nextSetBit(0), last.nextSetBit(0) + 1);
            } else {
                set.or(first);
            }
        }
        return negated ? except(set) : set;
    }

    private BitSet classItem() {
        if (take("\\")) {
            return take("b") ? of("\b") : escape();
        }
        if (regex.startsWith("[", at) || regex.startsWith("&&", at)) {
            throw wrong("a nested class, which is not supported (write \\[ for a bracket),");
        }
        return of(Character.toString(next()));
    }

    private BitSet escape() {
        int codePoint = next();
        return switch (codePoint) {
            case 'd' -> range('0', '9');
            case 'D' -> except(range('0', '9'));
            case 'w' -> range('0', '9', 'A', 'Z', '_', '_', 'a', 'z');
            case 'W' -> except(range('0', '9', 'A', 'Z', '_', '_', 'a', 'z'));
            case 's' -> of(" \t\n\u000B\f\r");
            case 'S' -> { // The complement of all spaces of Unicode, on which all dialects agree.
                BitSet spaces = of("\u000B\uFEFF\u0085");
                IntStream.rangeClosed(0, Character.MAX_VALUE)
                        .filter(c -> Character.isWhitespace(c) || Character.isSpaceChar(c))
                        .forEach(spaces::set);
                yield except(spaces);
            }
            case 't' -> of("\t");
            case 'n' -> of("\n");
            case 'r' -> of("\r");
            case 'f' -> of("\f");
            case 'x' -> hexadecimal(2);
            case 'u' -> hexadecimal(4);
            default -> {
                if (codePoint < 0x80 && Character.isLetterOrDigit(codePoint)) {
                    throw wrong("\\" + (char) codePoint + ", which is not supported,");
                }
                yield of(Character.toString(codePoint));
            }
        };
    }

    private BitSet hexadecimal(int digits) {
        int end = at + digits;
        if (end <= regex.length() && regex.substring(at, end).matches("\\p{XDigit}+")) {
            int codePoint = Integer.parseInt(regex.substring(at, end), 16);
            at = end;
            if (Character.isHighSurrogate((char) codePoint) && take("\\u")) {
                int low = hexadecimal(digits).nextSetBit(0);
                codePoint = Character.toCodePoint((char) codePoint, (char) low);
            }
            return of(Character.toString(codePoint));
        }
        throw wrong("an escape without " + digits + " hexadecimal digits");
    }
}
