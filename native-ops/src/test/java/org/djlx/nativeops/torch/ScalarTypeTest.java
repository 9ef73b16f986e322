// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.EnumSet;
import org.djlx.nativeops.LoadedLibraries;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

class ScalarTypeTest {

    @ParameterizedTest
    @CsvSource({
        "UINT8, uint8",
        "INT8, int8",
        "INT16, int16",
        "INT32, int32",
        "INT64, int64",
        "FLOAT16, float16",
        "FLOAT32, float32",
        "FLOAT64, float64",
        "COMPLEX32, complex32",
        "COMPLEX64, complex64",
        "COMPLEX128, complex128",
        "BOOL, bool",
        "BFLOAT16, bfloat16",
        "FLOAT8_E5M2, float8_e5m2",
        "FLOAT8_E4M3FN, float8_e4m3fn",
        "FLOAT8_E5M2FNUZ, float8_e5m2fnuz",
        "FLOAT8_E4M3FNUZ, float8_e4m3fnuz",
        "UINT16, uint16",
        "UINT32, uint32",
        "UINT64, uint64"
    })
    void codesEqualThoseOfLibtorch(ScalarType type, String name) {
        NativeLibrary.LIBTORCH.ensureAvailability();
        int code =
                com.sun.jna.NativeLibrary.getInstance(LoadedLibraries.find("libtorch_cpu.so"))
                        .getFunction("aoti_torch_dtype_" + name)
                        .invokeInt(new Object[0]);
        assertEquals(code, type.code());
        assertEquals(type, ScalarType.fromCode(code));
    }

    @ParameterizedTest
    @EnumSource(ScalarType.class)
    void itemSizesEqualThoseOfLibtorch(ScalarType type) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            var pair = Torch.empty(manager, new Shape(2), type);
            long second = Torch.dataPointer(pair.get("1:"));
            assertEquals(type.itemSize(), second - Torch.dataPointer(pair));
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {-1, 12, 16, 22, 30, 44, Integer.MAX_VALUE, Integer.MIN_VALUE})
    void otherCodesAreRefused(int code) {
        var e = assertThrows(IllegalArgumentException.class, () -> ScalarType.fromCode(code));
        assertTrue(e.getMessage().contains(Integer.toString(code)), e.getMessage());
    }

    @Test
    void tellsWhichTypesAreFloatingPointAndReduced() {
        var floating = EnumSet.noneOf(ScalarType.class);
        var reduced = EnumSet.noneOf(ScalarType.class);
        for (ScalarType type : ScalarType.values()) {
            if (type.isFloatingPoint()) {
                floating.add(type);
            }
            if (type.isReducedFloatingPoint()) {
                reduced.add(type);
            }
        }
        assertEquals(
                EnumSet.of(
                        ScalarType.FLOAT16,
                        ScalarType.FLOAT32,
                        ScalarType.FLOAT64,
                        ScalarType.BFLOAT16,
                        ScalarType.FLOAT8_E5M2,
                        ScalarType.FLOAT8_E4M3FN,
                        ScalarType.FLOAT8_E5M2FNUZ,
                        ScalarType.FLOAT8_E4M3FNUZ),
                floating);
        assertEquals(EnumSet.of(ScalarType.FLOAT16, ScalarType.BFLOAT16), reduced);
    }

    /** Wherever a size of 0 is, as libtorch's strides of such a shape overflow, too. */
    @Test
    void byteSizesThatOverflowAreRefused() {
        assertEquals(4, ScalarType.FLOAT32.byteSize());
        assertEquals(24, ScalarType.FLOAT32.byteSize(2, 3));
        assertEquals(0, ScalarType.FLOAT32.byteSize(2, 0, 3));
        long huge = 1L << 40;
        for (long[] sizes :
                new long[][] {{huge, huge}, {0, huge, huge}, {huge, 0, huge}, {huge, huge, 0}}) {
            assertThrows(IllegalArgumentException.class, () -> ScalarType.INT8.byteSize(sizes));
        }
    }
}
