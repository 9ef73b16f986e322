// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.math.RoundingMode;

/**
 * Python's arithmetic. An integer is a Long, or a BigInteger if it does not fit one; booleans are
 * integers, too.
 */
final class Numbers {

    static final int MAX_DIGITS = 4300; // of an integer, as in Python
    private static final int MAX_BITS = 14_000;

    private Numbers() {}

    static boolean isInteger(Object value) {
        return value instanceof Long || value instanceof Boolean || value instanceof BigInteger;
    }

    static boolean isNumber(Object value) {
        return isInteger(value) || value instanceof Double;
    }

    static Object narrow(BigInteger value) {
        if (value.bitLength() > MAX_BITS) {
            throw new TemplateError("an integer has more than %d bits", MAX_BITS);
        }
        return value.bitLength() < Long.SIZE ? (Object) value.longValue() : value;
    }

    static BigInteger big(Object value) {
        if (value instanceof BigInteger big) {
            return big;
        }
        if (value instanceof Boolean flag) {
            return flag ? BigInteger.ONE : BigInteger.ZERO;
        }
        if (value instanceof Long number) {
            return BigInteger.valueOf(number);
        }
        throw new TemplateError("%s is not an integer", Values.typeName(value));
    }

    static double real(Object value) {
        if (value instanceof Double number) {
            return number;
        }
        double real = big(value).doubleValue();
        if (Double.isInfinite(real)) {
            throw new TemplateError("an integer is too large for a float");
        }
        return real;
    }

    /** Returns an integer as an index or a size, clamped to the range of int. */
    static int toInt(Object value) {
        BigInteger big = big(value);
        return big.bitLength() < Integer.SIZE
                ? big.intValue()
                : big.signum() < 0 ? Integer.MIN_VALUE : Integer.MAX_VALUE;
    }

    static Object negate(Object value) {
        return value instanceof Double number ? (Object) (-number) : narrow(big(value).negate());
    }

    /** Returns the result of an arithmetic operator for two numbers. */
    static Object binary(String operator, Object a, Object b) {
        if (a instanceof Double || b instanceof Double) {
            return real(operator, real(a), real(b));
        }
        if (a instanceof Long x && b instanceof Long y && x.intValue() == x && y.intValue() == y) {
            switch (operator) { // The common case: small numbers.
                case "+":
                    return x + y;
                case "-":
                    return x - y;
                case "*":
                    return x * y;
                default: // Divisions and powers are below.
            }
        }
        BigInteger x = big(a);
        BigInteger y = big(b);
        return switch (operator) {
            case "+" -> narrow(x.add(y));
            case "-" -> narrow(x.subtract(y));
            case "*" -> narrow(x.multiply(y));
            case "/" -> {
                requireDivisor(y.signum() != 0);
                MathContext precise = new MathContext(60);
                double quotient =
                        new BigDecimal(x).divide(new BigDecimal(y), precise).doubleValue();
                if (Double.isInfinite(quotient)) {
                    throw new TemplateError("a quotient is too large for a float");
                }
                yield x.signum() == 0 && y.signum() < 0 ? -0.0 : quotient;
            }
            case "//" -> {
                requireDivisor(y.signum() != 0);
                BigInteger[] parts = x.divideAndRemainder(y);
                boolean floors = parts[1].signum() != 0 && parts[1].signum() != y.signum();
                yield narrow(floors ? parts[0].subtract(BigInteger.ONE) : parts[0]);
            }
            case "%" -> {
                requireDivisor(y.signum() != 0);
                BigInteger rest = x.remainder(y);
                boolean floors = rest.signum() != 0 && rest.signum() != y.signum();
                yield narrow(floors ? rest.add(y) : rest);
            }
            default -> power(x, y);
        };
    }

    private static void requireDivisor(boolean isNotZero) {
        if (!isNotZero) {
            throw new TemplateError("division by zero");
        }
    }

    private static Object power(BigInteger x, BigInteger y) {
        if (y.signum() < 0) {
            return real("**", real(x), real(y));
        }
        if (x.abs().bitLength() <= 1) { // -1, 0 and 1
            return y.signum() == 0 ? 1L : x.signum() < 0 && !y.testBit(0) ? 1L : (long) x.signum();
        }
        if (y.bitLength() >= 31 || (long) x.bitLength() * y.intValue() > MAX_BITS) {
            throw new TemplateError("a power has more than %d bits", MAX_BITS);
        }
        return narrow(x.pow(y.intValue()));
    }

    private static Object real(String operator, double x, double y) {
        return switch (operator) {
            case "+" -> x + y;
            case "-" -> x - y;
            case "*" -> x * y;
            case "/" -> {
                requireDivisor(y != 0);
                yield x / y;
            }
            case "//", "%" -> {
                requireDivisor(y != 0);
                double rest = x % y;
                double quotient = (x - rest) / y;
                if (rest == 0) {
                    rest = Math.copySign(0, y);
                } else if (y < 0 != rest < 0) {
                    rest += y;
                    quotient--;
                }
                if (operator.equals("%")) {
                    yield rest;
                }
                double floor = Math.floor(quotient);
                yield quotient == 0
                        ? Math.copySign(0, x / y)
                        : quotient - floor > 0.5 ? floor + 1 : floor;
            }
            default -> {
                double power = Math.pow(x, y);
                requireDivisor(x != 0 || y >= 0);
                if (x == 1 || x == -1 && Double.isInfinite(y)) {
                    yield 1.0; // Java returns NaN.
                }
                boolean finite = !Double.isInfinite(x) && !Double.isInfinite(y);
                if (finite && !Double.isNaN(x) && !Double.isNaN(y) && !Double.isFinite(power)) {
                    throw new TemplateError("a power is too large, or not real");
                }
                yield power;
            }
        };
    }

    /** Compares two numbers exactly. Neither may be NaN. */
    static int compare(Object a, Object b) {
        if (a instanceof Long x && b instanceof Long y) {
            return Long.compare(x, y);
        }
        if (a instanceof Double x && b instanceof Double y) {
            return x < y ? -1 : x > y ? 1 : 0;
        }
        if (a instanceof Double x) {
            return Double.isInfinite(x)
                    ? (x < 0 ? -1 : 1)
                    : new BigDecimal(x).compareTo(new BigDecimal(big(b)));
        }
        return b instanceof Double ? -compare(b, a) : big(a).compareTo(big(b));
    }

    static boolean isNan(Object value) {
        return value instanceof Double number && number.isNaN();
    }

    static Object round(Object value, int digits) {
        if (isInteger(value)) {
            if (digits >= 0) {
                return narrow(big(value));
            }
            if (digits < -MAX_DIGITS) {
                return 0L;
            }
            return narrow(
                    new BigDecimal(big(value))
                            .setScale(digits, RoundingMode.HALF_EVEN)
                            .toBigInteger());
        }
        double real = real(value);
        if (!Double.isFinite(real) || digits > 400) {
            return real;
        }
        double rounded =
                new BigDecimal(real)
                        .setScale(Math.max(digits, -400), RoundingMode.HALF_EVEN)
                        .doubleValue();
        return Math.copySign(rounded, real);
    }

    /** Returns {@code int(value)} of a float. */
    static Object truncate(double value) {
        if (!Double.isFinite(value)) {
            throw new TemplateError("%s is no integer", text(value));
        }
        return narrow(new BigDecimal(value).toBigInteger());
    }

    /** Returns a number, not a boolean, as Python writes it. */
    static String text(Object value) {
        if (!(value instanceof Double real)) {
            String text = value.toString();
            if (text.length() > MAX_DIGITS + 1) {
                throw new TemplateError("an integer has more than %d digits", MAX_DIGITS);
            }
            return text;
        }
        if (real.isNaN()) {
            return "nan";
        }
        if (real.isInfinite()) {
            return real < 0 ? "-inf" : "inf";
        }
        if (real == 0) {
            return 1 / real < 0 ? "-0.0" : "0.0";
        }
        String sign = real < 0 ? "-" : "";
        BigDecimal exact = new BigDecimal(Math.abs(real));
        BigDecimal shortest = exact;
        // Finds the shortest text that parses to the same number. At most one text of 15
        // digits parses to a normal number; without its trailing zeros it is the shortest.
        for (int digits = Math.abs(real) < Double.MIN_NORMAL ? 1 : 15; digits <= 17; digits++) {
            shortest = exact.round(new MathContext(digits, RoundingMode.HALF_EVEN));
            if (shortest.doubleValue() == Math.abs(real)) {
                break;
            }
        }
        shortest = shortest.stripTrailingZeros();
        int exponent = shortest.precision() - shortest.scale() - 1;
        if (exponent >= -4 && exponent < 16) {
            String plain = shortest.toPlainString();
            return sign + plain + (plain.indexOf('.') < 0 ? ".0" : "");
        }
        String digits = shortest.unscaledValue().toString();
        String fraction = digits.length() > 1 ? "." + digits.substring(1) : "";
        return sign + digits.charAt(0) + fraction + exponent(exponent);
    }

    /** Returns an exponent as Python writes it, with at least two digits. */
    static String exponent(int exponent) {
        return "e%s%02d".formatted(exponent < 0 ? "-" : "+", Math.abs(exponent));
    }

    /** Returns {@code int(text, base)}; null if the text is no integer. */
    static Object parseInteger(String text, int base) {
        String digits = Strings.strip(text, null, true, true);
        boolean negative = digits.startsWith("-");
        if (negative || digits.startsWith("+")) {
            digits = digits.substring(1);
        }
        if (digits.length() > 2 && digits.charAt(0) == '0') {
            int prefix = "bBoOxX".indexOf(digits.charAt(1));
            int radix = prefix < 0 ? 10 : prefix < 2 ? 2 : prefix < 4 ? 8 : 16;
            if (prefix >= 0 && (base == 0 || base == radix)) {
                digits = digits.substring(digits.charAt(2) == '_' ? 3 : 2);
                base = radix;
            }
        }
        if (base == 0) {
            if (digits.length() > 1 && digits.startsWith("0") && !digits.matches("0[0_]*")) {
                return null;
            }
            base = 10;
        }
        if (base < 2
                || base > 36
                || digits.length() > MAX_DIGITS
                || !digits.matches("[^_]+(_[^_]+)*+")) {
            return null;
        }
        String plain = digits.replace("_", "");
        for (int i = 0; i < plain.length(); i++) {
            if (Character.digit(plain.charAt(i), base) < 0) {
                return null;
            }
        }
        BigInteger value = new BigInteger(plain, base);
        return narrow(negative ? value.negate() : value);
    }

    /** Returns {@code float(text)}; null if the text is no number. */
    static Double parseReal(String text) {
        String digits = Strings.strip(text, null, true, true);
        if (digits.matches("(?i)[-+]?(inf|infinity|nan)")) {
            boolean negative = digits.startsWith("-");
            boolean nan = digits.toLowerCase(java.util.Locale.ROOT).endsWith("nan");
            return nan
                    ? Double.NaN
                    : negative ? Double.NEGATIVE_INFINITY : Double.POSITIVE_INFINITY;
        }
        String d = "\\d++(?:_\\d++)*+";
        String number = "[-+]?(?:" + d + "\\.?(?:" + d + ")?|\\." + d + ")(?:[eE][-+]?" + d + ")?";
        return digits.matches(number) ? Double.valueOf(digits.replace("_", "")) : null;
    }
}
