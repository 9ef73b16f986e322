// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.Map;
import java.util.function.DoubleBinaryOperator;
import java.util.function.LongBinaryOperator;

/**
 * Python's arithmetic. An integer is a Long or a boolean; one of more than 64 bits is a BigInteger,
 * which can be printed and compared only.
 */
final class Numbers {

    private static final int MAX_DIGITS = 4300; // of an integer, as in Python
    private static final int MAX_SCALE = 400; // digits that a double may have, about
    private static final int EXACT_DIGITS = 15; // at most one text of them parses to a double

    private record Operator(LongBinaryOperator integers, DoubleBinaryOperator reals) {}

    private static final Map<String, Operator> OPERATORS =
            Map.of(
                    "+", new Operator(Math::addExact, Double::sum),
                    "-", new Operator(Math::subtractExact, (x, y) -> x - y),
                    "*", new Operator(Math::multiplyExact, (x, y) -> x * y),
                    "%", new Operator(Math::floorMod, Numbers::floorMod),
                    "//", new Operator(Numbers::floorDiv, Numbers::floorDiv),
                    "**", new Operator(Numbers::power, Numbers::power));

    private Numbers() {}

    static boolean isNumber(Object value) {
        return value instanceof Number || value instanceof Boolean;
    }

    static boolean isInteger(Object value) {
        return isNumber(value) && !(value instanceof Double);
    }

    static boolean isNan(Object value) {
        return value instanceof Double number && number.isNaN();
    }

    static Object narrow(BigInteger value) {
        return value.bitLength() < Long.SIZE ? (Object) value.longValue() : value;
    }

    private static TemplateError overflow() {
        return new TemplateError("an integer needs more than 64 bits, which is not supported");
    }

    static long integer(Object value) {
        if (value instanceof BigInteger) {
            throw overflow();
        }
        if (!isInteger(value)) {
            throw new TemplateError("%s is not an integer", Values.type(value));
        }
        return value instanceof Boolean flag ? (flag ? 1 : 0) : (Long) value;
    }

    static double real(Object value) {
        return value instanceof Double number ? number : integer(value);
    }

    /** Returns an integer as an index or a size, clamped to the range of int. */
    static int toInt(Object value) {
        return (int) Math.max(Integer.MIN_VALUE, Math.min(Integer.MAX_VALUE, integer(value)));
    }

    /** Returns the result of an arithmetic operator for two numbers. */
    static Object binary(String operator, Object a, Object b) {
        if ("/ // %".contains(operator) && real(b) == 0) {
            throw new TemplateError("division by zero");
        }
        boolean areReal = a instanceof Double || b instanceof Double;
        if (operator.equals("/")) {
            return areReal ? real(a) / real(b) : quotient(integer(a), integer(b));
        }
        Operator table = OPERATORS.get(operator);
        try {
            return areReal || operator.equals("**") && integer(b) < 0
                    ? table.reals.applyAsDouble(real(a), real(b))
                    : (Object) table.integers.applyAsLong(integer(a), integer(b));
        } catch (ArithmeticException e) {
            throw overflow();
        }
    }

    private static double quotient(long x, long y) {
        BigDecimal quotient = new BigDecimal(x).divide(new BigDecimal(y), new MathContext(60));
        return x == 0 ? (double) x / y : quotient.doubleValue();
    }

    private static long floorDiv(long x, long y) {
        return y == -1 ? Math.negateExact(x) : Math.floorDiv(x, y);
    }

    private static double floorDiv(double x, double y) {
        double quotient = Math.rint((x - floorMod(x, y)) / y);
        return quotient == 0 ? Math.copySign(0, x / y) : quotient;
    }

    private static double floorMod(double x, double y) {
        double rest = x % y;
        return rest == 0 ? Math.copySign(0, y) : rest < 0 != y < 0 ? rest + y : rest;
    }

    private static long power(long x, long y) {
        int exponent = (int) (y > Long.SIZE ? Long.SIZE + (y & 1) : y); // exact for -1, 0 and 1
        return BigInteger.valueOf(x).pow(exponent).longValueExact();
    }

    private static double power(double x, double y) {
        double power = Math.pow(x, y);
        if (!Double.isFinite(power)) {
            throw new TemplateError("a power that is not a finite number is not supported");
        }
        return power;
    }

    private static BigDecimal exact(Object value) {
        return value instanceof Double real
                ? new BigDecimal(real)
                : new BigDecimal(
                        value instanceof BigInteger big ? big.toString() : "" + integer(value));
    }

    /** Compares two numbers exactly. Neither may be NaN. */
    static int compare(Object a, Object b) {
        if (a instanceof Long x && b instanceof Long y) {
            return Long.compare(x, y);
        }
        double x = ((Number) (a instanceof Boolean ? integer(a) : a)).doubleValue();
        double y = ((Number) (b instanceof Boolean ? integer(b) : b)).doubleValue();
        return x < y ? -1 : x > y ? 1 : Double.isInfinite(x) ? 0 : exact(a).compareTo(exact(b));
    }

    static Object round(Object value, int digits) {
        if (value instanceof Double real && (!Double.isFinite(real) || digits > MAX_SCALE)) {
            return real;
        }
        int scale = Math.max(-MAX_SCALE, isInteger(value) ? Math.min(0, digits) : digits);
        BigDecimal rounded = exact(value).setScale(scale, RoundingMode.HALF_EVEN);
        return value instanceof Double real
                ? Math.copySign(rounded.doubleValue(), real)
                : narrow(rounded.toBigInteger());
    }

    /** Returns {@code int(value)}. */
    static Object truncate(Object value) {
        if (value instanceof Double real && !Double.isFinite(real)) {
            throw new TemplateError("%s is no integer", text(value));
        }
        return narrow(exact(value).toBigInteger());
    }

    /** Returns a number, not a boolean, as Python writes it. */
    static String text(Object value) {
        if (!(value instanceof Double real) || real == 0) {
            return value.toString();
        }
        if (!Double.isFinite(real)) {
            return real.isNaN() ? "nan" : real < 0 ? "-inf" : "inf";
        }
        // The shortest text that parses to the same number; Java 17's is not always.
        BigDecimal shortest;
        int digits = Math.abs(real) < Double.MIN_NORMAL ? 1 : EXACT_DIGITS;
        do {
            MathContext context = new MathContext(digits++, RoundingMode.HALF_EVEN);
            shortest = new BigDecimal(real).round(context);
        } while (shortest.doubleValue() != real);
        shortest = shortest.stripTrailingZeros();
        int exponent = shortest.precision() - shortest.scale() - 1;
        if (exponent >= -4 && exponent < 16) {
            String plain = shortest.toPlainString();
            return plain.indexOf('.') < 0 ? plain + ".0" : plain;
        }
        String mantissa = shortest.movePointLeft(exponent).toPlainString();
        return "%se%s%02d".formatted(mantissa, exponent < 0 ? "-" : "+", Math.abs(exponent));
    }

    /** Returns {@code int(text)}; null if the text is no integer. */
    static Object parseInteger(String text) {
        String digits = Strings.strip(text, null, true, true);
        boolean valid = digits.length() <= MAX_DIGITS && digits.matches("(?U)[-+]?\\d++(_\\d++)*+");
        return valid ? narrow(new BigInteger(digits.replace("_", ""))) : null;
    }

    /** Returns {@code float(text)}; null if the text is no number. */
    static Double parseReal(String text) {
        String number = Strings.strip(text, null, true, true);
        if (number.matches("(?i)[-+]?(inf|infinity|nan)")) {
            double infinity = number.startsWith("-") ? -1.0 / 0 : 1.0 / 0;
            return number.matches("(?i).*nan") ? Double.NaN : infinity;
        }
        String plain = number.replaceAll("(?<=\\d)_(?=\\d)", "");
        return plain.matches("[-+]?(\\d++\\.?\\d*+|\\.\\d++)([eE][-+]?\\d++)?")
                ? Double.valueOf(plain)
                : null;
    }
}
