// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.djlx.nativeops.host.NativeCalls;
import org.junit.jupiter.api.Test;

/** Reading several tensors by one native call, and arrays from a template. */
class TensorCallsTest {

    /** More arrays than a native call reads; views, scalars and arrays without elements. */
    @Test
    void infosAreThoseOfEachArray() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray cube = manager.arange(24f).reshape(2, 3, 4);
            NDArray learned = manager.ones(new Shape(5));
            learned.setRequiresGradient(true);
            long[] ones = new long[64];
            Arrays.fill(ones, 1);
            List<NDArray> arrays =
                    List.of(
                            cube,
                            cube.transpose(2, 0, 1),
                            cube.get(new NDIndex("1, :, 1:3")),
                            learned,
                            manager.create(7),
                            manager.ones(new Shape(0, 3), DataType.INT8),
                            Torch.empty(manager, new Shape(ones), ScalarType.BFLOAT16));
            long[][] strides = {{12, 4, 1}, {1, 12, 4}, {4, 1}, {1}, {}, {3, 1}, ones};
            List<NDArray> repeated = new ArrayList<>();
            for (int i = 0; i < 5; i++) {
                repeated.addAll(arrays);
            }
            TensorInfo[] all = Torch.infos(repeated);
            assertEquals(repeated.size(), all.length);
            for (int k = 0; k < all.length; k++) {
                int i = k % arrays.size();
                NDArray array = arrays.get(i);
                assertEquals(Torch.scalarType(array), all[k].type());
                assertArrayEquals(array.getShape().getShape(), all[k].sizes());
                assertArrayEquals(strides[i], all[k].strides());
                assertEquals(Torch.dataPointer(array), all[k].address());
                assertEquals(array == learned, all[k].requiresGradient());
            }
        }
    }

    @Test
    void sixteenArraysAreOneCall() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray array = manager.ones(new Shape(2, 3));
            long layouts = 16; // of each array
            NativeCalls before = NativeCalls.ofThread();
            Torch.infos(Collections.nCopies(16, array));
            assertEquals(layouts + 1, NativeCalls.ofThread().other() - before.other());
        }
    }

    /** Libtorch's operators have at most 64 dimensions, its arrays may have more. */
    @Test
    void arraysOfManyDimensions() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            long[] sizes = new long[100];
            Arrays.fill(sizes, 1);
            NDArray many = manager.ones(new Shape(sizes));
            assertArrayEquals(sizes, Torch.info(many).sizes());
            List<NDArray> arrays = Collections.nCopies(16, many);
            assertThrows(IllegalArgumentException.class, () -> Torch.infos(arrays));
            long[] more = new long[131]; // 8 arrays take all words that there are.
            Arrays.fill(more, 1);
            NDArray eighth = manager.ones(new Shape(more));
            assertEquals(8, Torch.infos(Collections.nCopies(8, eighth)).length);
            assertThrows(
                    IllegalArgumentException.class,
                    () -> Torch.infos(Collections.nCopies(9, eighth)));
        }
    }

    @Test
    void invalidArraysAreRefused() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray closed = manager.ones(new Shape(1));
            closed.close();
            List<NDArray> none = new ArrayList<>();
            none.add(null);
            assertThrows(IllegalArgumentException.class, () -> Torch.infos(List.of(closed)));
            assertThrows(IllegalArgumentException.class, () -> Torch.infos(none));
        }
    }

    @Test
    void templateMakesNewArraysOfItsShapeAndType() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            for (Shape shape : List.of(new Shape(2, 3), new Shape(), new Shape(4, 0))) {
                TensorTemplate template =
                        new TensorTemplate(Device.cpu(), shape, ScalarType.BFLOAT16);
                TensorTemplate.Created first = template.create(manager);
                TensorTemplate.Created second = template.create(manager);
                assertEquals(shape, first.array().getShape());
                assertEquals(ScalarType.BFLOAT16, Torch.scalarType(first.array()));
                assertEquals(Torch.dataPointer(first.array()), first.address());
                assertTrue(Torch.isContiguous(first.array()));
                assertFalse(Torch.requiresGradient(first.array()));
                assertEquals(shape.size() == 0, first.address() == second.address());
                first.array().close();
                second.array().close();
            }
        }
    }

    @Test
    void templatesRefuseWhatEmptyRefuses() {
        Shape shape = new Shape(1);
        Device cpu = Device.cpu();
        ScalarType type = ScalarType.FLOAT32;
        assertThrows(IllegalArgumentException.class, () -> new TensorTemplate(null, shape, type));
        assertThrows(IllegalArgumentException.class, () -> new TensorTemplate(cpu, null, type));
        assertThrows(IllegalArgumentException.class, () -> new TensorTemplate(cpu, shape, null));
        TensorTemplate template = new TensorTemplate(cpu, shape, type);
        assertThrows(IllegalArgumentException.class, () -> template.create(null));
        NDManager closed = NDManager.newBaseManager("PyTorch");
        closed.close();
        assertThrows(IllegalArgumentException.class, () -> template.create(closed));
    }
}
