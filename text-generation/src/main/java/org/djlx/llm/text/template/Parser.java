// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.text.template;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiConsumer;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import org.djlx.llm.text.template.Lexer.Token;
import org.djlx.llm.text.template.Lexer.Type;

/** Parses a template to nodes that evaluate themselves. */
final class Parser {

    private static final int MAX_DEPTH = 100;
    private static final int MAX_CHAIN = 500; // of attributes, calls and filters
    private static final Set<String> CONSTANTS =
            Set.of("true", "True", "false", "False", "none", "None");
    private static final Set<String> OF_CALLS = Set.of("caller", "kwargs", "varargs");
    private static final Set<String> REFUSED_TAGS =
            Set.of(
                    "autoescape",
                    "block",
                    "call",
                    "do",
                    "extends",
                    "from",
                    "import",
                    "include",
                    "print");

    /** Arithmetic operators by precedence; those of one set are evaluated from the left. */
    private static final List<Set<String>> OPERATORS =
            List.of(Set.of("+", "-"), Set.of("~"), Set.of("*", "/", "//", "%"), Set.of("**"));

    /**
     * A part of a template: computes a value, or executes a statement and returns null or an {@link
     * Exit}.
     */
    interface Node {
        Object value(Scope scope);
    }

    /** How a statement leaves the iteration of its loop. */
    enum Exit {
        BREAK,
        CONTINUE
    }

    /** A node that runs in a scope of its own. */
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
            try {
                body.value(own);
                return own.run.out.toString();
            } finally {
                own.run.out = out;
            }
        }
    }

    /**
     * The names that the source uses in a scope. As in Jinja2, if the first use of a name in the
     * scope is an assignment, the name is local from the start of the scope: a macro or loop inside
     * that runs before the assignment finds it undefined, not the outer variable.
     */
    static final class Frame {

        private final Frame parent; // null for that of the template
        // By name: whether the first use is an assignment that no condition skips.
        private final Map<String, Boolean> names = new HashMap<>();
        private boolean isConditional; // the parser is inside an if
        private List<String> hidden;

        private Frame(Frame parent) {
            this.parent = parent;
        }

        private void use(String name, boolean assigns) {
            names.putIfAbsent(name, assigns && !isConditional);
        }

        private boolean has(String name) {
            return names.containsKey(name) || parent != null && parent.has(name);
        }

        private List<String> hidden() {
            if (hidden == null) {
                hidden =
                        names.keySet().stream()
                                .filter(each -> names.get(each))
                                .filter(each -> parent == null || !parent.has(each))
                                .toList();
            }
            return hidden;
        }
    }

    /** The arguments of a call. */
    private record Arguments(List<Node> positional, Map<String, Node> named) {

        static final Arguments NONE = new Arguments(List.of(), Map.of());

        Args args(Scope scope) {
            List<Object> values = new ArrayList<>();
            positional.forEach(each -> values.add(each.value(scope)));
            Map<String, Object> names = new LinkedHashMap<>();
            named.forEach((name, each) -> names.put(name, each.value(scope)));
            return new Args(values, names);
        }
    }

    private final List<Token> tokens;
    private final Set<String> reads; // names of variables
    private int position;
    private int depth;
    private boolean inLoop;
    private boolean inMacro;
    private Frame frame = new Frame(null);

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
            return new Block(parser.statements(Set.of()), parser.frame);
        } catch (TemplateError e) {
            throw new TemplateError("line %d: %s", parser.token().line(), e.getMessage());
        }
    }

    // Statements

    /**
     * Parses up to a tag with one of these names; the name is the next token. Without names, parses
     * up to the end of the template.
     */
    private Node statements(Set<String> ends) {
        List<Node> nodes = new ArrayList<>();
        nest();
        while (true) {
            Token token = next();
            if (token.type() == Type.EOF && !ends.isEmpty()) {
                throw new TemplateError("a block has no end: %s", ends);
            }
            boolean isTag = token.is(Type.BEGIN, "{%");
            if (token.type() == Type.EOF
                    || isTag && token().type() == Type.NAME && ends.contains(token().text())) {
                break;
            }
            Node node =
                    token.type() == Type.TEXT
                            ? print(scope -> token.text())
                            : isTag ? statement() : print(tuple(true));
            if (token.type() == Type.BEGIN) {
                expect(Type.END, isTag ? "%}" : "}}");
            }
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

    private static Node print(Node node) {
        return scope -> {
            scope.run.append(scope.run.out, Values.text(scope.run, node.value(scope)));
            return null;
        };
    }

    private Node statement() {
        String tag = expect(Type.NAME, null);
        return switch (tag) {
            case "set" -> set();
            case "if" -> ifBlock();
            case "for" -> forBlock();
            case "macro" -> macro();
            case "filter" -> print(captured(value -> filters(filter(value)), "endfilter"));
            case "with" -> withBlock();
            case "generation" -> outOfLoop(() -> block("endgeneration", List.of()))::execute;
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

    /** Parses a part of a loop that break and continue cannot leave. */
    private <T> T outOfLoop(Supplier<T> parse) {
        boolean outer = inLoop;
        inLoop = false;
        T parsed = parse.get();
        inLoop = outer;
        return parsed;
    }

    /** Parses the end of an opening tag, and the statements up to a tag with one of these names. */
    private Node body(String... ends) {
        skip(":");
        expect(Type.END, "%}");
        return statements(Set.of(ends));
    }

    private Node bodyUpTo(String end) {
        Node body = body(end);
        expect(Type.NAME, end);
        return body;
    }

    /** Parses a part of the template that has a scope of its own, with these parameters. */
    private Block inScope(List<String> parameters, Supplier<Node> parse) {
        Frame inner = new Frame(frame);
        frame = inner;
        parameters.forEach(name -> inner.use(name, false));
        Node parsed = parse.get();
        frame = inner.parent;
        return new Block(parsed, inner);
    }

    private Block block(String end, List<String> parameters) {
        return inScope(parameters, () -> bodyUpTo(end));
    }

    /** Parses filters and a block, and returns the block's output after the filters. */
    private Node captured(UnaryOperator<Node> filters, String end) {
        Block[] block = new Block[1];
        Node[] value = new Node[1];
        block[0] =
                inScope(
                        List.of(),
                        () -> {
                            value[0] = filters.apply(scope -> block[0].capture(scope));
                            return outOfLoop(() -> bodyUpTo(end));
                        });
        return scope -> {
            Object captured = value[0].value(block[0].scope(scope));
            if (!(captured instanceof String || captured instanceof Values.Markup)) {
                throw new TemplateError(
                        "a block has a %s, which is no text", Values.typeName(captured));
            }
            return captured;
        };
    }

    private Node set() {
        List<String> names = new ArrayList<>();
        BiConsumer<Scope, Object> target =
                peek(1).is(Type.OPERATOR, ".") ? member() : target(names);
        Node value;
        if (skip("=")) {
            value = tuple(true);
            names.forEach(name -> frame.use(name, true));
        } else {
            names.forEach(name -> frame.use(name, true));
            value = captured(this::filters, "endset");
        }
        return scope -> {
            target.accept(scope, value.value(scope));
            return null;
        };
    }

    private BiConsumer<Scope, Object> member() {
        String name = expect(Type.NAME, null);
        next();
        String attribute = expect(Type.NAME, null);
        read(name);
        return (scope, value) -> {
            if (!(scope.get(name) instanceof Values.Namespace namespace)) {
                throw new TemplateError("%s is no namespace", name);
            }
            namespace.attributes.put(attribute, value);
        };
    }

    /** Parses the left side of an assignment: one name, or several with commas between them. */
    private BiConsumer<Scope, Object> target(List<String> names) {
        boolean isTuple = false;
        boolean hasBrackets = skip("(");
        do {
            if (isOperator("(")) {
                throw new TemplateError("nested brackets around names are not supported");
            }
            if (isTuple && (token().type() != Type.NAME || token().is(Type.NAME, "in"))) {
                break;
            }
            String name = expect(Type.NAME, null);
            if (CONSTANTS.contains(name) || name.equals("in")) {
                throw new TemplateError("cannot assign to %s", name);
            }
            names.add(name);
            isTuple |= isOperator(",");
        } while (skip(","));
        if (hasBrackets) {
            expect(Type.OPERATOR, ")");
        }
        List<String> all = List.copyOf(names);
        if (!isTuple) {
            return (scope, value) -> scope.set(all.get(0), value);
        }
        return (scope, value) -> {
            List<Object> values = Values.list(scope.run, value);
            if (values.size() != all.size()) {
                throw new TemplateError(
                        "%d values are given to %d names", values.size(), all.size());
            }
            for (int i = 0; i < values.size(); i++) {
                scope.set(all.get(i), values.get(i));
            }
        };
    }

    private Node ifBlock() {
        List<Node> tests = new ArrayList<>();
        List<Node> bodies = new ArrayList<>();
        boolean outer = frame.isConditional;
        String end = "elif";
        while (end.equals("elif")) {
            tests.add(tuple(false));
            frame.isConditional = true;
            bodies.add(body("elif", "else", "endif"));
            end = expect(Type.NAME, null);
        }
        if (end.equals("else")) {
            tests.add(scope -> true);
            bodies.add(bodyUpTo("endif"));
        }
        frame.isConditional = outer;
        return scope -> {
            for (int i = 0; i < tests.size(); i++) {
                if (Values.isTrue(tests.get(i).value(scope))) {
                    return bodies.get(i).value(scope);
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
        expect(Type.NAME, "in");
        Node elements = tuple(false);
        Block test = skipName("if") ? inScope(names, this::expression) : null;
        boolean isRecursive = skipName("recursive"); // refused where it calls itself
        boolean outer = inLoop;
        inLoop = true;
        List<String> parameters = new ArrayList<>(names);
        parameters.add("loop");
        Block body = inScope(parameters, () -> body("else", "endfor"));
        inLoop = outer && !isRecursive;
        Block otherwise =
                expect(Type.NAME, null).equals("else") ? block("endfor", List.of()) : null;
        inLoop = outer;
        return scope -> {
            Run run = scope.run;
            List<Object> all = Values.list(run, elements.value(scope));
            Loop loop =
                    test == null
                            ? new Loop(run, all)
                            : new Loop(run, selected(all, test, target, scope));
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
            return isEmpty && otherwise != null ? otherwise.execute(scope) : null;
        };
    }

    /** Returns the elements that pass a test, which runs when the iteration reaches them. */
    private static Iterator<Object> selected(
            List<Object> all, Block test, BiConsumer<Scope, Object> target, Scope scope) {
        return all.stream()
                .filter(
                        element -> {
                            Scope inner = test.scope(scope);
                            target.accept(inner, element);
                            return Values.isTrue(test.body.value(inner));
                        })
                .iterator();
    }

    private Node macro() {
        String name = expect(Type.NAME, null);
        frame.use(name, true);
        List<String> parameters = new ArrayList<>();
        List<Node> defaults = new ArrayList<>();
        boolean outer = inMacro;
        Block body =
                inScope(
                        List.of(),
                        () -> {
                            parameters(parameters, defaults);
                            inMacro = true;
                            return outOfLoop(() -> bodyUpTo("endmacro"));
                        });
        inMacro = outer;
        int required = parameters.size() - defaults.size();
        return scope -> {
            Values.Callable macro =
                    (run, args) -> {
                        Args bound = args.bind(name, 0, parameters);
                        Scope inner = body.scope(scope);
                        run.enter();
                        try {
                            for (int i = 0; i < parameters.size(); i++) {
                                String parameter = parameters.get(i);
                                Object value = bound.get(i);
                                inner.set(
                                        parameter,
                                        value != Args.ABSENT
                                                ? value
                                                : i < required
                                                        ? new Values.Undefined(parameter)
                                                        : defaults.get(i - required).value(inner));
                            }
                            return body.capture(inner);
                        } finally {
                            run.leave();
                        }
                    };
            scope.set(name, macro);
            return null;
        };
    }

    private void parameters(List<String> parameters, List<Node> defaults) {
        expect(Type.OPERATOR, "(");
        while (!skip(")")) {
            if (!parameters.isEmpty()) {
                expect(Type.OPERATOR, ",");
            }
            String parameter = expect(Type.NAME, null);
            if (parameters.contains(parameter)) {
                throw new TemplateError("the parameter %s is declared twice", parameter);
            }
            frame.use(parameter, false);
            parameters.add(parameter);
            if (skip("=")) {
                defaults.add(expression());
            } else if (!defaults.isEmpty()) {
                throw new TemplateError(
                        "the parameter %s needs a default, as one before it has", parameter);
            }
        }
    }

    private Node withBlock() {
        List<String> names = new ArrayList<>();
        List<Node> values = new ArrayList<>();
        while (token().type() != Type.END) {
            if (!names.isEmpty()) {
                expect(Type.OPERATOR, ",");
            }
            names.add(expect(Type.NAME, null));
            expect(Type.OPERATOR, "=");
            values.add(expression());
        }
        Block body = block("endwith", names);
        return scope -> {
            Scope inner = body.scope(scope);
            for (int i = 0; i < values.size(); i++) {
                inner.set(names.get(i), values.get(i).value(scope));
            }
            return body.body.value(inner);
        };
    }

    // Expressions

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
        while (skipName("if")) {
            Node then = value;
            Node test = or();
            Node otherwise =
                    skipName("else")
                            ? expression()
                            : scope -> new Values.Undefined("", "an if without else has no value");
            value = scope -> (Values.isTrue(test.value(scope)) ? then : otherwise).value(scope);
        }
        depth--;
        return value;
    }

    /**
     * Parses an expression, or several with commas between them: a tuple.
     *
     * @param withCondition whether an element may be {@code a if b else c}
     */
    private Node tuple(boolean withCondition) {
        List<Node> elements = new ArrayList<>();
        boolean isTuple = false;
        do {
            boolean ends = token().type() == Type.END || isOperator(")");
            if (ends || token().is(Type.NAME, "recursive")) {
                break;
            }
            elements.add(withCondition ? expression() : or());
            isTuple |= isOperator(",");
        } while (skip(","));
        if (elements.isEmpty()) {
            throw new TemplateError("an expression is missing before %s", token().text());
        }
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
     * @param decisive the truth of an operand that ends the evaluation
     */
    private Node logical(String operator, boolean decisive, Supplier<Node> operand) {
        List<Node> operands = new ArrayList<>();
        do {
            operands.add(operand.get());
        } while (skipName(operator));
        if (operands.size() == 1) {
            return operands.get(0);
        }
        return scope -> {
            Object value = null;
            for (Node each : operands) {
                value = each.value(scope);
                if (Values.isTrue(value) == decisive) {
                    break;
                }
            }
            return value;
        };
    }

    private Node not() {
        if (!skipName("not")) {
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
            boolean isNotIn = token().is(Type.NAME, "not") && peek(1).is(Type.NAME, "in");
            String operator = isNotIn ? "not in" : token().text();
            if (token().type() == Type.STRING || !Values.COMPARISONS.containsKey(operator)) {
                break;
            }
            position += isNotIn ? 2 : 1;
            comparisons.add(Values.COMPARISONS.get(operator));
            operands.add(binary(0));
        }
        if (operands.isEmpty()) {
            return first;
        }
        return scope -> {
            Object left = first.value(scope);
            for (int i = 0; i < operands.size(); i++) {
                Object right = operands.get(i).value(scope);
                if (!comparisons.get(i).holds(scope.run, left, right)) {
                    return false;
                }
                left = right;
            }
            return true;
        };
    }

    /** Parses operands of the arithmetic operators from a precedence on. */
    private Node binary(int precedence) {
        if (precedence == OPERATORS.size()) {
            return unary(true);
        }
        Node first = binary(precedence + 1);
        List<String> operators = new ArrayList<>();
        List<Node> operands = new ArrayList<>();
        while (token().type() == Type.OPERATOR
                && OPERATORS.get(precedence).contains(token().text())) {
            operators.add(next().text());
            operands.add(binary(precedence + 1));
        }
        if (operands.isEmpty()) {
            return first;
        }
        return scope -> {
            Object value = first.value(scope);
            for (int i = 0; i < operands.size(); i++) {
                Object operand = operands.get(i).value(scope);
                value = Values.binary(scope.run, operators.get(i), value, operand);
            }
            return value;
        };
    }

    private Node unary(boolean withFilters) {
        Node value;
        nest();
        if (isOperator("-") || isOperator("+")) {
            boolean negative = next().text().equals("-");
            Node operand = unary(false);
            value =
                    scope -> {
                        Object negated = Values.negate(operand.value(scope));
                        return negative ? negated : Values.negate(negated);
                    };
        } else {
            value = primary();
        }
        value = postfix(value);
        for (int chain = 0; withFilters; limit(++chain)) {
            if (isOperator("|")) {
                value = filters(value);
            } else if (skipName("is")) {
                value = test(value);
            } else if (isOperator("(")) {
                value = call(value);
            } else {
                break;
            }
        }
        depth--;
        return value;
    }

    private static void limit(int chain) {
        if (chain > MAX_CHAIN) {
            throw new TemplateError(
                    "more than %d attributes, calls or filters follow each other", MAX_CHAIN);
        }
    }

    private Node primary() {
        Token token = next();
        String text = token.text();
        switch (token.type()) {
            case NAME:
                if (CONSTANTS.contains(text)) {
                    Object constant = text.endsWith("one") ? null : text.endsWith("rue");
                    return scope -> constant;
                }
                read(text);
                return scope -> {
                    scope.run.step();
                    return scope.get(text);
                };
            case STRING:
                StringBuilder all = new StringBuilder(text);
                while (token().type() == Type.STRING) {
                    all.append(next().text());
                }
                String string = all.toString();
                return scope -> string;
            case NUMBER:
                return scope -> token.number();
            default:
                if (token.is(Type.OPERATOR, "(")) {
                    Node inner = isOperator(")") ? listOf(List.of(), true) : tuple(true);
                    expect(Type.OPERATOR, ")");
                    return inner;
                }
                if (token.is(Type.OPERATOR, "[")) {
                    List<Node> elements = new ArrayList<>();
                    separated("]", () -> elements.add(expression()));
                    return listOf(elements, false);
                }
                if (token.is(Type.OPERATOR, "{")) {
                    return dict();
                }
                throw new TemplateError("unexpected %s", text.isEmpty() ? "end" : text);
        }
    }

    /** Parses parts with commas between them, and what ends them. */
    private void separated(String end, Runnable part) {
        boolean isFirst = true;
        while (!skip(end)) {
            if (!isFirst) {
                expect(Type.OPERATOR, ",");
                if (skip(end)) {
                    break;
                }
            }
            isFirst = false;
            part.run();
        }
    }

    private Node dict() {
        List<Node> items = new ArrayList<>(); // keys and values
        separated(
                "}",
                () -> {
                    items.add(expression());
                    expect(Type.OPERATOR, ":");
                    items.add(expression());
                });
        return scope ->
                Values.dict(scope.run, items.stream().map(each -> each.value(scope)).iterator());
    }

    private Node postfix(Node value) {
        Node result = value;
        for (int chain = 0; ; limit(++chain)) {
            Node of = result;
            if (skip(".")) {
                Token token = next();
                if (token.type() != Type.NAME && !(token.number() instanceof Long)) {
                    throw new TemplateError("a name or number is missing after the dot");
                }
                result =
                        token.type() == Type.NAME
                                ? scope ->
                                        Values.attribute(scope.run, of.value(scope), token.text())
                                : scope -> Values.item(scope.run, of.value(scope), token.number());
            } else if (skip("[")) {
                result = subscript(of);
            } else if (isOperator("(")) {
                result = call(of);
            } else {
                return result;
            }
        }
    }

    private Node call(Node function) {
        Arguments arguments = arguments();
        return scope -> {
            Object called = function.value(scope);
            return Values.call(scope.run, called, arguments.args(scope));
        };
    }

    private Node subscript(Node of) {
        Node none = scope -> null;
        Node begin = isOperator(":") ? none : expression();
        if (skip("]")) {
            return scope -> {
                Object value = of.value(scope);
                scope.run.step();
                return Values.item(scope.run, value, begin.value(scope));
            };
        }
        expect(Type.OPERATOR, ":");
        Node end = isOperator(":") || isOperator("]") ? none : expression();
        Node step = skip(":") && !isOperator("]") ? expression() : none;
        expect(Type.OPERATOR, "]");
        return scope ->
                Values.slice(
                        scope.run,
                        of.value(scope),
                        begin.value(scope),
                        end.value(scope),
                        step.value(scope));
    }

    private Arguments arguments() {
        expect(Type.OPERATOR, "(");
        List<Node> positional = new ArrayList<>();
        Map<String, Node> named = new LinkedHashMap<>();
        separated(
                ")",
                () -> {
                    if (isOperator("*") || isOperator("**")) {
                        throw new TemplateError("arguments after * or ** are not supported");
                    }
                    boolean isNamed = token().type() == Type.NAME && peek(1).is(Type.OPERATOR, "=");
                    if (!isNamed && !named.isEmpty()) {
                        throw new TemplateError("an argument stands after one with a name");
                    }
                    String name = isNamed ? next().text() : null;
                    if (!isNamed) {
                        positional.add(expression());
                    } else if (skip("=") && named.put(name, expression()) != null) {
                        throw new TemplateError("the argument %s is given twice", name);
                    }
                });
        return new Arguments(positional, named);
    }

    private Node filters(Node value) {
        Node filtered = value;
        for (int chain = 0; skip("|"); limit(++chain)) {
            filtered = filter(filtered);
        }
        return filtered;
    }

    private Node filter(Node value) {
        String name = expect(Type.NAME, null);
        Arguments arguments = isOperator("(") ? arguments() : Arguments.NONE;
        return scope -> {
            Object filtered = value.value(scope);
            return Filters.filter(scope.run, name, filtered, arguments.args(scope));
        };
    }

    private Node test(Node value) {
        boolean negated = skipName("not");
        String name = expect(Type.NAME, null);
        Arguments given = Arguments.NONE;
        Token token = token();
        boolean isName =
                token.type() == Type.NAME && !Set.of("else", "or", "and").contains(token.text());
        if (isOperator("(")) {
            given = arguments();
        } else if (token.is(Type.NAME, "is")) {
            throw new TemplateError("tests with is cannot follow each other");
        } else if (isName
                || token.type() == Type.STRING
                || token.type() == Type.NUMBER
                || isOperator("[")
                || isOperator("{")) {
            given = new Arguments(List.of(postfix(primary())), Map.of());
        }
        Arguments arguments = given;
        return scope -> {
            Object tested = value.value(scope);
            return Filters.test(scope.run, name, tested, arguments.args(scope)) != negated;
        };
    }

    // Tokens

    private Token peek(int distance) {
        return tokens.get(Math.min(position + distance, tokens.size() - 1));
    }

    private Token token() {
        return peek(0);
    }

    private Token next() {
        Token token = token();
        position++;
        return token;
    }

    private boolean isOperator(String text) {
        return token().is(Type.OPERATOR, text);
    }

    private boolean skip(String operator) {
        return skip(Type.OPERATOR, operator);
    }

    private boolean skipName(String name) {
        return skip(Type.NAME, name);
    }

    private boolean skip(Type type, String text) {
        boolean found = token().is(type, text);
        position += found ? 1 : 0;
        return found;
    }

    /** Reads a token, and returns its text; any text if {@code text} is null. */
    private String expect(Type type, String text) {
        Token token = token();
        if (token.type() != type || text != null && !token.text().equals(text)) {
            throw new TemplateError(
                    "expected %s, not %s",
                    text == null ? "a name" : text,
                    token.text().isEmpty() ? "the end" : token.text());
        }
        position++;
        return token.text();
    }
}
