// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import org.djlx.nativeops.LoadedLibraries;
import org.djlx.nativeops.host.Scratch;

/**
 * Access to {@code tensor.grad} of a leaf, which otherwise only C++ and Python can set.
 *
 * <p>It relies on the layout of libtorch's objects:
 *
 * <ul>
 *   <li>A handle is an {@code at::Tensor}. Its only member points to the {@code c10::TensorImpl}.
 *   <li>{@code TensorImpl::mutable_grad()} returns an {@code at::Tensor}. Swapping the pointers of
 *       two of these, as {@code std::swap} does, replaces the gradient.
 *   <li>A {@code c10::TensorImpl} has its reference count at offset 8.
 * </ul>
 *
 * <p>The layout is verified once, on a tensor of one element, before any other tensor is changed.
 */
final class GradientSlot {

    private static final long NONE; // the TensorImpl of an undefined tensor
    private static final Throwable FAILURE; // null if the layout is as expected

    static {
        long none = 0;
        Throwable failure = null;
        try {
            Native.register(
                    GradientSlot.class,
                    com.sun.jna.NativeLibrary.getInstance(LoadedLibraries.find("libc10.so")));
            none = verifyLayout();
        } catch (RuntimeException | UnsatisfiedLinkError e) {
            failure = e;
        }
        NONE = none;
        FAILURE = failure;
    }

    private static final int COUNT = 8; // offset of the reference count in a TensorImpl

    private GradientSlot() {}

    /** {@code at::Tensor& c10::TensorImpl::mutable_grad()}. */
    static native long _ZN3c1010TensorImpl12mutable_gradEv(long tensorImpl);

    private static void check() {
        if (FAILURE != null) {
            throw new EngineException(
                    "this version of libtorch does not allow setting gradients", FAILURE);
        }
    }

    private static Pointer of(long tensor) {
        long impl = new Pointer(tensor).getLong(0);
        return new Pointer(_ZN3c1010TensorImpl12mutable_gradEv(impl));
    }

    /** Returns a new handle of a tensor; for 0, of an undefined tensor. */
    private static long handle(long tensor) {
        Scratch scratch = Scratch.get();
        AotiTorch.check(
                tensor == 0
                        ? AotiTorch.aoti_torch_new_uninitialized_tensor(scratch.slot(0))
                        : AotiTensor.djlx_new_handle(tensor, scratch.slot(0)),
                "Torch.setGradient");
        return scratch.getLong(0);
    }

    /** Replaces a leaf's gradient; 0 for none. */
    static void set(long leaf, long gradient) {
        check();
        long handle = handle(gradient);
        try {
            swap(of(leaf), new Pointer(handle));
        } finally {
            AotiTorch.check(AotiTensor.djlx_delete_handle(handle), "Torch.setGradient");
        }
    }

    /**
     * Returns the number of handles of a leaf's gradient, without the leaf's own; 0 if the leaf has
     * no gradient.
     */
    static int holders(long leaf) {
        check();
        long impl = of(leaf).getLong(0);
        return impl == NONE ? 0 : new Pointer(impl).getInt(COUNT) - 1;
    }

    private static void swap(Pointer one, Pointer other) {
        long word = one.getLong(0);
        one.setLong(0, other.getLong(0));
        other.setLong(0, word);
    }

    private static long verifyLayout() {
        long none = handle(0);
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            NDArray leaf = manager.ones(new Shape(1));
            NDArray gradient = manager.ones(new Shape(1));
            leaf.setRequiresGradient(true);
            Pointer slot = of(TorchChecks.tensor(leaf, "the leaf"));
            long before = slot.getLong(0);
            boolean holds = before == new Pointer(none).getLong(0);
            if (holds) {
                JniUtils.backward((PtNDArray) leaf, (PtNDArray) gradient, false, false);
                long impl;
                try (NDArray after = JniUtils.getGradient((PtNDArray) leaf)) {
                    impl = new Pointer(TorchChecks.tensor(after, "it")).getLong(0);
                    holds = slot.getLong(0) == impl && impl != before;
                    holds = holds && new Pointer(impl).getInt(COUNT) == 2;
                }
                holds = holds && new Pointer(impl).getInt(COUNT) == 1;
            }
            if (!holds) {
                throw new EngineException(
                        "this version of libtorch has another layout of gradients than"
                                + " Torch.setGradient expects");
            }
            return before;
        } finally {
            AotiTorch.check(AotiTensor.djlx_delete_handle(none), "Torch.setGradient");
        }
    }
}
