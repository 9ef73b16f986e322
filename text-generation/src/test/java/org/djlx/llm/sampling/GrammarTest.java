// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.networknt.schema.InputFormat;
import com.networknt.schema.JsonSchemaFactory;
import com.networknt.schema.SpecVersion;
import com.networknt.schema.ValidationMessage;
import java.io.ByteArrayOutputStream;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.djlx.fusedops.serving.RequestJson;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class GrammarTest {

    private static final int STOP = 256; // a special token
    private static final List<byte[]> TOKENS = tokens();
    private static final Vocabulary BYTES =
            new Vocabulary(
                    IntStream.range(0, 256).mapToObj(each -> new byte[] {(byte) each}).toList(),
                    256);
    private static final Vocabulary VOCABULARY = new Vocabulary(TOKENS, TOKENS.size() + 7);
    private static final JsonSchemaFactory VALIDATORS =
            JsonSchemaFactory.getInstance(SpecVersion.VersionFlag.V202012);

    /** All bytes, special tokens, and tokens of several bytes, also of parts of characters. */
    private static List<byte[]> tokens() {
        List<byte[]> tokens = new ArrayList<>();
        for (int b = 0; b < 256; b++) {
            tokens.add(new byte[] {(byte) b});
        }
        tokens.add(null);
        tokens.add(null);
        for (String text :
                ("{\"|\":|\": |\", \"|\"}|\"],|]}|}}|},|, |[\"|"
                                + " \"|true|alse|null|12|-1|.5|e1|00|\\u|\\\"|  |\n"
                                + "    |ab|abc|abcdefghijkl|\"a\":|\"}|é|中文|\uD83D\uDE00")
                        .split("\\|")) {
            tokens.add(text.getBytes(StandardCharsets.UTF_8));
        }
        byte[] emoji = "\uD83D\uDE00\"".getBytes(StandardCharsets.UTF_8);
        tokens.add(Arrays.copyOfRange(emoji, 0, 2));
        tokens.add(Arrays.copyOfRange(emoji, 2, 5));
        return tokens;
    }

    private static boolean isAllowed(int[] mask, int token) {
        return (mask[token / 32] >>> token & 1) != 0;
    }

    /**
     * Samples uniformly from the allowed tokens, until a text is complete. Sometimes, and always
     * after many tokens, prefers tokens that close a value: a text may otherwise be very long.
     */
    private static String sample(Grammar grammar, Random random) {
        Constraint constraint = new Constraint(grammar, VOCABULARY, STOP);
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        for (int count = 0; !constraint.isComplete(); count++) {
            int[] mask = constraint.mask();
            List<Integer> allowed =
                    IntStream.range(0, TOKENS.size() + 7)
                            .filter(token -> isAllowed(mask, token))
                            .boxed()
                            .toList();
            assertFalse(allowed.isEmpty(), () -> "stuck after " + text + " of " + grammar);
            // In a string, brackets do not close anything.
            boolean inString = isAllowed(mask, 'a');
            for (String closing : inString ? List.of("\"") : List.of("\"", "]}")) {
                List<Integer> closers =
                        allowed.stream()
                                .filter(t -> t == STOP || closing.indexOf(TOKENS.get(t)[0]) >= 0)
                                .toList();
                if (!closers.isEmpty() && (count > 150 || random.nextInt(3) == 0)) {
                    allowed = closers;
                }
            }
            int token = allowed.get(random.nextInt(allowed.size()));
            if (token == STOP) {
                break;
            }
            constraint.accept(token);
            text.writeBytes(TOKENS.get(token));
            assertTrue(count < 5000, () -> "endless: " + text + " of " + grammar);
        }
        try {
            return StandardCharsets.UTF_8
                    .newDecoder()
                    .decode(ByteBuffer.wrap(text.toByteArray()))
                    .toString();
        } catch (CharacterCodingException e) {
            throw new AssertionError("not UTF-8: " + text + " of " + grammar, e);
        }
    }

    private static boolean matches(Grammar grammar, String text) {
        Constraint constraint = new Constraint(grammar, VOCABULARY, STOP);
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            if (!isAllowed(constraint.mask(), b & 255)) {
                return false;
            }
            constraint.accept(b & 255);
        }
        return isAllowed(constraint.mask(), STOP);
    }

    private static JsonObject json(String text) {
        return JsonParser.parseString(text.replace('\'', '"')).getAsJsonObject();
    }

    private static Grammar schema(String text) {
        return Grammar.jsonSchema(json(text));
    }

    @Test
    void answersOfRandomSchemasParseAndValidate() {
        checkRandomSchemas(300, 1);
    }

    @Tag("slow")
    @Test
    void answersOf10000RandomSchemasParseAndValidate() {
        checkRandomSchemas(10_000, 2);
    }

    private static void checkRandomSchemas(int count, long seed) {
        int characters =
                IntStream.range(0, count)
                        .parallel()
                        .map(i -> checkRandomSchema(new Random(seed * count + i)))
                        .sum();
        assertTrue(characters > 10 * count, "the answers are too short to test anything");
    }

    /** Returns the number of characters of an answer. */
    private static int checkRandomSchema(Random random) {
        JsonObject schema = new RandomSchemas(random).next();
        String text = sample(Grammar.jsonSchema(schema), random);
        RequestJson.parse(text, 255); // strictly, with Gson
        Set<ValidationMessage> errors =
                VALIDATORS
                        .getSchema(schema.toString())
                        .validate(
                                text,
                                InputFormat.JSON,
                                context ->
                                        context.getExecutionConfig()
                                                .setFormatAssertionsEnabled(true));
        assertTrue(errors.isEmpty(), () -> text + " of " + schema + ": " + errors);
        return text.length();
    }

    @Test
    void anyObjectParses() {
        Random random = new Random(3);
        for (int i = 0; i < 200; i++) {
            String text = sample(Grammar.jsonObject(), random);
            assertTrue(RequestJson.parse(text, 255).isJsonObject(), text);
        }
        assertTrue(
                matches(
                        Grammar.jsonObject(),
                        "{\"a\": [1, {\"b\": null}],\n  \"\\u00e9\":-0.5e3}"));
        assertFalse(matches(Grammar.jsonObject(), "{\"a\": 1,}"));
        assertFalse(matches(Grammar.jsonObject(), "[1]"));
    }

    /** Compares masks with each token's own bytes, at random states. */
    @Test
    void masksHoldExactlyTheTokensThatContinue() {
        Random random = new Random(4);
        for (int i = 0; i < 100; i++) {
            Constraint constraint =
                    new Constraint(
                            Grammar.jsonSchema(new RandomSchemas(random).next()), VOCABULARY, STOP);
            for (int step = 0; step < 20 && !constraint.isComplete(); step++) {
                int[] mask = constraint.mask();
                List<Integer> allowed = new ArrayList<>();
                for (int token = 0; token < TOKENS.size(); token++) {
                    if (token != STOP) {
                        assertEquals(constraint.allows(token), isAllowed(mask, token));
                    }
                    if (token != STOP && isAllowed(mask, token)) {
                        allowed.add(token);
                    }
                }
                if (allowed.isEmpty()) {
                    break;
                }
                constraint.accept(allowed.get(random.nextInt(allowed.size())));
            }
        }
    }

    @Test
    void specialTokensAreNeverAllowedInside() {
        Constraint constraint = new Constraint(Grammar.regex(".*"), VOCABULARY, STOP);
        int[] mask = constraint.mask();
        assertTrue(isAllowed(mask, 'a'));
        assertTrue(isAllowed(mask, STOP));
        assertFalse(isAllowed(mask, STOP + 1));
        assertFalse(isAllowed(mask, TOKENS.size()), "a token that only the model has");
        assertThrows(IllegalArgumentException.class, () -> constraint.accept(STOP + 1));
    }

    @Test
    void endsWhereATextMayEnd() {
        Constraint constraint =
                new Constraint(Grammar.choice(List.of("a", "abc", "b")), VOCABULARY, STOP);
        assertFalse(isAllowed(constraint.mask(), STOP));
        constraint.accept('a');
        assertTrue(isAllowed(constraint.mask(), STOP));
        assertFalse(constraint.isComplete());
        constraint.accept('b');
        assertFalse(isAllowed(constraint.mask(), STOP));
        constraint.accept('c');
        assertTrue(constraint.isComplete());
    }

    @Test
    void samplesWholeChoices() {
        Random random = new Random(5);
        List<String> texts = List.of("yes", "no", "中文é", "abcdefghijkl");
        for (int i = 0; i < 50; i++) {
            assertTrue(texts.contains(sample(Grammar.choice(texts), random)));
        }
    }

    private static final List<String> REGEXES =
            List.of(
                    "a|bc|",
                    "(?:ab)*c+d?",
                    "[a-c]{2,3}x",
                    "[^a-y\\n]{0,3}",
                    "\\d{1,2}\\.\\d+",
                    "(a|ab)(c|bcd)(d*)",
                    "\\w+@\\w+\\.(?:com|org)",
                    "^a.c$|^\\s?b$",
                    "(a*)*b",
                    "[\\]a]?[-x][\\]\\-]",
                    "\\x41\\u00e9[\\u4e00-\\u9fff]?",
                    "é+😀?",
                    "(?<year>19|20)\\d\\d",
                    "a{0}b{3}",
                    "\\S\\D\\W",
                    "a*?b+?c??");

    @Test
    void regularExpressionsMatchAsJavas() {
        Random random = new Random(6);
        String alphabet = "abcdxyz019@.-] \né中😀A_";
        int[] codePoints = alphabet.codePoints().toArray();
        int matching = 0;
        for (String regex : REGEXES) {
            Grammar grammar = Grammar.regex(regex);
            Pattern pattern = Pattern.compile(regex);
            for (int i = 0; i < 200; i++) {
                String text = sample(grammar, random);
                assertTrue(pattern.matcher(text).matches(), () -> regex + ": " + text);
                StringBuilder changed = new StringBuilder(text);
                int at = random.nextInt(text.length() + 1);
                if (at == 0 || !Character.isHighSurrogate(text.charAt(at - 1))) {
                    changed.insert(
                            at, Character.toString(codePoints[random.nextInt(codePoints.length)]));
                }
                boolean expected = pattern.matcher(changed).matches();
                matching += expected ? 1 : 0;
                assertEquals(
                        expected,
                        matches(grammar, changed.toString()),
                        () -> regex + ": " + changed);
            }
        }
        assertTrue(matching > 100, "too few changed texts still match");
    }

    @Test
    void refusesUnsupportedRegularExpressions() {
        for (String regex :
                List.of(
                        "a(?=b)",
                        "(?!a)b",
                        "(?i)a",
                        "\\ba",
                        "(a)\\1",
                        "\\p{L}",
                        "a**",
                        "*a",
                        "(a",
                        "a)",
                        "[a",
                        "[b-a]",
                        "a{3,2}",
                        "a{99999}",
                        "a^b",
                        "\\",
                        "[a&&b]",
                        "(^a)")) {
            IllegalArgumentException e =
                    assertThrows(IllegalArgumentException.class, () -> Grammar.regex(regex), regex);
            assertTrue(e.getMessage().contains(regex), e::getMessage);
        }
    }

    @Test
    void numbersStayWithinTheirBounds() {
        Random random = new Random(7);
        for (int i = 0; i < 400; i++) {
            int scale = random.nextInt(3);
            BigDecimal low = BigDecimal.valueOf(random.nextInt(400) - 200, scale);
            BigDecimal high = low.add(BigDecimal.valueOf(random.nextInt(150), random.nextInt(3)));
            boolean isInteger = random.nextBoolean();
            boolean above = random.nextBoolean();
            boolean below = random.nextBoolean();
            boolean hasHigh = random.nextInt(4) > 0;
            JsonObject schema = new JsonObject();
            schema.addProperty("type", isInteger ? "integer" : "number");
            schema.addProperty(above ? "exclusiveMinimum" : "minimum", low);
            if (hasHigh) {
                schema.addProperty(below ? "exclusiveMaximum" : "maximum", high);
            }
            Grammar grammar;
            try {
                grammar = Grammar.jsonSchema(schema);
            } catch (IllegalArgumentException e) {
                assertTrue(e.getMessage().contains("no text"), e::getMessage);
                grammar = null; // Then no number below may be in the range.
            }
            for (int j = 0; j < 60; j++) {
                BigDecimal number =
                        isInteger
                                ? BigDecimal.valueOf(random.nextInt(500) - 250)
                                : BigDecimal.valueOf(random.nextInt(5000) - 2500, 1 + j % 2);
                int toLow = number.compareTo(low);
                int toHigh = number.compareTo(high);
                boolean expected =
                        (above ? toLow > 0 : toLow >= 0)
                                && (!hasHigh || (below ? toHigh < 0 : toHigh <= 0));
                if (number.signum() == 0) {
                    number = BigDecimal.ZERO;
                }
                boolean actual = grammar != null && matches(grammar, number.toPlainString());
                assertEquals(expected, actual, schema + ": " + number);
            }
        }
    }

    /** Each line: a schema, values that it allows, values that it does not. */
    @Test
    void keywordsOfClientsAreFollowed() {
        String shapes =
                "{'oneOf': [{'$ref': '#/$defs/a'}, {'type': 'object', 'properties': {'k': {'const':"
                    + " 'b'}}, 'required': ['k'], 'additionalProperties': false}], 'discriminator':"
                    + " {'propertyName': 'k'}, '$defs': {'a': {'type': 'object', 'properties':"
                    + " {'k': {'const': 'a'}, 'n': {'type': 'integer'}}, 'required': ['k', 'n'],"
                    + " 'additionalProperties': false}}}";
        String[][] cases = {
            {shapes, "{'k':'a','n':1} {'k':'b'}", "{'k':'a'} {'k':'b','n':1} {'k':'c'} {}"},
            {"{'oneOf': [{'type': 'string'}, {'type': 'null'}]}", "'a' null", "1 {}"},
            {
                "{'type': 'object', 'propertyNames': {'enum': ['a', 'b']},"
                        + " 'additionalProperties': {'type': 'integer'}}",
                "{} {'a':1} {'b':2,'a':1}",
                "{'c':1} {'a':'x'}"
            },
            {
                "{'type': 'object', 'propertyNames': {'pattern': '^x'}, 'properties': {'xa':"
                    + " {'type': 'null'}, 'y': {}}, 'additionalProperties': {'type': 'integer'}}",
                "{} {'xa':null} {'xb':1} {'xa':null,'xb':1}",
                "{'y':1} {'z':1} {'xa':1}"
            },
            {
                "{'type': 'array', 'items': [{'type': 'integer'}, {'type': 'null'}],"
                        + " 'additionalItems': false}",
                "[] [1] [1,null]",
                "[null] [1,null,1]"
            },
            {
                "{'type': 'array', 'items': [{'type': 'integer'}], 'additionalItems': {'type':"
                        + " 'null'}, 'minItems': 1}",
                "[1] [1,null,null]",
                "[] [1,1]"
            },
            {
                "{'type': 'array', 'items': {'type': 'null'}, 'additionalItems': false}",
                "[null]",
                "[1]"
            },
            {"{'type': 'string', 'nullable': true}", "null 'a'", "1"},
            {"{'enum': ['a'], 'nullable': true}", "null 'a'", "'b'"},
            {
                "{'oneOf': [{'enum': ['a'], 'nullable': true}, {'enum': ['b']}]}",
                "null 'a' 'b'",
                "'c'"
            },
            {"{'type': 'null', 'x-order': 3, 'discriminator': {}, 'example': 1}", "null", "1"},
            {
                "{'type': 'array', 'items': {'enum': ['a', 'b', 'c']}, 'uniqueItems': true,"
                        + " 'minItems': 1, 'maxItems': 2}",
                "['a'] ['c','a'] ['b','c']",
                "[] ['a','a'] ['a','b','c'] ['d']"
            },
            {"{'type': 'array', 'items': {'enum': [1]}, 'uniqueItems': true}", "[] [1]", "[1,1]"},
            {"{'type': 'number', 'multipleOf': 0.01}", "0 -1.25 3.1", "0.125 1e3"},
        };
        for (String[] each : cases) {
            Grammar grammar = schema(each[0]);
            for (int column = 1; column < 3; column++) {
                for (String value : each[column].split(" ")) {
                    assertEquals(
                            column == 1,
                            matches(grammar, value.replace('\'', '"')),
                            each[0] + value);
                }
            }
        }
    }

    @Test
    void integersAreMultiples() {
        for (int divisor : new int[] {2, 7, 300}) {
            Grammar all = schema("{'type': 'integer', 'multipleOf': " + divisor + "}");
            Grammar some =
                    schema(
                            "{'type': 'integer', 'minimum': -500, 'exclusiveMaximum': 900,"
                                    + " 'multipleOf': "
                                    + divisor
                                    + "}");
            for (int i = -990; i < 1000; i += 15) {
                boolean isMultiple = i % divisor == 0;
                assertEquals(isMultiple, matches(all, "" + i), divisor + ": " + i);
                boolean isBetween = i >= -500 && i < 900;
                assertEquals(isMultiple && isBetween, matches(some, "" + i), divisor + ": " + i);
            }
            assertTrue(matches(all, "" + divisor * 987654321L), () -> "" + divisor);
            assertFalse(matches(all, "" + divisor * 987654321L + ".5"), () -> "" + divisor);
        }
    }

    @Test
    void refusesUnsupportedKeywordsByName() {
        for (String schema :
                List.of(
                        "{'not': {}}",
                        "{'oneOf': [{}, {'type': 'null'}]}",
                        "{'oneOf': [{'enum': ['a'], 'nullable': true}, {'enum': ['b', null]}]}",
                        "{'oneOf': [{'$ref': '#/$defs/a', 'nullable': true}, {'enum': ['b'],"
                                + " 'nullable': true}], '$defs': {'a': {'const': 'a'}}}",
                        "{'allOf': [{'type': 'null'}, {}]}",
                        "{'anyOf': [{}], 'minLength': 2}",
                        "{'type': 'object', 'patternProperties': {}}",
                        "{'type': 'object', 'properties': {'a': {'minProperties': 1}}}",
                        "{'type': 'array', 'contains': {}}",
                        "{'type': 'array', 'uniqueItems': true}",
                        "{'type': 'number', 'multipleOf': 0.3}",
                        "{'if': {}, 'then': {}}",
                        "{'anyOf': [{'dependentRequired': {}}]}",
                        "{'type': 'string', 'format': 'iri'}",
                        "{'const': 1, 'minimum': 2}",
                        "{'$ref': '#/$defs/a', 'minimum': 2, '$defs': {'a': {'type': 'number'}}}",
                        "{'$dynamicRef': '#a'}")) {
            String keyword =
                    Pattern.compile(
                                    "not|oneOf|allOf|minLength|patternProperties|minProperties|contains|uniqueItems|multipleOf"
                                        + "|if|dependentRequired|iri|minimum|dynamicRef|nullable")
                            .matcher(schema)
                            .results()
                            .findFirst()
                            .orElseThrow()
                            .group();
            IllegalArgumentException e =
                    assertThrows(IllegalArgumentException.class, () -> schema(schema), schema);
            assertTrue(e.getMessage().contains(keyword), e::getMessage);
        }
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> schema("{'properties': {'a': {'items': {'not': {}}}}}"));
        assertTrue(e.getMessage().contains("#/properties/a/items"), e::getMessage);
    }

    @Test
    void refusesWrongSchemas() {
        for (String schema :
                List.of(
                        "{'$ref': '#'}",
                        "{'anyOf': [{'type': 'null'}, {'$ref': '#'}]}",
                        "{'properties': {'a': false}, 'required': ['a']}",
                        "{'required': ['a'], 'additionalProperties': false}",
                        "{'enum': []}",
                        "{'enum': 'a'}",
                        "{'const': 1, 'enum': [2, '1']}",
                        "{'prefixItems': {}}",
                        "{'const': 1, 'type': 'string'}",
                        "{'type': 'string', 'pattern': '^a{3}$', 'maxLength': 2}",
                        "{'type': 'array', 'minItems': 2, 'maxItems': 1}",
                        "{'type': 'string', 'minLength': 2, 'maxLength': 1}",
                        "{'$ref': '#/$defs/missing'}",
                        "{'type': 'text'}",
                        "{'type': 'string', 'minLength': 'x'}",
                        "{'properties': []}",
                        "{'required': 'a'}",
                        "{'pattern': []}",
                        "{'$ref': 1}",
                        "{'uniqueItems': {}}")) {
            assertThrows(IllegalArgumentException.class, () -> schema(schema), schema);
        }
    }

    /** Not among the random schemas: the validator refuses domains that are not registered. */
    @Test
    void emailAddresses() {
        Grammar email = schema("{'type': 'string', 'format': 'email'}");
        for (String address : List.of("a@example.org", "first.last+tag@mail.example.co.uk")) {
            assertTrue(matches(email, '"' + address + '"'), address);
        }
        for (String address :
                List.of("a", "@example.org", "a@org", "a..b@example.org", "a b@c.de")) {
            assertFalse(matches(email, '"' + address + '"'), address);
        }
    }

    @Test
    void recursiveSchemas() {
        Grammar tree =
                schema(
                        "{'$ref': '#/$defs/node', '$defs': {'node': {'type': 'object',"
                            + " 'properties': {'value': {'type': 'integer'}, 'children': {'type':"
                            + " 'array', 'items': {'$ref': '#/$defs/node'}}}, 'required':"
                            + " ['value']}}}");
        assertTrue(
                matches(
                        tree,
                        "{\"value\": 1, \"children\": [{\"value\": 2}, {\"value\": 3,"
                                + " \"children\": [{\"value\":4}]}]}"));
        assertFalse(matches(tree, "{\"value\": 1, \"children\": [{\"value\": \"2\"}]}"));
        String deep = "{\"value\":1,\"children\":[".repeat(2000) + "]}".repeat(2000);
        assertTrue(matches(tree, deep), "no limit of the depth");
    }

    @Test
    void referencesAreDecoded() {
        Grammar sum = schema("{'$ref': '#/$defs/a+b%20c~1d', '$defs': {'a+b c/d': {'const': 1}}}");
        assertTrue(matches(sum, "1"));
    }

    @Test
    void aConstantIsOneOfTheEnum() {
        Grammar one = schema("{'const': 1, 'enum': [2, 1]}");
        assertTrue(matches(one, "1"));
        assertFalse(matches(one, "2"));
    }

    @Test
    void recursionThatNeverEndsIsRefused() {
        for (String schema :
                List.of(
                        "{'$ref': '#/$defs/a', '$defs': {'a': {'properties': {'next': {'$ref':"
                                + " '#/$defs/a'}}, 'required': ['next']}}}",
                        "{'items': {'$ref': '#/$defs/a'}, '$defs': {'a': {'items': {'$ref':"
                                + " '#/$defs/b'}, 'minItems': 1}, 'b': {'anyOf': [{'$ref':"
                                + " '#/$defs/a'}, false]}}}",
                        "{'properties': {'x': {'$ref': '#/$defs/a'}}, '$defs': {'a': false}}")) {
            IllegalArgumentException e =
                    assertThrows(IllegalArgumentException.class, () -> schema(schema), schema);
            assertTrue(e.getMessage().matches(".*#/\\$defs/[ab]: .*never ends.*"), e::getMessage);
        }
        Grammar list =
                schema(
                        "{'$ref': '#/$defs/a', '$defs': {'a': {'properties': {'next': {'anyOf':"
                                + " [{'type': 'null'}, {'$ref': '#/$defs/a'}]}}, 'required':"
                                + " ['next']}}}");
        assertTrue(matches(list, "{\"next\": {\"next\": null}}"));
    }

    @Test
    void additionalPropertiesDoNotRepeatDeclaredOnes() {
        Grammar grammar =
                schema(
                        "{'properties': {'a': {'type': 'integer'}, 'ab': {}},"
                                + " 'additionalProperties': {'type': 'boolean'}}");
        assertTrue(matches(grammar, "{\"a\": 1, \"b\": true, \"abc\": false}"));
        assertTrue(matches(grammar, "{\"\": true}"));
        assertFalse(matches(grammar, "{\"b\": true, \"a\": true}"));
        assertFalse(matches(grammar, "{\"b\": 1}"));
    }

    @Test
    void grammarsOfEqualArgumentsShareTheirMasks() {
        Grammar one = schema("{'type': 'integer'}");
        assertEquals(one, schema("{'type': 'integer'}"));
        assertEquals(one.hashCode(), schema("{'type': 'integer'}").hashCode());
        assertNotEquals(one, schema("{'type': 'number'}"));
        assertNotEquals(one, Grammar.regex("a"));
        assertEquals(VOCABULARY.masks(one), VOCABULARY.masks(schema("{'type': 'integer'}")));
        Constraint constraint = new Constraint(one, VOCABULARY, STOP);
        assertArrayEquals(constraint.mask(), new Constraint(one, VOCABULARY, STOP).mask());
    }

    @Test
    void combinesGrammars() {
        Grammar calls =
                Grammar.sequence(
                        Grammar.choice(List.of("[")),
                        Grammar.anyOf(List.of(Grammar.regex("a+"), schema("{'type': 'boolean'}")))
                                .separatedBy("; "),
                        Grammar.choice(List.of("]")));
        assertTrue(matches(calls, "[aaa]"));
        assertTrue(matches(calls, "[a; true; aa; false]"));
        assertFalse(matches(calls, "[]"));
        assertFalse(matches(calls, "[a;true]"));
    }

    @Test
    void refusesNullArguments() {
        Grammar grammar = Grammar.regex("a");
        List<Executable> calls =
                List.of(
                        () -> Grammar.jsonSchema(null),
                        () -> Grammar.regex(null),
                        () -> Grammar.regex(null, "a"),
                        () -> Grammar.regex("a", null),
                        () -> Grammar.regex("a", "a|b"),
                        () -> Grammar.choice(null),
                        () -> Grammar.choice(Arrays.asList("a", null)),
                        () -> Grammar.anyOf(null),
                        () -> Grammar.anyOf(List.of()),
                        () -> Grammar.sequence((Grammar[]) null),
                        () -> Grammar.sequence(grammar, null),
                        () -> grammar.separatedBy(null),
                        () -> new Vocabulary(null, 1),
                        () -> new Constraint(null, VOCABULARY),
                        () -> new Constraint(grammar, null));
        calls.forEach(call -> assertThrows(IllegalArgumentException.class, call));
    }

    /** Random schemas of the supported keywords. */
    private static final class RandomSchemas {

        private static final List<String> NAMES =
                List.of("a", "ab", "name", "größe", "a\"b\\", "x/y~z", "");
        private final Random random;

        RandomSchemas(Random random) {
            this.random = random;
        }

        JsonObject next() {
            JsonObject schema = schema(3);
            if (random.nextInt(4) == 0) {
                JsonObject wrapped =
                        json(
                                "{'type': 'object', 'properties': {'head': {'$ref':"
                                        + " '#/$defs/node'}}}");
                wrapped.getAsJsonObject("properties").add("value", schema);
                wrapped.add(
                        "$defs",
                        json(
                                "{'node': {'type': ['object', 'null'], 'properties': {'next':"
                                        + " {'$ref': '#/$defs/node'}}}}"));
                if (random.nextBoolean()) {
                    wrapped.getAsJsonObject("$defs")
                            .getAsJsonObject("node")
                            .add("required", array("next"));
                }
                return wrapped;
            }
            return schema;
        }

        private static JsonArray array(String... texts) {
            JsonArray array = new JsonArray();
            Arrays.stream(texts).forEach(array::add);
            return array;
        }

        private JsonObject schema(int depth) {
            JsonObject schema = new JsonObject();
            if (random.nextInt(5) == 0) {
                schema.addProperty("description", "not a keyword");
            }
            switch (random.nextInt(depth > 0 ? 14 : 8)) {
                case 0 -> schema.addProperty("type", random.nextBoolean() ? "boolean" : "null");
                case 1 -> numbers(schema);
                case 2 -> strings(schema);
                case 3 -> {
                    schema.addProperty("type", "string");
                    String[] patterns = {
                        "^[a-c]{2,5}$", "\\d", "^\\w+ |é", "^[\"\\\\]+$", "^[^a-z]*$", "^.{0,4}$"
                    };
                    schema.addProperty("pattern", patterns[random.nextInt(patterns.length)]);
                    if (random.nextInt(3) == 0) {
                        schema.addProperty("minLength", 2);
                        schema.addProperty("maxLength", 5);
                    }
                }
                case 4 -> {
                    schema.addProperty("type", "string");
                    String[] formats = {
                        "date",
                        "time",
                        "date-time",
                        "duration",
                        "hostname",
                        "ipv4",
                        "ipv6",
                        "uri",
                        "uuid"
                    };
                    schema.addProperty("format", formats[random.nextInt(formats.length)]);
                }
                case 5 ->
                        schema.add(
                                "enum",
                                JsonParser.parseString(
                                        "[1, -2.5, \"a\\\"\\n"
                                                + "\", null, true, {\"a\": [1]}, \"é\"]"));
                case 6 -> schema.addProperty("const", "c" + random.nextInt(9));
                case 7 -> schema.add("type", array("integer", "string", "boolean"));
                case 8, 9 -> array(schema, depth);
                case 10 -> schema.add("anyOf", alternatives(depth));
                default -> object(schema, depth);
            }
            return schema;
        }

        private void numbers(JsonObject schema) {
            boolean isInteger = random.nextBoolean();
            schema.addProperty("type", isInteger ? "integer" : "number");
            double low = (random.nextInt(4000) - 2000) / (isInteger ? 1.0 : 100.0);
            if (random.nextBoolean()) {
                schema.addProperty(random.nextBoolean() ? "minimum" : "exclusiveMinimum", low);
            }
            if (random.nextBoolean()) {
                schema.addProperty(
                        random.nextBoolean() ? "maximum" : "exclusiveMaximum",
                        low + 2.5 + random.nextInt(2000));
            }
        }

        private void strings(JsonObject schema) {
            schema.addProperty("type", "string");
            int min = random.nextInt(4);
            if (random.nextBoolean()) {
                schema.addProperty("minLength", min);
            }
            if (random.nextBoolean()) {
                schema.addProperty("maxLength", min + random.nextInt(6));
            }
        }

        private void array(JsonObject schema, int depth) {
            schema.addProperty("type", "array");
            int prefix = random.nextInt(3);
            if (prefix > 0) {
                JsonArray items = new JsonArray();
                for (int i = 0; i < prefix; i++) {
                    items.add(schema(depth - 1));
                }
                schema.add("prefixItems", items);
            }
            boolean isClosed = prefix > 0 && random.nextInt(3) == 0;
            if (isClosed) {
                schema.addProperty("items", false);
            } else if (random.nextInt(5) > 0) {
                schema.add("items", schema(depth - 1));
            }
            int min = random.nextInt(isClosed ? prefix + 1 : 4);
            if (random.nextBoolean()) {
                schema.addProperty("minItems", min);
            }
            if (random.nextBoolean()) {
                schema.addProperty("maxItems", min + random.nextInt(3));
            }
        }

        /** Alternatives, two of which begin alike. */
        private JsonArray alternatives(int depth) {
            JsonArray alternatives = new JsonArray();
            for (int i = 0; i < 2; i++) {
                JsonObject object = new JsonObject();
                object(object, depth);
                object.getAsJsonObject("properties").add("kind", json("{'const': 'k" + i + "'}"));
                JsonArray required =
                        object.has("required")
                                ? object.getAsJsonArray("required")
                                : new JsonArray();
                required.add("kind");
                object.add("required", required);
                alternatives.add(object);
            }
            JsonObject number = new JsonObject();
            numbers(number);
            alternatives.add(number);
            JsonObject text = new JsonObject();
            strings(text);
            alternatives.add(text);
            return alternatives;
        }

        private void object(JsonObject schema, int depth) {
            schema.addProperty("type", "object");
            JsonObject properties = new JsonObject();
            JsonArray required = new JsonArray();
            for (String name : NAMES) {
                if (random.nextInt(3) == 0) {
                    properties.add(name, schema(depth - 1));
                    if (random.nextBoolean()) {
                        required.add(name);
                    }
                }
            }
            schema.add("properties", properties);
            if (random.nextBoolean()) {
                if (random.nextInt(4) == 0) {
                    required.add("more");
                }
                schema.add("required", required);
            }
            boolean needsOthers = required.contains(array("more").get(0)) && schema.has("required");
            switch (random.nextInt(4)) {
                case 0 -> schema.addProperty("additionalProperties", needsOthers);
                case 1 -> schema.addProperty("additionalProperties", true);
                default -> {
                    if (needsOthers || random.nextBoolean()) {
                        schema.add("additionalProperties", schema(depth - 1));
                    }
                }
            }
        }
    }

    /** A chain of references in which each names two others: 2^80 ways lead to its end. */
    @Test
    @Timeout(60)
    void referencesThatAreReachedManyWaysAreWalkedOnce() {
        StringBuilder schema = new StringBuilder("{'$ref':'#/$defs/0','$defs':{'80':{'const':1},");
        for (int i = 0; i < 80; i++) {
            String next = "{'$ref':'#/$defs/" + (i + 1) + "'}";
            String list = "{'type':'array','minItems':1,'items':" + next + "}";
            schema.append("'" + i + "':{'anyOf':[" + next + "," + list + "," + next + "]},");
        }
        String json = schema.append("'x':{}}}").toString().replace('\'', '"');
        Grammar grammar = Grammar.jsonSchema(JsonParser.parseString(json).getAsJsonObject());
        Constraint constraint = new Constraint(grammar, BYTES);
        for (char c : "[[[[1]]]]".toCharArray()) {
            assertTrue((constraint.mask()[c / 32] >>> c & 1) != 0);
            constraint.accept(c);
        }
        assertTrue(constraint.isComplete());
    }

    @Test
    void referencesAreNestedSoDeepOnly() {
        StringBuilder schema =
                new StringBuilder("{'$ref':'#/$defs/0','$defs':{'2000':{'const':1},");
        for (int i = 0; i < 2000; i++) {
            schema.append("'" + i + "':{'anyOf':[{'$ref':'#/$defs/" + (i + 1) + "'}]},");
        }
        String json = schema.append("'x':{}}}").toString().replace('\'', '"');
        JsonObject object = JsonParser.parseString(json).getAsJsonObject();
        IllegalArgumentException e =
                assertThrows(IllegalArgumentException.class, () -> Grammar.jsonSchema(object));
        assertTrue(e.getMessage().contains("nested more than"), e::getMessage);
    }

    /** The states of such expressions are sets of 10,000 places. */
    @ParameterizedTest
    @ValueSource(strings = {"(?:[a-z]{0,100}){100}", "(?:[a-z]{0,10000}x){10000}"})
    @Timeout(60)
    void expressionsWithTooManyStatesAreRefused(String regex) {
        Constraint constraint = new Constraint(Grammar.regex(regex), BYTES);
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> {
                            for (int i = 0; i < 20_000; i++) {
                                constraint.mask();
                                constraint.accept('a' + i % 24);
                            }
                        });
        assertTrue(e.getMessage().contains("too many states"), e::getMessage);
    }

    /** A derivative descends into each optional part, until the stack overflows. */
    @Test
    void manyOptionalPartsInARowAreRefused() {
        Grammar.regex("(a?)".repeat(700));
        for (String regex : List.of("(a?)".repeat(3000), "(a|b*)".repeat(100_000))) {
            Exception e = assertThrows(IllegalArgumentException.class, () -> Grammar.regex(regex));
            assertTrue(e.getMessage().contains("too many"), e::getMessage);
        }
    }

    @Test
    void wideSchemasAreCompiledOrRefused() {
        for (int properties : new int[] {1_200, 20_000}) {
            for (boolean required : new boolean[] {true, false}) {
                JsonObject schema = wide(properties, required);
                if (properties == 1_200 && required) {
                    Constraint constraint = new Constraint(Grammar.jsonSchema(schema), BYTES);
                    for (char c : "{\"property_0\":\"x\",\"property_1\":".toCharArray()) {
                        assertTrue((constraint.mask()[c / 32] >>> c & 1) != 0);
                        constraint.accept(c);
                    }
                } else {
                    assertTooManyStates(() -> Grammar.jsonSchema(schema));
                }
            }
        }
    }

    /** Equal schemas have equal terms, so that only the work to make them counts. */
    @Test
    void repeatedSchemasAreRefused() {
        JsonArray alternatives = new JsonArray();
        for (int i = 0; i < 5_000; i++) {
            alternatives.add(wide(30, false));
        }
        JsonObject schema = new JsonObject();
        schema.add("anyOf", alternatives);
        assertTooManyStates(() -> Grammar.jsonSchema(schema));
    }

    private static void assertTooManyStates(Executable compile) {
        IllegalArgumentException e = assertThrows(IllegalArgumentException.class, compile);
        assertTrue(e.getMessage().contains("too many states"), e::getMessage);
    }

    private static JsonObject wide(int count, boolean required) {
        JsonObject properties = new JsonObject();
        JsonArray names = new JsonArray();
        for (int i = 0; i < count; i++) {
            JsonObject text = new JsonObject();
            text.addProperty("type", "string");
            properties.add("property_" + i, text);
            names.add("property_" + i);
        }
        JsonObject schema = new JsonObject();
        schema.add("properties", properties);
        if (required) {
            schema.add("required", names);
        }
        return schema;
    }

    @Test
    void textsThatAreNoUnicodeAreRefused() {
        JsonObject schema = new JsonObject();
        schema.addProperty("const", "\ud800");
        assertThrows(IllegalArgumentException.class, () -> Grammar.jsonSchema(schema));
        assertThrows(IllegalArgumentException.class, () -> Grammar.choice(List.of("\ud800")));
    }
}
