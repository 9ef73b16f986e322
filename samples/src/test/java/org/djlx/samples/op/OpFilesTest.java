// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Files that {@code op} cannot use: the error is one line with the file and the problem. */
@Timeout(120)
class OpFilesTest {

    private final OpRunner op = new OpRunner("shm", 2);

    @AfterEach
    void close() throws IOException {
        op.close();
    }

    private void fails(String command, String... reasons) {
        assertEquals(1, op.run(command.split(" ")), op::err);
        assertEquals("", op.out());
        assertEquals(2, op.err().lines().count(), op::err);
        for (String reason : reasons) {
            assertTrue(op.err().lines().findFirst().orElseThrow().contains(reason), op::err);
        }
    }

    private Path file(String name) {
        return Path.of(op.path(name));
    }

    /** Returns the bytes of an .npy array with a header, such as NumPy's. */
    private static byte[] npy(String header, int dataBytes) {
        byte[] text = (header + "\n").getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        bytes.writeBytes(new byte[] {(byte) 0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0});
        bytes.writeBytes(new byte[] {(byte) text.length, (byte) (text.length >> 8)});
        bytes.writeBytes(text);
        bytes.writeBytes(new byte[dataBytes]);
        return bytes.toByteArray();
    }

    private static String header(String type, String shape) {
        return "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
    }

    private void writeZip(String name, String entry, byte[] content) throws IOException {
        try (OutputStream out = Files.newOutputStream(file(name));
                ZipOutputStream zip = new ZipOutputStream(out)) {
            zip.putNextEntry(new ZipEntry(entry));
            zip.write(content);
        }
    }

    /** Each operation runs on the examples; existing files are not changed. */
    @ParameterizedTest
    @EnumSource(OpKind.class)
    void examplesAreWritten(OpKind kind) throws IOException {
        String files = kind.reads() ? " --input in-{rank}.npz" : "";
        files += kind.takes(OpKind.Takes.B) ? " --b b-{rank}.npz" : "";
        assertEquals(0, op.run((kind + files + " --example").split(" ")), op::err);
        if (kind == OpKind.allReduce) {
            // 0 + 100, 1 + 101, … of two ranks
            assertTrue(op.out().contains("100.0 102.0 104.0 106.0"), op::out);
            byte[] before = Files.readAllBytes(file("in-0.npz"));
            assertEquals(0, op.run((kind + files + " --example").split(" ")), op::err);
            assertArrayEquals(before, Files.readAllBytes(file("in-0.npz")));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "x", "no zip file at all, but longer than its end would be"})
    void noZip(String text) throws IOException {
        Files.writeString(file("in.npz"), text);
        fails("allReduce --input in.npz", op.path("in.npz") + " is not an .npz file: ");
    }

    @Test
    void anEmptyZip() throws IOException {
        new ZipOutputStream(Files.newOutputStream(file("in.npz"))).close();
        fails("allReduce --input in.npz", op.path("in.npz"), "rank 0 needs 1 array, not 0");
    }

    @Test
    void aTruncatedFile() throws IOException {
        op.write("in.npz", op.array(new Shape(100), i -> i));
        byte[] whole = Files.readAllBytes(file("in.npz"));
        for (int length : new int[] {whole.length - 1, whole.length / 2, 10}) {
            OpRunner other = new OpRunner("shm", 2);
            Files.write(Path.of(other.path("in.npz")), Arrays.copyOf(whole, length));
            assertEquals(1, other.run("allReduce", "--input", "in.npz"));
            assertTrue(other.err().contains("is not an .npz file: "), other::err);
            other.close();
        }
    }

    @Test
    void aDamagedArray() throws IOException {
        byte[] npy = npy(header("<f4", "4,"), 16);
        try (OutputStream out = Files.newOutputStream(file("in.npz"));
                ZipOutputStream zip = new ZipOutputStream(out)) {
            zip.setLevel(0);
            zip.putNextEntry(new ZipEntry("x.npy"));
            zip.write(npy);
        }
        byte[] bytes = Files.readAllBytes(file("in.npz"));
        // After the entry's header of 30 bytes, its name, and 5 bytes of the stored block.
        bytes[30 + "x.npy".length() + 5 + npy.length - 1] = 1;
        Files.write(file("in.npz"), bytes);
        fails("allReduce --input in.npz", op.path("in.npz"), "x.npy", "checksum");
    }

    @Test
    void aTruncatedArray() throws IOException {
        writeZip("in.npz", "x.npy", npy(header("<f4", "2, 3"), 20));
        fails(
                "allReduce --input in.npz",
                op.path("in.npz")
                        + ": cannot read x.npy: its shape (2, 3) takes 24 bytes, but it"
                        + " has 20");
    }

    @Test
    void aShapeBeyondAllBounds() throws IOException {
        writeZip("in.npz", "x.npy", npy(header("<f4", "99999999999, 99999999999, 8"), 20));
        fails("allReduce --input in.npz", "but it has 20");
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "x", "\u0093NUMPY", "no array at all"})
    void noArray(String content) throws IOException {
        writeZip("in.npz", "x.npy", content.getBytes(StandardCharsets.ISO_8859_1));
        fails("allReduce --input in.npz", "cannot read x.npy: it is not in .npy format");
    }

    @Test
    void anotherEntry() throws IOException {
        writeZip("in.npz", "readme.txt", new byte[3]);
        fails("allReduce --input in.npz", "cannot read readme.txt: it is not in .npy format");
    }

    @ParameterizedTest
    @ValueSource(ints = {8, 9, 10, 40})
    void aTruncatedHeader(int length) throws IOException {
        writeZip("in.npz", "x.npy", Arrays.copyOf(npy(header("<f4", "4,"), 16), length));
        fails("allReduce --input in.npz", "cannot read x.npy: its header is truncated");
    }

    @ParameterizedTest
    @ValueSource(strings = {"<i2", ">f4", "<c8", "<U1", "|O"})
    void aTypeThatIsNotKnown(String type) throws IOException {
        writeZip("in.npz", "x.npy", npy(header(type, "4,"), 16));
        fails("allReduce --input in.npz", "cannot read x.npy: its type is '" + type + "'");
    }

    @Test
    void fortranOrder() throws IOException {
        String header = header("<f4", "2, 2").replace("False", "True");
        writeZip("in.npz", "x.npy", npy(header, 16));
        fails("allReduce --input in.npz", "x.npy", "Fortran order");
    }

    @Test
    void structuredArrays() throws IOException {
        String header = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }";
        writeZip("in.npz", "x.npy", npy(header, 16));
        fails("allReduce --input in.npz", "x.npy: it is no plain array");
    }

    @Test
    void aNameThatIsNotThere() {
        NDArray x = op.array(new Shape(2), i -> i);
        x.setName("x");
        op.write("in.npz", x, op.array(new Shape(2), i -> i));
        fails(
                "allReduce --input in.npz --array y",
                op.path("in.npz") + " has no array 'y', but x, arr_0");
    }

    @ParameterizedTest
    @CsvSource({
        "allReduce, rank 0 needs 1 array",
        "reduceScatter, rank 0 needs 2 arrays",
        "allToAll, rank 0 needs 2 arrays",
        "scatter, rank 0 needs 2 arrays",
        "scatter --split 0, rank 0 needs 1 array",
        "broadcast --root 1, rank 1 needs 1 array"
    })
    void anotherNumberOfArrays(String command, String reason) {
        NDArray array = op.array(new Shape(2), i -> i);
        op.write("in.npz", array, array, array);
        fails(command + " --input in.npz", op.path("in.npz"), reason, "not 3");
    }

    @ParameterizedTest
    @CsvSource({"0", "2", "-3"})
    void anArrayThatCannotBeSplit(int dim) {
        op.write("in.npz", op.array(new Shape(3, 2), i -> i));
        fails(
                "allReduce --input in.npz --split " + dim,
                op.path("in.npz")
                        + ": array 'arr_0' of shape (3, 2) cannot be split along"
                        + " dimension "
                        + dim
                        + " into 2 equal parts");
    }

    @Test
    void arraysThatDoNotFitTheOperation() {
        op.write("in.npz", op.array(new Shape(3, 2), i -> i));
        fails("reduceScatterTensor --input in.npz", "of shape (3, 2), is not divisible by 2");
        op.reset();
        fails("allToAllSingle --input in.npz", "not divisible by the world size 2");
        op.reset();
        fails("allGatherMatmul --input in.npz --b in.npz", "B has shape (3, 2)", "must be 2");
        op.reset();
        fails("matmulReduceScatter --input in.npz --b in.npz", "B has shape (3, 2)");
        op.reset();
        fails("allReduce --reduce BAND --input in.npz", "BAND");
        op.reset();
        op.write("two.npz", op.array(new Shape(2, 2), i -> i), op.array(new Shape(2, 2), i -> i));
        fails("matmulReduceScatter --input in.npz --b two.npz", "takes one B, not 2");
    }

    @Test
    void arraysThatDifferBetweenRanks() {
        op.write("in-0.npz", op.array(new Shape(3), i -> i));
        op.write("in-1.npz", op.array(new Shape(4), i -> i));
        fails("allReduce --input in-{rank}.npz", "float32, (3)", "float32, (4)");
        op.reset();
        op.write("in-1.npz", op.manager().create(new int[] {1, 2, 3}));
        fails("allReduce --input in-{rank}.npz", "int32, (3)", "float32, (3)");
    }

    @Test
    void anOutputThatCannotBeWritten() throws IOException {
        op.write("in.npz", op.array(new Shape(3), i -> i));
        Files.createDirectory(file("out-1.npz"));
        fails(
                "allReduce --input in.npz --output out-{rank}.npz",
                "failed: cannot write " + op.path("out-1.npz") + ": Is a directory");
        op.reset();
        fails("reduce --input in.npz --output /proc/out", "failed: cannot write /proc/out: ");
        op.reset();
        fails(
                "reduce --input in.npz --output /dev/full",
                "failed: cannot write /dev/full: No space left on device");
    }
}
