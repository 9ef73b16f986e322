// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.function.Supplier;

/** Templates at random over the grammar, and data for them. */
final class RandomTemplates {

    private static final List<String> TEXTS =
            List.of(
                    "",
                    "a",
                    "b c",
                    "false",
                    "None",
                    "0",
                    "3",
                    " -7 ",
                    "1.5e3",
                    "it's",
                    "say \"x\"",
                    "'\"",
                    "<b>&amp;</b>",
                    "a,b,,c",
                    "  two  words\t",
                    "x\ny\r\nz\n",
                    "é",
                    "ß",
                    "İ",
                    "ΑΣ",
                    "ǆ",
                    "ﬁne",
                    "👍🏽",
                    "日本語",
                    "a\u0000b",
                    "\u00a0x\u2028",
                    "%s and %d",
                    "{} {a}",
                    "{0}",
                    "<think>no</think>yes",
                    "one-two (three) [four]",
                    "ABC",
                    "Title Case",
                    "\\n",
                    "a.b.c",
                    "role",
                    "content");
    private static final List<String> NAMES =
            List.of(
                    "d",
                    "l",
                    "n",
                    "s",
                    "t",
                    "f",
                    "messages",
                    "tools",
                    "none_",
                    "missing",
                    "ns",
                    "x",
                    "y",
                    "m",
                    "mixed",
                    "bool");
    private static final List<String> ATTRIBUTES =
            List.of(
                    "a",
                    "b",
                    "role",
                    "content",
                    "items",
                    "keys",
                    "index",
                    "index0",
                    "first",
                    "last",
                    "length",
                    "previtem",
                    "nextitem",
                    "revindex",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "class",
                    "__class__",
                    "0",
                    "1");
    private static final List<String> FILTERS =
            List.of(
                    "upper",
                    "lower",
                    "title",
                    "capitalize",
                    "trim",
                    "length",
                    "list",
                    "first",
                    "last",
                    "join",
                    "join(', ')",
                    "join('-', attribute='role')",
                    "string",
                    "int",
                    "float",
                    "abs",
                    "round",
                    "round(1)",
                    "default('z')",
                    "default('z', true)",
                    "d(1)",
                    "tojson",
                    "tojson(indent=2)",
                    "tojson(true)",
                    "tojson(sort_keys=true)",
                    "tojson(separators=(',', ':'))",
                    "items",
                    "items|list",
                    "dictsort",
                    "sort",
                    "sort(reverse=true)",
                    "sort(attribute='role')",
                    "unique|list",
                    "sum",
                    "max",
                    "min",
                    "reverse",
                    "reverse|list",
                    "map('upper')|list",
                    "map(attribute='role')|list",
                    "map(attribute='a', default='q')|list",
                    "select|list",
                    "select('string')|list",
                    "reject('none')|list",
                    "selectattr('role', 'equalto', 'user')|list",
                    "selectattr('role')|list",
                    "rejectattr('role', 'in', ['user'])|list",
                    "batch(2)|list",
                    "slice(2)|list",
                    "groupby('role')",
                    "groupby('role')|map('first')|list",
                    "indent",
                    "indent(2, true)",
                    "indent(3, blank=true)",
                    "indent('>')",
                    "replace('a', 'b')",
                    "replace(' ', '_', 1)",
                    "truncate(5)",
                    "truncate(4, true, '')",
                    "wordcount",
                    "center(9)",
                    "urlencode",
                    "striptags",
                    "format(1, 'b')",
                    "count");
    private static final List<String> TESTS =
            List.of(
                    "defined",
                    "undefined",
                    "none",
                    "string",
                    "number",
                    "integer",
                    "float",
                    "boolean",
                    "true",
                    "false",
                    "mapping",
                    "sequence",
                    "iterable",
                    "odd",
                    "even",
                    "divisibleby 2",
                    "divisibleby(3)",
                    "in l",
                    "in(d)",
                    "eq 3",
                    "equalto('a')",
                    "ne(1)",
                    "gt 2",
                    "lt 'b'",
                    "ge(1.0)",
                    "sameas none");
    private static final List<String> METHODS =
            List.of(
                    "strip()",
                    "strip('a ')",
                    "lstrip()",
                    "rstrip('\\n')",
                    "split()",
                    "split(',')",
                    "split(None, 1)",
                    "split(' ', 1)",
                    "rsplit(',', 1)",
                    "rsplit(maxsplit=1)",
                    "splitlines()",
                    "upper()",
                    "lower()",
                    "title()",
                    "capitalize()",
                    "startswith('a')",
                    "startswith(('a', 'b'))",
                    "replace('a', 'b')",
                    "find('b')",
                    "index('a')",
                    "count('a')",
                    "join(['1', '2'])",
                    "join(l)",
                    "isdigit()",
                    "isalpha()",
                    "partition(' ')",
                    "removeprefix('a')",
                    "removesuffix('c')",
                    "ljust(6)",
                    "format(1, a=2)",
                    "items()",
                    "keys()",
                    "values()",
                    "get('a')",
                    "get('zz', 3)",
                    "get('content')",
                    "copy()",
                    "items()|list",
                    "update({'a': 1})",
                    "append(1)",
                    "index(1)",
                    "count(1)",
                    "pop()");
    private static final List<String> FORMATS = List.of("%s", "%d", "%%", "%s %s");
    private static final List<String> SPECS = List.of("{}", "{{}} {}");

    private final Random random;
    private int wild; // percentage of expressions whose operands are of any type

    RandomTemplates(long seed) {
        random = new Random(seed);
    }

    @SafeVarargs
    private <T> T any(T... choices) {
        return choices[random.nextInt(choices.length)];
    }

    private <T> T any(List<T> choices) {
        return choices.get(random.nextInt(choices.size()));
    }

    private boolean chance(int percent) {
        return random.nextInt(100) < percent;
    }

    /**
     * Returns a template: an expression of any kinds, or statements whose expressions mostly fit.
     */
    String next() {
        wild = chance(20) ? 100 : 2;
        return chance(50)
                ? "{{ " + (chance(50) ? expression(2) : typed(3)) + " }}"
                : statements(any(1, 2, 3), false);
    }

    private String statements(int depth, boolean inLoop) {
        StringBuilder text = new StringBuilder();
        for (int i = random.nextInt(4); i >= 0; i--) {
            text.append(statement(depth, inLoop));
        }
        return text.toString();
    }

    private String open() {
        return any("{%", "{%", "{%", "{%-", "{%+") + " ";
    }

    private String close() {
        return " " + any("%}", "%}", "%}", "-%}", "+%}");
    }

    private String statement(int depth, boolean inLoop) {
        Supplier<String> body = () -> depth > 0 ? statements(depth - 1, inLoop) : "o";
        Supplier<String> e = () -> chance(wild) ? expression(2) : typed(2);
        return switch (random.nextInt(depth > 0 ? 21 : 9)) {
            case 0, 1 ->
                    any(" ", "\n", "  \n  ", "text", "a b\n", "\n\n", "x\t", "é👍", "{ }", "\r\n");
            case 2, 3, 4, 5 ->
                    any("{{", "{{", "{{-") + " " + e.get() + " " + any("}}", "}}", "-}}");
            case 6 ->
                    open()
                            + "set "
                            + any("x", "y", "n", "s", "x, y", "ns.a", "ns.b")
                            + " = "
                            + e.get()
                            + close();
            case 7 ->
                    any(
                            "{# c #}",
                            "{#- c -#}",
                            "{# a\nb #}\n",
                            "{% raw %}{{ x }}{% endraw %}",
                            "{%- raw -%} {% if %} {%- endraw %}\n");
            case 8 ->
                    inLoop
                            ? open()
                                    + "if "
                                    + e.get()
                                    + close()
                                    + open()
                                    + any("break", "continue")
                                    + close()
                                    + "{% endif %}"
                            : "q";
            case 9, 10, 11 -> {
                String otherwise = chance(50) ? open() + "else" + close() + body.get() : "";
                String also = chance(25) ? open() + "elif " + e.get() + close() + body.get() : "";
                yield open()
                        + "if "
                        + e.get()
                        + close()
                        + body.get()
                        + also
                        + otherwise
                        + open()
                        + "endif"
                        + close();
            }
            case 12, 13, 14, 15 -> {
                String target = any("x", "y", "m", "x, y");
                String of =
                        chance(70)
                                ? any(
                                        "l",
                                        "messages",
                                        "d",
                                        "d.items()",
                                        "d|items",
                                        "range(3)",
                                        "s",
                                        "mixed",
                                        "[1, 2, 3]",
                                        "tools",
                                        "messages[1:]")
                                : e.get();
                String condition = chance(20) ? " if " + e.get() : "";
                String recursive = chance(8) ? " recursive" : "";
                String inner = statements(depth - 1, true);
                String otherwise = chance(25) ? open() + "else" + close() + body.get() : "";
                yield open() + "for " + target + " in " + of + condition + recursive + close()
                        + inner + otherwise + open() + "endfor" + close();
            }
            case 16 ->
                    "{% macro mac(p, q="
                            + e.get()
                            + ") %}"
                            + statements(depth - 1, false)
                            + any("{{ p }}{{ q }}")
                            + "{% endmacro %}{{ mac("
                            + any("1", "", "1, 2", "q=1")
                            + ") }}";
            case 17 ->
                    "{% set "
                            + any("x", "y")
                            + any("", " | upper", " | trim | replace('a', 'b')")
                            + " %}"
                            + body.get()
                            + "{% endset %}{{ x }}";
            case 18 ->
                    "{% filter "
                            + any("upper", "trim", "indent(2)", "replace('a', 'b')|title", "length")
                            + " %}"
                            + body.get()
                            + "{% endfilter %}";
            case 19 ->
                    "{% with x = " + e.get() + ", y = x %}" + body.get() + "{{ y }}{% endwith %}";
            default ->
                    any("{% generation %}", "{%- generation -%}")
                            + statements(depth - 1, false)
                            + "{% endgeneration %}\n";
        };
    }

    private String literal() {
        return switch (random.nextInt(8)) {
            case 0 -> any("0", "1", "2", "3", "7", "-7", "10", "1_000");
            case 1 ->
                    any(
                            "1.5",
                            "0.1",
                            "2.0",
                            "-0.5",
                            "1e3",
                            "1e20",
                            "1e-7",
                            "123456789.125",
                            "5e-324",
                            "1.7976931348623157e308");
            case 2 -> any("true", "false", "none", "True", "None");
            case 3 -> "[" + any("", "1", "1, 'a', none", "3, 1, 2", "'b', 'a'", "[1], [2]") + "]";
            case 4 ->
                    "{"
                            + any(
                                    "",
                                    "'a': 1",
                                    "'a': [1], 'b': 'x'",
                                    "1: 2, 'c': none",
                                    "'b': {'a': 1.0}")
                            + "}";
            case 5 -> "(" + any("1, 2", "1,", "'a', 'b'", "") + ")";
            default -> quoted(any(TEXTS));
        };
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("'");
        text.codePoints()
                .forEach(
                        c -> {
                            switch (c) {
                                case '\'', '\\' -> quoted.append('\\').appendCodePoint(c);
                                case '\n' -> quoted.append("\\n");
                                case '\r' -> quoted.append("\\r");
                                case 0 -> quoted.append("\\x00");
                                default -> quoted.appendCodePoint(c);
                            }
                        });
        return quoted.append('\'').toString();
    }

    private String expression(int depth) {
        if (depth == 0) {
            return chance(60) ? any(NAMES) : literal();
        }
        Supplier<String> e = () -> expression(depth - 1);
        return switch (random.nextInt(26)) {
            case 0, 1 -> any(NAMES);
            case 2 -> literal();
            case 3, 4 -> e.get() + "." + any(ATTRIBUTES);
            case 5 -> any("d", "m", "messages[0]", "l") + "['" + any(ATTRIBUTES) + "']";
            case 6 -> e.get() + "[" + any("0", "-1", "1", "n", "'a'", "99", "s") + "]";
            case 7 ->
                    any(NAMES)
                            + "["
                            + any(
                                    ":",
                                    "1:",
                                    ":-1",
                                    "::-1",
                                    "-2:",
                                    "1:3",
                                    "::2",
                                    "5:1:-2",
                                    ":n",
                                    "-1::-1",
                                    "100:-100:-3")
                            + "]";
            case 8, 9, 10, 11, 12 -> wrapped(e.get()) + any("|", " | ") + any(FILTERS);
            case 13, 14 -> wrapped(e.get()) + " is " + any("", "", "not ") + any(TESTS);
            case 15, 16 -> wrapped(any(NAMES)) + "." + any(METHODS);
            case 17 -> "(" + e.get() + ")." + any(METHODS);
            case 18 ->
                    e.get()
                            + any(" + ", " - ", " * ", " / ", " // ", " % ", " ~ ", " ~ ", " + ")
                            + e.get();
            case 19 ->
                    e.get()
                            + any(" == ", " != ", " < ", " <= ", " > ", " >= ", " in ", " not in ")
                            + e.get();
            case 20 ->
                    e.get()
                            + any(" < ", " == ", " in ")
                            + e.get()
                            + any(" <= ", " != ", " in ")
                            + e.get();
            case 21 -> e.get() + any(" and ", " or ") + e.get();
            case 22 -> "not " + e.get();
            case 23 -> e.get() + " if " + e.get() + (chance(70) ? " else " + e.get() : "");
            case 24 ->
                    any(
                            "range(4)|list",
                            "range(5, 0, -2)|list",
                            "dict(a=1, b=x)",
                            "dict(l)",
                            "namespace(a=1).a",
                            "loop.cycle('a', 'b')",
                            "-n",
                            "+f",
                            "2 ** 3",
                            "n ** 2",
                            "range(3)",
                            "messages|map(attribute='content')|select('string')|join('|')",
                            "mixed|map('string')|list",
                            "'a' 'b'",
                            "raise_exception('no')",
                            "d['a']",
                            "messages[-1]['content']",
                            "m.content.split('</think>')[-1]",
                            "s[::-1]|upper");
            default ->
                    chance(50)
                            ? quoted(any(FORMATS))
                                    + " % "
                                    + any(wrapped(e.get()), "(1, 'a')", "d", "n", "f", "s")
                            : quoted(any(SPECS))
                                    + ".format("
                                    + any(
                                            e.get(),
                                            "1",
                                            "-1234567",
                                            "1.5",
                                            "'ab'",
                                            "d",
                                            "true",
                                            "1e20")
                                    + any("", ", 3")
                                    + ")";
        };
    }

    /** Returns an expression whose operands fit its operators. */
    private String typed(int depth) {
        return switch (random.nextInt(5)) {
            case 0 -> number(depth);
            case 1 -> list(depth);
            case 2 -> truth(depth);
            default -> text(depth);
        };
    }

    private String text(int depth) {
        if (depth == 0) {
            return any(
                    "s",
                    "t",
                    "'a b'",
                    quoted(any(TEXTS)),
                    "messages[0].role",
                    "ns.b",
                    "messages[-1]['role']");
        }
        Supplier<String> t = () -> text(depth - 1);
        return switch (random.nextInt(14)) {
            case 0, 1 -> t.get() + any(" ~ ", " + ") + t.get();
            case 2 -> t.get() + " ~ " + typed(depth - 1);
            case 3, 4 ->
                    "("
                            + t.get()
                            + ")."
                            + any(
                                    "strip()",
                                    "lstrip('a ')",
                                    "rstrip()",
                                    "upper()",
                                    "lower()",
                                    "title()",
                                    "capitalize()",
                                    "replace('a', 'b')",
                                    "removeprefix('a')",
                                    "removesuffix('c')",
                                    "ljust(6)",
                                    "split(',')[-1]",
                                    "split('</think>')[0].strip()",
                                    "partition(' ')[2]",
                                    "rsplit(',', 1)[0]",
                                    "join(['1', '2'])",
                                    "format(1, a=2)",
                                    "splitlines()|join('|')");
            case 5, 6 ->
                    "("
                            + t.get()
                            + ")|"
                            + any(
                                    "upper",
                                    "lower",
                                    "title",
                                    "capitalize",
                                    "trim",
                                    "indent",
                                    "indent(2, true)",
                                    "indent(first=true)",
                                    "replace('a', 'b')",
                                    "truncate(5)",
                                    "truncate(4, true, '')",
                                    "center(9)",
                                    "urlencode",
                                    "striptags",
                                    "reverse",
                                    "tojson",
                                    "string",
                                    "default('z', true)",
                                    "first",
                                    "last",
                                    "list|join('-')");
            case 7 ->
                    "("
                            + t.get()
                            + ")["
                            + any(
                                    ":", "1:", ":-1", "::-1", "-2:", "1:3", "::2", "5:1:-2", ":n",
                                    "-1::-1")
                            + "]";
            case 8 ->
                    "("
                            + any(
                                    number(depth - 1),
                                    list(depth - 1),
                                    truth(depth - 1),
                                    "d",
                                    "messages",
                                    "tools",
                                    "f",
                                    "mixed")
                            + ")|"
                            + any(
                                    "string",
                                    "tojson",
                                    "tojson(indent=2)",
                                    "tojson(sort_keys=true)",
                                    "tojson(separators=(',', ':'))",
                                    "tojson(true)");
            case 9 ->
                    "("
                            + list(depth - 1)
                            + ")|"
                            + any("join(', ')", "join", "map('string')|join('-')");
            case 10 -> t.get() + " if " + truth(depth - 1) + any("", " else " + t.get());
            case 11 -> quoted(any("%s")) + " % (" + typed(depth - 1) + ",)";
            case 12 ->
                    quoted(any("%d", "{}"))
                            .replaceAll("^('[^{]*')$", "$1 % n")
                            .replaceAll("^('.*[{].*')$", "$1.format(n)");
            default -> "d.get(" + any("'a'", "'zz', 'q'", "'b'") + ")|string";
        };
    }

    private String number(int depth) {
        if (depth == 0) {
            return any(
                    "n",
                    "f",
                    "0",
                    "1",
                    "2",
                    "3",
                    "7",
                    "-7",
                    "1.5",
                    "0.1",
                    "2.0",
                    "ns.a",
                    "l|length",
                    "messages|length",
                    "true");
        }
        Supplier<String> x = () -> number(depth - 1);
        return switch (random.nextInt(8)) {
            case 0, 1, 2 ->
                    "("
                            + x.get()
                            + ")"
                            + any(" + ", " - ", " * ", " / ", " // ", " % ")
                            + "("
                            + x.get()
                            + ")";
            case 3 ->
                    "("
                            + x.get()
                            + ")|"
                            + any("abs", "int", "float", "round", "round(1)", "round(-1)");
            case 4 -> "(" + text(depth - 1) + ")|" + any("length", "int", "float", "wordcount");
            case 5 -> "(" + text(depth - 1) + ")." + any("find('a')", "count('a')", "find('b', 1)");
            case 6 -> "(" + list(depth - 1) + ")|" + any("length", "count");
            default -> "-(" + x.get() + ")";
        };
    }

    private String list(int depth) {
        if (depth == 0) {
            return any(
                    "l",
                    "mixed",
                    "messages",
                    "[1, 2, 3]",
                    "['b', 'a']",
                    "range(4)",
                    "[]",
                    "(1, 'a')",
                    "d",
                    "s",
                    "d.items()",
                    "d.keys()");
        }
        Supplier<String> l = () -> list(depth - 1);
        return switch (random.nextInt(9)) {
            case 0 -> "(" + l.get() + ")|list";
            case 1 -> "(" + l.get() + ")|list + [" + typed(depth - 1) + "]";
            case 2 ->
                    "(("
                            + l.get()
                            + ")|list)["
                            + any(":", "1:", ":-1", "::-1", "-2:", "1:3", "::2", "5:1:-2")
                            + "]";
            case 3 ->
                    "("
                            + text(depth - 1)
                            + ")."
                            + any(
                                    "split()",
                                    "split(',')",
                                    "split(None, 1)",
                                    "rsplit(',', 1)",
                                    "splitlines()",
                                    "partition(' ')");
            case 4 ->
                    "("
                            + l.get()
                            + ")|"
                            + any(
                                    "reverse|list",
                                    "select|list",
                                    "reject('none')|list",
                                    "select('string')|list",
                                    "map('string')|list",
                                    "batch(2)|list",
                                    "slice(2)|list",
                                    "map('default', 1)|list");
            case 5 ->
                    "messages|"
                            + any(
                                    "map(attribute='role')|list",
                                    "selectattr('role', 'equalto', 'user')|list",
                                    "rejectattr('content')|list",
                                    "groupby('role')",
                                    "sort(attribute='role')",
                                    "map(attribute='q', default='z')|unique|list",
                                    "sort(attribute='role')|map(attribute='content')|list");
            case 6 -> "[" + typed(depth - 1) + ", " + typed(depth - 1) + "]";
            case 7 ->
                    any(
                            "d|items|list",
                            "d|dictsort",
                            "d.values()|list",
                            "dict(a=1, b=n)|items|list",
                            "[3, 1, 2]|sort",
                            "['b', 'A', 'c']|sort",
                            "['b', 'A']|sort(case_sensitive=true)",
                            "[1, true, 1.0, 2]|unique|list",
                            "['a', 'A']|unique|list");
            default ->
                    "{"
                            + any("'a'", "1", "none", "2.5")
                            + ": "
                            + typed(depth - 1)
                            + ", 'b': "
                            + typed(depth - 1)
                            + "}";
        };
    }

    private String truth(int depth) {
        if (depth == 0) {
            return any(
                    "true",
                    "false",
                    "bool",
                    "none",
                    "missing",
                    "tools",
                    "add_generation_prompt",
                    "loop is defined");
        }
        Supplier<String> b = () -> truth(depth - 1);
        return switch (random.nextInt(10)) {
            case 0 -> "not " + b.get();
            case 1, 2 -> b.get() + any(" and ", " or ") + b.get();
            case 3, 4 ->
                    "("
                            + typed(depth - 1)
                            + ") is "
                            + any("", "not ")
                            + any(
                                    "defined",
                                    "none",
                                    "string",
                                    "number",
                                    "integer",
                                    "float",
                                    "boolean",
                                    "true",
                                    "mapping",
                                    "sequence",
                                    "iterable",
                                    "eq 3",
                                    "sameas none",
                                    "in [1, 'a']");
            case 5 ->
                    "("
                            + typed(depth - 1)
                            + ")"
                            + any(" == ", " != ")
                            + "("
                            + typed(depth - 1)
                            + ")";
            case 6 ->
                    "("
                            + number(depth - 1)
                            + ")"
                            + any(" < ", " <= ", " > ", " >= ")
                            + "("
                            + number(depth - 1)
                            + ")"
                            + any("", " < 3", " != n");
            case 7 ->
                    "("
                            + text(depth - 1)
                            + ")"
                            + any(" in ", " not in ", " < ", " >= ")
                            + "("
                            + text(depth - 1)
                            + ")";
            case 8 ->
                    "("
                            + text(depth - 1)
                            + ")."
                            + any(
                                    "startswith('a')",
                                    "startswith(('a', 'b'))",
                                    "endswith('c')",
                                    "isdigit()",
                                    "isalpha()");
            default ->
                    "("
                            + typed(depth - 1)
                            + ")"
                            + any(" in ", " not in ")
                            + "(("
                            + list(depth - 1)
                            + ")|list)";
        };
    }

    private String wrapped(String expression) {
        return chance(60) ? "(" + expression + ")" : expression;
    }

    /** Returns variables as JSON. */
    String data() {
        List<String> messages = new ArrayList<>();
        for (int i = 1 + random.nextInt(4); i > 0; i--) {
            String content =
                    chance(85)
                            ? json(any(TEXTS))
                            : any("null", "[{\"type\": \"text\", \"text\": \"part\"}]");
            String calls =
                    chance(20)
                            ? ", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\":"
                                    + " {\"x\": 1.5, \"y\": [null, true]}}}]"
                            : "";
            messages.add(
                    "{\"role\": \""
                            + any("user", "assistant", "system", "tool")
                            + "\", \"content\": "
                            + content
                            + calls
                            + "}");
        }
        String number =
                any(
                        "0",
                        "1",
                        "-3",
                        "2.5",
                        "1e20",
                        "1e-07",
                        "12345678.5",
                        "9007199254740993",
                        "12345678901234567890",
                        "-0.0");
        return "{\"d\": {\"a\": "
                + any("1", "{\"b\": 1}", "null", "\"A\"")
                + ", \"b\": "
                + json(any(TEXTS))
                + ", \"z\": null}, \"l\": "
                + any(
                        "[]",
                        "[\"a\", \"b\", \"c\"]",
                        "[3, 1, 2]",
                        "[[1, 2], [\"a\", 4]]",
                        "[1.5, true, null]")
                + ", \"n\": "
                + any("0", "1", "2", "3", "-2")
                + ", \"f\": "
                + number
                + ", \"s\": "
                + json(any(TEXTS))
                + ", \"t\": "
                + json(any(TEXTS))
                + ", \"bool\": "
                + any("true", "false")
                + ", \"mixed\": [1, \"1\", 1.0, null, true, {\"role\": \"user\"}, [2]], \"none_\":"
                + " null, \"messages\": ["
                + String.join(", ", messages)
                + "], \"tools\": "
                + any(
                        "null",
                        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\":"
                                + " {\"type\": \"object\"}}}]")
                + ", \"add_generation_prompt\": "
                + any("true", "false")
                + any("", ", \"x\": 5", ", \"y\": \"Y\"")
                + "}";
    }

    private static String json(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            json.append(
                    c < 32 || c == '"' || c == '\\' || c > 126
                            ? "\\u%04x".formatted((int) c)
                            : String.valueOf(c));
        }
        return json.append('"').toString();
    }
}
