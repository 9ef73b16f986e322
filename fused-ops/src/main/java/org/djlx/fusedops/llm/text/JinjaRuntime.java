// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.hubspot.jinjava.Jinjava;
import com.hubspot.jinjava.JinjavaConfig;
import com.hubspot.jinjava.LegacyOverrides;
import com.hubspot.jinjava.el.JinjavaInterpreterResolver;
import com.hubspot.jinjava.el.JinjavaProcessors;
import com.hubspot.jinjava.interpret.Context;
import com.hubspot.jinjava.interpret.JinjavaInterpreter;
import com.hubspot.jinjava.interpret.RenderResult;
import com.hubspot.jinjava.interpret.TemplateError;
import com.hubspot.jinjava.lib.exptest.ExpTest;
import com.hubspot.jinjava.lib.filter.Filter;
import com.hubspot.jinjava.lib.fn.ELFunctionDefinition;
import java.time.Duration;
import java.time.LocalDateTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import jinjava.javax.el.CompositeELResolver;
import jinjava.javax.el.ELContext;

/**
 * Renders Jinja2 templates with Jinjava as transformers' {@code apply_chat_template} does: Python's
 * methods of strings and dictionaries, {@code tojson} with Python's separators, {@code
 * raise_exception} and {@code strftime_now}. Templates cannot include files. Thread-safe.
 *
 * <p>One difference remains: {@code a and b} is true or false, not an operand.
 */
final class JinjaRuntime {

    private static final Gson GSON =
            new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final int MAX_DEPTH = 50;
    private static final int MAX_OUTPUT = 64 << 20; // bytes
    private static final int MAX_ELEMENTS = 100_000; // of a range, as in Jinja2's sandbox
    private static final Duration MAX_TIME = Duration.ofSeconds(20);
    private static final String DEADLINE = "\uE000deadline"; // by System.nanoTime()
    private static final Jinjava JINJAVA = create();

    /** Letters of Python's strftime, and of Java's patterns in the same order. */
    private static final String STRFTIME = "YmdHMSyjbBaApI";

    private static final List<String> PATTERNS =
            List.of(
                    "yyyy", "MM", "dd", "HH", "mm", "ss", "yy", "DDD", "MMM", "MMMM", "EEE", "EEEE",
                    "a", "hh");
    private static final Pattern DIRECTIVE = Pattern.compile("%(-?)([" + STRFTIME + "%])");

    private JinjaRuntime() {}

    private static Jinjava create() {
        CompositeELResolver resolver = new CompositeELResolver();
        resolver.add(new PythonMethods());
        resolver.add(JinjavaInterpreterResolver.DEFAULT_RESOLVER_READ_ONLY);
        LegacyOverrides asJinja2 =
                LegacyOverrides.newBuilder()
                        .withEvaluateMapKeys(true)
                        .withIterateOverMapKeys(true)
                        .withUsePyishObjectMapper(true)
                        .withUseNaturalOperatorPrecedence(true)
                        .withParseWhitespaceControlStrictly(true)
                        .withAllowAdjacentTextNodes(true)
                        .withUseTrimmingForNotesAndExpressions(true)
                        .withKeepNullableLoopValues(true)
                        .build();
        JinjavaProcessors processors =
                JinjavaProcessors.newBuilder()
                        .withNodePreProcessor((node, interpreter) -> checkTime(interpreter))
                        .build();
        Set<String> files = Set.of("include", "import", "from", "extends");
        Jinjava jinjava =
                new Jinjava(
                        JinjavaConfig.newBuilder()
                                .withNestedInterpretationEnabled(false)
                                .withMaxRenderDepth(MAX_DEPTH)
                                .withEnableRecursiveMacroCalls(true)
                                .withMaxMacroRecursionDepth(MAX_DEPTH)
                                .withMaxOutputSize(MAX_OUTPUT)
                                .withMaxListSize(MAX_OUTPUT / Long.BYTES)
                                .withRangeLimit(MAX_ELEMENTS)
                                .withProcessors(processors)
                                .withElResolver(resolver)
                                .withDisabled(Map.of(Context.Library.TAG, files))
                                .withLegacyOverrides(asJinja2)
                                .build());
        Context context = jinjava.getGlobalContext();
        context.registerFunction(function("raise_exception", "raiseException"));
        context.registerFunction(function("strftime_now", "strftimeNow"));
        context.registerFilter(new ToJson());
        context.registerExpTest(new Iterables());
        return jinjava;
    }

    private static ELFunctionDefinition function(String name, String method) {
        return new ELFunctionDefinition("", name, JinjaRuntime.class, method, String.class);
    }

    /** Returns whether a filter, or a test, has this name. */
    static boolean knows(String name, boolean isFilter) {
        Context context = JINJAVA.getGlobalContext();
        return (isFilter ? context.getFilter(name) : context.getExpTest(name)) != null;
    }

    private static void checkTime(JinjavaInterpreter interpreter) {
        if (System.nanoTime() - (long) interpreter.getContext().get(DEADLINE) > 0) {
            throw new OutOfTime();
        }
    }

    /** An error, because Jinjava goes on after exceptions. */
    private static final class OutOfTime extends Error {

        private static final long serialVersionUID = 1L;
    }

    /**
     * Renders a template.
     *
     * @param source the template, after {@link JinjaSource#rewrite}
     * @param variables strings, numbers, booleans, lists and maps
     * @throws IllegalArgumentException if the template cannot be rendered or calls {@code
     *     raise_exception}
     */
    static String render(String source, Map<String, Object> variables) {
        return render(source, variables, MAX_TIME);
    }

    static String render(String source, Map<String, Object> variables, Duration maxTime) {
        Map<String, Object> all = new HashMap<>(variables);
        all.put(DEADLINE, System.nanoTime() + maxTime.toNanos());
        RenderResult result;
        try {
            result = JINJAVA.renderForResult(source, all);
        } catch (OutOfTime e) {
            throw new IllegalArgumentException(
                    "the model's chat template takes longer than " + maxTime.toSeconds() + " s");
        }
        for (TemplateError error : result.getErrors()) {
            if (error.getReason() != TemplateError.ErrorReason.UNKNOWN) { // undefined variables
                throw new IllegalArgumentException(message(error), error.getException());
            }
        }
        return result.getOutput();
    }

    private static String message(TemplateError error) {
        for (Throwable t = error.getException(); t != null; t = t.getCause()) {
            if (t instanceof RaisedException) {
                return "the model's chat template refuses this chat: " + t.getMessage();
            }
        }
        return String.format(
                "the model's chat template cannot be rendered: line %d: %s",
                error.getLineno(), error.getMessage());
    }

    /** The exception of {@code raise_exception}. */
    private static final class RaisedException extends RuntimeException {

        private static final long serialVersionUID = 1L;

        RaisedException(String message) {
            super(message);
        }
    }

    /** Called by templates. */
    public static Object raiseException(String message) {
        throw new RaisedException(message);
    }

    /** Called by templates: the local time in a format of Python's strftime. */
    public static String strftimeNow(String format) {
        return strftime(format, LocalDateTime.now());
    }

    static String strftime(String format, LocalDateTime time) {
        return DIRECTIVE
                .matcher(format)
                .replaceAll(
                        found -> {
                            String letter = found.group(2);
                            if (letter.equals("%")) {
                                return "%";
                            }
                            String pattern = PATTERNS.get(STRFTIME.indexOf(letter));
                            String text =
                                    DateTimeFormatter.ofPattern(pattern, Locale.US).format(time);
                            return Matcher.quoteReplacement(
                                    found.group(1).isEmpty() ? text : text.replaceFirst("^0", ""));
                        });
    }

    /**
     * A dictionary of a chat. Joined to a text it is JSON: the template of a model that is given
     * arguments of tools as text. Python would refuse to join them.
     */
    @SuppressWarnings("serial") // is not serialized
    static final class Dictionary extends LinkedHashMap<Object, Object> {

        @Override
        public String toString() {
            StringBuilder json = new StringBuilder();
            ToJson.write(json, this, -1, 0);
            return json.toString();
        }
    }

    /** The methods of Python's strings and dictionaries that chat templates call. */
    private static final class PythonMethods extends CompositeELResolver {

        @Override
        public Object invoke(
                ELContext context,
                Object base,
                Object method,
                Class<?>[] types,
                Object[] arguments) {
            Object result = null;
            if (base instanceof CharSequence) {
                result = ofString(base.toString(), method.toString(), arguments);
            } else if (base instanceof Map<?, ?> map) {
                result = ofMap(map, method.toString(), arguments);
            }
            context.setPropertyResolved(result != null);
            return result;
        }

        private static Object ofMap(Map<?, ?> map, String method, Object[] arguments) {
            return switch (method) {
                case "items" ->
                        map.entrySet().stream()
                                .map(entry -> Arrays.asList(entry.getKey(), entry.getValue()))
                                .toList();
                case "keys" -> new ArrayList<>(map.keySet());
                case "values" -> new ArrayList<>(map.values());
                case "get" -> {
                    Object value = map.get(arguments[0]);
                    Object otherwise = arguments.length > 1 ? arguments[1] : "";
                    yield value == null ? otherwise : value;
                }
                default -> null;
            };
        }

        private static Object ofString(String text, String method, Object[] arguments) {
            String first =
                    arguments.length > 0 && arguments[0] != null ? arguments[0].toString() : null;
            return switch (method) {
                case "strip" -> strip(text, first, true, true);
                case "lstrip" -> strip(text, first, true, false);
                case "rstrip" -> strip(text, first, false, true);
                case "startswith" -> text.startsWith(first);
                case "endswith" -> text.endsWith(first);
                case "upper" -> text.toUpperCase(Locale.ROOT);
                case "lower" -> text.toLowerCase(Locale.ROOT);
                case "title" -> title(text);
                case "capitalize" ->
                        title(text.substring(0, Math.min(1, text.length()))) + rest(text);
                case "replace" -> text.replace(first, arguments[1].toString());
                case "split" -> Arrays.asList(split(text, first));
                case "splitlines" -> text.lines().toList();
                default -> null;
            };
        }

        private static String rest(String text) {
            return text.isEmpty() ? "" : text.substring(1).toLowerCase(Locale.ROOT);
        }

        private static String[] split(String text, String separator) {
            return separator == null
                    ? text.strip().split("\\s+")
                    : text.split(Pattern.quote(separator), -1);
        }

        /** Strips characters, or whitespace if {@code characters} is null. */
        private static String strip(String text, String characters, boolean left, boolean right) {
            int begin = 0;
            int end = text.length();
            while (left && begin < end && isIn(text.charAt(begin), characters)) {
                begin++;
            }
            while (right && end > begin && isIn(text.charAt(end - 1), characters)) {
                end--;
            }
            return text.substring(begin, end);
        }

        private static boolean isIn(char c, String characters) {
            return characters == null ? Character.isWhitespace(c) : characters.indexOf(c) >= 0;
        }

        private static String title(String text) {
            StringBuilder title = new StringBuilder(text.toLowerCase(Locale.ROOT));
            for (int i = 0; i < title.length(); i++) {
                if (i == 0 || !Character.isLetter(title.charAt(i - 1))) {
                    title.setCharAt(i, Character.toUpperCase(title.charAt(i)));
                }
            }
            return title.toString();
        }
    }

    /** Python's {@code json.dumps}: with spaces after separators, and {@code indent}. */
    private static final class ToJson implements Filter {

        @Override
        public String getName() {
            return "tojson";
        }

        @Override
        public Object filter(Object value, JinjavaInterpreter interpreter, String... arguments) {
            throw new UnsupportedOperationException("Jinjava calls the other method");
        }

        @Override
        public Object filter(
                Object value,
                JinjavaInterpreter interpreter,
                Object[] arguments,
                Map<String, Object> named) {
            Object indent =
                    named.getOrDefault("indent", arguments.length > 0 ? arguments[0] : null);
            StringBuilder json = new StringBuilder();
            write(json, value, indent instanceof Number number ? number.intValue() : -1, 0);
            return json.toString();
        }

        private static void write(StringBuilder json, Object value, int indent, int depth) {
            if (value instanceof Map<?, ?> map) {
                writeAll(
                        json,
                        "{}",
                        map.entrySet(),
                        indent,
                        depth,
                        entry -> {
                            Map.Entry<?, ?> pair = (Map.Entry<?, ?>) entry;
                            json.append(GSON.toJson(pair.getKey().toString())).append(": ");
                            write(json, pair.getValue(), indent, depth + 1);
                        });
            } else if (value instanceof Collection<?> list) {
                writeAll(
                        json,
                        "[]",
                        list,
                        indent,
                        depth,
                        element -> write(json, element, indent, depth + 1));
            } else {
                json.append(GSON.toJson(value));
            }
        }

        private static void writeAll(
                StringBuilder json,
                String brackets,
                Collection<?> elements,
                int indent,
                int depth,
                java.util.function.Consumer<Object> writer) {
            json.append(brackets.charAt(0));
            String separator = "";
            for (Object element : elements) {
                json.append(separator);
                breakLine(json, indent, depth + 1);
                writer.accept(element);
                separator = indent < 0 ? ", " : ",";
            }
            if (!elements.isEmpty()) {
                breakLine(json, indent, depth);
            }
            json.append(brackets.charAt(1));
        }

        private static void breakLine(StringBuilder json, int indent, int depth) {
            if (indent >= 0) {
                json.append('\n').append(" ".repeat(indent * depth));
            }
        }
    }

    /** The test {@code iterable}, which holds for strings and dictionaries, too. */
    private static final class Iterables implements ExpTest {

        @Override
        public String getName() {
            return "iterable";
        }

        @Override
        public boolean evaluate(Object value, JinjavaInterpreter interpreter, Object... arguments) {
            return value instanceof Iterable
                    || value instanceof Map
                    || value instanceof CharSequence;
        }
    }
}
