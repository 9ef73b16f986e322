// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import com.sun.jna.Memory;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import java.util.Optional;
import org.djlx.nativeops.host.Scratch;

/**
 * Calls operators by name if the stable C ABI has no function for them. Arguments and results are
 * passed on a stack of 64-bit values. The dispatcher consumes the handles of tensor arguments, so
 * each call creates new handles. The caller owns the handle of the result.
 */
final class TorchDispatcher {

    enum Operator {
        BITWISE_AND_("aten::bitwise_and_", "Tensor"),
        BITWISE_OR_("aten::bitwise_or_", "Tensor"),
        BITWISE_XOR_("aten::bitwise_xor_", "Tensor"),
        DIV_("aten::div_", "Tensor"),
        MAXIMUM_OUT("aten::maximum", "out"),
        MINIMUM_OUT("aten::minimum", "out"),
        MUL_("aten::mul_", "Tensor"),
        SCALED_DOT_PRODUCT_ATTENTION("aten::scaled_dot_product_attention", ""),
        FLASH_ATTENTION("aten::_flash_attention_forward", ""),
        SET_("aten::set_", ""),
        SET_SOURCE("aten::set_", "source_Tensor"),
        SILU("aten::silu", ""),
        VERSION("aten::_version", ""),
        ZERO_("aten::zero_", "");

        private final Memory name;
        private final Memory overload;

        Operator(String name, String overload) {
            this.name = cString(name);
            this.overload = cString(overload);
        }

        private static Memory cString(String text) {
            Memory memory = new Memory(text.length() + 1L);
            memory.setString(0, text);
            return memory;
        }
    }

    private TorchDispatcher() {}

    static void inPlace(Operator operator, String operation, long... tensors) {
        long result = call(operator, operation, tensors);
        AotiTorch.check(AotiTensor.djlx_delete_handle(result), operation);
    }

    /**
     * Calls {@code scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor?
     * attn_mask, float dropout_p, bool is_causal, *, float? scale, bool enable_gqa)} without
     * dropout and scale.
     *
     * @return a handle of the result; the caller deletes it
     */
    static long attention(
            String operation,
            long query,
            long key,
            long value,
            Optional<NDArray> mask,
            boolean causal,
            boolean grouped) {
        Scratch scratch = Scratch.get();
        long maskOrNone = mask.isPresent() ? optional(operation, mask.get(), "the mask") : 0;
        long noDropout = Double.doubleToRawLongBits(0);
        long noScale = 0;
        long[] others = {maskOrNone, noDropout, causal ? 1 : 0, noScale, grouped ? 1 : 0};
        for (int i = 0; i < others.length; i++) {
            scratch.putLong(3 + i, others[i]);
        }
        return call(Operator.SCALED_DOT_PRODUCT_ATTENTION, operation, query, key, value);
    }

    /**
     * Calls {@code _flash_attention_forward(Tensor query, Tensor key, Tensor value, Tensor?
     * cum_seq_q, Tensor? cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal,
     * bool return_debug_mask, *, float? scale, SymInt? window_size_left, SymInt? window_size_right,
     * Tensor? seqused_k, Tensor? alibi_slopes) -> (Tensor output, Tensor softmax_logsumexp, Tensor
     * rng_state, Tensor unused, Tensor debug_attn_mask)}.
     *
     * <p>Without dropout, mask and scale. Does not use {@code _scaled_dot_product_flash_attention}:
     * libtorch 2.11 mixes up the types of its results.
     *
     * @param query of shape (1, queries, heads, size); (queries, heads, size) of several sequences
     * @param before how many keys before its own a query attends to; -1 for all
     * @param after how many keys after its own a query attends to: -1 for all, 0 if causal
     * @return a handle of the output; the caller deletes it
     */
    static long flashAttention(
            String operation,
            long query,
            long key,
            long value,
            PackedSequences packed,
            long before,
            long after) {
        Scratch scratch = Scratch.get();
        long noDropout = Double.doubleToRawLongBits(0);
        boolean several = packed.count() > 1;
        long queryEnds = several ? optional(operation, packed.queryEnds, "the lengths") : 0;
        long keyEnds = several ? optional(operation, packed.keyEnds, "the lengths") : 0;
        boolean causal = after == 0;
        long[] others = {
            queryEnds,
            keyEnds,
            packed.maxQueries,
            packed.maxKeys,
            noDropout,
            causal ? 1 : 0,
            0,
            0,
            before < 0 ? 0 : optional(before),
            after <= 0 ? 0 : optional(after) // causal attention has no keys after a query's own
        };
        for (int i = 3; i < Scratch.SLOTS; i++) {
            // The remaining arguments are optional, and 0 means none.
            scratch.putLong(i, i - 3 < others.length ? others[i - 3] : 0);
        }
        long output = call(Operator.FLASH_ATTENTION, operation, query, key, value);
        for (int i = 1; i < 5; i++) {
            AotiTorch.check(AotiTensor.djlx_delete_handle(scratch.getLong(i)), operation);
        }
        return output;
    }

    /** Returns an optional argument with a value: memory that the dispatcher frees. */
    private static long optional(long value) {
        long address = Native.malloc(Long.BYTES);
        new Pointer(address).setLong(0, value);
        return address;
    }

    /** Returns an optional argument with a new handle of a tensor. */
    private static long optional(String operation, NDArray array, String name) {
        Scratch scratch = Scratch.get();
        long tensor = TorchChecks.tensor(array, name);
        AotiTorch.check(AotiTensor.djlx_new_handle(tensor, scratch.slot(0)), operation);
        return optional(scratch.getLong(0));
    }

    /**
     * Calls an operator. Returns its result: an int, a bool in the lowest byte, or the handle of a
     * tensor, which the caller deletes.
     */
    static long call(Operator operator, String operation, long... tensors) {
        Scratch scratch = Scratch.get();
        for (int i = 0; i < tensors.length; i++) {
            AotiTorch.check(AotiTensor.djlx_new_handle(tensors[i], scratch.slot(i)), operation);
        }
        AotiTorch.check(
                AotiTensor.djlx_call_dispatcher(
                        Pointer.nativeValue(operator.name),
                        Pointer.nativeValue(operator.overload),
                        scratch.slot(0)),
                operation);
        return scratch.getLong(0);
    }
}
