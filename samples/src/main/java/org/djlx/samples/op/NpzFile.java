// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.List;
import java.util.zip.CRC32;
import java.util.zip.ZipEntry;
import java.util.zip.ZipException;
import java.util.zip.ZipFile;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Reads and writes NumPy's .npz files: named arrays in a ZIP file. */
final class NpzFile {

    private static final String SUFFIX = ".npy";
    private static final long MAX_BYTES = Integer.MAX_VALUE - 8; // of a Java array

    private NpzFile() {}

    /**
     * Reads all arrays.
     *
     * @param manager the manager that owns them, on the CPU
     * @return the arrays in the order of the file, with names
     * @throws IOException if the file cannot be read or is damaged, or PyTorch lacks the type of an
     *     array
     */
    static NDList read(NDManager manager, Path file) throws IOException {
        NDList arrays = new NDList();
        try (ZipFile zip = new ZipFile(file.toFile())) {
            for (ZipEntry entry : zip.stream().toList()) {
                arrays.add(read(manager, file, zip, entry));
            }
        } catch (ZipException | EOFException e) {
            throw new IOException(file + " is not an .npz file: " + e.getMessage(), e);
        }
        return arrays;
    }

    private static NDArray read(NDManager manager, Path file, ZipFile zip, ZipEntry entry)
            throws IOException {
        String name = entry.getName();
        if (entry.getSize() > MAX_BYTES) {
            throw new IOException(file + ": " + name + " has more than 2 GiB, DJL's limit");
        }
        try (InputStream in = zip.getInputStream(entry)) {
            byte[] npy = in.readAllBytes();
            CRC32 crc = new CRC32();
            crc.update(npy);
            if (crc.getValue() != entry.getCrc()) {
                throw new IllegalArgumentException("it is damaged: its checksum is wrong");
            }
            if (!name.endsWith(SUFFIX)) {
                throw new IllegalArgumentException("it is not in .npy format");
            }
            NpyChecks.requireReadable(npy);
            NDArray array = NDList.decode(manager, npy).singletonOrThrow();
            array.setName(name.substring(0, name.length() - SUFFIX.length()));
            return array;
        } catch (IllegalArgumentException e) {
            throw new IOException(file + ": cannot read " + name + ": " + e.getMessage(), e);
        }
    }

    /**
     * Writes arrays; those without a name get arr_0, arr_1 …, as NumPy does. NumPy has no bfloat16,
     * so bfloat16 arrays are written as float32, with the same values.
     *
     * @param arrays the arrays, on any device
     * @throws UncheckedIOException if the file cannot be written, with its name and the reason
     */
    static void write(Path file, List<NDArray> arrays) {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
                OutputStream out = Files.newOutputStream(file)) {
            NDList list = new NDList();
            for (NDArray array : arrays) {
                NDArray copy =
                        Torch.empty(manager, new Shape(Torch.sizes(array)), writtenAs(array));
                Torch.copy(copy, array);
                copy.setName(array.getName());
                list.add(copy);
            }
            list.encode(out, NDList.Encoding.NPZ);
        } catch (IOException e) {
            throw new UncheckedIOException("cannot write " + file + ": " + reason(e), e);
        }
    }

    private static String reason(IOException e) {
        if (e instanceof NoSuchFileException) {
            return "No such file or directory";
        }
        if (e instanceof AccessDeniedException) {
            return "Permission denied";
        }
        return e instanceof FileSystemException failure ? failure.getReason() : e.getMessage();
    }

    static ScalarType writtenAs(NDArray array) {
        ScalarType type = Torch.scalarType(array);
        return type == ScalarType.BFLOAT16 ? ScalarType.FLOAT32 : type;
    }
}
