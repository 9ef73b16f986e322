// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.fused;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.cost.FusedOperator;
import org.djlx.fusedops.cost.Workload;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;

/** Which operators the fused kernel takes, on GPUs like an H200. Deciding that needs no GPU. */
class FusedMatmulTest {

    private static final FusedMatmul MATMUL = new FusedMatmul(null, null, null);

    private static Workload work(
            FusedOperator operator, int ranks, ScalarType type, long m, long n, long k) {
        return Workload.unsharded(operator, type, ranks, m, n, k);
    }

    private static boolean gathers(int ranks, ScalarType type, long m, long n, long k) {
        Workload work = work(FusedOperator.ALL_GATHER_MATMUL, ranks, type, m, n, k);
        return MATMUL.gathers(new Buffers(ranks, true), work);
    }

    private static boolean scatters(int ranks, ScalarType type, long m, long n, ReduceOp op) {
        long k = 64L * ranks;
        Workload work = work(FusedOperator.MATMUL_REDUCE_SCATTER, ranks, type, m, n, k);
        return MATMUL.scatters(new Buffers(ranks, true), work, op);
    }

    @Test
    void gathersOnlyShapesAndTypesThatTheCopyEngineTakes() {
        assertTrue(gathers(2, ScalarType.FLOAT16, 512, 8192, 1024));
        assertFalse(gathers(2, ScalarType.FLOAT32, 512, 8192, 1024));
        assertFalse(gathers(2, ScalarType.FLOAT16, 512, 8200, 1024)); // 4100 columns of a rank
        assertFalse(gathers(2, ScalarType.FLOAT16, 512, 8192, 1020));
        assertFalse(gathers(2, ScalarType.FLOAT16, 0, 8192, 1024));
        Workload one =
                new Workload(
                        FusedOperator.ALL_GATHER_MATMUL,
                        ScalarType.FLOAT16,
                        2,
                        256,
                        List.of(64L),
                        1024);
        assertTrue(MATMUL.gathers(new Buffers(2, true), one));
        assertFalse(MATMUL.gathers(new Buffers(2, false), one));
        Workload five =
                new Workload(one.operator(), one.type(), 2, 256, Collections.nCopies(5, 64L), 1024);
        assertFalse(MATMUL.gathers(new Buffers(2, true), five));
    }

    /** Rows of A are multiples of 16 bytes, and so are rows of the product in bfloat16. */
    @Test
    void takesFloat8InMultiplesOf16Bytes() {
        ScalarType type = ScalarType.FLOAT8_E4M3FN;
        assertTrue(gathers(2, type, 512, 8208, 1040)); // 4104 columns of a rank
        assertFalse(gathers(2, type, 512, 8200, 1040));
        assertFalse(gathers(2, type, 512, 8208, 1048));
        assertTrue(scatters(4, type, 2048, 8200, ReduceOp.AVG));
        assertFalse(scatters(4, type, 2048, 8204, ReduceOp.SUM));
    }

    /** Only Bs by columns: the tensor cores take no others. */
    @Test
    void float8BsAreLoadedByColumns() {
        ScalarType type = ScalarType.FLOAT8_E4M3FN;
        MatrixLayout rows = MatrixLayout.contiguous(64, 32);
        MatrixLayout columns = MatrixLayout.contiguous(32, 64).transposed();
        MatrixLayout odd = MatrixLayout.contiguous(32, 72).transposed();
        MatrixLayout[] bs = {rows, columns, odd, columns};
        assertArrayEquals(
                usable(false, true, false, false),
                FusedMatmul.usable(type, bs, new long[] {256, 256, 256, 264}));
        assertTrue(FusedMatmul.isUsableB(ScalarType.FLOAT16, odd, 256));
        assertFalse(FusedMatmul.isUsableB(type, odd, 256));
        MatrixLayout copy = FusedMatmul.layoutOfB(type, 72, 32);
        assertTrue(FusedMatmul.isUsableB(type, copy, 256));
        assertArrayEquals(
                new long[] {72, 32, 1, 80},
                new long[] {copy.rows(), copy.columns(), copy.rowStride(), copy.columnStride()});
    }

    /** Averages over other numbers of ranks would be rounded twice. Each half tile needs a flag. */
    @Test
    void scattersWhereItIsExactAndFlagsSuffice() {
        assertTrue(scatters(4, ScalarType.BFLOAT16, 2048, 8192, ReduceOp.AVG));
        assertTrue(scatters(3, ScalarType.BFLOAT16, 3072, 8192, ReduceOp.SUM));
        assertFalse(scatters(3, ScalarType.BFLOAT16, 3072, 8192, ReduceOp.AVG));
        assertFalse(scatters(2, ScalarType.BFLOAT16, 1 << 19, 1 << 13, ReduceOp.SUM));
    }

    @Test
    void onlyBsOfTheSameLayoutAreLoadedByColumns() {
        MatrixLayout rows = MatrixLayout.contiguous(64, 32);
        MatrixLayout columns = MatrixLayout.contiguous(32, 64).transposed();
        MatrixLayout odd = new MatrixLayout(64, 32, 33, 1);
        assertArrayEquals(usable(true, true), use(new long[] {256, 512}, rows, rows));
        assertArrayEquals(usable(true, true), use(new long[] {256, 512}, columns, columns));
        assertArrayEquals(usable(true, false), use(new long[] {256, 512}, rows, columns));
        assertArrayEquals(usable(false, true), use(new long[] {256, 512}, odd, rows));
        assertArrayEquals(usable(true, false), use(new long[] {256, 520}, rows, rows));
        assertArrayEquals(usable(false, false), use(new long[] {256, 520}, columns, columns));
    }

    private static boolean[] usable(boolean... values) {
        return values;
    }

    private static boolean[] use(long[] addresses, MatrixLayout... bs) {
        return FusedMatmul.usable(ScalarType.FLOAT16, bs, addresses);
    }

    /** Buffers that answer only the questions asked before a launch. */
    private static final class Buffers extends P2pBuffers {

        private final boolean kernels;

        Buffers(int ranks, boolean kernels) {
            super(0, ranks, 1 << 30, 0, 1);
            this.kernels = kernels;
        }

        @Override
        public Optional<KernelSignals> kernelSignals() {
            long[] none = new long[worldSize()];
            return kernels
                    ? Optional.of(new KernelSignals(132, 0, none, none, 64, none, 1 << 16, 0))
                    : Optional.empty();
        }

        @Override
        protected NDArray view(
                NDManager manager, int rank, Shape shape, ScalarType type, long offset) {
            throw new UnsupportedOperationException();
        }

        @Override
        public long epoch(Operation operation) {
            throw new UnsupportedOperationException();
        }

        @Override
        public void putSignal(int rank, int channel, long epoch) {
            throw new UnsupportedOperationException();
        }

        @Override
        public void waitSignal(Operation operation, int rank, int channel, long epoch) {
            throw new UnsupportedOperationException();
        }

        @Override
        public void awaitAgreement(Operation operation) {
            throw new UnsupportedOperationException();
        }

        @Override
        public void intraNodeBarrier(Operation operation) {
            throw new UnsupportedOperationException();
        }
    }
}
