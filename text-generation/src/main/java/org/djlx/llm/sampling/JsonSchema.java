// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/**
 * Compiles a JSON schema to a term. {@link Grammar#jsonSchema} says what is supported. Every
 * keyword that is not known is refused, so no keyword is ignored.
 */
final class JsonSchema {

    private enum Type {
        OBJECT("properties", "required", "additionalProperties", "propertyNames"),
        ARRAY("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        STRING("minLength", "maxLength", "pattern", "format"),
        NUMBER("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        INTEGER(),
        BOOLEAN(),
        NULL();

        private final Set<String> keywords;

        Type(String... keywords) {
            this.keywords = Set.of(keywords);
        }
    }

    private static final Set<Type> ALL =
            EnumSet.complementOf(EnumSet.of(Type.INTEGER)); // A number may be an integer.
    private static final Gson GSON =
            new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final int MAX_SIZE = 10_000; // of strings and arrays
    private static final int MAX_NUMBER_LENGTH = 40; // of bounds
    private static final int MAX_DEPTH = 200;
    private static final int MAX_UNIQUE = 8; // constants of which an array has each once
    private static final int MAX_DIVISOR = 20;
    private static final int MAX_MULTIPLES = 1_000; // that are listed

    /** Keywords that do not change which values are valid. */
    private static final Set<String> ANNOTATIONS =
            Set.of(
                    ("$schema $id $comment $anchor $defs definitions title description default"
                                    + " examples deprecated readOnly writeOnly contentEncoding"
                                    + " contentMediaType contentSchema" // the rest is OpenAPI's
                                    + " nullable discriminator example externalDocs xml")
                            .split(" ")); // value() reads nullable

    private static final String DATE =
            "(?:19|20)\\d\\d-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\\d|2[0-8])"
                    + "|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)";
    private static final String TIME =
            "(?:[01]\\d|2[0-3])(?::[0-5]\\d){2}(?:\\.\\d{1,9})?(?:Z|[+-](?:0[1-9]|1[0-3]):[0-5]\\d)";
    private static final String HOST =
            "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?(?:\\.[a-z]{2,10}){1,3}";
    private static final String OCTET = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";

    private final Terms terms;
    private final JsonObject root;
    private final Map<String, Terms.Term> references = new HashMap<>();
    private final Terms.Term space;
    private final Terms.Term comma;
    private final Terms.Term unescaped; // a character that a JSON string holds as it is
    private final Terms.Term character;
    private final Terms.Term anyString;
    private Terms.Term any; // null until used
    private int depth;

    JsonSchema(Terms terms, JsonObject root) {
        this.terms = terms;
        this.root = root;
        space = regex("(?: |\n {0,32})?");
        comma = terms.sequence(space, terms.literal(","), space);
        Terms.Term escape =
                regex(
                        "\\\\(?:[\"\\\\/bfnrt]|u(?:[0-9A-CEFa-cef][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}"
                            + "|[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))");
        BitSet all = new BitSet();
        all.set(0, Character.MAX_CODE_POINT + 1);
        unescaped = plain(all);
        character = terms.choice(List.of(unescaped, escape));
        anyString = string(terms.repeat(character, 0, Terms.UNBOUNDED));
    }

    Terms.Term compile() {
        try {
            return value(root, "#");
        } catch (IllegalStateException | UnsupportedOperationException | ClassCastException e) {
            throw wrong("#", "a keyword has a value of a wrong type: " + e.getMessage()); // of Gson
        }
    }

    Terms.Term anyObject() {
        return object(new JsonObject(), "#");
    }

    private Terms.Term regex(String regex) {
        return Regex.compile(terms, regex, terms::codePoints, false);
    }

    private Terms.Term plain(BitSet codePoints) {
        BitSet plain = (BitSet) codePoints.clone();
        plain.clear(0, ' ');
        plain.clear('"');
        plain.clear('\\');
        return terms.codePoints(plain);
    }

    /** Returns the term for a code point in a JSON string, escaped where it must be. */
    private Terms.Term escaped(BitSet codePoints) {
        List<Terms.Term> parts = new ArrayList<>();
        parts.add(plain(codePoints));
        for (int c : "\"\\\b\f\n\r\t".chars().toArray()) {
            if (codePoints.get(c)) {
                String quoted = GSON.toJson(String.valueOf((char) c));
                parts.add(terms.literal(quoted.substring(1, quoted.length() - 1)));
            }
        }
        for (int c = codePoints.nextSetBit(0);
                c >= 0 && c < ' ';
                c = codePoints.nextSetBit(c + 1)) {
            parts.add(terms.literal(String.format("\\u%04x", c)));
        }
        return terms.choice(parts);
    }

    private Terms.Term string(Terms.Term content) {
        Terms.Term quote = terms.literal("\"");
        return terms.lexeme(terms.sequence(quote, content, quote));
    }

    private static IllegalArgumentException wrong(String path, String problem) {
        return new IllegalArgumentException("the JSON schema at " + path + ": " + problem);
    }

    private Terms.Term value(JsonElement schema, String path) {
        if (++depth > MAX_DEPTH) {
            throw wrong(path, "schemas and references are nested more than " + MAX_DEPTH + " deep");
        }
        Terms.Term term = valueOf(schema, path);
        depth--;
        boolean isNullable = schema instanceof JsonObject object && flag(object, "nullable");
        return isNullable ? terms.choice(List.of(term, terms.literal("null"))) : term;
    }

    private static boolean flag(JsonObject schema, String keyword) {
        return schema.has(keyword) && schema.get(keyword).getAsBoolean();
    }

    private Terms.Term valueOf(JsonElement schema, String path) {
        if (schema instanceof JsonPrimitive primitive && primitive.isBoolean()) {
            return primitive.getAsBoolean() ? any() : terms.none;
        }
        JsonObject object = requireObject(schema, path);
        List<String> keywords = keywords(object);
        for (String keyword : List.of("$ref", "allOf", "anyOf", "oneOf")) {
            if (keywords.contains(keyword)) {
                return combined(object, keyword, keywords, path);
            }
        }
        List<JsonElement> constants = constants(object, path);
        Set<Type> types = types(object, ALL, path);
        for (String keyword : keywords) {
            boolean isKnown =
                    List.of("type", "const", "enum").contains(keyword)
                            || constants == null
                                    && EnumSet.allOf(Type.class).stream()
                                            .anyMatch(type -> type.keywords.contains(keyword));
            if (!isKnown) {
                throw constants == null
                        ? wrong(path, "the keyword '" + keyword + "' is not supported")
                        : wrong(path, "'" + keyword + "' beside constants is not supported");
            }
        }
        List<Terms.Term> parts = new ArrayList<>();
        if (constants != null) {
            for (JsonElement each : constants) {
                if (types.stream().anyMatch(type -> matches(type, each))) {
                    parts.add(terms.literal(GSON.toJson(each)));
                }
            }
        } else {
            types.forEach(type -> parts.add(value(object, type, path)));
        }
        return terms.choice(parts);
    }

    private static JsonObject requireObject(JsonElement schema, String path) {
        if (!(schema instanceof JsonObject object)) {
            throw wrong(path, "a schema must be an object, true or false");
        }
        return object;
    }

    private static List<String> keywords(JsonObject schema) {
        return schema.keySet().stream()
                .filter(key -> !ANNOTATIONS.contains(key) && !key.startsWith("x-"))
                .toList();
    }

    /** Returns the values that {@code const} and {@code enum} allow; null without these. */
    private static List<JsonElement> constants(JsonObject schema, String path) {
        List<JsonElement> values = array(schema, "enum", path);
        if (!schema.has("const")) {
            return values;
        }
        JsonElement only = schema.get("const");
        return values == null || values.contains(only) ? List.of(only) : List.of();
    }

    private static List<JsonElement> array(JsonObject schema, String keyword, String path) {
        JsonElement value = schema.get(keyword);
        if (value != null && !value.isJsonArray()) {
            throw wrong(path, "'" + keyword + "' must be an array");
        }
        return value == null ? null : value.getAsJsonArray().asList();
    }

    private static boolean matches(Type type, JsonElement value) {
        if (value instanceof JsonPrimitive primitive) {
            return switch (type) {
                case STRING -> primitive.isString();
                case BOOLEAN -> primitive.isBoolean();
                case NUMBER -> primitive.isNumber();
                case INTEGER ->
                        primitive.isNumber()
                                && primitive.getAsBigDecimal().stripTrailingZeros().scale() <= 0;
                default -> false;
            };
        }
        return value.isJsonObject()
                ? type == Type.OBJECT
                : value.isJsonArray() ? type == Type.ARRAY : type == Type.NULL;
    }

    /**
     * Returns the types of a schema; {@code defaults} if neither {@code type} nor another keyword
     * names one.
     */
    private static Set<Type> types(JsonObject schema, Set<Type> defaults, String path) {
        JsonElement type = schema.get("type");
        Set<Type> types = EnumSet.noneOf(Type.class);
        if (type == null) {
            for (Type each : Type.values()) {
                if (!Collections.disjoint(each.keywords, schema.keySet())) {
                    types.add(each);
                }
            }
            return types.isEmpty() || constants(schema, path) != null ? defaults : types;
        }
        for (JsonElement name : type instanceof JsonArray array ? array : List.of(type)) {
            try {
                types.add(Type.valueOf(name.getAsString().toUpperCase(Locale.ROOT)));
            } catch (RuntimeException e) { // of Gson and of valueOf
                throw wrong(path, "unknown type " + name);
            }
        }
        return types;
    }

    private Terms.Term combined(
            JsonObject schema, String keyword, List<String> keywords, String path) {
        JsonElement value = schema.get(keyword);
        if (keywords.size() > 1) {
            throw wrong(
                    path, "other keywords beside " + keyword + " are not supported: " + keywords);
        }
        if (keyword.equals("$ref")) {
            String pointer = value.getAsString();
            Terms.Term reference = references.get(pointer);
            if (reference == null) {
                reference = terms.reference(pointer);
                references.put(pointer, reference);
                reference.define(value(resolve(pointer, path), pointer));
            }
            return reference;
        }
        String place = path + "/" + keyword;
        if (!(value instanceof JsonArray array) || array.isEmpty()) {
            throw wrong(place, "must be an array of schemas");
        }
        if (keyword.equals("allOf") && array.size() > 1) {
            throw wrong(place, "only one schema is supported");
        }
        List<Terms.Term> alternatives = new ArrayList<>();
        for (int i = 0; i < array.size(); i++) {
            for (int j = 0; j < i && keyword.equals("oneOf"); j++) {
                if (!differ(array.get(i), array.get(j), place)) {
                    throw wrong(
                            place,
                            String.format(
                                    "the alternatives %d and %d must differ in their types, or in"
                                            + " the constants of a property that both require; use"
                                            + " anyOf",
                                    j, i));
                }
            }
            alternatives.add(value(array.get(i), place + "/" + i));
        }
        return terms.choice(alternatives);
    }

    /** Returns whether no value is of two schemas, as far as types and constants tell. */
    private boolean differ(JsonElement first, JsonElement second, String path) {
        if (!(target(first, path) instanceof JsonObject one)
                || !(target(second, path) instanceof JsonObject other)) {
            return false;
        }
        if (allowsNull(first, path) && allowsNull(second, path)) {
            return false;
        }
        List<JsonElement> values = constants(one, path);
        List<JsonElement> others = constants(other, path);
        if (values != null && others != null) {
            return Collections.disjoint(values, others);
        }
        if (Collections.disjoint(kinds(one, path), kinds(other, path))) {
            return true;
        }
        Set<String> both = new LinkedHashSet<>(strings(one, "required", path));
        both.retainAll(strings(other, "required", path));
        return kinds(one, path).equals(Set.of(Type.OBJECT))
                && kinds(other, path).equals(Set.of(Type.OBJECT))
                && both.stream()
                        .anyMatch(
                                name ->
                                        differ(
                                                property(one, name, path),
                                                property(other, name, path),
                                                path));
    }

    private boolean allowsNull(JsonElement schema, String path) {
        JsonElement each = schema;
        for (int i = 0; i < MAX_DEPTH && each instanceof JsonObject object; i++) {
            if (flag(object, "nullable")) {
                return true;
            }
            if (!object.has("$ref")) {
                List<JsonElement> constants = constants(object, path);
                return constants == null
                        ? kinds(object, path).contains(Type.NULL)
                        : constants.contains(JsonNull.INSTANCE);
            }
            each = resolve(object.get("$ref").getAsString(), path);
        }
        return true;
    }

    private static Set<Type> kinds(JsonObject schema, String path) {
        boolean isCombined =
                !Collections.disjoint(schema.keySet(), List.of("allOf", "anyOf", "oneOf"));
        Set<Type> kinds = EnumSet.copyOf(isCombined ? ALL : types(schema, ALL, path));
        if (kinds.remove(Type.INTEGER)) {
            kinds.add(Type.NUMBER);
        }
        return kinds;
    }

    private static JsonElement property(JsonObject schema, String name, String path) {
        return schema.has("properties")
                ? requireObject(schema.get("properties"), path).get(name)
                : null;
    }

    private JsonElement target(JsonElement schema, String path) {
        JsonElement found = schema;
        for (int i = 0; i < MAX_DEPTH; i++) {
            if (!(found instanceof JsonObject object) || !object.has("$ref")) {
                break;
            }
            found = resolve(object.get("$ref").getAsString(), path);
        }
        return found;
    }

    private JsonElement resolve(String pointer, String path) {
        JsonElement found = pointer.matches("#(/.*)?") ? root : null;
        for (String token : pointer.replaceFirst("#/?", "").split("/")) {
            if (token.isEmpty()) {
                continue;
            }
            // URLDecoder is for forms, in which + is a space.
            String name =
                    URLDecoder.decode(token.replace("+", "%2B"), StandardCharsets.UTF_8)
                            .replace("~1", "/")
                            .replace("~0", "~");
            if (found instanceof JsonArray array && name.matches("\\d{1,4}")) {
                int index = Integer.parseInt(name);
                found = index < array.size() ? array.get(index) : null;
            } else {
                found = found instanceof JsonObject object ? object.get(name) : null;
            }
        }
        if (found == null) {
            throw wrong(path, "$ref '" + pointer + "' is not a place in the schema");
        }
        return found;
    }

    private static List<String> strings(JsonObject schema, String keyword, String path) {
        JsonElement value = schema.get(keyword);
        if (value == null) {
            return List.of();
        }
        if (!(value instanceof JsonArray array)
                || !array.asList().stream().allMatch(each -> matches(Type.STRING, each))) {
            throw wrong(path, "'" + keyword + "' must be an array of strings");
        }
        return array.asList().stream().map(JsonElement::getAsString).toList();
    }

    private static int integer(JsonObject schema, String keyword, int defaultValue, String path) {
        JsonElement value = schema.get(keyword);
        if (value == null) {
            return defaultValue;
        }
        if (!matches(Type.INTEGER, value)
                || value.getAsBigDecimal().signum() < 0
                || value.getAsBigDecimal().compareTo(BigDecimal.valueOf(MAX_SIZE)) > 0) {
            throw wrong(path, "'" + keyword + "' must be an integer from 0 to " + MAX_SIZE);
        }
        return value.getAsBigDecimal().intValueExact();
    }

    private Terms.Term value(JsonObject schema, Type type, String path) {
        return switch (type) {
            case OBJECT -> object(schema, path);
            case ARRAY -> array(schema, path);
            case STRING -> string(schema, path);
            case NUMBER, INTEGER -> number(schema, type == Type.INTEGER, path);
            case BOOLEAN -> terms.choice(List.of(terms.literal("true"), terms.literal("false")));
            case NULL -> terms.literal("null");
        };
    }

    private Terms.Term any() {
        if (any == null) {
            any = terms.reference("#");
            List<Terms.Term> parts = new ArrayList<>();
            for (Type type : List.of(Type.STRING, Type.NUMBER, Type.BOOLEAN, Type.NULL)) {
                parts.add(value(new JsonObject(), type, "#"));
            }
            parts.add(brackets("[", listOf(any, 0, Terms.UNBOUNDED), "]"));
            parts.add(brackets("{", listOf(member(anyString, any), 0, Terms.UNBOUNDED), "}"));
            any.define(terms.choice(parts));
        }
        return any;
    }

    private Terms.Term brackets(String open, Terms.Term content, String close) {
        return terms.sequence(terms.literal(open), space, content, space, terms.literal(close));
    }

    private Terms.Term member(Terms.Term name, Terms.Term value) {
        return terms.sequence(name, terms.literal(":"), space, value);
    }

    private Terms.Term listOf(Terms.Term element, int min, int max) {
        if (min > max || max == 0) {
            return min > max ? terms.none : terms.empty;
        }
        int more = max == Terms.UNBOUNDED ? max : max - 1;
        Terms.Term rest = terms.repeat(terms.sequence(comma, element), Math.max(0, min - 1), more);
        Terms.Term some = terms.sequence(element, rest);
        return min == 0 ? terms.optional(some) : some;
    }

    private Terms.Term object(JsonObject schema, String path) {
        JsonObject declared =
                schema.has("properties")
                        ? requireObject(schema.get("properties"), path + "/properties")
                        : new JsonObject();
        JsonElement additional =
                schema.has("additionalProperties")
                        ? schema.get("additionalProperties")
                        : new JsonPrimitive(!schema.has("properties"));
        Terms.Term others = value(additional, path + "/additionalProperties");
        Set<String> required = new LinkedHashSet<>(strings(schema, "required", path));
        Map<String, Terms.Term> properties = new LinkedHashMap<>();
        for (String name : declared.keySet()) {
            String place = path + "/properties/" + name;
            properties.put(name, value(declared.get(name), place));
        }
        required.forEach(name -> properties.putIfAbsent(name, others));
        Terms.Term allowed = anyString; // names
        if (schema.has("propertyNames")) {
            String place = path + "/propertyNames";
            Terms.Term given = value(schema.get("propertyNames"), place);
            allowed = terms.both(anyString, given);
            properties.replaceAll(
                    (name, value) -> isOf(given, GSON.toJson(name)) ? value : terms.none);
        }
        List<Terms.Term> quoted =
                properties.keySet().stream().map(name -> terms.literal(GSON.toJson(name))).toList();
        Terms.Term quote = terms.literal("\"");
        Terms.Term name = terms.sequence(quote, terms.repeat(unescaped, 0, Terms.UNBOUNDED), quote);
        Terms.Term other =
                quoted.isEmpty() || others == terms.none
                        ? allowed
                        : terms.lexeme(
                                terms.both(
                                        terms.both(name, allowed),
                                        terms.not(terms.choice(quoted))));
        // Built from the last property to the first: `after` is what may follow a property that
        // was written, `first` what may be written if none was.
        Terms.Term member = member(other, others);
        Terms.Term after = terms.repeat(terms.sequence(comma, member), 0, Terms.UNBOUNDED);
        Terms.Term first = listOf(member, 0, Terms.UNBOUNDED);
        List<String> names = new ArrayList<>(properties.keySet());
        for (int i = names.size() - 1; i >= 0; i--) {
            Terms.Term property = member(quoted.get(i), properties.get(names.get(i)));
            Terms.Term next = terms.sequence(comma, property, after);
            Terms.Term begin = terms.sequence(property, after);
            boolean isRequired = required.contains(names.get(i));
            first = isRequired ? begin : terms.choice(List.of(begin, first));
            after = isRequired ? next : terms.choice(List.of(next, after));
        }
        return brackets("{", first, "}");
    }

    private static boolean isOf(Terms.Term term, String text) {
        Terms.Term rest = term;
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            rest = rest.derive(b & 0xff);
        }
        return rest.isNullable();
    }

    private Terms.Term array(JsonObject schema, String path) {
        int min = integer(schema, "minItems", 0, path);
        int max = integer(schema, "maxItems", Terms.UNBOUNDED, path);
        boolean isTuple = schema.get("items") instanceof JsonArray; // as before draft 2020-12
        if (isTuple && schema.has("prefixItems")) {
            throw wrong(path, "'items' must be a schema beside 'prefixItems'");
        }
        String prefixName = isTuple ? "items" : "prefixItems";
        String itemsName = isTuple ? "additionalItems" : "items";
        List<JsonElement> declared = array(schema, prefixName, path);
        List<JsonElement> prefix = declared == null ? List.of() : declared;
        JsonElement items = schema.has(itemsName) ? schema.get(itemsName) : new JsonPrimitive(true);
        if (flag(schema, "uniqueItems") && max > 1) {
            return unique(items, prefix, min, max, path);
        }
        Terms.Term item = value(items, path + "/" + itemsName);
        if (prefix.isEmpty()) {
            return brackets("[", listOf(item, min, max), "]");
        }
        int more = max == Terms.UNBOUNDED ? max : Math.max(0, max - prefix.size());
        Terms.Term rest =
                terms.repeat(terms.sequence(comma, item), Math.max(0, min - prefix.size()), more);
        for (int i = prefix.size() - 1; i >= 0; i--) {
            Terms.Term element = value(prefix.get(i), path + "/" + prefixName + "/" + i);
            Terms.Term next = terms.sequence(i == 0 ? terms.empty : comma, element, rest);
            rest = i >= max ? terms.empty : i >= min ? terms.optional(next) : next;
        }
        return min > max ? terms.none : brackets("[", rest, "]");
    }

    /** Returns an array of different constants: a state for each set of constants before. */
    private Terms.Term unique(
            JsonElement items, List<JsonElement> prefix, int min, int max, String path) {
        JsonElement target = target(items, path);
        List<JsonElement> constants =
                target instanceof JsonObject object ? constants(object, path) : null;
        Set<JsonElement> all = constants == null ? Set.of() : new LinkedHashSet<>(constants);
        if (constants == null || all.size() > MAX_UNIQUE || !prefix.isEmpty()) {
            throw wrong(
                    path,
                    "'uniqueItems' is supported for items with an enum of up to "
                            + MAX_UNIQUE
                            + " values only");
        }
        List<Terms.Term> values = new ArrayList<>();
        all.forEach(each -> values.add(terms.literal(GSON.toJson(each))));
        Terms.Term[] rests = new Terms.Term[1 << values.size()]; // by the constants before
        for (int before = rests.length - 1; before >= 0; before--) {
            List<Terms.Term> nexts = new ArrayList<>();
            for (int i = 0; i < values.size() && Integer.bitCount(before) < max; i++) {
                if ((before >> i & 1) == 0) {
                    Terms.Term separator = before == 0 ? terms.empty : comma;
                    nexts.add(terms.sequence(separator, values.get(i), rests[before | 1 << i]));
                }
            }
            if (Integer.bitCount(before) >= min) {
                nexts.add(terms.empty);
            }
            rests[before] = terms.choice(nexts);
        }
        return brackets("[", rests[0], "]");
    }

    private Terms.Term string(JsonObject schema, String path) {
        int min = integer(schema, "minLength", 0, path);
        int max = integer(schema, "maxLength", Terms.UNBOUNDED, path);
        if (min > max) {
            return terms.none;
        }
        boolean isBounded = min > 0 || max < Terms.UNBOUNDED;
        Terms.Term content = isBounded ? terms.repeat(character, min, max) : null;
        for (String keyword : List.of("pattern", "format")) {
            if (schema.has(keyword)) {
                String regex = schema.get(keyword).getAsString();
                boolean isFormat = keyword.equals("format");
                regex = isFormat ? format(regex, path) : regex;
                try {
                    Terms.Term matching = Regex.compile(terms, regex, this::escaped, !isFormat);
                    content = content == null ? matching : terms.both(matching, content);
                } catch (IllegalArgumentException e) {
                    throw wrong(path, "'" + keyword + "': " + e.getMessage());
                }
            }
        }
        return content == null ? anyString : string(content);
    }

    /** Returns a regular expression for a format: for the usual values, not for all valid ones. */
    private static String format(String name, String path) {
        return switch (name) {
            case "date" -> DATE;
            case "time" -> TIME;
            case "date-time" -> DATE + "T" + TIME;
            case "duration" -> "P(?:\\d{1,4}D(?:T\\d{1,4}[HMS])?|T\\d{1,4}[HMS]|\\d{1,4}W)";
            case "hostname" -> HOST;
            case "email" -> "[a-z0-9]{1,16}(?:[._+-][a-z0-9]{1,16}){0,2}@" + HOST;
            case "ipv4" -> "(?:" + OCTET + "\\.){3}" + OCTET;
            case "ipv6" -> "(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}";
            case "uri" -> "https?://" + HOST + "(?:/[A-Za-z0-9._~-]+)*/?";
            case "uuid" -> "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}";
            default -> throw wrong(path, "the format '" + name + "' is not supported");
        };
    }

    private Terms.Term number(JsonObject schema, boolean isInteger, String path) {
        BigDecimal low = bound(schema, "minimum", path);
        BigDecimal high = bound(schema, "maximum", path);
        BigDecimal above = bound(schema, "exclusiveMinimum", path);
        BigDecimal below = bound(schema, "exclusiveMaximum", path);
        Terms.Term minus = terms.literal("-");
        BigDecimal divisor = bound(schema, "multipleOf", path);
        Terms.Term magnitude =
                divisor != null
                        ? multiples(divisor, isInteger, path)
                        : regex(
                                isInteger
                                        ? "0|[1-9]\\d{0,17}"
                                        : "(?:0|[1-9]\\d{0,14})(?:\\.\\d{1,17})?");
        if (low == null && high == null && above == null && below == null) {
            Terms.Term exponent =
                    isInteger || divisor != null ? terms.empty : regex("(?:[eE][+-]?\\d{1,2})?");
            return terms.lexeme(terms.sequence(terms.optional(minus), magnitude, exponent));
        }
        boolean isAbove = above != null && (low == null || above.compareTo(low) >= 0);
        boolean isBelow = below != null && (high == null || below.compareTo(high) <= 0);
        low = isAbove ? above : low;
        high = isBelow ? below : high;
        if (divisor != null && divisor.stripTrailingZeros().scale() <= 0) {
            return multiplesBetween(divisor, magnitude, low, isAbove, high, isBelow, path);
        }
        List<Terms.Term> parts = new ArrayList<>();
        if (high == null || high.signum() >= 0) {
            BigDecimal least = low == null || low.signum() < 0 ? BigDecimal.ZERO : low;
            parts.add(between(magnitude, least, isAbove && least == low, high, isBelow));
        }
        if (low == null || low.signum() < 0) {
            boolean isNegative = high != null && high.signum() < 0;
            BigDecimal least = isNegative ? high.negate() : BigDecimal.ZERO;
            BigDecimal most = low == null ? null : low.negate();
            boolean exclusive = !isNegative || isBelow;
            parts.add(terms.sequence(minus, between(magnitude, least, exclusive, most, isAbove)));
        }
        return terms.lexeme(terms.choice(parts));
    }

    /**
     * Returns the multiples of a number, not negative, of up to 15 digits: those of a power of ten,
     * or of an integer. The terms are states, by the remainder and the number of digits left.
     */
    private Terms.Term multiples(BigDecimal divisor, boolean isInteger, String path) {
        BigDecimal stripped = divisor.stripTrailingZeros();
        int zeros = -stripped.scale();
        boolean isPower = stripped.unscaledValue().equals(BigInteger.ONE) && -zeros <= 15;
        if (zeros < 0 && isPower) {
            return regex(
                    "(?:0|[1-9]\\d{0,14})" + (isInteger ? "" : "(?:\\.\\d{1," + -zeros + "})?"));
        }
        BigInteger factor = stripped.unscaledValue();
        if (zeros < 0
                || zeros > 15
                || factor.signum() <= 0
                || factor.compareTo(BigInteger.valueOf(MAX_DIVISOR)) > 0) {
            throw wrong(
                    path,
                    "'multipleOf' must be 0.1, 0.01 and so on, or an integer up to "
                            + MAX_DIVISOR
                            + ", perhaps with zeros behind it");
        }
        int d = factor.intValue();
        Terms.Term[] rests = new Terms.Term[d];
        for (int left = 0; left <= 15 - zeros; left++) {
            Terms.Term[] next = new Terms.Term[d];
            for (int remainder = 0; remainder < d; remainder++) {
                List<Terms.Term> parts = new ArrayList<>();
                if (remainder == 0) {
                    parts.add(terms.empty);
                }
                for (int digit = 0; digit < 10 && left > 0; digit++) {
                    Terms.Term rest = rests[(10 * remainder + digit) % d];
                    parts.add(terms.sequence(terms.literal("" + digit), rest));
                }
                next[remainder] = terms.choice(parts);
            }
            rests = next;
        }
        List<Terms.Term> parts = new ArrayList<>();
        for (int digit = 1; digit < 10; digit++) {
            parts.add(terms.sequence(terms.literal("" + digit), rests[digit % d]));
        }
        Terms.Term some = terms.sequence(terms.choice(parts), terms.literal("0".repeat(zeros)));
        return terms.choice(List.of(terms.literal("0"), some));
    }

    /** Returns few multiples of an integer one by one, or all that are not negative. */
    private Terms.Term multiplesBetween(
            BigDecimal divisor,
            Terms.Term magnitude,
            BigDecimal low,
            boolean isAbove,
            BigDecimal high,
            boolean isBelow,
            String path) {
        BigDecimal first = low == null ? null : low.divide(divisor, 0, RoundingMode.CEILING);
        if (isAbove && first.multiply(divisor).compareTo(low) == 0) {
            first = first.add(BigDecimal.ONE);
        }
        if (high == null && first.signum() == 0) {
            return terms.lexeme(magnitude);
        }
        BigDecimal last = high == null ? null : high.divide(divisor, 0, RoundingMode.FLOOR);
        if (isBelow && last.multiply(divisor).compareTo(high) == 0) {
            last = last.subtract(BigDecimal.ONE);
        }
        if (first == null
                || last == null
                || last.subtract(first).compareTo(BigDecimal.valueOf(MAX_MULTIPLES)) >= 0) {
            throw wrong(
                    path,
                    "'multipleOf' of an integer must stand alone, or with a minimum of 0, or with"
                            + " bounds between which are up to "
                            + MAX_MULTIPLES
                            + " multiples");
        }
        List<Terms.Term> literals = new ArrayList<>();
        for (BigDecimal i = first; i.compareTo(last) <= 0; i = i.add(BigDecimal.ONE)) {
            literals.add(terms.literal(i.multiply(divisor).toBigInteger().toString()));
        }
        return terms.lexeme(terms.choice(literals));
    }

    /**
     * Returns the term for the numbers of a term, none negative, between two bounds; the upper one
     * is null for none.
     */
    private Terms.Term between(
            Terms.Term numbers,
            BigDecimal least,
            boolean aboveLeast,
            BigDecimal most,
            boolean belowMost) {
        Terms.Term some = terms.both(numbers, regex(from(least, aboveLeast)));
        return most == null ? some : terms.both(some, terms.not(regex(from(most, !belowMost))));
    }

    /**
     * Returns a regular expression for the decimal numbers from a bound on, which is not negative.
     */
    private static String from(BigDecimal bound, boolean exclusive) {
        String digits = bound.stripTrailingZeros().toPlainString();
        boolean isWhole = digits.indexOf('.') < 0;
        int whole = isWhole ? digits.length() : digits.indexOf('.');
        // More digits before the point; the same digits up to one that is larger; the same digits.
        StringBuilder regex = new StringBuilder("[1-9]\\d{" + whole + ",}(?:\\.\\d+)?");
        for (int i = 0; i < digits.length(); i++) {
            char digit = digits.charAt(i);
            if (digit != '.' && digit != '9') {
                regex.append('|').append(digits.substring(0, i).replace(".", "\\."));
                regex.append('[').append((char) (digit + 1)).append("-9]");
                regex.append(i < whole ? "\\d{" + (whole - i - 1) + "}(?:\\.\\d+)?" : "\\d*");
            }
        }
        regex.append('|').append(digits.replace(".", "\\.")).append(isWhole ? "(?:\\." : "(?:");
        return regex.append(exclusive ? "\\d*[1-9]\\d*)" : "\\d*)?").toString();
    }

    private static BigDecimal bound(JsonObject schema, String keyword, String path) {
        JsonElement value = schema.get(keyword);
        if (value == null) {
            return null;
        }
        if (!matches(Type.NUMBER, value) || value.getAsString().length() > MAX_NUMBER_LENGTH) {
            throw wrong(path, "'" + keyword + "' must be a number");
        }
        BigDecimal bound = value.getAsBigDecimal();
        if (Math.abs(bound.scale()) > MAX_NUMBER_LENGTH) {
            throw wrong(path, "'" + keyword + "' is too large or too small");
        }
        return bound;
    }
}
