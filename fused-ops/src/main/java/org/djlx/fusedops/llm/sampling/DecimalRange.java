// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.sampling;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;

/**
 * A term for the decimal numbers between two bounds, without exponents. Compares digit by digit:
 * while the digits so far equal those of a bound, the bound limits the next digit.
 */
final class DecimalRange {

    static final int INTEGER_DIGITS = 18; // fits in a long
    static final int WHOLE_DIGITS = 15; // of numbers that are not integers
    static final int FRACTION_DIGITS = 17;

    private final Terms terms;
    private final boolean isInteger;
    // Digits before and after the point. The fractions have no zeros at the end.
    private final String low;
    private final String lowFraction;
    private final boolean lowExclusive;
    private final String high;
    private final String highFraction;
    private final boolean highExclusive;

    private DecimalRange(
            Terms terms,
            boolean isInteger,
            BigDecimal low,
            boolean lowExclusive,
            BigDecimal high,
            boolean highExclusive) {
        this.terms = terms;
        this.isInteger = isInteger;
        this.low = low.toBigInteger().toString();
        this.lowFraction = fraction(low);
        this.lowExclusive = lowExclusive;
        this.high = high.toBigInteger().toString();
        this.highFraction = fraction(high);
        this.highExclusive = highExclusive;
    }

    private static String fraction(BigDecimal number) {
        String text = number.stripTrailingZeros().toPlainString();
        int point = text.indexOf('.');
        return point < 0 ? "" : text.substring(point + 1);
    }

    /**
     * Returns the term.
     *
     * @param low the lower bound; null for none
     * @param high the upper bound; null for none
     */
    static Terms.Term of(
            Terms terms,
            boolean isInteger,
            BigDecimal low,
            boolean lowExclusive,
            BigDecimal high,
            boolean highExclusive) {
        BigDecimal most =
                BigDecimal.TEN
                        .pow(isInteger ? INTEGER_DIGITS : WHOLE_DIGITS)
                        .subtract(BigDecimal.ONE);
        BigDecimal from = low == null ? most.negate() : low.max(most.negate());
        BigDecimal to = high == null ? most : high.min(most);
        boolean fromExclusive = lowExclusive && from.equals(low);
        boolean toExclusive = highExclusive && to.equals(high);
        if (isInteger) {
            from = whole(from, fromExclusive, RoundingMode.CEILING, BigInteger.ONE);
            to = whole(to, toExclusive, RoundingMode.FLOOR, BigInteger.ONE.negate());
            fromExclusive = false;
            toExclusive = false;
        }
        List<Terms.Term> parts = new ArrayList<>();
        if (to.signum() >= 0) {
            boolean isPositive = from.signum() >= 0;
            BigDecimal least = isPositive ? from : BigDecimal.ZERO;
            boolean exclusive = isPositive && fromExclusive;
            parts.add(new DecimalRange(terms, isInteger, least, exclusive, to, toExclusive).term());
        }
        if (from.signum() < 0) {
            boolean isNegative = to.signum() < 0;
            BigDecimal least =
                    isNegative ? to.negate() : isInteger ? BigDecimal.ONE : BigDecimal.ZERO;
            boolean exclusive = isNegative ? toExclusive : !isInteger;
            Terms.Term magnitude =
                    new DecimalRange(
                                    terms,
                                    isInteger,
                                    least,
                                    exclusive,
                                    from.negate(),
                                    fromExclusive)
                            .term();
            parts.add(terms.sequence(terms.literal("-"), magnitude));
        }
        return terms.choice(parts);
    }

    private static BigDecimal whole(
            BigDecimal bound, boolean exclusive, RoundingMode rounding, BigInteger step) {
        BigInteger whole = bound.setScale(0, rounding).toBigInteger();
        boolean skips = exclusive && bound.compareTo(new BigDecimal(whole)) == 0;
        return new BigDecimal(skips ? whole.add(step) : whole);
    }

    private Terms.Term term() {
        List<Terms.Term> parts = new ArrayList<>();
        for (int length = low.length(); length <= high.length(); length++) {
            boolean atLow = length == low.length();
            boolean atHigh = length == high.length();
            String from = atLow ? low : "1" + "0".repeat(length - 1);
            String to = atHigh ? high : "9".repeat(length);
            // The other bounds only limit the first digit: from 1 to 9.
            parts.add(digits(from, to, 0, atLow, atHigh));
        }
        return terms.choice(parts);
    }

    /** Returns the term for the digits from an index on. */
    private Terms.Term digits(String from, String to, int index, boolean atLow, boolean atHigh) {
        if (index == from.length()) {
            return fraction(atLow, atHigh);
        }
        char first = atLow || index == 0 ? from.charAt(index) : '0';
        char last = atHigh || index == 0 ? to.charAt(index) : '9';
        int left = from.length() - index - 1;
        return branches(
                first,
                last,
                atLow,
                atHigh,
                (low, high) ->
                        low || high
                                ? digits(from, to, index + 1, low, high)
                                : terms.sequence(anyDigits(left, left), fraction(false, false)));
    }

    /**
     * Returns the term for a digit of a range and what follows it.
     *
     * @param rest returns what follows, given whether the digits still equal those of each bound
     */
    private Terms.Term branches(
            char first,
            char last,
            boolean atLow,
            boolean atHigh,
            BiFunction<Boolean, Boolean, Terms.Term> rest) {
        if (first > last) {
            return terms.none;
        }
        if (first == last) {
            return terms.sequence(terms.range(first, first), rest.apply(atLow, atHigh));
        }
        List<Terms.Term> parts = new ArrayList<>();
        parts.add(terms.sequence(terms.range(first, first), rest.apply(atLow, false)));
        if (first + 1 < last) {
            parts.add(terms.sequence(terms.range(first + 1, last - 1), rest.apply(false, false)));
        }
        parts.add(terms.sequence(terms.range(last, last), rest.apply(false, atHigh)));
        return terms.choice(parts);
    }

    private Terms.Term anyDigits(int min, int max) {
        return terms.repeat(terms.range('0', '9'), min, max);
    }

    private Terms.Term fraction(boolean atLow, boolean atHigh) {
        boolean mayEnd = mayEnd(0, atLow, atHigh);
        if (isInteger) {
            return mayEnd ? terms.empty : terms.none;
        }
        Terms.Term some = terms.sequence(terms.literal("."), fraction(0, atLow, atHigh));
        return mayEnd ? terms.optional(some) : some;
    }

    /** Returns whether a number may end before a digit of the fraction. */
    private boolean mayEnd(int index, boolean atLow, boolean atHigh) {
        boolean aboveLow = !atLow || (index >= lowFraction.length() && !lowExclusive);
        boolean belowHigh = !atHigh || index < highFraction.length() || !highExclusive;
        return aboveLow && belowHigh;
    }

    private Terms.Term fraction(int index, boolean atLow, boolean atHigh) {
        if (!atLow && !atHigh) {
            return anyDigits(index == 0 ? 1 : 0, Math.max(1, FRACTION_DIGITS - index));
        }
        boolean mayEnd = index > 0 && mayEnd(index, atLow, atHigh);
        if (index == FRACTION_DIGITS) {
            return mayEnd ? terms.empty : terms.none;
        }
        char first = atLow && index < lowFraction.length() ? lowFraction.charAt(index) : '0';
        char last =
                !atHigh ? '9' : index < highFraction.length() ? highFraction.charAt(index) : '0';
        Terms.Term more =
                branches(first, last, atLow, atHigh, (low, high) -> fraction(index + 1, low, high));
        return mayEnd ? terms.optional(more) : more;
    }
}
