// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import org.djlx.nativeops.host.Required;

/**
 * A parsed Jinja2 template, with the settings of transformers' {@code apply_chat_template}: {@code
 * trim_blocks}, {@code lstrip_blocks}, {@code break} and {@code continue}, blocks named {@code
 * generation}, the filter {@code tojson} of transformers, and the functions {@code raise_exception}
 * and {@code strftime_now}. What no chat template uses is refused by name; docs/serving.md lists
 * it. A template is untrusted: it can read only its variables, and its output, steps, memory and
 * depth are bounded. Immutable.
 */
public final class Template {

    private final Parser.Block body;
    private final Set<String> names;

    /**
     * The arguments of a tool call. A template can use them as a dictionary. Added to a string,
     * they become JSON, because some templates expect the arguments as a JSON string.
     */
    @SuppressWarnings("serial") // is not serialized
    public static final class Arguments extends LinkedHashMap<Object, Object> {

        /**
         * Creates arguments.
         *
         * @param arguments values by name
         */
        public Arguments(Map<?, ?> arguments) {
            super(arguments);
        }
    }

    private Template(Parser.Block body, Set<String> names) {
        this.body = body;
        this.names = names;
    }

    /**
     * Throws an {@link IllegalArgumentException} with the line if the source is not valid, or has a
     * part that is not supported.
     */
    public static Template parse(String source) {
        Required.argument("the template", source);
        try {
            Set<String> names = new LinkedHashSet<>();
            return new Template(Parser.parse(source, names), Set.copyOf(names));
        } catch (TemplateError e) {
            throw new IllegalArgumentException(
                    "the model's chat template cannot be read: " + e.getMessage(), e);
        } catch (StackOverflowError e) {
            throw new IllegalArgumentException(
                    "the model's chat template is nested too deep for this thread's stack");
        }
    }

    /** {@return the names of variables and functions that the template reads} */
    public Set<String> names() {
        return names;
    }

    /**
     * Renders the template.
     *
     * @param variables by name: strings, numbers, booleans, null, and lists and maps of them; they
     *     are copied
     * @return the text
     * @throws IllegalArgumentException if the template calls {@code raise_exception}, fails as in
     *     Jinja2, or exceeds a bound: 16 Mi characters, lists of a million elements, 20 million
     *     steps, 128 MiB for all texts and lists, 150 nested calls. The message has the line and
     *     the reason
     */
    public String render(Map<String, ?> variables) {
        Run run = new Run();
        try {
            Scope scope = new Scope(run);
            Globals.define(scope);
            variables.forEach((name, value) -> scope.set(name, Values.of(value, 0)));
            body.execute(scope);
            return run.out.toString();
        } catch (TemplateError.Raised e) {
            throw new IllegalArgumentException(
                    "the model's chat template refuses this chat: " + e.getMessage(), e);
        } catch (TemplateError e) {
            throw failed(run, e.getMessage(), e);
        } catch (StackOverflowError e) {
            throw failed(run, "it is nested too deep for this thread's stack", null);
        }
    }

    private static IllegalArgumentException failed(Run run, String reason, Throwable cause) {
        return new IllegalArgumentException(
                "the model's chat template cannot be rendered: line " + run.line + ": " + reason,
                cause);
    }
}
