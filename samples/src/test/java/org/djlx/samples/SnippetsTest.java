// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.tools.Diagnostic;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.StandardJavaFileManager;
import javax.tools.StandardLocation;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * The Java snippets of README.md and docs compile as they stand, with their own imports and with
 * the imports and types of the snippets above them. {@link Given} has what they take as given.
 * ExamplesTest runs them.
 */
@Timeout(120)
class SnippetsTest {

    private static final Path ROOT = Path.of("..");
    private static final Pattern SNIPPET =
            Pattern.compile("^```java\n(.*?)^```$", Pattern.DOTALL | Pattern.MULTILINE);
    private static final Pattern IMPORT = Pattern.compile("^import .*;\n", Pattern.MULTILINE);
    // A type at the left margin, up to its closing brace there, or on one line.
    private static final Pattern TYPE =
            Pattern.compile(
                    "^(?:@\\w+.*\n"
                        + ")?(?:static |public )*(?:class|interface|enum|record) .*?(?:^}|\\{}$)",
                    Pattern.DOTALL | Pattern.MULTILINE);

    /** Code of a page without its imports; the imports and types above it on its page. */
    private record Snippet(String place, Set<String> imports, String types, String code) {

        @Override
        public String toString() {
            return place;
        }

        String source() {
            String head = String.join("", imports);
            if (code.contains("public static void main(")) {
                return head + code.replace("public class", "class");
            }
            Class<?> given =
                    place.startsWith("text-generation")
                            ? Given.Chat.class
                            : place.startsWith("embeddings") ? Given.Embeddings.class : Given.class;
            return "package snippets;\n%sclass Snippet extends %s {\n%s\nvoid run() throws Exception {\n%s}\n}\n"
                    .formatted(
                            head,
                            given.getCanonicalName(),
                            types,
                            TYPE.matcher(code).replaceAll(""));
        }
    }

    static List<Snippet> snippets() throws IOException {
        List<Path> pages = new ArrayList<>(List.of(ROOT.resolve("README.md")));
        try (Stream<Path> docs = Files.list(ROOT.resolve("docs"))) {
            docs.filter(page -> page.toString().endsWith(".md")).sorted().forEach(pages::add);
        }
        List<Snippet> snippets = new ArrayList<>();
        for (Path page : pages) {
            int count = 0;
            Set<String> imports = new LinkedHashSet<>();
            StringBuilder types = new StringBuilder();
            for (MatchResult found : SNIPPET.matcher(Files.readString(page)).results().toList()) {
                IMPORT.matcher(found.group(1)).results().forEach(each -> imports.add(each.group()));
                TYPE.matcher(found.group(1)).results().forEach(each -> types.append(each.group()));
                snippets.add(
                        new Snippet(
                                "%s, snippet %d".formatted(page.getFileName(), ++count),
                                Set.copyOf(imports),
                                types.toString(),
                                IMPORT.matcher(found.group(1)).replaceAll("").strip() + "\n"));
            }
        }
        return snippets;
    }

    @ParameterizedTest
    @MethodSource("snippets")
    void aSnippetCompilesWithTheImportsOfItsPage(Snippet snippet, @TempDir Path dir)
            throws IOException {
        if (snippet.code.contains("SparkRanks")) {
            // Spark is not on this class path: the lines are those of the project to copy.
            Path project = ROOT.resolve("samples/spark-project/src/main/java/com/example");
            String code = Files.readString(project.resolve("CircleOnSpark.java"));
            snippet.code
                    .lines()
                    .filter(line -> !line.startsWith("//"))
                    .forEach(
                            line ->
                                    assertTrue(
                                            code.replaceAll("\\s", "")
                                                    .contains(line.replaceAll("\\s", "")),
                                            line));
            return;
        }
        // The README shows the shortest program without imports; a page has it with them.
        Set<String> imports =
                snippet.imports.isEmpty()
                        ? snippets().stream()
                                .filter(other -> other.code.equals(snippet.code))
                                .flatMap(other -> other.imports.stream())
                                .collect(Collectors.toSet())
                        : snippet.imports;
        String source = new Snippet(snippet.place, imports, snippet.types, snippet.code).source();
        assertEquals(List.of(), errors(source, dir), source);
    }

    @Test
    void aSnippetWithoutAnImportThatItNeedsIsRefused(@TempDir Path dir) throws IOException {
        String code = "NDList list = new NDList(x);\n";
        Set<String> none = Set.of();
        assertFalse(errors(new Snippet("", none, "", code).source(), dir).isEmpty());
        Set<String> one = Set.of("import ai.djl.ndarray.NDList;\n");
        assertEquals(List.of(), errors(new Snippet("", one, "", code).source(), dir));
    }

    private static List<String> errors(String source, Path dir) throws IOException {
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        DiagnosticCollector<JavaFileObject> found = new DiagnosticCollector<>();
        try (StandardJavaFileManager files = compiler.getStandardFileManager(found, null, null)) {
            files.setLocationFromPaths(StandardLocation.CLASS_OUTPUT, List.of(dir));
            JavaFileObject file =
                    new SimpleJavaFileObject(
                            URI.create("string:///Snippet.java"), JavaFileObject.Kind.SOURCE) {
                        @Override
                        public CharSequence getCharContent(boolean ignoreEncodingErrors) {
                            return source;
                        }
                    };
            List<String> options = List.of("--release", "17", "-proc:none");
            compiler.getTask(null, files, found, options, null, List.of(file)).call();
        }
        return found.getDiagnostics().stream()
                .filter(each -> each.getKind() == Diagnostic.Kind.ERROR)
                .map(each -> each.getLineNumber() + ": " + each.getMessage(null))
                .toList();
    }
}
