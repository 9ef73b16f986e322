// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
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
                    "\\{#.*?#\\}|\\{[%{](?:" + STRING + "|[^\"'%}]|[%}](?!\\}))*+[%}]\\}",
                    Pattern.DOTALL);
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
        return TAG.matcher(source)
                .replaceAll(
                        tag ->
                                Matcher.quoteReplacement(
                                        tag.group().startsWith("{#")
                                                ? tag.group()
                                                : new JinjaSource(tag.group()).rewrite()));
    }

    private String rewrite() {
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
        for (int i = index + step; i >= 0 && i < tokens.size(); i += step) {
            if (!tokens.get(i).isBlank()) {
                return tokens.get(i);
            }
        }
        return "";
    }
}
