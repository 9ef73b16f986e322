// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Rewrites Jinja2 source where Jinjava reads it differently:
 *
 * <ol>
 *   <li>Whitespace: {@code trim_blocks} and {@code lstrip_blocks} are on, as transformers sets
 *       them, and one line break at the end is dropped. Jinjava's own options also strip spaces
 *       before a block that does not begin its line.
 *   <li>{@code not a == b} means {@code not (a == b)}. Jinjava negates {@code a}.
 *   <li>{@code f(x=a - 1)} passes {@code a - 1}. Jinjava subtracts 1 from the argument {@code x=a}.
 *   <li>{@code list[::-1]} is {@code (list|reverse|list)}.
 *   <li>{@code ({...})} and {@code ([...])} are what is in the parentheses. Jinjava makes a tuple
 *       of it if there is a comma.
 *   <li>{@code for x in list if condition} selects elements; Jinjava finds none. {@code else} of a
 *       loop is for loops without elements; Jinjava prints it for each element.
 *   <li>A filter or test that does not exist refuses the chat. Jinjava takes it for a variable that
 *       is not defined.
 *   <li>The tags {@code generation} and {@code endgeneration} mark text for training and print
 *       nothing.
 * </ol>
 */
final class JinjaSource {

    private static final String STRING = "\"(?:\\\\.|[^\"\\\\])*+\"|'(?:\\\\.|[^'\\\\])*+'";
    private static final Pattern GENERATION =
            Pattern.compile("\\{%-?\\s*(?:end)?generation\\s*-?%\\}");
    private static final Pattern REVERSED = Pattern.compile("([\\w.]+)\\[::-1\\]");
    private static final Pattern INDENT = Pattern.compile("(?m)^[ \\t]+(?=\\{[%#](?!\\+))");
    private static final Pattern BREAK = Pattern.compile("(?<=[%#]\\})\\n");
    private static final Pattern TAG =
            Pattern.compile(
                    "\\{#.*?#\\}|\\{%(?:"
                            + STRING
                            + "|[^\"'%]|%(?!\\}))*+%\\}|\\{\\{(?:"
                            + STRING
                            + "|[^\"'}]|\\}(?!\\}))*+\\}\\}",
                    Pattern.DOTALL);
    private static final Pattern BLOCK =
            Pattern.compile("(\\{%[-+]?)\\s*(\\w+)(.*?)([-+]?%\\})", Pattern.DOTALL);
    private static final Pattern TOKEN = Pattern.compile(STRING + "|\\w+|\\s+|.", Pattern.DOTALL);

    /** A parenthesis that this class has added: the nesting depth outside, and what ends it. */
    private record Added(int depth, boolean isArgument) {}

    private final List<String> tokens = new ArrayList<>();
    private final StringBuilder text = new StringBuilder();
    private final Deque<Added> added = new ArrayDeque<>();

    private JinjaSource(String tag) {
        Matcher matcher = TOKEN.matcher(tag);
        while (matcher.find()) {
            tokens.add(matcher.group());
        }
    }

    /** Returns the source of a template for Jinjava. */
    static String rewrite(String template) {
        String source = GENERATION.matcher(template).replaceAll("");
        if (source.endsWith("\n")) {
            source = source.substring(0, source.length() - 1);
        }
        source = INDENT.matcher(source).replaceAll("");
        source = BREAK.matcher(source).replaceAll("");
        return TAG.matcher(rewriteLoops(source))
                .replaceAll(
                        tag ->
                                Matcher.quoteReplacement(
                                        tag.group().startsWith("{#")
                                                ? tag.group()
                                                : new JinjaSource(tag.group()).rewrite()));
    }

    /** Rewrites loops with a condition or an {@code else}. */
    private static String rewriteLoops(String source) {
        List<MatchResult> blocks =
                TAG.matcher(source).results().filter(tag -> tag.group().startsWith("{%")).toList();
        String[] written = new String[blocks.size()];
        Deque<Integer> open = new ArrayDeque<>();
        Deque<Integer> otherwise = new ArrayDeque<>(); // by open block: its else, or -1
        for (int i = 0; i < written.length; i++) {
            written[i] = blocks.get(i).group();
            Matcher block = BLOCK.matcher(written[i]);
            String name = block.matches() ? block.group(2) : "";
            if (name.equals("for") || name.equals("if")) {
                open.push(i);
                otherwise.push(-1);
            } else if (name.equals("else") && !open.isEmpty()) {
                otherwise.pop();
                otherwise.push(i);
            } else if ((name.equals("endfor") || name.equals("endif")) && !open.isEmpty()) {
                int begin = open.pop();
                int middle = otherwise.pop();
                if (name.equals("endfor")) {
                    written[begin] = loop(written[begin], "loop" + begin, middle >= 0);
                }
                if (name.equals("endfor") && middle >= 0) {
                    String skip = "$1 endfor %}{% if not loop" + begin + ".any $4";
                    written[middle] = BLOCK.matcher(written[middle]).replaceFirst(skip);
                    written[i] = block.replaceFirst("$1 endif $4");
                }
            }
        }
        StringBuilder text = new StringBuilder();
        int end = 0;
        for (int i = 0; i < written.length; i++) {
            text.append(source, end, blocks.get(i).start()).append(written[i]);
            end = blocks.get(i).end();
        }
        return text.append(source.substring(end)).toString();
    }

    /** Returns the beginning of a loop whose condition selects elements before it. */
    private static String loop(String tag, String name, boolean notesElements) {
        Matcher block = BLOCK.matcher(tag);
        Matcher token = TOKEN.matcher(block.matches() ? block.group(3) : "");
        StringBuilder loop = new StringBuilder();
        StringBuilder condition = null;
        int depth = 0;
        while (token.find()) {
            depth += isOneOf(token.group(), "([{") ? 1 : isOneOf(token.group(), ")]}") ? -1 : 0;
            if (condition == null && depth == 0 && token.group().equals("if")) {
                condition = new StringBuilder();
            } else {
                (condition == null ? loop : condition).append(token.group());
            }
        }
        if (condition == null && !notesElements) {
            return tag;
        }
        String text = block.group(1) + " set " + name + " = namespace(any=false, list=[]) %}";
        if (condition != null) {
            String variable = loop.substring(0, Math.max(0, loop.indexOf(" in "))).strip();
            String element = variable.contains(",") ? "[" + variable + "]" : variable;
            String add = name + ".list = " + name + ".list + [" + element + "]";
            text += "{% for" + loop + "%}{% if" + condition + "%}";
            text += "{% set " + add + " %}{% endif %}{% endfor %}";
            loop = new StringBuilder(" " + variable + " in " + name + ".list ");
        }
        text += "{% for" + loop;
        return text + (notesElements ? "%}{% set " + name + ".any = true " : "") + block.group(4);
    }

    /** Drops the parentheses around a list or dictionary. */
    private void dropParentheses() {
        Deque<Integer> open = new ArrayDeque<>();
        int[] ends = new int[tokens.size()]; // by opening token: what closes it; 0 for none
        for (int i = 0; i < tokens.size(); i++) {
            if (isOneOf(tokens.get(i), "([{")) {
                open.push(i);
            } else if (isOneOf(tokens.get(i), ")]}") && !open.isEmpty()) {
                ends[open.pop()] = i;
            }
        }
        for (int i = 1; i < tokens.size(); i++) {
            int inner = index(i, 1);
            boolean isCall = neighbour(i, -1).matches("\\w+|[)\\]]");
            if (tokens.get(i).equals("(")
                    && !isCall
                    && inner < tokens.size()
                    && isOneOf(tokens.get(inner), "[{")
                    && ends[inner] > 0
                    && index(ends[inner], 1) == ends[i]) {
                tokens.set(i, " ");
                tokens.set(ends[i], " ");
            }
        }
    }

    private String rewrite() {
        dropParentheses();
        boolean macro = neighbour(0, 1).equals("%") && tokens.contains("macro");
        int depth = 0;
        String before = ""; // the last token that is not whitespace; "is" for "is not"
        for (int i = 0; i < tokens.size(); i++) {
            String token = tokens.get(i);
            close(token, depth, i >= tokens.size() - 3);
            depth += isOneOf(token, "([{") ? 1 : isOneOf(token, ")]}") ? -1 : 0;
            boolean negation =
                    token.equals("not")
                            && !neighbour(i, -1).equals("is")
                            && !neighbour(i, 1).equals("in");
            if (negation) {
                text.append("not (");
                added.push(new Added(depth, false));
            } else if (token.equals("=") && depth > 1 && !macro && isAssignment(i)) {
                text.append("=(");
                added.push(new Added(depth, true));
            } else if (isUnknown(token, before)) {
                text.append(before.equals("|") ? "string" : "defined")
                        .append(" ~ raise_exception('it uses ")
                        .append(before.equals("|") ? "the filter " : "the test ")
                        .append(token)
                        .append(", which is not supported')")
                        .append(neighbour(i, 1).equals("(") ? " ~ " : "");
            } else {
                text.append(token);
            }
            boolean isNot = before.equals("is") && token.equals("not");
            before = token.isBlank() || isNot ? before : token;
        }
        return REVERSED.matcher(text).replaceAll("($1|reverse|list)");
    }

    /** Closes the parentheses that end before a token. */
    private void close(String token, int depth, boolean atEnd) {
        boolean endsArgument = isOneOf(token, ",)]}%") || token.equals("-") && atEnd;
        boolean endsOperand = endsArgument || List.of("and", "or", "if", "else").contains(token);
        while (!added.isEmpty()
                && added.peek().depth == depth
                && (added.peek().isArgument ? endsArgument : endsOperand)) {
            added.pop();
            text.append(')');
        }
    }

    private static boolean isOneOf(String token, String characters) {
        return token.length() == 1 && characters.contains(token);
    }

    /** Returns whether a token is the name of a filter or test that does not exist. */
    private static boolean isUnknown(String token, String before) {
        boolean isName = before.equals("|") || before.equals("is") && !token.equals("not");
        return isName && token.matches("\\w+") && !JinjaRuntime.knows(token, before.equals("|"));
    }

    private boolean isAssignment(int index) {
        return tokens.get(index - 1).matches("\\w+") && !neighbour(index, 1).equals("=");
    }

    /** Returns the next token in a direction that is not whitespace; empty if there is none. */
    private String neighbour(int index, int step) {
        int next = index(index, step);
        return next >= 0 && next < tokens.size() ? tokens.get(next) : "";
    }

    private int index(int index, int step) {
        int next = index + step;
        while (next >= 0 && next < tokens.size() && tokens.get(next).isBlank()) {
            next += step;
        }
        return next;
    }
}
