// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import com.sun.jna.Native;
import com.sun.jna.Structure;
import java.util.Map;
import org.djlx.nativeops.LibraryProbes;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;

/** Binds NCCL's functions and constants. Load only if {@link NativeLibrary#NCCL} is available. */
final class Nccl {

    static final int SUCCESS = 0;
    static final int IN_PROGRESS = 7;
    static final int UNIQUE_ID_BYTES = 128;
    static final int NO_COLOR = -1;

    /** NCCL's codes of the element types that it reduces. Other types are only moved, as bytes. */
    static final Map<ScalarType, Integer> TYPES =
            Map.ofEntries(
                    Map.entry(ScalarType.INT8, 0),
                    Map.entry(ScalarType.UINT8, 1),
                    Map.entry(ScalarType.BOOL, 1),
                    Map.entry(ScalarType.INT32, 2),
                    Map.entry(ScalarType.UINT32, 3),
                    Map.entry(ScalarType.INT64, 4),
                    Map.entry(ScalarType.UINT64, 5),
                    Map.entry(ScalarType.FLOAT16, 6),
                    Map.entry(ScalarType.FLOAT32, 7),
                    Map.entry(ScalarType.FLOAT64, 8),
                    Map.entry(ScalarType.BFLOAT16, 9));

    static {
        Native.register(
                Nccl.class, LibraryProbes.open("NCCL", "see NativeLibrary.NCCL", "libnccl.so.2"));
    }

    private Nccl() {}

    /** {@code ncclUniqueId}, passed by value. */
    @Structure.FieldOrder("internal")
    public static final class UniqueId extends Structure implements Structure.ByValue {

        public byte[] internal = new byte[UNIQUE_ID_BYTES];

        public UniqueId() {}
    }

    static native int ncclGetVersion(long resultAddress);

    static native int ncclGetUniqueId(long idAddress);

    static native int ncclCommInitRankConfig(
            long resultAddress, int ranks, UniqueId id, int rank, long configAddress);

    static native int ncclCommSplit(
            long comm, int color, int key, long resultAddress, long configAddress);

    static native int ncclCommGetAsyncError(long comm, long resultAddress);

    static native int ncclCommDestroy(long comm);

    static native int ncclCommAbort(long comm);

    static native int ncclAllReduce(
            long send, long recv, long count, int type, int op, long comm, long stream);

    static native int ncclReduce(
            long send, long recv, long count, int type, int op, int root, long comm, long stream);

    static native int ncclBroadcast(
            long send, long recv, long count, int type, int root, long comm, long stream);

    static native int ncclAllGather(
            long send, long recv, long count, int type, long comm, long stream);

    static native int ncclReduceScatter(
            long send, long recv, long count, int type, int op, long comm, long stream);

    static native int ncclSend(long send, long count, int type, int peer, long comm, long stream);

    static native int ncclRecv(long recv, long count, int type, int peer, long comm, long stream);

    static native int ncclRedOpCreatePreMulSum(
            long resultAddress, long scalarAddress, int type, int residence, long comm);

    static native int ncclRedOpDestroy(int op, long comm);

    static native int ncclGroupStart();

    static native int ncclGroupEnd();

    static native String ncclGetErrorString(int result);

    static native String ncclGetLastError(long comm);
}
