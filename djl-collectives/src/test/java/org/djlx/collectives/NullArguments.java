// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Parameter;
import java.lang.reflect.Type;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.function.Supplier;
import java.util.stream.Stream;

/**
 * Passes null for each reference parameter of the public methods and constructors of a package, one
 * at a time, with samples for the other parameters.
 */
public final class NullArguments {

    private final Map<String, Supplier<?>> samples =
            new HashMap<>(); // by the name of the type or the parameter
    private final Map<String, String> exceptions = new HashMap<>();
    private final TreeSet<String> problems = new TreeSet<>();
    private final TreeSet<String> unused = new TreeSet<>();
    private int calls;

    /** Creates an instance with samples of common types. */
    public NullArguments() {
        sample(String.class, () -> "text");
        sample(int.class, () -> 0);
        sample(long.class, () -> 1L);
        sample(double.class, () -> 1.0);
        sample(boolean.class, () -> false);
        sample(byte[].class, () -> new byte[1]);
        sample(long[].class, () -> new long[] {1});
    }

    /**
     * Sets the sample of a type, used as an argument and as a receiver.
     *
     * @param type the type, as declared
     * @param maker makes one, each time it is needed
     */
    public <T> NullArguments sample(Class<T> type, Supplier<? extends T> maker) {
        return sample(type.getTypeName(), maker);
    }

    /**
     * The same for a type with arguments, as {@link Type#getTypeName} names it, or for all
     * parameters of a name.
     */
    public NullArguments sample(String type, Supplier<?> maker) {
        samples.put(type, maker);
        return this;
    }

    /**
     * Leaves out a class or a method.
     *
     * @param name its simple name, or that of the class, a dot, and that of the method
     * @param reason why
     */
    public NullArguments except(String name, String reason) {
        exceptions.put(name, reason);
        unused.add(name);
        return this;
    }

    /**
     * Calls all that is public in the package of a class.
     *
     * @return the calls with an unexpected outcome
     */
    public List<String> check(Class<?> inPackage) {
        for (Class<?> type : publicClasses(inPackage)) {
            if (isExcepted(type.getSimpleName())) {
                continue;
            }
            for (Constructor<?> constructor : type.getConstructors()) {
                if (!Modifier.isAbstract(type.getModifiers())) {
                    check(type, constructor, constructor::newInstance, "new");
                }
            }
            for (Method method : type.getDeclaredMethods()) {
                boolean ofTheLanguage = type.isEnum() && method.getName().equals("valueOf");
                if (Modifier.isPublic(method.getModifiers())
                        && !method.isSynthetic()
                        && !ofTheLanguage) {
                    check(
                            type,
                            method,
                            arguments -> method.invoke(receiver(type, method), arguments),
                            method.getName());
                }
            }
        }
        return new ArrayList<>(problems);
    }

    /** The exceptions that were not needed. */
    public List<String> unused() {
        return new ArrayList<>(unused);
    }

    /** How many calls were made. */
    public int calls() {
        return calls;
    }

    private boolean isExcepted(String name) {
        unused.remove(name);
        return exceptions.containsKey(name);
    }

    private interface Call {
        Object with(Object[] arguments) throws ReflectiveOperationException;
    }

    private void check(Class<?> type, Executable executable, Call call, String name) {
        Parameter[] parameters = executable.getParameters();
        for (int i = 0; i < parameters.length; i++) {
            if (parameters[i].getType().isPrimitive()) {
                continue;
            }
            if (isExcepted(type.getSimpleName() + "." + name)) {
                return;
            }
            String text =
                    type.getName().substring(type.getPackageName().length() + 1)
                            + "."
                            + name
                            + ", "
                            + parameters[i].getName()
                            + " of "
                            + parameters.length
                            + ": ";
            try {
                Object[] arguments = new Object[parameters.length];
                for (int j = 0; j < arguments.length; j++) {
                    arguments[j] = j == i ? null : sample(parameters[j]);
                }
                calls++;
                if (call.with(arguments) instanceof Work work) {
                    work.exception().ifPresent(e -> look(text, e));
                }
            } catch (InvocationTargetException e) {
                look(text, e.getCause());
            } catch (ReflectiveOperationException | RuntimeException e) {
                problems.add(text + "not called: " + e);
            }
        }
    }

    /** Other errors tell the caller something, whatever it is; a wrong argument says which. */
    private void look(String text, Throwable failure) {
        for (Throwable e = failure; e != null; e = e.getCause()) {
            boolean silent = e instanceof IllegalArgumentException && e.getMessage() == null;
            if (e instanceof NullPointerException || silent) {
                problems.add(text + e + " at " + List.of(e.getStackTrace()).get(0));
            }
        }
    }

    private Object receiver(Class<?> type, Method method) {
        return Modifier.isStatic(method.getModifiers()) ? null : sample(type);
    }

    private Object sample(Parameter parameter) {
        Supplier<?> named = samples.get(parameter.getName());
        return named == null ? sample(parameter.getParameterizedType()) : named.get();
    }

    private Object sample(Type type) {
        Supplier<?> maker = samples.get(type.getTypeName());
        if (maker != null) {
            return maker.get();
        }
        if (type instanceof Class<?> plain && plain.isEnum()) {
            return plain.getEnumConstants()[0];
        }
        throw new IllegalStateException("there is no sample of " + type.getTypeName());
    }

    private static List<Class<?>> publicClasses(Class<?> inPackage) {
        try {
            Path classes =
                    Path.of(inPackage.getProtectionDomain().getCodeSource().getLocation().toURI());
            Path folder = classes.resolve(inPackage.getPackageName().replace('.', '/'));
            List<Class<?>> found = new ArrayList<>();
            try (Stream<Path> files = Files.list(folder)) {
                for (Path file : files.sorted().toList()) {
                    String name = file.getFileName().toString();
                    if (name.endsWith(".class") && !name.equals("package-info.class")) {
                        String simple = name.substring(0, name.length() - ".class".length());
                        Class<?> type = Class.forName(inPackage.getPackageName() + "." + simple);
                        if (isPublic(type)) {
                            found.add(type);
                        }
                    }
                }
            }
            return found;
        } catch (IOException | URISyntaxException | ClassNotFoundException e) {
            throw new AssertionError(e);
        }
    }

    private static boolean isPublic(Class<?> type) {
        Class<?> outer = type.getEnclosingClass();
        return Modifier.isPublic(type.getModifiers())
                && !type.isAnonymousClass()
                && (outer == null || isPublic(outer));
    }
}
