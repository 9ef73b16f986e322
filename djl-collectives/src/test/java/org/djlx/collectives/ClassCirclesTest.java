// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URISyntaxException;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.spi.ToolProvider;
import org.junit.jupiter.api.Test;

/** The classes of this module that depend on each other in a circle are in one package. */
class ClassCirclesTest {

    private static final Pattern DEPENDENCY =
            Pattern.compile("^ +(org\\.djlx\\.[\\w.]+)\\S* +-> (org\\.djlx\\.[\\w.]+)");

    @Test
    void noCircleOfClassesSpansPackages() throws URISyntaxException {
        Map<String, Set<String>> dependencies = dependencies();
        assertTrue(dependencies.size() > 100, dependencies.keySet().toString());
        Map<String, Set<String>> reachable = new TreeMap<>();
        dependencies.keySet().forEach(from -> reachable.put(from, reachable(dependencies, from)));
        Set<String> circles = new TreeSet<>();
        reachable.forEach(
                (one, others) -> {
                    for (String other : others) {
                        boolean back = reachable.getOrDefault(other, Set.of()).contains(one);
                        if (back && !packageOf(one).equals(packageOf(other))) {
                            circles.add(one + " <-> " + other);
                        }
                    }
                });
        assertEquals(Set.of(), circles);
    }

    private static String packageOf(String type) {
        return type.substring(0, type.lastIndexOf('.'));
    }

    /** Returns the top-level classes that each top-level class uses. */
    private static Map<String, Set<String>> dependencies() throws URISyntaxException {
        Path classes =
                Path.of(
                        ProcessGroup.class
                                .getProtectionDomain()
                                .getCodeSource()
                                .getLocation()
                                .toURI());
        StringWriter output = new StringWriter();
        PrintWriter writer = new PrintWriter(output);
        ToolProvider jdeps = ToolProvider.findFirst("jdeps").orElseThrow();
        jdeps.run(writer, writer, "-verbose:class", "-filter:none", classes.toString());
        Map<String, Set<String>> dependencies = new TreeMap<>();
        for (String line : output.toString().lines().toList()) {
            Matcher matcher = DEPENDENCY.matcher(line);
            if (matcher.find() && !matcher.group(1).equals(matcher.group(2))) {
                dependencies
                        .computeIfAbsent(matcher.group(1), type -> new HashSet<>())
                        .add(matcher.group(2));
            }
        }
        return dependencies;
    }

    private static Set<String> reachable(Map<String, Set<String>> dependencies, String from) {
        Set<String> found = new HashSet<>();
        List<String> next = List.of(from);
        while (!next.isEmpty()) {
            next =
                    next.stream()
                            .flatMap(type -> dependencies.getOrDefault(type, Set.of()).stream())
                            .filter(found::add)
                            .toList();
        }
        return found;
    }
}
