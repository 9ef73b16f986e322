// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiConsumer;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.djlx.llm.text.template.Lexer.Kind;
import org.djlx.llm.text.template.Lexer.Token;

/** Parses a template to a tree of nodes, which are evaluated directly. */
final class Parser {

    private static final int MAX_DEPTH = 100;
    private static final Set<String> CONSTANTS =
            Set.of("true", "True", "false", "False", "none", "None");
    // Variables that Jinja2 defines within a macro.
    private static final Set<String> OF_CALLS = Set.of("caller", "kwargs", "varargs");
    private static final Set<String> REFUSED_TAGS =
            Set.of("autoescape block call do extends from import include print".split(" "));

    /** Arithmetic operators, lowest precedence first; one set is left-associative. */
    private static final List<Set<String>> OPERATORS =
            List.of(Set.of("+", "-"), Set.of("~"), Set.of("*", "/", "//", "%"), Set.of("**"));

    /** Computes a value, or executes a statement and returns null or an {@link Exit}. */
    interface Node {
        Object value(Scope scope);
    }

    /** Computes a value from the value to its left, as an operator, postfix or filter does. */
    private interface Step {
        Object value(Scope scope, Object left);
    }

    /** How a statement leaves the iteration of its loop. */
    private enum Exit {
        BREAK,
        CONTINUE
    }

    /** A node with a scope of its own. */
    record Block(Node body, Frame frame) {

        Scope scope(Scope parent) {
            return new Scope(parent, frame.hidden());
        }

        Object execute(Scope parent) {
            return body.value(scope(parent));
        }

        /** Executes the block and returns its output. */
        String capture(Scope own) {
            StringBuilder out = own.run.out;
            own.run.out = new StringBuilder();
            body.value(own);
            String captured = own.run.out.toString();
            own.run.out = out;
            return captured;
        }
    }

    /**
     * The names that the source uses in a scope. As in Jinja2, if the first use of a name in the
     * scope is an assignment, the name is local from the start of the scope: a macro or loop inside
     * that runs before the assignment finds it undefined, not the outer variable.
     */
    static final class Frame {

        private final Predicate<String> isOuter; // whether an enclosing frame has a name
        // By name: whether the first use is an unconditional assignment.
        private final Map<String, Boolean> names = new HashMap<>();
        private boolean isConditional; // the parser is inside an if
        private List<String> hidden;

        private Frame(Predicate<String> isOuter) {
            this.isOuter = isOuter;
        }

        private void use(String name, boolean assigns) {
            names.putIfAbsent(name, assigns && !isConditional);
        }

        private boolean has(String name) {
            return names.containsKey(name) || isOuter.test(name);
        }

        private List<String> hidden() {
            if (hidden == null) {
                hidden = names.keySet().stream().filter(isOuter.negate().and(names::get)).toList();
            }
            return hidden;
        }
    }

    private record Arguments(List<Node> positional, Map<String, Node> named) {

        Args args(Scope scope) {
            List<Object> values = new ArrayList<>();
            positional.forEach(each -> values.add(each.value(scope)));
            Map<String, Object> names = new LinkedHashMap<>();
            named.forEach((name, each) -> names.put(name, each.value(scope)));
            return new Args(values, names);
        }
    }

    private final List<Token> tokens;
    private final Set<String> reads; // names of variables that the template reads
    private int position;
    private int depth;
    private boolean inLoop;
    private boolean inMacro;
    private Frame frame = new Frame(name -> false);

    private Parser(List<Token> tokens, Set<String> reads) {
        this.tokens = tokens;
        this.reads = reads;
    }

    /**
     * Parses a template.
     *
     * @param names receives the names of variables that the template reads
     */
    static Block parse(String source, Set<String> names) {
        Parser parser = new Parser(Lexer.tokens(source), names);
        try {
            return new Block(parser.statements(Set.of("")), parser.frame);
        } catch (TemplateError e) {
            throw new TemplateError("line %d: %s", parser.token().line(), e.getMessage());
        }
    }

    // Statements

    /** Parses statements up to a tag with one of these names; "" stands for the end. */
    private Node statements(Set<String> ends) {
        List<Node> nodes = new ArrayList<>();
        nest();
        while (true) {
            Token token = next();
            boolean isTag = token.text().equals("{%");
            boolean isLast = token.kind() == Kind.EOF;
            if ((isTag || isLast) && ends.contains(isTag ? token().text() : "")) {
                break;
            }
            if (isLast) {
                throw new TemplateError("a block has no end: %s", ends);
            }
            Node node = token.kind() == Kind.TEXT ? print(scope -> token.value()) : tag(isTag);
            nodes.add(
                    scope -> {
                        scope.run.line = token.line();
                        scope.run.step();
                        return node.value(scope);
                    });
        }
        depth--;
        return scope -> {
            for (Node node : nodes) {
                Object exit = node.value(scope);
                if (exit != null) {
                    return exit;
                }
            }
            return null;
        };
    }

    /**
     * Parses the rest of a tag, which is a statement or prints a value, up to its closing token.
     */
    private Node tag(boolean isStatement) {
        Node node = isStatement ? statement() : print(tuple(true));
        expect(isStatement ? "%}" : "}}");
        return node;
    }

    private static Node print(Node node) {
        return scope -> {
            scope.run.append(scope.run.out, Values.text(scope.run, node.value(scope)));
            return null;
        };
    }

    private Node statement() {
        String tag = name();
        return switch (tag) {
            case "set" -> set();
            case "if" -> ifBlock();
            case "for" -> forBlock();
            case "macro" -> macro();
            case "filter" -> {
                Node captured = captured(true, "endfilter");
                yield print(scope -> Values.requireText(captured.value(scope)));
            }
            case "with" -> withBlock();
            case "generation" ->
                    inScope(List.of(), () -> outOfLoop(() -> bodyUpTo("endgeneration")))::execute;
            case "break", "continue" -> {
                if (!inLoop) {
                    throw new TemplateError(
                            "%s is not within a loop, or in a block of set or filter, which is not"
                                    + " supported",
                            tag);
                }
                yield scope -> tag.equals("break") ? Exit.BREAK : Exit.CONTINUE;
            }
            default ->
                    throw new TemplateError(
                            REFUSED_TAGS.contains(tag)
                                    ? "the tag %s is not supported; a template cannot read files"
                                    : "the tag %s is unknown, or not expected here",
                            tag);
        };
    }

    /** Parses code in which break and continue of an enclosing loop are refused. */
    private Node outOfLoop(Supplier<Node> parse) {
        boolean outer = inLoop;
        inLoop = false;
        Node parsed = parse.get();
        inLoop = outer;
        return parsed;
    }

    /** Parses the end of an opening tag, then statements up to a tag with one of these names. */
    private Node body(String... ends) {
        skip(":");
        expect("%}");
        return statements(Set.of(ends));
    }

    private Node bodyUpTo(String end) {
        Node body = body(end);
        expect(end);
        return body;
    }

    /** Parses code with a scope of its own, in which these names are set before it runs. */
    private Block inScope(List<String> parameters, Supplier<Node> parse) {
        Frame outer = frame;
        Frame inner = new Frame(outer::has);
        frame = inner;
        parameters.forEach(name -> inner.use(name, false));
        Node parsed = parse.get();
        frame = outer;
        return new Block(parsed, inner);
    }

    /** Parses optional filters and a block; the filters apply to the block's output. */
    private Node captured(boolean hasFilters, String end) {
        List<Step> filters = new ArrayList<>();
        Block block =
                inScope(
                        List.of(),
                        () -> {
                            for (boolean more = hasFilters; more; more = skip("|")) {
                                filters.add(filter());
                            }
                            return outOfLoop(() -> bodyUpTo(end));
                        });
        return scope -> {
            Scope own = block.scope(scope);
            return chain(inner -> block.capture(own), filters).value(own);
        };
    }

    private Node set() {
        List<String> names = new ArrayList<>();
        boolean ofNamespace = tokens.get(position + 1).text().equals(".");
        BiConsumer<Scope, Object> target = ofNamespace ? attribute() : target(names);
        Node assigned = skip("=") ? tuple(true) : null;
        names.forEach(name -> frame.use(name, true));
        Node value = assigned == null ? captured(skip("|"), "endset") : assigned;
        return scope -> {
            target.accept(scope, value.value(scope));
            return null;
        };
    }

    private BiConsumer<Scope, Object> attribute() {
        String name = name();
        expect(".");
        String attribute = name();
        read(name);
        return (scope, value) -> {
            if (!(scope.get(name) instanceof Values.Namespace namespace)) {
                throw new TemplateError("%s is no namespace", name);
            }
            namespace.attributes.put(attribute, value);
        };
    }

    /** Parses the left side of an assignment: one name, or a tuple of names. */
    private BiConsumer<Scope, Object> target(List<String> names) {
        boolean isTuple = false;
        boolean hasBrackets = skip("(");
        do {
            if (is("(")) {
                throw new TemplateError("nested brackets around names are not supported");
            }
            if (isTuple && (token().kind() != Kind.NAME || is("in"))) {
                break;
            }
            String name = name();
            if (CONSTANTS.contains(name) || name.equals("in")) {
                throw new TemplateError("cannot assign to %s", name);
            }
            names.add(name);
            isTuple |= is(",");
        } while (skip(","));
        if (hasBrackets) {
            expect(")");
        }
        if (!isTuple) {
            return (scope, value) -> scope.set(names.get(0), value);
        }
        return (scope, value) -> {
            List<Object> values = Values.list(scope.run, value);
            if (values.size() != names.size()) {
                throw new TemplateError(
                        "%d values are given to %d names", values.size(), names.size());
            }
            for (int i = 0; i < values.size(); i++) {
                scope.set(names.get(i), values.get(i));
            }
        };
    }

    private Node ifBlock() {
        Map<Node, Node> bodies = new LinkedHashMap<>(); // by condition
        boolean outer = frame.isConditional;
        String end = "elif";
        while (end.equals("elif")) {
            Node test = tuple(false);
            frame.isConditional = true;
            bodies.put(test, body("elif", "else", "endif"));
            end = name();
        }
        if (end.equals("else")) {
            bodies.put(scope -> true, bodyUpTo("endif"));
        }
        frame.isConditional = outer;
        return scope -> {
            for (Map.Entry<Node, Node> each : bodies.entrySet()) {
                if (Values.isTrue(each.getKey().value(scope))) {
                    return each.getValue().value(scope);
                }
            }
            return null;
        };
    }

    private Node forBlock() {
        List<String> names = new ArrayList<>();
        BiConsumer<Scope, Object> target = target(names);
        if (names.contains("loop")) {
            throw new TemplateError("the variable of a loop cannot be named loop");
        }
        expect("in");
        Node elements = tuple(false);
        Block test = inScope(names, () -> skip("if") ? expression() : null);
        boolean isRecursive = skip("recursive"); // A call of loop() fails: it is not supported.
        boolean outer = inLoop;
        inLoop = true;
        List<String> variables = new ArrayList<>(names);
        variables.add("loop");
        Block body = inScope(variables, () -> body("else", "endfor"));
        inLoop = outer && !isRecursive;
        boolean hasElse = name().equals("else");
        Block otherwise = inScope(List.of(), () -> hasElse ? bodyUpTo("endfor") : scope -> null);
        inLoop = outer;
        return scope -> {
            List<Object> all = Values.list(scope.run, elements.value(scope));
            Predicate<Object> isSelected =
                    element -> {
                        Scope inner = test.scope(scope);
                        target.accept(inner, element);
                        return Values.isTrue(test.body.value(inner));
                    };
            Loop loop = Loop.over(scope.run, all, test.body == null ? null : isSelected);
            // As in Jinja2, an iteration that break or continue ends does not count.
            boolean isEmpty = true;
            while (loop.next()) {
                Scope inner = body.scope(scope);
                inner.set("loop", loop);
                target.accept(inner, loop.element());
                Object exit = body.body.value(inner);
                isEmpty &= exit != null;
                if (exit == Exit.BREAK) {
                    break;
                }
            }
            return isEmpty ? otherwise.execute(scope) : null;
        };
    }

    private Node macro() {
        String macro = name();
        frame.use(macro, true);
        List<String> parameters = new ArrayList<>();
        List<Node> defaults = new ArrayList<>();
        boolean outer = inMacro;
        Supplier<Node> parse =
                () -> {
                    expect("(");
                    separated(")", () -> parameter(parameters, defaults));
                    inMacro = true;
                    return outOfLoop(() -> bodyUpTo("endmacro"));
                };
        Block body = inScope(List.of(), parse);
        inMacro = outer;
        return scope -> {
            scope.set(
                    macro,
                    (Values.Callable)
                            (run, args) -> {
                                Args bound = args.bind(macro, 0, parameters);
                                Scope inner = body.scope(scope);
                                run.enter();
                                for (int i = 0; i < parameters.size(); i++) {
                                    Object given = bound.get(i, Args.ABSENT);
                                    boolean isGiven = given != Args.ABSENT;
                                    inner.set(
                                            parameters.get(i),
                                            isGiven ? given : defaults.get(i).value(inner));
                                }
                                String output = body.capture(inner);
                                run.leave();
                                return output;
                            });
            return null;
        };
    }

    private void parameter(List<String> parameters, List<Node> defaults) {
        String parameter = name();
        if (parameters.contains(parameter)) {
            throw new TemplateError("the parameter %s is declared twice", parameter);
        }
        frame.use(parameter, false);
        parameters.add(parameter);
        defaults.add(skip("=") ? expression() : scope -> new Values.Undefined(parameter));
    }

    private Node withBlock() {
        List<String> names = new ArrayList<>();
        List<Node> values = new ArrayList<>();
        while (!is("%}")) {
            if (!names.isEmpty()) {
                expect(",");
            }
            names.add(name());
            expect("=");
            values.add(expression());
        }
        Block body = inScope(names, () -> bodyUpTo("endwith"));
        return scope -> {
            Scope inner = body.scope(scope);
            for (int i = 0; i < values.size(); i++) {
                inner.set(names.get(i), values.get(i).value(scope));
            }
            return body.body.value(inner);
        };
    }

    // Expressions

    private static Node chain(Node first, List<Step> steps) {
        if (steps.isEmpty()) {
            return first;
        }
        return scope -> {
            Object value = first.value(scope);
            for (Step step : steps) {
                value = step.value(scope, value);
            }
            return value;
        };
    }

    private void read(String name) {
        if (inMacro && OF_CALLS.contains(name) && !frame.has(name)) {
            throw new TemplateError("%s of a macro is not supported", name);
        }
        reads.add(name);
        frame.use(name, false);
    }

    private void nest() {
        if (++depth > MAX_DEPTH) {
            throw new TemplateError(
                    "blocks or expressions are nested more than %d deep", MAX_DEPTH);
        }
    }

    private Node expression() {
        nest();
        Node value = or();
        while (skip("if")) {
            Node then = value;
            Node test = or();
            Node otherwise =
                    skip("else")
                            ? expression()
                            : scope -> new Values.Undefined("", "an if without else has no value");
            value = scope -> (Values.isTrue(test.value(scope)) ? then : otherwise).value(scope);
        }
        depth--;
        return value;
    }

    /**
     * Parses an expression, or a tuple without brackets.
     *
     * @param withCondition whether an element may be {@code a if b else c}
     */
    private Node tuple(boolean withCondition) {
        List<Node> elements = new ArrayList<>();
        boolean isTuple = false;
        do {
            if (isTuple && (is("%}") || is("}}") || is(")") || is("recursive"))) {
                break;
            }
            elements.add(withCondition ? expression() : or());
            isTuple |= is(",");
        } while (skip(","));
        return isTuple ? listOf(elements, true) : elements.get(0);
    }

    private static Node listOf(List<Node> elements, boolean isTuple) {
        return scope -> {
            scope.run.requireSize(elements.size());
            List<Object> values = new ArrayList<>();
            elements.forEach(each -> values.add(each.value(scope)));
            return isTuple ? Values.tuple(values.toArray()) : values;
        };
    }

    private Node or() {
        return logical("or", true, () -> logical("and", false, this::not));
    }

    /**
     * Parses operands of {@code and} or {@code or}.
     *
     * @param decisive the truth value that ends the evaluation: true for {@code or}
     */
    private Node logical(String operator, boolean decisive, Supplier<Node> operand) {
        Node first = operand.get();
        List<Step> steps = new ArrayList<>();
        while (skip(operator)) {
            Node right = operand.get();
            steps.add((scope, left) -> Values.isTrue(left) == decisive ? left : right.value(scope));
        }
        return chain(first, steps);
    }

    private Node not() {
        if (!skip("not")) {
            return comparison();
        }
        nest();
        Node operand = not();
        depth--;
        return scope -> !Values.isTrue(operand.value(scope));
    }

    private Node comparison() {
        Node first = binary(0);
        List<Values.Comparison> comparisons = new ArrayList<>();
        List<Node> operands = new ArrayList<>();
        while (true) {
            boolean isNotIn = is("not") && tokens.get(position + 1).text().equals("in");
            position += isNotIn ? 1 : 0;
            String operator = isNotIn ? "not in" : token().text();
            if (!Values.COMPARISONS.containsKey(operator)) {
                break;
            }
            next();
            comparisons.add(Values.COMPARISONS.get(operator));
            operands.add(binary(0));
        }
        if (operands.isEmpty()) {
            return first;
        }
        return scope -> {
            Object left = first.value(scope);
            boolean holds = true;
            for (int i = 0; holds && i < operands.size(); i++) {
                Object right = operands.get(i).value(scope);
                holds = comparisons.get(i).holds(scope.run, left, right);
                left = right;
            }
            return holds;
        };
    }

    /** Parses arithmetic operators of this precedence and all higher ones. */
    private Node binary(int precedence) {
        if (precedence == OPERATORS.size()) {
            return unary(true);
        }
        Node first = binary(precedence + 1);
        List<Step> steps = new ArrayList<>();
        while (OPERATORS.get(precedence).contains(token().text())) {
            String operator = next().text();
            Node right = binary(precedence + 1);
            steps.add(
                    (scope, left) -> Values.binary(scope.run, operator, left, right.value(scope)));
        }
        return chain(first, steps);
    }

    private Node unary(boolean withFilters) {
        nest();
        boolean isSigned = is("-") || is("+");
        boolean isNegative = isSigned && next().text().equals("-");
        Node first = isSigned ? unary(false) : primary();
        List<Step> steps = new ArrayList<>();
        if (isSigned) {
            steps.add(
                    (scope, value) ->
                            Values.binary(
                                    scope.run, "*", isNegative ? -1L : 1L, Values.number(value)));
        }
        Step step = postfix();
        while (step != null) {
            steps.add(step);
            step = postfix();
        }
        while (withFilters && (is("|") || is("is") || is("("))) {
            steps.add(skip("|") ? filter() : skip("is") ? test() : call());
        }
        depth--;
        return chain(first, steps);
    }

    private Node primary() {
        Token token = next();
        String text = token.text();
        if (token.kind() == Kind.NAME && CONSTANTS.contains(text)) {
            Object constant = text.endsWith("one") ? null : text.endsWith("rue");
            return scope -> constant;
        }
        if (token.kind() == Kind.NAME) {
            read(text);
            return scope -> {
                scope.run.step();
                return scope.get(text);
            };
        }
        if (token.value() instanceof String) {
            StringBuilder all = new StringBuilder(token.value().toString());
            while (token().value() instanceof String && token().kind() == Kind.LITERAL) {
                all.append(next().value());
            }
            String string = all.toString();
            return scope -> string;
        }
        if (token.kind() == Kind.LITERAL) {
            return scope -> token.value();
        }
        List<Node> parts = new ArrayList<>();
        switch (text) {
            case "(" -> {
                Node inner = is(")") ? listOf(List.of(), true) : tuple(true);
                expect(")");
                return inner;
            }
            case "[" -> {
                separated("]", () -> parts.add(expression()));
                return listOf(parts, false);
            }
            case "{" -> {
                separated(
                        "}",
                        () -> {
                            parts.add(expression());
                            expect(":");
                            parts.add(expression());
                        });
                return scope ->
                        Values.dict(scope.run, parts.stream().map(each -> each.value(scope)));
            }
            default -> throw new TemplateError("unexpected %s", text.isEmpty() ? "end" : text);
        }
    }

    /** Parses parts separated by commas, and the closing token. */
    private void separated(String end, Runnable part) {
        while (!skip(end)) {
            part.run();
            if (!is(end)) {
                expect(",");
            }
        }
    }

    /** Parses an attribute, an element, a slice or a call; returns null if there is none. */
    private Step postfix() {
        if (skip("[")) {
            return subscript();
        }
        if (!skip(".")) {
            return is("(") ? call() : null;
        }
        Token token = next();
        if (token.kind() == Kind.NAME) {
            return (scope, value) -> Values.attribute(scope.run, value, token.text());
        }
        if (!(token.value() instanceof Long)) {
            throw new TemplateError("a name or number is missing after the dot");
        }
        return (scope, value) -> Values.item(scope.run, value, token.value());
    }

    private Step subscript() {
        Node none = scope -> null;
        Node begin = is(":") ? none : expression();
        if (skip("]")) {
            return (scope, value) -> {
                scope.run.step();
                return Values.item(scope.run, value, begin.value(scope));
            };
        }
        expect(":");
        Node end = is(":") || is("]") ? none : expression();
        Node stride = skip(":") && !is("]") ? expression() : none;
        expect("]");
        return (scope, value) ->
                Values.slice(
                        scope.run,
                        value,
                        begin.value(scope),
                        end.value(scope),
                        stride.value(scope));
    }

    private Step call() {
        Arguments arguments = arguments();
        return (scope, function) -> Values.call(scope.run, function, arguments.args(scope));
    }

    private Arguments arguments() {
        List<Node> positional = new ArrayList<>();
        Map<String, Node> named = new LinkedHashMap<>();
        expect("(");
        separated(
                ")",
                () -> {
                    if (is("*") || is("**")) {
                        throw new TemplateError("arguments after * or ** are not supported");
                    }
                    boolean isNamed = tokens.get(position + 1).text().equals("=");
                    String name = isNamed ? name() : null;
                    if (!isNamed && !named.isEmpty() || named.containsKey(name)) {
                        throw new TemplateError(
                                "an argument stands after one with a name, or is given twice");
                    }
                    if (isNamed) {
                        expect("=");
                        named.put(name, expression());
                    } else {
                        positional.add(expression());
                    }
                });
        return new Arguments(positional, named);
    }

    private Step filter() {
        String name = name();
        Arguments arguments = is("(") ? arguments() : new Arguments(List.of(), Map.of());
        return (scope, value) -> Filters.filter(scope.run, name, value, arguments.args(scope));
    }

    private Step test() {
        boolean negated = skip("not");
        String name = name();
        if (is("is")) {
            throw new TemplateError("tests with is cannot follow each other");
        }
        List<Node> given = new ArrayList<>();
        boolean isName = token().kind() == Kind.NAME && !is("else") && !is("or") && !is("and");
        if (isName || token().kind() == Kind.LITERAL || is("[") || is("{")) {
            Node first = primary();
            List<Step> steps = new ArrayList<>();
            for (Step step = postfix(); step != null; step = postfix()) {
                steps.add(step);
            }
            given.add(chain(first, steps));
        }
        Arguments arguments = is("(") ? arguments() : new Arguments(given, Map.of());
        return (scope, value) ->
                Filters.test(scope.run, name, value, arguments.args(scope)) != negated;
    }

    // Tokens

    private Token token() {
        return tokens.get(position);
    }

    private Token next() {
        Token token = token();
        position += token.kind() == Kind.EOF ? 0 : 1;
        return token;
    }

    private boolean is(String text) {
        return token().text().equals(text);
    }

    private boolean skip(String text) {
        boolean found = is(text);
        position += found ? 1 : 0;
        return found;
    }

    private void expect(String text) {
        if (!skip(text)) {
            throw unexpected(text);
        }
    }

    private String name() {
        if (token().kind() != Kind.NAME) {
            throw unexpected("a name");
        }
        return next().text();
    }

    private TemplateError unexpected(String expected) {
        return new TemplateError(
                "expected %s, not %s", expected, is("") ? "the end" : token().text());
    }
}
