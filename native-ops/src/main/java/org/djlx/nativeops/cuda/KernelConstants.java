// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.IntStream;

/**
 * Constants, structs and tables of a kernel source, read from its text. Block sizes, tile sizes and
 * the offsets of kernel arguments are thus written only once, in CUDA. Needs neither a compiler nor
 * a GPU.
 *
 * <p>Supports only the C++ that the kernels use:
 *
 * <ul>
 *   <li>{@code const int NAME = expression;} with integers, macros and other constants
 *   <li>structs of integers, floats, pointers, other structs, and arrays of these
 *   <li>macro calls with integers, one a line
 * </ul>
 */
public final class KernelConstants {

    private static final Pattern TOKEN =
            Pattern.compile("0x\\p{XDigit}+|\\d+|\\w+|[<>=!]=|&&|\\|\\||<<|[-+*/%<>?:()!]");
    private static final Pattern COMMENT = Pattern.compile("//[^\n]*");
    private static final Pattern MEMBER =
            Pattern.compile(
                    "(?:const\\s+|volatile\\s+|typename\\s+)*([\\w:]+)(?:<T>)?(\\s*\\*)?\\s+?(\\w+)((?:\\[\\w+\\])*)");

    /** The sizes of basic types; alignments are the same. */
    private static final Map<String, Integer> SIZES =
            Map.of("char", 1, "u16", 2, "int", 4, "u32", 4, "float", 4, "u64", 8, "double", 8);

    private final String name;
    private final String text;
    private final Map<String, String> macros = new HashMap<>();

    /**
     * Reads a source; of the compiler's options only {@code -DNAME=VALUE} and {@code -DNAME} are
     * used.
     */
    public KernelConstants(KernelSource source, String... options) {
        name = source.name();
        text =
                COMMENT.matcher(source.text() + "\n" + String.join("\n", source.headers().values()))
                        .replaceAll("");
        for (String option : options) {
            if (option.startsWith("-D")) {
                String[] macro = option.substring(2).split("=", 2);
                macros.put(macro[0], macro.length == 1 ? "1" : macro[1]);
            }
        }
    }

    /**
     * {@return the value of a {@code const int}}
     *
     * @throws IllegalArgumentException if the source does not have exactly one definition, or the
     *     definition needs a macro that no option defines
     */
    public int value(String constant) {
        String macro = macros.get(constant);
        return Math.toIntExact(
                new Expression(
                                macro != null
                                        ? macro
                                        : only("const int " + constant + " = ([^;]+);", constant)
                                                .group(1))
                        .value());
    }

    /**
     * {@return the arguments of all calls of a macro, each at the beginning of a line, in the order
     * of the source}
     */
    public List<int[]> calls(String macro) {
        return Pattern.compile("^" + macro + "\\(([\\d, ]+)\\)", Pattern.MULTILINE)
                .matcher(text)
                .results()
                .map(call -> Arrays.stream(call.group(1).split(",\\s*")))
                .map(arguments -> arguments.mapToInt(Integer::parseInt).toArray())
                .toList();
    }

    /**
     * {@return the layout of a struct}
     *
     * @throws IllegalArgumentException if the source does not have exactly one such struct, or a
     *     member is of an unknown type
     */
    public Layout struct(String struct) {
        MatchResult found =
                only(
                        "struct (?:alignas\\((\\d+)\\) )?" + struct + " \\{\n(.*?)\n\\};",
                        "struct " + struct);
        int alignment = found.group(1) == null ? 1 : Integer.parseInt(found.group(1));
        int end = 0;
        Map<String, Integer> offsets = new LinkedHashMap<>();
        Map<String, Member> members = new LinkedHashMap<>();
        for (String line : found.group(2).split(";\\s*")) {
            Matcher member = MEMBER.matcher(line.strip());
            if (!member.matches()) {
                throw new IllegalArgumentException(
                        String.format(
                                "%s: struct %s has the unknown member %s", name, struct, line));
            }
            Layout type = type(member.group(1), member.group(2) != null);
            end = align(end, type.alignment);
            offsets.put(member.group(3), end);
            List<String> elements = List.of(member.group(3));
            for (Matcher size = Pattern.compile("\\w+").matcher(member.group(4)); size.find(); ) {
                int count = Math.toIntExact(new Expression(size.group()).value());
                elements =
                        elements.stream()
                                .flatMap(
                                        element ->
                                                IntStream.range(0, count)
                                                        .mapToObj(k -> element + "[" + k + "]"))
                                .toList();
            }
            for (String element : elements) {
                type.addTo(members, element, end);
                end += type.byteSize;
            }
            alignment = Math.max(alignment, type.alignment);
        }
        return new Layout(struct, align(end, alignment), alignment, offsets, members);
    }

    private Layout type(String type, boolean isPointer) {
        Integer size = isPointer ? Integer.valueOf(Long.BYTES) : SIZES.get(type);
        return size == null
                ? struct(type)
                : new Layout(isPointer ? type + "*" : type, size, size, Map.of(), Map.of());
    }

    private static int align(int offset, int alignment) {
        return (offset + alignment - 1) / alignment * alignment;
    }

    private MatchResult only(String pattern, String what) {
        List<MatchResult> found =
                Pattern.compile(pattern, Pattern.DOTALL).matcher(text).results().toList();
        if (found.size() != 1) {
            throw new IllegalArgumentException(
                    String.format("%s has %d definitions of %s", name, found.size(), what));
        }
        return found.get(0);
    }

    /** A member of a basic type, {@code x*} for a pointer, with its offset in bytes. */
    public record Member(String type, int offset, int byteSize) {}

    /**
     * The layout of a struct.
     *
     * @param alignment its alignment in bytes
     * @param offsets the offset of each member in bytes, in the order of the members
     * @param members the members of basic types; {@code inner.x} is the member {@code x} of the
     *     struct {@code inner}, and {@code all[0]} the first element of the array {@code all}
     */
    public record Layout(
            String name,
            int byteSize,
            int alignment,
            Map<String, Integer> offsets,
            Map<String, Member> members) {

        /** Adds the members of a member with this layout. */
        private void addTo(Map<String, Member> all, String prefix, int begin) {
            if (offsets.isEmpty()) {
                all.put(prefix, new Member(name, begin, byteSize));
            }
            members.forEach(
                    (member, of) ->
                            all.put(
                                    prefix + "." + member,
                                    new Member(of.type, begin + of.offset, of.byteSize)));
        }

        /** {@return the offset in bytes of a member, or of {@code inner.x} of an inner struct} */
        public int offset(String member) {
            Integer offset = offsets.get(member);
            if (offset != null) {
                return offset;
            }
            Member inner = members.get(member);
            if (inner == null) {
                throw new IllegalArgumentException(
                        String.format("struct %s has no member %s: %s", name, member, offsets));
            }
            return inner.offset();
        }
    }

    /** Evaluates an integer expression by recursive descent. Booleans are 0 and 1. */
    private final class Expression {

        /** The binary operators, by rising precedence. */
        private static final List<List<String>> OPERATORS =
                List.of(
                        List.of("||"),
                        List.of("&&"),
                        List.of("==", "!="),
                        List.of("<", "<=", ">", ">="),
                        List.of("<<"),
                        List.of("+", "-"),
                        List.of("*", "/", "%"));

        private final List<String> tokens = new ArrayList<>();
        private int next;

        Expression(String text) {
            if (!TOKEN.matcher(text).replaceAll("").isBlank()) {
                throw new IllegalArgumentException(name + ": not an expression: " + text);
            }
            TOKEN.matcher(text).results().map(MatchResult::group).forEach(tokens::add);
            tokens.add("");
        }

        long value() {
            long value = conditional();
            if (next != tokens.size() - 1) {
                throw new IllegalArgumentException(name + ": not an expression: " + tokens);
            }
            return value;
        }

        private boolean accept(String token) {
            boolean accepted = tokens.get(next).equals(token);
            next += accepted ? 1 : 0;
            return accepted;
        }

        private void require(String token) {
            if (!accept(token)) {
                throw new IllegalArgumentException(name + ": not an expression: " + tokens);
            }
        }

        private long conditional() {
            long condition = binary(0);
            if (!accept("?")) {
                return condition;
            }
            long yes = conditional();
            require(":");
            long no = conditional();
            return condition != 0 ? yes : no;
        }

        private long binary(int level) {
            if (level == OPERATORS.size()) {
                return unary();
            }
            long left = binary(level + 1);
            while (OPERATORS.get(level).contains(tokens.get(next))) {
                String operator = tokens.get(next++);
                left = apply(operator, left, binary(level + 1));
            }
            return left;
        }

        private long unary() {
            if (accept("(")) {
                long value = conditional();
                require(")");
                return value;
            }
            if (accept("-")) {
                return -unary();
            }
            if (accept("!")) {
                return unary() == 0 ? 1 : 0;
            }
            String token = tokens.get(next++);
            return token.matches("\\d.*") ? Long.decode(token) : KernelConstants.this.value(token);
        }

        private static long apply(String operator, long a, long b) {
            return switch (operator) {
                case "||" -> a != 0 || b != 0 ? 1 : 0;
                case "&&" -> a != 0 && b != 0 ? 1 : 0;
                case "==" -> a == b ? 1 : 0;
                case "!=" -> a != b ? 1 : 0;
                case "<" -> a < b ? 1 : 0;
                case "<=" -> a <= b ? 1 : 0;
                case ">" -> a > b ? 1 : 0;
                case ">=" -> a >= b ? 1 : 0;
                case "<<" -> a << b;
                case "+" -> a + b;
                case "-" -> a - b;
                case "*" -> a * b;
                case "/" -> a / b;
                default -> a % b;
            };
        }
    }
}
