// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import com.sun.jna.LastErrorException;
import com.sun.jna.Platform;
import com.sun.jna.Pointer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.djlx.nativeops.host.LibC;

/**
 * Machine code between libtorch and an operator's kernel in Java.
 *
 * <p>A kernel fails with a C++ exception, which cannot be thrown through a Java callback: C++ has
 * no unwind tables for the JVM's frames, and would terminate the process. So libtorch calls a few
 * instructions instead:
 *
 * <pre>
 *   message = callback(stack, arguments, results)    // Java; null on success
 *   aoti_torch_check(message == null, name, name, 0, message)
 * </pre>
 *
 * <p>The second call is a tail call, after the frame was removed. aoti_torch_check returns to
 * libtorch, or throws as if libtorch itself had called it.
 */
final class TorchKernelCode {

    private static final long PAGE = 4096;

    private TorchKernelCode() {}

    /**
     * Creates the instructions, which are never freed, for the address of a callback {@code const
     * char* (*)(uint64_t*, uint64_t, uint64_t)} and of the operator's name, a C string. Throws
     * UnsupportedOperationException on processors other than x86-64, and if the operating system
     * does not allow executable memory.
     */
    static long create(long callback, long name) {
        if (!Platform.isIntel() || !Platform.is64Bit()) {
            throw new UnsupportedOperationException(
                    "operators in Java require an x86-64 processor; this is "
                            + Platform.RESOURCE_PREFIX);
        }
        ByteBuffer code =
                ByteBuffer.allocate(128)
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .put(bytes(0xf3, 0x0f, 0x1e, 0xfa)) // endbr64
                        .put(bytes(0x48, 0x83, 0xec, 0x08)) // sub rsp, 8: aligns it for the call
                        .put(bytes(0x48, 0xb8)) // mov rax, callback
                        .putLong(callback)
                        .put(bytes(0xff, 0xd0)) // call rax
                        .put(bytes(0x48, 0x83, 0xc4, 0x08)) // add rsp, 8
                        .put(bytes(0x31, 0xff)) // xor edi, edi
                        .put(bytes(0x48, 0x85, 0xc0)) // test rax, rax
                        .put(bytes(0x40, 0x0f, 0x94, 0xc7)) // sete dil: the condition
                        .put(bytes(0x48, 0xbe)) // mov rsi, name: the function
                        .putLong(name)
                        .put(bytes(0x48, 0x89, 0xf2)) // mov rdx, rsi: the file
                        .put(bytes(0x31, 0xc9)) // xor ecx, ecx: the line
                        .put(bytes(0x49, 0x89, 0xc0)) // mov r8, rax: the message
                        .put(bytes(0x48, 0xb8)) // mov rax, aoti_torch_check
                        .putLong(AotiTorch.addressOfCheck())
                        .put(bytes(0xff, 0xe0)); // jmp rax
        try {
            long address =
                    LibC.mmap(
                            0,
                            PAGE,
                            LibC.PROT_READ_WRITE,
                            LibC.MAP_PRIVATE | LibC.MAP_ANONYMOUS,
                            -1,
                            0);
            new Pointer(address).write(0, code.array(), 0, code.position());
            LibC.mprotect(address, PAGE, LibC.PROT_READ_EXEC);
            return address;
        } catch (LastErrorException e) {
            throw new UnsupportedOperationException(
                    "the operating system does not allow executable memory: " + e.getMessage(), e);
        }
    }

    private static byte[] bytes(int... values) {
        byte[] bytes = new byte[values.length];
        for (int i = 0; i < values.length; i++) {
            bytes[i] = (byte) values[i];
        }
        return bytes;
    }
}
