// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.Locale;

/**
 * Python's arithmetic. An integer is a Long or a boolean; one of more than 64 bits is a BigInteger,
 * which can be printed and compared only.
 */
final class Numbers {

    private static final int MAX_DIGITS = 4300; // of an integer, as in Python

    private Numbers() {}

    static boolean isInteger(Object value) {
        return value instanceof Long || value instanceof Boolean || value instanceof BigInteger;
    }

    static boolean isNumber(Object value) {
        return isInteger(value) || value instanceof Double;
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
        if (value instanceof Boolean flag) {
            return flag ? 1 : 0;
        }
        if (value instanceof Long number) {
            return number;
        }
        throw new TemplateError("%s is not an integer", Values.typeName(value));
    }

    static double real(Object value) {
        return value instanceof Double number ? number : integer(value);
    }

    /** Returns an integer as an index or a size, clamped to the range of int. */
    static int toInt(Object value) {
        return (int) Math.max(Integer.MIN_VALUE, Math.min(Integer.MAX_VALUE, integer(value)));
    }

    static Object negate(Object value) {
        return value instanceof Double number
                ? (Object) (-number)
                : binary("*", integer(value), -1L);
    }

    /** Returns the result of an arithmetic operator for two numbers. */
    static Object binary(String operator, Object a, Object b) {
        if (a instanceof Double || b instanceof Double) {
            return real(operator, real(a), real(b));
        }
        long x = integer(a);
        long y = integer(b);
        requireDivisor(!"/ // %".contains(operator) || y != 0);
        try {
            return switch (operator) {
                case "+" -> Math.addExact(x, y);
                case "-" -> Math.subtractExact(x, y);
                case "*" -> Math.multiplyExact(x, y);
                case "/" -> {
                    MathContext precise = new MathContext(60);
                    BigDecimal quotient = new BigDecimal(x).divide(new BigDecimal(y), precise);
                    yield x == 0 && y < 0 ? -0.0 : quotient.doubleValue();
                }
                case "//" -> y == -1 ? Math.negateExact(x) : Math.floorDiv(x, y);
                case "%" -> Math.floorMod(x, y);
                default -> power(x, y);
            };
        } catch (ArithmeticException e) {
            throw overflow();
        }
    }

    private static void requireDivisor(boolean isNotZero) {
        if (!isNotZero) {
            throw new TemplateError("division by zero");
        }
    }

    private static Object power(long x, long y) {
        if (y < 0) {
            return real("**", x, y);
        }
        if (x >= -1 && x <= 1) {
            return y == 0 ? 1L : x < 0 && y % 2 == 0 ? 1L : x;
        }
        return BigInteger.valueOf(x).pow((int) Math.min(y, Long.SIZE)).longValueExact();
    }

    private static Object real(String operator, double x, double y) {
        requireDivisor(!"/ // %".contains(operator) || y != 0);
        switch (operator) {
            case "+":
                return x + y;
            case "-":
                return x - y;
            case "*":
                return x * y;
            case "/":
                return x / y;
            case "**":
                double power = Math.pow(x, y);
                requireDivisor(x != 0 || y >= 0);
                if (x == 1 || x == -1 && Double.isInfinite(y)) {
                    return 1.0; // Java returns NaN.
                }
                if (Double.isFinite(x) && Double.isFinite(y) && !Double.isFinite(power)) {
                    throw new TemplateError("a power is too large, or not real");
                }
                return power;
            default: // // and %
                double rest = x % y;
                double quotient = (x - rest) / y;
                if (rest == 0) {
                    rest = Math.copySign(0, y);
                } else if (y < 0 != rest < 0) {
                    rest += y;
                    quotient--;
                }
                if (operator.equals("%")) {
                    return rest;
                }
                double floor = Math.floor(quotient);
                return quotient == 0
                        ? Math.copySign(0, x / y)
                        : quotient - floor > 0.5 ? floor + 1 : floor;
        }
    }

    private static BigDecimal exact(Object value) {
        return value instanceof Double real
                ? new BigDecimal(real)
                : value instanceof BigInteger big
                        ? new BigDecimal(big)
                        : new BigDecimal(integer(value));
    }

    /** Compares two numbers exactly. Neither may be NaN. */
    static int compare(Object a, Object b) {
        if (a instanceof Long x && b instanceof Long y) {
            return Long.compare(x, y);
        }
        if (a instanceof Double x && b instanceof Double y) {
            return x < y ? -1 : x > y ? 1 : 0;
        }
        if (a instanceof Double x && Double.isInfinite(x)) {
            return x < 0 ? -1 : 1;
        }
        return b instanceof Double ? -compare(b, a) : exact(a).compareTo(exact(b));
    }

    static boolean isNan(Object value) {
        return value instanceof Double number && number.isNaN();
    }

    static Object round(Object value, int digits) {
        if (isInteger(value)) {
            BigDecimal rounded =
                    exact(value)
                            .setScale(Math.max(-30, Math.min(0, digits)), RoundingMode.HALF_EVEN);
            return narrow(rounded.toBigInteger());
        }
        double real = real(value);
        if (!Double.isFinite(real) || digits > 400) {
            return real;
        }
        BigDecimal rounded = exact(real).setScale(Math.max(digits, -400), RoundingMode.HALF_EVEN);
        return Math.copySign(rounded.doubleValue(), real);
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
            return value.toString();
        }
        if (!Double.isFinite(real)) {
            return real.isNaN() ? "nan" : real < 0 ? "-inf" : "inf";
        }
        if (real == 0) {
            return real.toString();
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
        String power = "e%s%02d".formatted(exponent < 0 ? "-" : "+", Math.abs(exponent));
        return sign + digits.charAt(0) + fraction + power;
    }

    /** Returns {@code int(text)}; null if the text is no integer. */
    static Object parseInteger(String text) {
        String digits = Strings.strip(text, null, true, true);
        boolean valid = digits.length() <= MAX_DIGITS && digits.matches("(?U)[-+]?\\d++(_\\d++)*+");
        return valid ? narrow(new BigInteger(digits.replace("_", ""))) : null;
    }

    /** Returns {@code float(text)}; null if the text is no number. */
    static Double parseReal(String text) {
        String digits = Strings.strip(text, null, true, true).toLowerCase(Locale.ROOT);
        if (digits.matches("[-+]?(inf|infinity|nan)")) {
            return digits.endsWith("nan")
                    ? Double.NaN
                    : digits.startsWith("-") ? Double.NEGATIVE_INFINITY : Double.POSITIVE_INFINITY;
        }
        String d = "\\d++(?:_\\d++)*+";
        String number = "[-+]?(?:" + d + "\\.?(?:" + d + ")?|\\." + d + ")(?:e[-+]?" + d + ")?";
        return digits.matches(number) ? Double.valueOf(digits.replace("_", "")) : null;
    }
}
