// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.util.Iterator;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Python's {@code %} formatting and {@code str.format}. */
final class Formats {

    private static final Pattern DIRECTIVE =
            Pattern.compile(
                    "%(?:\\(([^)]*)\\))?([-+ 0#]*)(\\*|\\d+)?(?:\\.(\\*|\\d+))?[hlL]?(.)?",
                    Pattern.DOTALL);
    private static final Pattern SPEC =
            Pattern.compile(
                    "(?:(.)?([<>=^]))?([-+ ])?(#)?(0)?(\\d+)?([,_])?(?:\\.(\\d+))?([a-zA-Z%])?",
                    Pattern.DOTALL);
    private static final Pattern FIELD = Pattern.compile("\\.([^.\\[]+)|\\[([^\\]]+)\\]");

    private Formats() {}

    /** Returns {@code format % value}. */
    static String percent(Run run, String format, Object value) {
        List<?> values = value instanceof Values.Tuple tuple ? tuple : List.of();
        Iterator<?> next =
                value instanceof Values.Tuple
                        ? values.iterator()
                        : Args.of(value).positional().iterator();
        boolean needsAll =
                value instanceof Values.Tuple
                        || !(value instanceof Values.Dict
                                || value instanceof List
                                || value instanceof Values.Undefined);
        StringBuilder text = new StringBuilder();
        Matcher directive = DIRECTIVE.matcher(format);
        int end = 0;
        while (directive.find()) {
            run.requireLength(text.length());
            text.append(format, end, directive.start());
            end = directive.end();
            String type = directive.group(5);
            if (type == null) {
                throw new TemplateError("an incomplete format: %s", directive.group());
            }
            if (type.equals("%")) {
                text.append('%');
                continue;
            }
            String flags = directive.group(2);
            int width = size(directive.group(3), next, 0);
            int precision = size(directive.group(4), next, -1);
            Object argument;
            if (directive.group(1) != null) {
                if (!(value instanceof Values.Dict dict) || !dict.has(directive.group(1))) {
                    throw new TemplateError(
                            "the format needs a dictionary with %s", directive.group(1));
                }
                argument = dict.get(directive.group(1), null);
            } else {
                argument = next(next);
            }
            boolean left = flags.contains("-") || width < 0;
            boolean zero = flags.contains("0") && !left && !"sra".contains(type);
            String sign = flags.contains("+") ? "+" : flags.contains(" ") ? " " : "-";
            width = Math.abs(width);
            run.requireLength(width);
            if ("sra".contains(type)) {
                String plain = convert(run, argument, type.charAt(0));
                String cut =
                        precision < 0
                                ? plain
                                : Strings.part(
                                        plain, 0, Math.min(precision, Strings.length(plain)));
                text.append(Strings.pad(run, cut, width, " ", left ? 0 : 1));
            } else if (type.equals("c")) {
                String c =
                        argument instanceof String s ? s : Character.toString(character(argument));
                if (Strings.length(c) != 1) {
                    throw new TemplateError("%%c needs one character");
                }
                text.append(Strings.pad(run, c, width, " ", left ? 0 : 1));
            } else {
                if (!Numbers.isNumber(argument)) {
                    throw new TemplateError(
                            "%%%s needs a number, not %s", type, Values.typeName(argument));
                }
                if ("diu".contains(type)) {
                    type = "d";
                    argument = argument instanceof Double real ? Numbers.truncate(real) : argument;
                } else if ("eEfFgG".contains(type)) {
                    argument = Numbers.real(argument);
                }
                boolean alternative = flags.contains("#");
                String[] number =
                        number(run, argument, type.charAt(0), precision, sign, alternative, "");
                text.append(
                        pad(run, number, width, zero ? "0" : " ", zero ? '=' : left ? '<' : '>'));
            }
        }
        if (needsAll && next.hasNext()) {
            throw new TemplateError("not all values are used by the format");
        }
        return run.counted(text.append(format.substring(end)).toString());
    }

    private static Object next(Iterator<?> values) {
        if (!values.hasNext()) {
            throw new TemplateError("the format has more fields than values");
        }
        return values.next();
    }

    private static int size(String text, Iterator<?> values, int otherwise) {
        if (text == null) {
            return otherwise;
        }
        return text.equals("*")
                ? Numbers.toInt(next(values))
                : Numbers.toInt(Numbers.parseInteger(text, 10));
    }

    private static int character(Object value) {
        int c = Numbers.toInt(value);
        if (!Character.isValidCodePoint(c)) {
            throw new TemplateError("%d is no character", c);
        }
        return c;
    }

    private static String convert(Run run, Object value, char conversion) {
        if (conversion == 's') {
            return Values.text(run, value);
        }
        StringBuilder text = new StringBuilder();
        Values.represent(run, text, value);
        if (conversion == 'a') {
            throw new TemplateError("the conversion 'a' is not supported");
        }
        return text.toString();
    }

    /** Returns {@code text.format(*args, **kwargs)}. */
    static String format(Run run, String text, Args args) {
        return format(run, text, args, new int[1], 2);
    }

    private static String format(Run run, String text, Args args, int[] next, int depth) {
        if (depth < 0) {
            throw new TemplateError("a format is nested too deep");
        }
        StringBuilder formatted = new StringBuilder();
        int i = 0;
        while (i < text.length()) {
            char c = text.charAt(i++);
            boolean isDouble = i < text.length() && text.charAt(i) == c;
            if (c != '{' && c != '}') {
                formatted.append(c);
            } else if (isDouble && depth == 2) {
                formatted.append(c);
                i++;
            } else if (c == '}') {
                throw new TemplateError("a single } in a format");
            } else {
                int end = closing(text, i);
                run.requireLength(formatted.length());
                formatted.append(field(run, text.substring(i, end), args, next, depth));
                i = end + 1;
            }
        }
        return run.counted(formatted.toString());
    }

    private static int closing(String text, int begin) {
        int open = 1;
        for (int i = begin; i < text.length(); i++) {
            open += text.charAt(i) == '{' ? 1 : text.charAt(i) == '}' ? -1 : 0;
            if (open == 0) {
                return i;
            }
        }
        throw new TemplateError("a single { in a format");
    }

    private static String field(Run run, String field, Args args, int[] next, int depth) {
        int bracket = field.indexOf('[');
        int colon =
                field.indexOf(
                        ':',
                        bracket >= 0 && field.indexOf(':') > bracket
                                ? Math.max(0, field.indexOf(']'))
                                : 0);
        String head = colon < 0 ? field : field.substring(0, colon);
        String spec = colon < 0 ? "" : field.substring(colon + 1);
        int mark = head.indexOf('!');
        String conversion = mark < 0 ? "" : head.substring(mark + 1);
        String path = mark < 0 ? head : head.substring(0, mark);
        if (mark >= 0 && !conversion.matches("[sra]")) {
            throw new TemplateError("unknown conversion in the format field %s", field);
        }
        Matcher rest = FIELD.matcher(path);
        int nameEnd = 0;
        while (nameEnd < path.length()
                && path.charAt(nameEnd) != '.'
                && path.charAt(nameEnd) != '[') {
            nameEnd++;
        }
        Object value = argument(path.substring(0, nameEnd), args, next);
        while (nameEnd < path.length()) {
            if (!rest.find(nameEnd) || rest.start() != nameEnd) {
                throw new TemplateError("a format field is not valid: %s", field);
            }
            nameEnd = rest.end();
            String key = rest.group(2);
            Object index = key != null && key.matches("\\d+") ? Numbers.parseInteger(key, 10) : key;
            value =
                    key == null
                            ? Values.attribute(run, value, rest.group(1))
                            : Values.item(run, value, index);
        }
        if (!conversion.isEmpty()) {
            value = convert(run, value, conversion.charAt(0));
        }
        return value(run, value, format(run, spec, args, next, depth - 1));
    }

    private static Object argument(String name, Args args, int[] next) {
        if (name.isEmpty() ? next[0] < 0 : name.matches("\\d+") && next[0] > 0) {
            throw new TemplateError("a format has numbered fields and others");
        }
        if (name.isEmpty() || name.matches("\\d+")) {
            int index = name.isEmpty() ? next[0]++ : Numbers.toInt(Numbers.parseInteger(name, 10));
            next[0] = name.isEmpty() ? next[0] : -1;
            if (index >= args.positional().size()) {
                throw new TemplateError("the format has more fields than values");
            }
            return args.get(index);
        }
        if (!args.named().containsKey(name)) {
            throw new TemplateError("the format has a field %s, but there is no such value", name);
        }
        return args.named().get(name);
    }

    /** Returns {@code format(value, spec)}. */
    private static String value(Run run, Object value, String spec) {
        if (spec.isEmpty()) {
            return Values.text(run, value);
        }
        Matcher parts = SPEC.matcher(spec);
        boolean isNumber = Numbers.isNumber(value);
        if (!parts.matches() || !isNumber && !(value instanceof String)) {
            throw new TemplateError(
                    "the format '%s' is not valid for a %s", spec, Values.typeName(value));
        }
        boolean zero = parts.group(5) != null;
        int width = size(parts.group(6), null, 0);
        int precision = size(parts.group(8), null, -1);
        String type = parts.group(9) == null ? "" : parts.group(9);
        String fill = parts.group(1) != null ? parts.group(1) : zero ? "0" : " ";
        String align = parts.group(2) != null ? parts.group(2) : isNumber ? zero ? "=" : ">" : "<";
        run.requireLength(width);
        if (!isNumber) {
            boolean numeric =
                    parts.group(3) != null || parts.group(4) != null || parts.group(7) != null;
            if (numeric || align.equals("=") || !type.isEmpty() && !type.equals("s")) {
                throw new TemplateError("the format '%s' is not valid for a str", spec);
            }
            String text = (String) value;
            String cut =
                    precision < 0
                            ? text
                            : Strings.part(text, 0, Math.min(precision, Strings.length(text)));
            return pad(run, new String[] {"", cut}, width, fill, align.charAt(0));
        }
        boolean real = value instanceof Double || !type.isEmpty() && "eEfFgG%".contains(type);
        if (type.isEmpty()) {
            type = value instanceof Boolean && spec.isEmpty() ? "s" : real ? "r" : "d";
        }
        if (real ? !"eEfFgG%r".contains(type) : precision >= 0 || !"bcdoxXr".contains(type)) {
            throw new TemplateError(
                    "the format '%s' is not valid for a %s", spec, Values.typeName(value));
        }
        if (type.equals("c")) {
            return pad(
                    run,
                    new String[] {"", Character.toString(character(value))},
                    width,
                    fill,
                    align.charAt(0));
        }
        String group = parts.group(7) == null ? "" : parts.group(7);
        if (!group.isEmpty() && zero) {
            throw new TemplateError("the format '%s' is not supported", spec);
        }
        String sign = parts.group(3) == null ? "-" : parts.group(3);
        Object number = real ? (Object) Numbers.real(value) : value;
        return pad(
                run,
                number(run, number, type.charAt(0), precision, sign, parts.group(4) != null, group),
                width,
                fill,
                align.charAt(0));
    }

    /** Pads a sign and digits. */
    private static String pad(Run run, String[] number, int width, String fill, char align) {
        String all = number[0] + number[1];
        if (align == '=') {
            int padded = Math.max(0, width - Strings.length(number[0]));
            return number[0] + Strings.pad(run, number[1], padded, fill, 1);
        }
        if (align == '^') { // unlike center(), with the odd space on the right
            int left = Math.max(0, width - Strings.length(all)) / 2;
            return Strings.pad(run, fill.repeat(left) + all, width, fill, 0);
        }
        return Strings.pad(run, all, width, fill, align == '<' ? 0 : 1);
    }

    /** Returns the sign, with a prefix such as 0x, and the digits of a number. */
    private static String[] number(
            Run run,
            Object value,
            char type,
            int precision,
            String plus,
            boolean alternative,
            String group) {
        if (precision > 1000) {
            throw new TemplateError("a format has more than 1000 digits");
        }
        boolean upper = Character.isUpperCase(type);
        char lower = Character.toLowerCase(type);
        String digits;
        boolean negative;
        String prefix = "";
        if ("dboxi".indexOf(lower) >= 0) {
            BigInteger integer = Numbers.big(value);
            negative = integer.signum() < 0;
            int radix = lower == 'b' ? 2 : lower == 'o' ? 8 : lower == 'x' ? 16 : 10;
            digits =
                    radix == 10
                            ? Numbers.text(Numbers.narrow(integer.abs()))
                            : integer.abs().toString(radix);
            digits = "0".repeat(Math.max(0, precision - digits.length())) + digits;
            prefix = alternative && radix != 10 ? "0" + lower : "";
        } else {
            double real = Numbers.real(value);
            negative = real < 0 || real == 0 && 1 / real < 0;
            run.step(20);
            double absolute = Math.abs(real);
            if (!Double.isFinite(real)) {
                digits = Double.isNaN(real) ? "nan" : "inf";
                digits += lower == '%' ? "%" : "";
            } else if (lower == 'r' && precision < 0) {
                digits = Numbers.text(absolute);
            } else if (alternative) {
                throw new TemplateError("the flag # is not supported for %s", type);
            } else {
                digits = real(absolute, lower, precision < 0 ? 6 : precision);
            }
        }
        if (!group.isEmpty()) {
            int every = "box".indexOf(lower) >= 0 ? 4 : 3;
            int point = every == 4 ? digits.length() : digits.split("\\D", 2)[0].length();
            StringBuilder grouped = new StringBuilder(digits);
            for (int i = point - every; i > 0; i -= every) {
                grouped.insert(i, group);
            }
            digits = grouped.toString();
        }
        String sign = negative ? "-" : plus.equals("-") ? "" : plus;
        return upper
                ? new String[] {sign + Strings.upper(prefix), Strings.upper(digits)}
                : new String[] {sign + prefix, digits};
    }

    private static String real(double value, char type, int precision) {
        BigDecimal exact = new BigDecimal(value);
        switch (type) {
            case 'f':
                return exact.setScale(precision, RoundingMode.HALF_EVEN).toPlainString();
            case '%':
                return new BigDecimal(value * 100)
                                .setScale(precision, RoundingMode.HALF_EVEN)
                                .toPlainString()
                        + "%";
            case 'e':
                return scientific(exact, precision);
            default: // g, or r: as g, with a digit after the point
                int digits = Math.max(1, precision);
                String text = scientific(exact, digits - 1);
                int e = text.indexOf('e');
                int exponent = Integer.parseInt(text.substring(e + 1));
                boolean fixed = exponent >= -4 && exponent < (type == 'g' ? digits : digits - 1);
                String number =
                        fixed
                                ? exact.setScale(digits - 1 - exponent, RoundingMode.HALF_EVEN)
                                        .toPlainString()
                                : text.substring(0, e);
                if (number.indexOf('.') >= 0) {
                    number = number.replaceFirst("\\.?0+$", "");
                }
                String point = type == 'r' && number.indexOf('.') < 0 ? ".0" : "";
                return fixed ? number + point : number + text.substring(e);
        }
    }

    private static String scientific(BigDecimal value, int precision) {
        if (value.signum() == 0) {
            return (precision > 0 ? "0." + "0".repeat(precision) : "0") + "e+00";
        }
        BigDecimal rounded =
                value.round(new java.math.MathContext(precision + 1, RoundingMode.HALF_EVEN));
        int exponent = rounded.precision() - rounded.scale() - 1;
        StringBuilder digits = new StringBuilder(rounded.unscaledValue().toString());
        digits.append("0".repeat(Math.max(0, precision + 1 - digits.length())));
        digits.setLength(precision + 1);
        return (precision > 0 ? digits.insert(1, '.') : digits) + Numbers.exponent(exponent);
    }
}
