// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.text.template;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.djlx.fusedops.llm.text.template.Lexer.Token;
import org.djlx.fusedops.llm.text.template.Lexer.Type;

/** Parses a template to statements and expressions that evaluate themselves. */
final class Parser {

    private static final int MAX_DEPTH = 100;
    private static final int MAX_CHAIN = 500; // of attributes, calls and filters
    private static final Set<String> COMPARISONS = Set.of("==", "!=", "<", "<=", ">", ">=");
    private static final Set<String> FILE_TAGS = Set.of("include", "import", "from", "extends");
    private static final Map<String, Boolean> BOOLEANS =
            Map.of("true", true, "True", true, "false", false, "False", false);
    // The variable that holds a captured text. Not a valid name, so templates cannot read it.
    private static final String CAPTURED = "{{";
    private static final Set<String> NONES = Set.of("none", "None");

    /** Computes a value. */
    interface Expression {

        Object value(Scope scope);
    }

    /** Executes a statement; returns null, or how it leaves the iteration of its loop. */
    interface Statement {

        Exit execute(Scope scope);
    }

    enum Exit {
        BREAK,
        CONTINUE
    }

    /** The left side of an assignment: one name, or a tuple of names. */
    private interface Target {

        void assign(Scope scope, Object value);
    }

    /** A list of statements, with the frame of the scope that they run in. */
    static final class Block {

        private final List<Statement> statements;
        private final Frame frame; // null if the block runs in the enclosing scope

        private Block(List<Statement> statements, Frame frame) {
            this.statements = statements;
            this.frame = frame;
        }

        Scope scope(Scope parent) {
            return new Scope(parent, frame.hidden());
        }

        Exit execute(Scope scope) {
            for (Statement statement : statements) {
                Exit exit = statement.execute(scope);
                if (exit != null) {
                    return exit;
                }
            }
            return null;
        }

        /** Executes the block and returns its output. */
        String capture(Scope scope) {
            StringBuilder out = scope.run.out;
            scope.run.out = new StringBuilder();
            try {
                execute(scope);
                return scope.run.out.toString();
            } finally {
                scope.run.out = out;
            }
        }

        /** Executes the block, and passes its output on unless break or continue ended it. */
        private Exit captureTo(Consumer<String> text, Scope scope) {
            Exit[] exit = new Exit[1];
            Statement all =
                    inner -> {
                        exit[0] = execute(inner);
                        return exit[0];
                    };
            String captured = new Block(List.of(all), frame).capture(scope);
            if (exit[0] == null) {
                text.accept(captured);
            }
            return exit[0];
        }
    }

    /**
     * The names that the source uses in a scope. As in Jinja2, if the first use of a name in the
     * scope is an assignment, the name is local from the start of the scope: a macro or loop inside
     * that runs before the assignment finds it undefined, not the outer variable.
     */
    private static final class Frame {

        private final Frame parent;
        // By name: whether the first use is an assignment that no condition skips.
        private final Map<String, Boolean> names = new HashMap<>();
        private final List<String> unknown = new ArrayList<>(); // filters and tests
        private boolean isConditional; // the parser is inside an if
        private List<String> hidden;

        private Frame(Frame parent) {
            this.parent = parent;
        }

        private void noteAssigned(String name) {
            names.putIfAbsent(name, !isConditional);
        }

        /** Notes a name that is read, or that has a value when the scope begins. */
        private void noteRead(String name) {
            names.putIfAbsent(name, false);
        }

        private List<String> hidden() {
            if (hidden == null) {
                hidden = names.keySet().stream().filter(this::isHidden).toList();
            }
            return hidden;
        }

        private boolean isHidden(String name) {
            for (Frame outer = parent; outer != null; outer = outer.parent) {
                if (outer.names.containsKey(name)) {
                    return false;
                }
            }
            return names.get(name);
        }
    }

    /** The expressions of the arguments of a call. */
    private record ArgumentList(
            List<Expression> positional,
            Map<String, Expression> named,
            Expression starred, // after *; null if there is none
            Expression doubleStarred) { // after **; null if there is none

        static final ArgumentList NONE = new ArgumentList(List.of(), Map.of(), null, null);

        Args args(Scope scope) {
            Run run = scope.run;
            List<Object> values = new ArrayList<>();
            positional.forEach(each -> values.add(each.value(scope)));
            Map<String, Object> names = new LinkedHashMap<>();
            if (starred != null) {
                values.addAll(Values.elements(run, starred.value(scope)));
            }
            named.forEach((name, each) -> names.put(name, each.value(scope)));
            if (doubleStarred != null) {
                if (!(doubleStarred.value(scope) instanceof Values.Dict dict)) {
                    throw new TemplateError("** needs a dictionary");
                }
                for (Object key : dict.keys()) {
                    if (!(key instanceof String name) || names.containsKey(name)) {
                        throw new TemplateError(
                                "an argument is given twice, or its name is no text");
                    }
                    names.put(name, dict.get(key, null));
                }
            }
            return new Args(values, names);
        }
    }

    /** A call of a function. */
    private record Call(Expression function, ArgumentList arguments) implements Expression {

        @Override
        public Object value(Scope scope) {
            Object called = function.value(scope);
            return Values.call(scope.run, called, arguments.args(scope));
        }
    }

    private final List<Token> tokens;
    private final List<String> reads = new ArrayList<>(); // names of variables, in source order
    private int position;
    private int depth;
    private boolean inLoop;
    private Frame frame = new Frame(null);

    private Parser(List<Token> tokens) {
        this.tokens = tokens;
    }

    /**
     * Parses a template.
     *
     * @param names receives the names of variables that the template reads
     */
    static Block parse(String source, Set<String> names) {
        Parser parser = new Parser(Lexer.tokens(source));
        try {
            List<Statement> statements = parser.statements(Set.of());
            requireKnown(parser.frame);
            names.addAll(parser.reads);
            return new Block(statements, parser.frame);
        } catch (TemplateError e) {
            throw new TemplateError("line %d: %s", parser.token().line(), e.getMessage());
        }
    }

    // Statements

    /**
     * Parses up to a tag with one of these names; the name is the next token. Without names, parses
     * up to the end of the template.
     */
    private List<Statement> statements(Set<String> ends) {
        List<Statement> statements = new ArrayList<>();
        nest();
        while (true) {
            Token token = next();
            int line = token.line();
            if (token.type() == Type.TEXT) {
                statements.add(print(line, scope -> token.text()));
            } else if (token.is(Type.BEGIN, "{{")) {
                statements.add(print(line, tuple(true)));
                expect(Type.END, "}}");
            } else if (token.type() == Type.EOF) {
                if (!ends.isEmpty()) {
                    throw new TemplateError("a block has no end: %s", ends);
                }
                break;
            } else {
                if (token().type() == Type.NAME && ends.contains(token().text())) {
                    break;
                }
                Statement statement = statement();
                statements.add(
                        scope -> {
                            scope.run.line = line;
                            scope.run.step();
                            return statement.execute(scope);
                        });
                expect(Type.END, "%}");
            }
        }
        depth--;
        return statements;
    }

    private static Statement print(int line, Expression expression) {
        return scope -> {
            scope.run.line = line;
            scope.run.print(Values.text(scope.run, expression.value(scope)));
            return null;
        };
    }

    private Statement statement() {
        String tag = expect(Type.NAME, null);
        return switch (tag) {
            case "set" -> set();
            case "if" -> ifBlock();
            case "for" -> forBlock();
            case "macro" -> macro();
            case "call" -> callBlock();
            case "filter" -> filterBlock();
            case "with" -> withBlock();
            case "generation" -> {
                boolean outer = inLoop;
                inLoop = false; // As in Jinja2, where the block is a call of a macro.
                Block body = block("endgeneration", List.of());
                inLoop = outer;
                yield scope -> body.execute(body.scope(scope));
            }
            case "break", "continue" -> {
                if (!inLoop) {
                    throw new TemplateError("%s is not within a loop", tag);
                }
                yield scope -> tag.equals("break") ? Exit.BREAK : Exit.CONTINUE;
            }
            default ->
                    throw new TemplateError(
                            FILE_TAGS.contains(tag)
                                    ? "the tag %s is not supported, because a template cannot read"
                                            + " files"
                                    : "the tag %s is unknown, or not expected here",
                            tag);
        };
    }

    /**
     * Parses the end of a block's opening tag, and the statements up to a tag with one of these
     * names.
     */
    private List<Statement> body(String... ends) {
        skip(":");
        expect(Type.END, "%}");
        return statements(Set.of(ends));
    }

    /** Parses a part of the template that has a scope of its own, with these parameters. */
    private <T> T inScope(List<String> parameters, Function<Frame, T> parse) {
        Frame inner = new Frame(frame);
        frame = inner;
        parameters.forEach(inner::noteRead);
        T parsed = parse.apply(inner);
        requireKnown(inner);
        frame = inner.parent;
        return parsed;
    }

    private static void requireKnown(Frame frame) {
        if (!frame.unknown.isEmpty()) {
            throw new TemplateError("%s is not supported", frame.unknown.get(0));
        }
    }

    private Block block(String end, List<String> parameters) {
        return inScope(parameters, inner -> blockUpTo(end, inner));
    }

    private Block blockUpTo(String end, Frame inner) {
        List<Statement> statements = body(end);
        expect(Type.NAME, end);
        return new Block(statements, inner);
    }

    private Statement set() {
        if (peek(1).is(Type.OPERATOR, ".")) {
            String name = expect(Type.NAME, null);
            next();
            String attribute = expect(Type.NAME, null);
            return assignment(
                    List.of(),
                    (scope, value) -> {
                        if (!(scope.get(name) instanceof Values.Namespace namespace)) {
                            throw new TemplateError("%s is no namespace", name);
                        }
                        namespace.attributes().put(attribute, value);
                    },
                    name);
        }
        List<String> names = new ArrayList<>();
        Target target = target(names);
        return assignment(names, target, null);
    }

    private Statement assignment(List<String> names, Target target, String namespace) {
        if (namespace != null) {
            noteRead(namespace);
        }
        if (skip("=")) {
            Expression value = tuple(true);
            names.forEach(frame::noteAssigned);
            return scope -> {
                target.assign(scope, value.value(scope));
                return null;
            };
        }
        names.forEach(frame::noteAssigned);
        return inScope(
                List.of(),
                inner -> {
                    Expression value = filters(scope -> scope.get(CAPTURED));
                    Block body = blockUpTo("endset", inner);
                    return scope -> {
                        Scope own = body.scope(scope);
                        return body.captureTo(
                                text -> {
                                    own.set(CAPTURED, text);
                                    target.assign(scope, value.value(own));
                                },
                                own);
                    };
                });
    }

    private Target target(List<String> names) {
        List<Target> targets = new ArrayList<>();
        boolean isTuple = false;
        nest();
        do {
            if (token().type() != Type.NAME && !isOperator("(") && isTuple
                    || token().is(Type.NAME, "in")) {
                break;
            }
            if (skip("(")) {
                targets.add(target(names));
                expect(Type.OPERATOR, ")");
            } else {
                String name = expect(Type.NAME, null);
                if (BOOLEANS.containsKey(name) || NONES.contains(name)) {
                    throw new TemplateError("cannot assign to %s", name);
                }
                names.add(name);
                targets.add((scope, value) -> scope.set(name, value));
            }
            isTuple |= isOperator(",");
        } while (skip(","));
        depth--;
        if (targets.isEmpty()) {
            throw new TemplateError("a name is missing before %s", token().text());
        }
        if (!isTuple) {
            return targets.get(0);
        }
        return (scope, value) -> {
            List<Object> values = Values.elements(scope.run, value);
            if (values.size() != targets.size()) {
                throw new TemplateError(
                        "%d values are given to %d names", values.size(), targets.size());
            }
            for (int i = 0; i < values.size(); i++) {
                targets.get(i).assign(scope, values.get(i));
            }
        };
    }

    private Statement ifBlock() {
        List<Expression> tests = new ArrayList<>();
        List<Block> bodies = new ArrayList<>();
        int known = frame.unknown.size();
        boolean outer = frame.isConditional;
        String end = "elif";
        while (end.equals("elif")) {
            tests.add(tuple(false));
            frame.isConditional = true;
            bodies.add(new Block(body("elif", "else", "endif"), null));
            end = expect(Type.NAME, null);
        }
        if (end.equals("else")) {
            tests.add(scope -> true);
            bodies.add(blockUpTo("endif", null));
        }
        frame.isConditional = outer;
        // As in Jinja2, an unknown filter or test in a condition fails only if it is executed.
        frame.unknown.subList(known, frame.unknown.size()).clear();
        return scope -> {
            for (int i = 0; i < tests.size(); i++) {
                if (Values.isTrue(tests.get(i).value(scope))) {
                    return bodies.get(i).execute(scope);
                }
            }
            return null;
        };
    }

    private Statement forBlock() {
        List<String> names = new ArrayList<>();
        Target target = target(names);
        if (names.contains("loop")) {
            throw new TemplateError("the variable of a loop cannot be named loop");
        }
        expect(Type.NAME, "in");
        Expression elements = tuple(false);
        Frame[] testFrame = new Frame[1];
        Expression test =
                !skipName("if")
                        ? null
                        : inScope(
                                names,
                                inner -> {
                                    testFrame[0] = inner;
                                    return expression();
                                });
        Block testBlock = new Block(List.of(), testFrame[0]);
        boolean isRecursive = skipName("recursive");
        boolean outer = inLoop;
        inLoop = true;
        List<String> parameters = new ArrayList<>(names);
        parameters.add("loop");
        Block body = inScope(parameters, inner -> new Block(body("else", "endfor"), inner));
        // A recursive loop is a function, and its else block is a part of it.
        inLoop = outer && !isRecursive;
        Block otherwise =
                expect(Type.NAME, null).equals("else") ? block("endfor", List.of()) : null;
        inLoop = outer;
        BiFunction<Scope, Object, Iterator<Object>> iterator =
                (scope, value) -> {
                    Iterator<Object> all = Values.iterator(scope.run, value);
                    return test == null
                            ? all
                            : new Selected(
                                    all,
                                    element -> {
                                        Scope inner = testBlock.scope(scope);
                                        target.assign(inner, element);
                                        return Values.isTrue(test.value(inner));
                                    });
                };
        return new For(iterator, elements, test != null, isRecursive, target, body, otherwise);
    }

    /** Executes a for block. */
    private record For(
            BiFunction<Scope, Object, Iterator<Object>> iterator,
            Expression elements,
            boolean isFiltered,
            boolean isRecursive,
            Target target,
            Block body,
            Block otherwise)
            implements Statement {

        @Override
        public Exit execute(Scope scope) {
            return execute(scope, elements.value(scope), 0);
        }

        private Exit execute(Scope scope, Object value, int depth) {
            Iterator<Object> all = iterator.apply(scope, value);
            long length = isFiltered || value instanceof Values.Once ? -1 : Values.length(value);
            Values.Callable recursion =
                    (run, args) -> {
                        Object inner = args.bind("loop", 1, "iterable").get(0);
                        Statement again = any -> execute(scope, inner, depth + 1);
                        run.enter();
                        try {
                            return new Block(List.of(again), null).capture(scope);
                        } finally {
                            run.leave();
                        }
                    };
            Loop loop = new Loop(scope.run, all, length, depth, isRecursive ? recursion : null);
            // As in Jinja2, an iteration that break or continue ends does not count.
            boolean isEmpty = true;
            while (loop.hasNext()) {
                Scope inner = body.scope(scope);
                inner.set("loop", loop);
                target.assign(inner, loop.next());
                Exit exit = body.execute(inner);
                isEmpty &= exit != null;
                if (exit == Exit.BREAK) {
                    break;
                }
            }
            return isEmpty && otherwise != null ? otherwise.execute(otherwise.scope(scope)) : null;
        }
    }

    /** The elements that pass a test. An element is tested when the iteration reaches it. */
    static final class Selected implements Iterator<Object> {

        private final Iterator<Object> all;
        private final Predicate<Object> test;
        private boolean hasNext; // next holds an element
        private Object next;

        Selected(Iterator<Object> all, Predicate<Object> test) {
            this.all = all;
            this.test = test;
        }

        @Override
        public boolean hasNext() {
            while (!hasNext && all.hasNext()) {
                next = all.next();
                hasNext = test.test(next);
            }
            return hasNext;
        }

        @Override
        public Object next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            hasNext = false;
            return next;
        }
    }

    private Statement macro() {
        String name = expect(Type.NAME, null);
        frame.noteAssigned(name);
        Macro.Definition definition = macro(name, "endmacro", null);
        return scope -> {
            scope.set(name, new Macro(definition, scope));
            return null;
        };
    }

    /**
     * Parses the parameters and the body of a macro or a call block.
     *
     * @param between parses the call that stands before the body of a call block; null for a macro
     */
    private Macro.Definition macro(String name, String end, Runnable between) {
        List<String> parameters = new ArrayList<>();
        List<Expression> defaults = new ArrayList<>();
        boolean hasParameters = between == null || isOperator("(");
        return inScope(
                List.of(),
                inner -> {
                    if (hasParameters) {
                        parameters(parameters, defaults);
                    }
                    if (between != null) {
                        frame = inner.parent;
                        between.run();
                        frame = inner;
                    }
                    int begin = reads.size();
                    boolean outer = inLoop;
                    inLoop = false; // break and continue do not leave a macro.
                    Block body = blockUpTo(end, inner);
                    inLoop = outer;
                    Set<String> special =
                            new LinkedHashSet<>(List.of("caller", "varargs", "kwargs"));
                    special.retainAll(reads.subList(begin, reads.size()));
                    special.removeAll(parameters);
                    return new Macro.Definition(name, parameters, defaults, special, body);
                });
    }

    private void parameters(List<String> parameters, List<Expression> defaults) {
        expect(Type.OPERATOR, "(");
        while (!skip(")")) {
            if (!parameters.isEmpty()) {
                expect(Type.OPERATOR, ",");
            }
            String parameter = expect(Type.NAME, null);
            if (parameters.contains(parameter)) {
                throw new TemplateError("the parameter %s is declared twice", parameter);
            }
            frame.noteRead(parameter);
            parameters.add(parameter);
            if (skip("=")) {
                defaults.add(expression());
            } else if (!defaults.isEmpty()) {
                throw new TemplateError(
                        "the parameter %s needs a default, as one before it has", parameter);
            }
        }
    }

    private Statement callBlock() {
        Expression[] call = new Expression[1];
        Macro.Definition definition = macro(null, "endcall", () -> call[0] = expression());
        if (!(call[0] instanceof Call called)) {
            throw new TemplateError("call needs the call of a macro");
        }
        return scope -> {
            Object function = called.function.value(scope);
            Args args = called.arguments.args(scope);
            Map<String, Object> named = new LinkedHashMap<>(args.named());
            if (named.put("caller", new Macro(definition, scope)) != null) {
                throw new TemplateError("caller is given twice");
            }
            Object result = Values.call(scope.run, function, new Args(args.positional(), named));
            scope.run.print(requireText(result, "call"));
            return null;
        };
    }

    private static String requireText(Object value, String tag) {
        if (value instanceof Values.Markup markup) {
            return markup.text();
        }
        if (!(value instanceof String text)) {
            throw new TemplateError(
                    "a %s block has a %s, which is no text", tag, Values.typeName(value));
        }
        return text;
    }

    private Statement filterBlock() {
        return inScope(
                List.of(),
                inner -> {
                    Expression value = filters(filter(scope -> scope.get(CAPTURED)));
                    Block body = blockUpTo("endfilter", inner);
                    return scope -> {
                        Scope own = body.scope(scope);
                        return body.captureTo(
                                text -> {
                                    own.set(CAPTURED, text);
                                    scope.run.print(requireText(value.value(own), "filter"));
                                },
                                own);
                    };
                });
    }

    private Statement withBlock() {
        List<String> names = new ArrayList<>();
        List<Target> targets = new ArrayList<>();
        List<Expression> values = new ArrayList<>();
        while (token().type() != Type.END) {
            if (!targets.isEmpty()) {
                expect(Type.OPERATOR, ",");
            }
            targets.add(target(names));
            expect(Type.OPERATOR, "=");
            values.add(expression());
        }
        Block body = block("endwith", names);
        return scope -> {
            Scope inner = body.scope(scope);
            for (int i = 0; i < targets.size(); i++) {
                targets.get(i).assign(inner, values.get(i).value(scope));
            }
            return body.execute(inner);
        };
    }

    // Expressions

    private void noteRead(String name) {
        reads.add(name);
        frame.noteRead(name);
    }

    private void nest() {
        if (++depth > MAX_DEPTH) {
            throw new TemplateError(
                    "blocks or expressions are nested more than %d deep", MAX_DEPTH);
        }
    }

    private Expression expression() {
        nest();
        int known = frame.unknown.size();
        Expression value = or();
        while (skipName("if")) {
            Expression then = value;
            Expression test = or();
            Expression otherwise =
                    skipName("else")
                            ? expression()
                            : scope -> new Values.Undefined("", "an if without else has no value");
            frame.unknown.subList(known, frame.unknown.size()).clear();
            value =
                    scope ->
                            Values.isTrue(test.value(scope))
                                    ? then.value(scope)
                                    : otherwise.value(scope);
        }
        depth--;
        return value;
    }

    /**
     * Parses an expression, or several with commas between them: a tuple.
     *
     * @param withCondition whether an element may be {@code a if b else c}
     */
    private Expression tuple(boolean withCondition) {
        List<Expression> elements = new ArrayList<>();
        boolean isTuple = false;
        do {
            if (token().type() == Type.END
                    || isOperator(")")
                    || token().is(Type.NAME, "recursive")) {
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

    private static Expression listOf(List<Expression> elements, boolean isTuple) {
        return scope -> {
            scope.run.requireSize(elements.size());
            List<Object> values = new ArrayList<>();
            elements.forEach(each -> values.add(each.value(scope)));
            return isTuple ? new Values.Tuple(values) : values;
        };
    }

    private Expression or() {
        return logical("or", true, () -> logical("and", false, this::not));
    }

    /**
     * Parses operands of {@code and} or {@code or}.
     *
     * @param decisive the truth of an operand that ends the evaluation
     */
    private Expression logical(String operator, boolean decisive, Supplier<Expression> operand) {
        List<Expression> operands = new ArrayList<>();
        do {
            operands.add(operand.get());
        } while (skipName(operator));
        if (operands.size() == 1) {
            return operands.get(0);
        }
        return scope -> {
            Object value = null;
            for (Expression each : operands) {
                value = each.value(scope);
                if (Values.isTrue(value) == decisive) {
                    break;
                }
            }
            return value;
        };
    }

    private Expression not() {
        if (!skipName("not")) {
            return comparison();
        }
        nest();
        Expression operand = not();
        depth--;
        return scope -> !Values.isTrue(operand.value(scope));
    }

    private Expression comparison() {
        Expression first = sum();
        List<String> operators = new ArrayList<>();
        List<Expression> operands = new ArrayList<>();
        while (true) {
            if (token().type() == Type.OPERATOR && COMPARISONS.contains(token().text())) {
                operators.add(next().text());
            } else if (skipName("in")) {
                operators.add("in");
            } else if (token().is(Type.NAME, "not") && peek(1).is(Type.NAME, "in")) {
                position += 2;
                operators.add("not in");
            } else {
                break;
            }
            operands.add(sum());
        }
        if (operators.isEmpty()) {
            return first;
        }
        return scope -> {
            Object left = first.value(scope);
            for (int i = 0; i < operators.size(); i++) {
                Object right = operands.get(i).value(scope);
                if (!compare(scope.run, operators.get(i), left, right)) {
                    return false;
                }
                left = right;
            }
            return true;
        };
    }

    static boolean compare(Run run, String operator, Object left, Object right) {
        return switch (operator) {
            case "==" -> Values.areEqual(run, left, right);
            case "!=" -> !Values.areEqual(run, left, right);
            case "in" -> Values.isIn(run, left, right);
            case "not in" -> !Values.isIn(run, left, right);
            default -> Values.isOrdered(run, operator, left, right);
        };
    }

    private Expression sum() {
        return binary(Set.of("+", "-"), this::concatenation);
    }

    private Expression concatenation() {
        List<Expression> parts = new ArrayList<>();
        do {
            parts.add(
                    binary(
                            Set.of("*", "/", "//", "%"),
                            () -> binary(Set.of("**"), () -> unary(true))));
        } while (skip("~"));
        if (parts.size() == 1) {
            return parts.get(0);
        }
        return scope -> {
            StringBuilder text = new StringBuilder();
            for (Expression part : parts) {
                String next = Values.text(scope.run, part.value(scope));
                scope.run.requireLength(text.length() + (long) next.length());
                text.append(next);
            }
            return text.toString();
        };
    }

    private Expression binary(Set<String> operators, Supplier<Expression> operand) {
        Expression first = operand.get();
        List<String> found = new ArrayList<>();
        List<Expression> operands = new ArrayList<>();
        while (token().type() == Type.OPERATOR && operators.contains(token().text())) {
            found.add(next().text());
            operands.add(operand.get());
        }
        if (found.isEmpty()) {
            return first;
        }
        return scope -> {
            Object value = first.value(scope);
            for (int i = 0; i < found.size(); i++) {
                value = Values.binary(scope.run, found.get(i), value, operands.get(i).value(scope));
            }
            return value;
        };
    }

    private Expression unary(boolean withFilters) {
        Expression value;
        nest();
        if (isOperator("-") || isOperator("+")) {
            boolean negative = next().text().equals("-");
            Expression operand = unary(false);
            value =
                    scope -> {
                        Object negated = Values.negate(operand.value(scope));
                        return negative ? negated : Values.negate(negated);
                    };
        } else {
            value = primary();
        }
        value = postfix(value);
        if (withFilters) {
            int chain = 0;
            while (true) {
                if (isOperator("|")) {
                    value = filters(value);
                } else if (skipName("is")) {
                    value = test(value);
                } else if (isOperator("(")) {
                    value = new Call(value, arguments());
                } else {
                    break;
                }
                limit(++chain);
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

    private Expression primary() {
        Token token = next();
        switch (token.type()) {
            case NAME:
                String name = token.text();
                if (BOOLEANS.containsKey(name) || NONES.contains(name)) {
                    Object constant = BOOLEANS.get(name);
                    return scope -> constant;
                }
                noteRead(name);
                return scope -> {
                    scope.run.step();
                    return scope.get(name);
                };
            case STRING:
                StringBuilder text = new StringBuilder(token.text());
                while (token().type() == Type.STRING) {
                    text.append(next().text());
                }
                String string = text.toString();
                return scope -> string;
            case NUMBER:
                return scope -> token.number();
            default:
                if (token.is(Type.OPERATOR, "(")) {
                    if (skip(")")) {
                        return listOf(List.of(), true);
                    }
                    Expression inner = tuple(true);
                    expect(Type.OPERATOR, ")");
                    return inner;
                }
                if (token.is(Type.OPERATOR, "[")) {
                    return listOf(elements("]", this::expression), false);
                }
                if (token.is(Type.OPERATOR, "{")) {
                    return dict();
                }
                throw new TemplateError(
                        "unexpected %s", token.text().isEmpty() ? "end" : token.text());
        }
    }

    private List<Expression> elements(String end, Supplier<Expression> element) {
        List<Expression> elements = new ArrayList<>();
        while (!skip(end)) {
            if (!elements.isEmpty()) {
                expect(Type.OPERATOR, ",");
                if (skip(end)) {
                    break;
                }
            }
            elements.add(element.get());
        }
        return elements;
    }

    private Expression dict() {
        List<Expression> values = new ArrayList<>();
        List<Expression> keys =
                elements(
                        "}",
                        () -> {
                            Expression key = expression();
                            expect(Type.OPERATOR, ":");
                            values.add(expression());
                            return key;
                        });
        return scope -> {
            Values.Dict dict = new Values.Dict();
            scope.run.requireSize(keys.size());
            for (int i = 0; i < keys.size(); i++) {
                dict.put(keys.get(i).value(scope), values.get(i).value(scope));
            }
            return dict;
        };
    }

    private Expression postfix(Expression value) {
        Expression result = value;
        for (int chain = 0; ; limit(++chain)) {
            Expression of = result;
            if (skip(".")) {
                Token token = next();
                if (token.number() instanceof Double
                        || token.type() != Type.NAME && token.number() == null) {
                    throw new TemplateError("a name or number is missing after the dot");
                }
                Object index = token.number();
                result =
                        index == null
                                ? scope ->
                                        Values.attribute(scope.run, of.value(scope), token.text())
                                : scope -> Values.item(scope.run, of.value(scope), index);
            } else if (skip("[")) {
                result = subscript(of);
            } else if (isOperator("(")) {
                result = new Call(of, arguments());
            } else {
                return result;
            }
        }
    }

    private Expression subscript(Expression of) {
        Expression none = scope -> null;
        Expression begin = isOperator(":") ? none : expression();
        if (!isOperator(":")) {
            List<Expression> keys = new ArrayList<>(List.of(begin));
            while (skip(",")) {
                keys.add(expression());
            }
            expect(Type.OPERATOR, "]");
            Expression key = keys.size() == 1 ? begin : listOf(keys, true);
            return scope -> {
                Object value = of.value(scope);
                scope.run.step();
                return Values.item(scope.run, value, key.value(scope));
            };
        }
        next();
        Expression end = isOperator(":") || isOperator("]") ? none : expression();
        Expression step = skip(":") && !isOperator("]") ? expression() : none;
        expect(Type.OPERATOR, "]");
        return scope ->
                Values.slice(
                        scope.run,
                        of.value(scope),
                        begin.value(scope),
                        end.value(scope),
                        step.value(scope));
    }

    private ArgumentList arguments() {
        expect(Type.OPERATOR, "(");
        List<Expression> positional = new ArrayList<>();
        Map<String, Expression> named = new LinkedHashMap<>();
        Expression starred = null;
        Expression doubleStarred = null;
        boolean needsComma = false;
        while (!skip(")")) {
            if (needsComma) {
                expect(Type.OPERATOR, ",");
                if (skip(")")) {
                    break;
                }
            }
            needsComma = true;
            boolean isNamed = token().type() == Type.NAME && peek(1).is(Type.OPERATOR, "=");
            boolean isLate =
                    doubleStarred != null || !isNamed && starred != null && !isOperator("**");
            if (isLate || !isNamed && !isOperator("*") && !isOperator("**") && !named.isEmpty()) {
                throw new TemplateError("an argument stands after one with a name");
            }
            if (skip("*")) {
                starred = expression();
            } else if (skip("**")) {
                doubleStarred = expression();
            } else if (isNamed) {
                String name = next().text();
                next();
                if (named.put(name, expression()) != null) {
                    throw new TemplateError("the argument %s is given twice", name);
                }
            } else {
                positional.add(expression());
            }
        }
        return new ArgumentList(positional, named, starred, doubleStarred);
    }

    private Expression filters(Expression value) {
        Expression filtered = value;
        for (int chain = 0; skip("|"); limit(++chain)) {
            filtered = filter(filtered);
        }
        return filtered;
    }

    private Expression filter(Expression value) {
        String name = dottedName();
        if (!Filters.ALL.has(name)) {
            frame.unknown.add("the filter " + name);
        }
        ArgumentList arguments = isOperator("(") ? arguments() : ArgumentList.NONE;
        return scope -> {
            Object filtered = value.value(scope);
            return Filters.call(scope.run, name, filtered, arguments.args(scope));
        };
    }

    private Expression test(Expression value) {
        boolean negated = skipName("not");
        String name = dottedName();
        if (!Tests.ALL.has(name)) {
            frame.unknown.add("the test " + name);
        }
        ArgumentList given = ArgumentList.NONE;
        Token token = token();
        if (isOperator("(")) {
            given = arguments();
        } else if (token.type() == Type.NAME && !Set.of("else", "or", "and").contains(token.text())
                || token.type() == Type.STRING
                || token.type() == Type.NUMBER
                || isOperator("[")
                || isOperator("{")) {
            if (token.text().equals("is") && token.type() == Type.NAME) {
                throw new TemplateError("tests with is cannot follow each other");
            }
            given = new ArgumentList(List.of(postfix(primary())), Map.of(), null, null);
        }
        ArgumentList arguments = given;
        return scope -> {
            Object tested = value.value(scope);
            return (Boolean) Tests.ALL.call(scope.run, name, tested, arguments.args(scope))
                    != negated;
        };
    }

    private String dottedName() {
        StringBuilder name = new StringBuilder(expect(Type.NAME, null));
        while (skip(".")) {
            name.append('.').append(expect(Type.NAME, null));
        }
        return name.toString();
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
        boolean found = isOperator(operator);
        position += found ? 1 : 0;
        return found;
    }

    private boolean skipName(String name) {
        boolean found = token().is(Type.NAME, name);
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
