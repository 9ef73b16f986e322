// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.ToNumberPolicy;
import java.io.InputStreamReader;
import java.io.Reader;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.LocalDateTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The interpreter; expected texts are those of Jinja2 3.1.6 with transformers' settings. */
@Timeout(60)
class TemplateTest {

    static final Gson GSON =
            new GsonBuilder()
                    .setObjectToNumberStrategy(ToNumberPolicy.LAZILY_PARSED_NUMBER)
                    .serializeNulls()
                    .disableHtmlEscaping()
                    .create();

    private static String render(String template, Map<String, ?> variables) {
        return Template.parse(template).render(variables);
    }

    private static String refusal(String template) {
        Map<String, Object> variables =
                Map.of("messages", List.of(Map.of("role", "user")), "t", true);
        return assertThrows(
                        IllegalArgumentException.class, () -> render(template, variables), template)
                .getMessage();
    }

    record Row(String template, String target, String refused) {}

    record Features(Map<String, Object> data, List<Row> rows) {}

    /** 107 features of templates, each with the text of Jinja2 or its refusal. */
    @Test
    void featuresAreThoseOfJinja2() throws Exception {
        try (Reader reader =
                new InputStreamReader(
                        TemplateTest.class.getResourceAsStream("/templates/features.json"),
                        StandardCharsets.UTF_8)) {
            Features features = GSON.fromJson(reader, Features.class);
            List<String> wrong = new ArrayList<>();
            for (Row row : features.rows) {
                String text = null;
                try {
                    text = render(row.template, features.data);
                } catch (IllegalArgumentException e) {
                    text = row.refused == null ? e.getMessage() : null;
                }
                if (row.refused == null ? !row.target.equals(text) : text != null) {
                    wrong.add(row.template + " gives " + text + ", not " + row.target);
                }
            }
            assertEquals(List.of(), wrong);
            assertEquals(107, features.rows.size());
        }
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '#',
            quoteCharacter = '`',
            textBlock =
                    """
                    {{ x|tojson }}#{"sum": 12345678.5, "eps": 1e-07, "big": 12345678901234567890}
                    {% if 'false' %}true{% endif %}#true
                    {{ '3' == 3 }} {{ -7 % 3 }} {{ -7 // 2 }} {{ 7.5 % -2 }} {{ 3 < 2 < 1 }}#False 2 -4 -0.5 False
                    {{ x.get('y') is not none }} {{ 'a=b=c'.split('=', 1) }}#False ['a', 'b=c']
                    {% for i in [1, 2] %}{% for j in [i] if j > 1 %}{{ j }}{% else %}-{% endfor %}{% endfor %}#-2
                                        {% for n in [1, 2] recursive %}{{ n }}{{ loop.cycle('a', 'b') }}{% endfor %}#1a2b
                    {% set x %}a{% set y = 1 %}{% endset %}{{ x }}{{ y is defined }}#aFalse
                    {% macro m(a, b=a) %}{{ a }}{{ b }}{{ c is defined }}{% endmacro %}{{ m(1) }}{{ m(b=2, a=1) }}#11False12False
                    {% for x in [1, 2] %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% break %}{% endfor %}#2
                    {% filter upper|replace('A', 'b') %}ab{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}{{ a }}#bB1
                    {% generation %}a{% set q = 1 %}{% endgeneration %}{{ q is defined }}#aFalse
                    {{ '👍é'|length }} {{ '👍é'[1] }} {{ '👍é'[::-1] }} {{ 'ßa'.upper() }} {{ 'ΑΣ'.lower() }}#2 é é👍 SSA ας
                    {{ 'a\\tb\\x00'|list }} {{ "it's" }} {{ ["it's", 'q"', 1.0, 1e16, none] }}#['a', '\\t', 'b', '\\x00'] it's ["it's", 'q"', 1.0, 1e+16, None]
                    {{ 9223372036854775807 }} {{ 2 ** 62 }} {{ x.big }} {{ 9007199254740993 == 9007199254740992.0 }}#9223372036854775807 4611686018427387904 12345678901234567890 False
                    {{ [1, true, 1.0]|unique|list }} {{ {1: 'a', none: 'b'}[true] }} {{ (1, 2) == [1, 2] }}#[1] a False
                    {{ missing }}{{ missing|list }}{{ missing ~ 'a' }}{{ missing is sequence }}#[]aTrue
                    {{ 'abc'.startswith(('x', 'a')) }} {{ 'a b'.title() }} {{ "they're"|title }}#True A B They're
                    {{ 1 if false }}{{ (none or 'a') and 'b' }}{{ not 1 == 2 }}#bTrue
                    {{- ' a' -}}   b  {{- ' c' }}# ab c
                    {% if false %}{{ x|nosuch }}{% endif %}{{ 1 if true else x|nosuch }}#1
                    """)
    void rendersAsJinja2(String template, String expected) {
        Map<String, Object> x = new java.util.LinkedHashMap<>();
        x.put("sum", 12345678.5);
        x.put("eps", 1e-7);
        x.put("big", new BigInteger("12345678901234567890"));
        assertEquals(
                expected, render(template.replaceAll("^ ?", ""), Map.of("x", x)).strip(), template);
    }

    /** A template is untrusted: it comes with a model. */
    @ParameterizedTest
    @ValueSource(
            strings = {
                "{{ 'x'.class }}{{ messages.class }}{{ t.class }}",
                "{{ messages[0].__class__ }}{{ ''.__class__ }}{{ nothing.__class__ }}",
                "{{ messages.getClass }}{{ messages['class'] }}{{ raise_exception.__globals__ }}",
                "{{ ____int3rpr3t3r____ }}{{ self }}{{"
                        + " messages|map(attribute='class')|join }}",
                "{{ range.class }}{{ namespace().class }}{{ dict().__init__ }}",
            })
    void noJavaObjectIsReached(String template) {
        Map<String, Object> variables =
                Map.of("messages", List.of(Map.of("role", "user")), "t", true);
        assertEquals("", render(template, variables), template);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '~',
            quoteCharacter = '`',
            textBlock =
                    """
                    {% for class, bytes in ['x'] %}{{ class }}{% endfor %} ~ 1 values are given to 2 names
                    {% for class, bytes in messages %}{{ class }}{% endfor %} ~ 1 values are given to 2 names
                    {{ 'x'.getClass() }} ~ no attribute or element 'getClass'
                    {{ ''.__class__.mro() }} ~ '__class__'
                    {{ messages.append(1) }} ~ which changes it
                    {{ messages[0].update({}) }} ~ which changes it
                    {{ messages|nosuch }} ~ the filter nosuch is not supported
                    {% if messages is not nosuch(1) %}x{% endif %}{{ 1 is nosuch }} ~ the test nosuch is not supported
                    {% include 'x' %} ~ a template cannot read files
                    {{ {}.x.y }} ~ no attribute or element 'x'
                    {{ messages ~ a tag has no }}
                    {{ 1 +%} ~ unexpected
                    {{ dict(=1) }} ~ unexpected =
                    {% if t %} ~ a block has no end
                    {% endif %} ~ not expected here
                    {{ missing.x }} ~ 'missing' is undefined
                    {{ missing() }} ~ 'missing' is undefined
                    {{ 'a' + 1 }} ~ '+' is not supported between str and int
                    {{ {}|tojson(1, 2, 3, 4, 5) }} ~ tojson takes at most 4 arguments
                    {{ 1 / 0 }} ~ division by zero
                    {{ raise_exception('a\\nb') }} ~ refuses this chat: a
                    {% break %} ~ not within a loop
                    """)
    void refusesWhatJinja2Refuses(String template, String reason) {
        String message = refusal(template.strip());
        assertTrue(message.contains(reason), message);
    }

    /** What Jinja2 has and no chat template uses is refused by name, not rendered otherwise. */
    @ParameterizedTest
    @CsvSource(
            delimiter = '~',
            quoteCharacter = '`',
            textBlock =
                    """
                    {{ '%5d' % 1 }} ~ the format %5 is not supported
                    {{ '%x' % 1 }} ~ the format %x is not supported
                    {{ '{:>5}'.format(1) }} ~ a field other than {} and {name}
                    {{ 'a'.swapcase() }} ~ swapcase of a str is not supported
                    {{ 'a'.expandtabs(4) }} ~ expandtabs of a str is not supported
                    {{ 9223372036854775807 + 1 }} ~ more than 64 bits
                    {{ -9223372036854775807 - 2 }} ~ more than 64 bits
                    {{ 2 ** 64 }} ~ more than 64 bits
                    {{ (-9223372036854775807 - 1) // -1 }} ~ more than 64 bits
                    {{ ('a'|safe) + 'b' }} ~ not supported between Markup and str
                    {{ ('a'|safe) == 'a' }} ~ a comparison of Markup and str is not supported
                    {{ 'a'|e|replace('a', 'b') }} ~ of an escaped text is not supported
                    {{ ['a'|e] }} ~ the text of a Markup is not supported
                    {{ messages|sort(attribute='a,b') }} ~ several attributes is not supported
                    {{ '&amp;'|striptags }} ~ striptags of a text with comments, & or < is not supported
                    {{ {'a': 1}|urlencode }} ~ urlencode of a dict is not supported
                    {{ '{0}'.format(1) }} ~ a field other than {} and {name}
                    {{ '%.2f' % 1.5 }} ~ the format %. is not supported
                    {{ [[1]] < [[2]] }} ~ an order of lists is not supported
                    {{ [1].index(1) }} ~ index of a list is not supported
                    {{ {}.copy() }} ~ copy of a dict is not supported
                    {{ dict({}) }} ~ dict and namespace takes at most 0 arguments
                    {{ 'a'.ljust(3, '.') }} ~ ljust takes at most 1 arguments
                    {{ [1]|sum(start=2) }} ~ sum has no argument start
                    {{ {}.keys() == {}.keys() }} ~ a comparison of dict_keys and dict_keys
                    {{ 1|filesizeformat }} ~ the filter filesizeformat is not supported
                    {{ 'a' is escaped }} ~ the test escaped is not supported
                    {% for n in [[1]] recursive %}{{ loop(n) }}{% endfor %} ~ the call of a recursive loop is not supported
                    {% for n in [1] %}{{ loop.changed(n) }}{% endfor %} ~ changed of a loop is not supported
                    {% for n in [1] %}{{ loop.depth }}{% endfor %} ~ depth of a loop is not supported
                    {% for n in [1] %}{{ loop }}{% endfor %} ~ the text of a loop is not supported
                    {% for (a, (b, c)) in [] %}{% endfor %} ~ nested brackets around names are not supported
                    {% macro m() %}{{ varargs }}{% endmacro %} ~ varargs of a macro is not supported
                    {% macro m() %}{{ kwargs }}{% endmacro %} ~ kwargs of a macro is not supported
                    {% macro m() %}{{ caller() }}{% endmacro %} ~ caller of a macro is not supported
                    {% macro m() %}{% endmacro %}{{ m.name }} ~ name of a function is not supported
                    {% call m() %}{% endcall %} ~ the tag call is not supported
                    {% for n in [1] %}{% set x %}{% break %}{% endset %}{% endfor %} ~ break is not within a loop
                    {{ dict(*[1]) }} ~ arguments after * or ** are not supported
                    {{ dict(**{}) }} ~ arguments after * or ** are not supported
                    {{ {true: 1} }} ~ True is a key, which is not supported
                    {{ {1.0: 1} }} ~ 1.0 is a key, which is not supported
                    {{ {(1, 2): 1} }} ~ a value of type tuple is a key, which is not supported
                    {{ range(3) }} ~ the text of a range is not supported
                    {{ namespace() }} ~ the text of a namespace is not supported
                    {{ [1]|map('string') }} ~ the text of a generator is not supported
                    {{ cycler(1) }} ~ the function cycler is not supported
                    {{ joiner() }} ~ the function joiner is not supported
                    {{ lipsum() }} ~ the function lipsum is not supported
                    {{ strftime_now('%u') }} ~ %u of strftime_now is not supported
                    {{ messages|attr('a') }} ~ the filter attr is not supported
                    {{ 'a' is lower }} ~ the test lower is not supported
                    {{ 1 is sameas 1 }} ~ the test sameas is not supported
                    {{ 1.5|round(0, 'floor') }} ~ round takes at most 1 arguments
                    {{ {}|dictsort(true) }} ~ dictsort takes at most 0 arguments
                    {{ [1]|max(attribute='a') }} ~ max has no argument attribute
                    {{ [1]|batch(2, 0) }} ~ batch takes at most 1 arguments
                    {{ [1]|slice(2, 0) }} ~ slice takes at most 1 arguments
                    {{ ([{'a': 1}]|groupby('a'))[0].grouper }} ~ grouper of a tuple is not supported
                    {{ 'a'|format(x=1) }} ~ names of values in the filter format are not supported
                    {{ 'ab'.startswith('b', 1) }} ~ startswith takes at most 1 arguments
                    {{ 'ab'.zfill(3) }} ~ zfill of a str is not supported
                    {{ 'ab'.maketrans('a', 'b') }} ~ maketrans of a str is not supported
                    {{ 'ab'.replace('', 'b') }} ~ an empty text to search for is not supported
                    {{ 'ab'.count('') }} ~ an empty text to search for is not supported
                    {{ '%(a)s' % {'a': 1} }} ~ the format %( is not supported
                    {{ '%r' % 1 }} ~ the format %r is not supported
                    {{ '\\101' }} ~ the escape \\1 in a string is not supported
                    {{ 0b1 }} ~ the number 0b1 is not supported
                    {{ range(2 ** 41, 2 ** 41 + 1) }} ~ a range with a step of 0 or bounds beyond 40 bits is not supported
                    {{ (0.0 - 10.0) ** 0.5 }} ~ a power that is not a finite number is not supported
                    """)
    void rarePartsAreRefusedByName(String template, String reason) {
        String message = refusal(template.strip());
        assertTrue(message.contains(reason), message);
    }

    @Test
    void errorsHaveTheLine() {
        assertTrue(refusal("a\n{% if t %}\n{{ 1 + 'a' }}{% endif %}").contains("line 3:"));
        assertTrue(refusal("a\n\n{{ ) }}").contains("line 3:"));
    }

    /** Each costs too much time or memory unless it is bounded. */
    @ParameterizedTest
    @CsvSource(
            delimiter = '~',
            quoteCharacter = '`',
            textBlock =
                    """
                    {{ 'a' * 10 ** 9 }} ~ longer than
                    {{ [1] * 10 ** 9 }} ~ more than 1000000 elements
                    {{ range(10 ** 9) }} ~ at most 100000
                    {{ 10 ** 99999 }} ~ more than
                    {{ 'a'.ljust(10 ** 9) }} ~ longer than
                    {{ 'a'|center(10 ** 9) }} ~ longer than
                    {{ ('a' * 10 ** 6).replace('a', 'a' * 10 ** 6) }} ~ longer than
                    {{ ('a' * 10 ** 6)|replace('a', 'a' * 100) }} ~ longer than
                    {{ ('a' * 10 ** 5)|list|join('b' * 1000) }} ~ longer than
                    {{ ('a\\n' * 10 ** 5)|indent(1000) }} ~ memory
                    {{ ('<' * 1000000)|striptags }} ~ is not supported
                    {{ [[1]]|tojson(indent=10 ** 9) }} ~ longer than
                    {{ [1]|slice(10 ** 9)|list }} ~ more than 1000000 elements
                    {% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %} ~ steps
                    {% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(1) }} ~ nested more than
                    {% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }} ~ steps
                    {% set ns = namespace(a=[1]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }} ~ memory
                    {% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }} ~ steps
                    {% set ns = namespace(a=[]) %}{% for i in range(200) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }} ~ nested more than
                    {% set ns = namespace(a='a' * 1000) %}{% for i in range(100) %}{% set ns.a = ns.a + ns.a %}{% endfor %} ~ longer than
                    {% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %} ~ longer than
                    {% set t = '漢' * 16000000 %}{% for i in range(100000) %}{% if t|length %}{% endif %}{% endfor %} ~ steps
                    {% set t = '漢' * 16000000 %}{% for i in range(100000) %}{% if t[0] %}{% endif %}{% endfor %} ~ steps
                    {% set t = 'x' * 16000000 %}{% set d = {} %}{% for i in range(100000) %}{% if d[t] %}{% endif %}{% endfor %} ~ steps
                    {% set t = 'a' * 16000000 %}{{ t.find('a' * 8000000 + 'b') }} ~ steps
                    {% set t = 'a' * 16000000 %}{{ ('a' * 8000000 + 'b') in t }} ~ steps
                    {% set t = 'a' * 16000000 %}{{ t.replace('a' * 8000000 + 'b', '') }} ~ steps
                    {% set t = 'a' * 16000000 %}{{ t.split('a' * 8000000 + 'b') }} ~ steps
                    {% set t = 'X' * 16000000 %}{{ ([t] * 3000)|sort|length }} ~ memory
                    {% set t = 'X' * 16000000 %}{{ ([t] * 3000)|map('reverse')|list|length }} ~ memory
                    {% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = ns.l + ['a' * 100000 + i|string] %}{% endfor %} ~ memory
                    {% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l, range(10000)|list] %}{% endfor %} ~ memory
                    {% set t = 'a b' * 1000000 %}{% set ns = namespace(l=[]) %}{% for i in range(50) %}{% set ns.l = [ns.l, t.split(' ')] %}{% endfor %} ~ memory
                    {% set t = 'ab' * 1000000 %}{% set ns = namespace(l=[]) %}{% for i in range(50) %}{% set ns.l = [ns.l, t|upper] %}{% endfor %} ~ memory
                    {% macro f(n) %}{{ 'a' * 4000000 }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }} ~ memory
                    {% set t = ' ' * 16000000 %}{% for i in range(100000) %}{% if t|int %}{% endif %}{% endfor %} ~ steps
                    {% set t = '1' * 16000000 %}{% for i in range(100000) %}{% if t|wordcount %}{% endif %}{% endfor %} ~ steps
                    {% set ns = namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {ns.t: 1} }} ~ is a key
                    {% set ns = namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ [ns.t]|unique|list }} ~ is a key
                    {{ strftime_now('%Y' * 4000000) }} ~ steps
                    """)
    void costsAreBounded(String template, String reason) {
        Duration patience = Duration.ofSeconds(50); // on a busy machine; each needs a second or two
        String message = assertTimeoutPreemptively(patience, () -> refusal(template.strip()));
        assertTrue(message.contains(reason), message);
    }

    /**
     * Each took hours, or all memory, by values that grow or are searched without being counted.
     */
    @Test
    void unusualValuesCostLittle() {
        String nested = "{% set ns = namespace(n=namespace()) %}{% for i in range(60) %}";
        Map<String, String> expected =
                Map.of(
                        "{% set t = 'x' * 16000000 %}{{ range(3000)|select('lt', 5)|list }}{% for i"
                                + " in range(9999) %}{% if t < 'a' %}1{% endif %}{% endfor %}",
                        "[0, 1, 2, 3, 4]",
                        nested
                                + "{% set ns.n = namespace(a=ns.n, b=ns.n) %}{% endfor %}"
                                + "{{ ns.n == ns.n }}",
                        "True",
                        "{% for i in range(100000) %}{% continue %}"
                                + "{% set a = 1 %}".repeat(2000)
                                + "{% endfor %}",
                        "");
        Duration patience = Duration.ofSeconds(50); // on a busy machine; each needs a second or two
        expected.forEach(
                (template, text) ->
                        assertEquals(
                                text,
                                assertTimeoutPreemptively(
                                        patience, () -> render(template, Map.of()))));
    }

    @Test
    void limitsOfNumbersAndTexts() {
        assertEquals("yes", render("{{ 'yes' if 'nan'|float }}", Map.of()));
        assertEquals("abc", render("{{ 'abc'.ljust(-10 ** 13) }}", Map.of()));
        assertTrue(refusal("{{ 'abc'|truncate(-10 ** 13) }}").contains("truncate"));
        assertEquals("x z", render("{{ '<p a=\"b\">x</p>\n z<br/>'|striptags }}", Map.of()));
        assertEquals(
                "0.1 1e+22 123456789012345.67 5e-324 0.30000000000000004 100.0",
                render(
                        "{{ 0.1 }} {{ 1e22 }} {{ 123456789012345.67 }} {{ '5e-324'|float }} {{ 0.1"
                                + " + 0.2 }} {{ 1e2 }}",
                        Map.of()));
        String part = "x".repeat(20);
        assertEquals(
                "[20, -1] ['a', 'b', ''] ab 2",
                render(
                        "{{ [t.find(p), t.find(p ~ 'y')] }} {{ u.split(p) }} {{"
                                + " u.replace(p, '') }} {{ u.count(p) }}",
                        Map.of(
                                "p", part,
                                "t", "y".repeat(20) + part + "z" + part,
                                "u", "a" + part + "b" + part)));
        assertEquals(
                "[True, False, True, False]",
                render(
                        "{{ ['\\ue000' < '\\U00010000', '\\U00010000' < '\\ue000', 'a' < 'ab', 'b'"
                                + " < 'ab'] }}",
                        Map.of()));
        assertEquals(
                "['\\x01\\u2028'] \"\\u0001\" %C3%A9%25",
                render(
                        "{{ ['\\x01\\u2028'] }} {{ '\\x01'|tojson }} {{ '\\u00e9%'|urlencode }}",
                        Map.of()));
    }

    @Test
    void sourcesMayBeLongOrDeep() {
        assertEquals("5001", render("{{ 1" + " + 1".repeat(5000) + " }}", Map.of()));
        assertEquals("x", render("{{ " + "'' or ".repeat(5000) + "'x' }}", Map.of()));
        assertEquals("x", render("{{ 'x '" + "|trim".repeat(5000) + " }}", Map.of()));
        for (String deep :
                List.of(
                        "{{ " + "(".repeat(100_000),
                        "{{ " + "[".repeat(5000) + "]".repeat(5000) + " }}",
                        "{{ " + "not ".repeat(5000) + "1 }}",
                        "{{ " + "-".repeat(5000) + "1 }}",
                        "{{ x" + ".a".repeat(5000) + " }}",
                        "{{ x" + "()".repeat(5000) + " }}",
                        "{{ 1" + " if 1 else 1".repeat(5000) + " }}",
                        "{% if t %}".repeat(5000))) {
            assertFalse(refusal(deep).isEmpty(), deep);
        }
        Map<String, Object> nested = new HashMap<>();
        for (int i = 0; i < 1000; i++) {
            nested = new HashMap<>(Map.of("a", nested));
        }
        Map<String, Object> variables = nested;
        assertThrows(IllegalArgumentException.class, () -> render("{{ a }}", variables));
    }

    @Test
    void otherObjectsAreNotTaken() {
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> render("{{ x }}", Map.of("x", new StringBuilder("a").getClass())));
        assertTrue(e.getMessage().contains("java.lang.Class"), e::getMessage);
    }

    /** Which jinja variables a caller should have given. */
    @Test
    void namesAreThoseThatAreRead() {
        assertTrue(Template.parse("{% for t in tools %}{% endfor %}").names().contains("tools"));
        assertFalse(
                Template.parse("{% set tools = 1 %}tools{{ x.tools }}").names().contains("tools"));
    }

    /** Arguments of a tool's call are JSON where they are added to a text; Python refuses to. */
    @Test
    void argumentsAreJsonInTexts() {
        Map<String, Object> arguments = Map.of("a", new Template.Arguments(Map.of("x", 1.5)));
        assertEquals(
                "b{\"x\": 1.5} {'x': 1.5} b{'x': 1.5} True",
                render("{{ 'b' + a }} {{ a }} {{ 'b' ~ a }} {{ a is mapping }}", arguments));
        assertTrue(refusal("{{ 'b' + messages[0] }}").contains("str and dict"));
    }

    @Test
    void datesAreThoseOfPython() {
        LocalDateTime time = LocalDateTime.of(2024, 7, 6, 15, 4, 5);
        assertEquals(
                "06 Jul 2024, 6 July; Saturday Sat 15:04:05 03 PM 24-07 100%  6 2024-07-06",
                Globals.strftime("%d %b %Y, %-d %B; %A %a %H:%M:%S %I %p %y-%m 100%% %e %F", time));
        assertThrows(TemplateError.class, () -> Globals.strftime("%Q", time));
    }

    @Test
    void aTemplateMayBeRenderedByThreads() {
        Template template =
                Template.parse(
                        "{% set a %}{{ x }}{% endset %}{% filter upper %}{{ x }}{% endfilter %}{{ a"
                                + " }}");
        List<Integer> numbers = java.util.stream.IntStream.range(0, 2000).boxed().toList();
        assertTrue(
                numbers.parallelStream()
                        .allMatch(
                                i ->
                                        template.render(Map.of("x", "x" + i))
                                                .equals("X" + i + "x" + i)));
    }
}
