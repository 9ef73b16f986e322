// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.engine.PtNDManager;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.djlx.nativeops.host.CHeap;
import org.djlx.nativeops.host.Scratch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Operators in Java, called by libtorch's dispatcher as the interpreter of TorchScript does. */
class TorchLibraryTest {

    private static final String AFFINE =
            "affine(Tensor x, Tensor y, float factor=2.0, *, int shift=0, bool negate=False)"
                    + " -> Tensor";
    private static final AtomicReference<TorchLibrary.Kernel> OTHER = new AtomicReference<>();

    private NDManager manager;

    @BeforeAll
    static void define() {
        TorchLibrary.define(
                "djlx_test::" + AFFINE,
                arguments -> {
                    NDArray x = arguments.tensor(0);
                    assertSame(x, arguments.tensor(0));
                    NDArray scaled = x.mul(arguments.floating(2)).add(arguments.integer(3));
                    return arguments.bool(4) ? scaled.neg() : scaled;
                });
        TorchLibrary.define(
                "djlx_test::other(Tensor x) -> Tensor", arguments -> OTHER.get().call(arguments));
    }

    @BeforeEach
    void open() {
        manager = NDManager.newBaseManager("PyTorch");
    }

    @AfterEach
    void close() {
        manager.close();
    }

    /** Calls an operator and returns its result, a handle. */
    private static long dispatch(String name, long... values) {
        try (Memory stack = new Memory(8L * values.length);
                Memory operator = new Memory(64);
                Memory overload = new Memory(1)) {
            operator.setString(0, "djlx_test::" + name);
            overload.setString(0, "");
            stack.write(0, values, 0, values.length);
            AotiTorch.check(
                    AotiTensor.djlx_call_dispatcher(
                            Pointer.nativeValue(operator),
                            Pointer.nativeValue(overload),
                            Pointer.nativeValue(stack)),
                    name);
            return stack.getLong(0);
        }
    }

    /** A new handle, as the dispatcher takes those that it is given. */
    private static long handle(NDArray array) {
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                AotiTensor.djlx_new_handle(TorchChecks.tensor(array, "the array"), scratch.slot(0)),
                "handle");
        return scratch.getLong(0);
    }

    private static void delete(long handle) {
        AotiTorch.check(AotiTensor.djlx_delete_handle(handle), "delete");
    }

    private static void affine(NDArray x, boolean negate, long shift) {
        delete(
                dispatch(
                        "affine",
                        handle(x),
                        handle(x),
                        Double.doubleToRawLongBits(0.5),
                        shift,
                        negate ? 1 : 0));
    }

    private static long other(NDArray x, TorchLibrary.Kernel kernel) {
        OTHER.set(kernel);
        return dispatch("other", handle(x));
    }

    @Test
    void passesArgumentsOfAllTypes() {
        NDArray x = manager.create(new float[] {1, 2, 3});
        NDArray y = manager.create(new float[] {0});
        long half = Double.doubleToRawLongBits(0.5);
        for (boolean negate : new boolean[] {false, true}) {
            long result = dispatch("affine", handle(x), handle(y), half, -7L, negate ? 1 : 0);
            try (NDArray array = new PtNDArray((PtNDManager) manager, result)) {
                float sign = negate ? -1 : 1;
                assertArrayEquals(
                        new float[] {sign * -6.5f, sign * -6, sign * -5.5f}, array.toFloatArray());
            }
        }
        assertArrayEquals(new float[] {1, 2, 3}, x.toFloatArray());
    }

    @Test
    void returnsAnArgument() {
        NDArray x = manager.create(new float[] {1, 2, 3});
        try (NDArray same =
                new PtNDArray((PtNDManager) manager, other(x, arguments -> arguments.tensor(0)))) {
            assertEquals(Torch.dataPointer(x), Torch.dataPointer(same));
        }
    }

    @Test
    @Tag("slow")
    void leaksNothing() {
        NDArray x = manager.create(new float[] {1, 2, 3}).neg(); // in memory of libtorch
        // DJL's operators on numbers leak by themselves, so there are none here.
        TorchLibrary.Kernel doubles = arguments -> arguments.tensor(0).add(arguments.tensor(0));
        TorchLibrary.Kernel asksForNothing = arguments -> x;
        Runnable calls =
                () -> {
                    delete(other(x, doubles));
                    delete(other(x, asksForNothing));
                };
        for (int i = 0; i < 30_000; i++) {
            calls.run(); // Compilers take and return the most memory at first.
        }
        CHeap.assertNoLeak(30_000, calls);
    }

    /** By larger tensors, as libtorch takes milliseconds to write down a failure. */
    @Test
    @Tag("slow")
    void leaksNoTensorWhenItFails() {
        TorchLibrary.Kernel fails =
                arguments -> {
                    arguments.tensor(0).neg();
                    throw new IllegalArgumentException("wrong");
                };
        long before = CHeap.bytesInUse();
        for (int i = 0; i < 400; i++) {
            try (NDArray large = manager.ones(new Shape(100 << 10))) { // 400 KiB
                assertThrows(EngineException.class, () -> other(large, fails));
            }
        }
        long grown = CHeap.bytesInUse() - before;
        // Compilers take and return up to 20 MB meanwhile.
        assertTrue(grown < 80 << 20, () -> "grown by " + grown);
    }

    @Test
    void callThrowsTheExceptionOfTheKernel() {
        NDArray x = manager.create(new float[] {1});
        for (Throwable failure :
                new Throwable[] {
                    new IllegalStateException("as it must: \u00e4"),
                    new StackOverflowError(),
                    new IllegalArgumentException((String) null)
                }) {
            TorchLibrary.Kernel fails =
                    arguments -> {
                        if (failure instanceof Error error) {
                            throw error;
                        }
                        throw (RuntimeException) failure;
                    };
            Throwable thrown =
                    assertThrows(
                            failure.getClass(), () -> TorchLibrary.call(() -> other(x, fails)));
            assertSame(failure, thrown);
            // What libtorch made of it.
            assertSame(EngineException.class, failure.getSuppressed()[0].getClass());
            // Without the call, that is all there is.
            assertThrows(EngineException.class, () -> other(x, fails));
        }
    }

    @Test
    void callThrowsTheExceptionOfTheCode() throws Exception {
        NDArray x = manager.create(new float[] {1});
        TorchLibrary.Kernel fails =
                arguments -> {
                    throw new IllegalStateException("inner");
                };
        String result =
                TorchLibrary.call(
                        () -> {
                            assertThrows(
                                    IllegalStateException.class,
                                    () -> TorchLibrary.call(() -> other(x, fails)));
                            affine(x, false, 1);
                            return "outer";
                        });
        assertEquals("outer", result);
        assertThrows(
                UnsupportedOperationException.class,
                () ->
                        TorchLibrary.call(
                                () -> {
                                    affine(x, false, 1);
                                    throw new UnsupportedOperationException();
                                }));
    }

    /** Threads that fail and do not, at once. */
    @Test
    void keepsThreadsApart() throws Exception {
        NDArray x = manager.create(new float[] {1}).neg();
        OTHER.set(
                arguments -> {
                    if (Thread.currentThread().getName().startsWith("fails")) {
                        throw new IllegalStateException(Thread.currentThread().getName());
                    }
                    return arguments.tensor(0);
                });
        AtomicInteger wrong = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            boolean fails = i % 2 == 0;
            String name = (fails ? "fails" : "works") + i;
            Runnable body =
                    () -> {
                        for (int j = 0; j < 50; j++) {
                            try {
                                delete(TorchLibrary.call(() -> dispatch("other", handle(x))));
                                wrong.addAndGet(fails ? 1 : 0);
                            } catch (Exception e) {
                                wrong.addAndGet(name.equals(e.getMessage()) ? 0 : 1);
                            }
                        }
                    };
            threads.add(new Thread(body, name));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        assertEquals(0, wrong.get());
    }

    @Test
    void resultInJavaMemoryIsRefused() {
        NDArray x = manager.create(new float[] {1});
        try (NDManager other = NDManager.newBaseManager("PyTorch")) {
            for (TorchLibrary.Kernel kernel :
                    new TorchLibrary.Kernel[] {
                        arguments -> other.create(new float[] {1}), arguments -> null
                    }) {
                assertThrows(
                        IllegalArgumentException.class,
                        () ->
                                TorchLibrary.call(
                                        () -> {
                                            delete(other(x, kernel));
                                            return null;
                                        }));
            }
        }
    }

    @Test
    void argumentsAreCheckedAndEndWithTheCall() throws Exception {
        NDArray x = manager.create(new Shape(2));
        AtomicReference<TorchArguments> kept = new AtomicReference<>();
        TorchLibrary.call(
                () -> {
                    delete(
                            other(
                                    x,
                                    arguments -> {
                                        kept.set(arguments);
                                        String message =
                                                assertThrows(
                                                                IllegalArgumentException.class,
                                                                () -> arguments.integer(0))
                                                        .getMessage();
                                        assertTrue(message.contains("djlx_test::other"), message);
                                        return arguments.tensor(0);
                                    }));
                    return null;
                });
        assertThrows(IllegalStateException.class, () -> kept.get().tensor(0));
        kept.get().close();
    }

    @Test
    void refusesSchemas() {
        TorchLibrary.Kernel kernel = arguments -> arguments.tensor(0);
        for (String schema :
                new String[] {
                    null,
                    "",
                    "name(Tensor x) -> Tensor",
                    "djlx_test::a(Tensor x)",
                    "djlx_test::a(Tensor x) -> Tensor[]",
                    "djlx_test::a(Tensor x) -> (Tensor, Tensor)",
                    "djlx_test::a(Tensor[] x) -> Tensor",
                    "djlx_test::a(Tensor? x) -> Tensor",
                    "djlx_test::a(Tensor x, str s) -> Tensor"
                }) {
            assertThrows(
                    IllegalArgumentException.class,
                    () -> TorchLibrary.define(schema, kernel),
                    schema);
        }
        assertThrows(
                IllegalArgumentException.class,
                () -> TorchLibrary.define("djlx_test::a(Tensor x) -> Tensor", null));
        // libtorch's own checks; what was defined goes on to work.
        assertThrows(
                EngineException.class,
                () -> TorchLibrary.define("djlx_test::other(Tensor x) -> Tensor", kernel));
        assertThrows(
                EngineException.class,
                () -> TorchLibrary.define("djlx_test::a(Tensor x=5) -> Tensor", kernel));
        delete(other(manager.create(new float[] {1}), kernel));
        TorchLibrary.define("djlx_test::a(Tensor x) -> Tensor", kernel); // after a failure
    }
}
