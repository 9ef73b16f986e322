// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;
import java.util.Arrays;
import java.util.List;
import org.djlx.nativeops.torch.InstalledTorch;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Uses DJL's natives that the adapter replaces, libtorch's stable ABI, gradients and a group. */
final class InstalledTorchMain {

    private InstalledTorchMain() {}

    public static void main(String[] arguments) {
        System.out.println("version " + Engine.getInstance().getVersion());
        System.out.println("installed " + InstalledTorch.isUsed());
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray x = manager.create(new float[] {1, 2, 3, 4, 5, 6}, new Shape(2, 3));
            NDArray y = manager.zeros(new Shape(2, 3));
            y.set(new float[] {9, 8, 7, 6, 5, 4});
            System.out.println("slice " + Arrays.toString(x.get(new NDIndex("1, :2")).toArray()));
            System.out.println("transposed " + Arrays.toString(x.transpose().toFloatArray()));
            System.out.println("product " + Arrays.toString(x.matMul(y.transpose()).toArray()));
            System.out.println(
                    "types "
                            + Arrays.toString(y.toType(DataType.FLOAT64, true).toDoubleArray())
                            + Arrays.toString(x.gt(3).toBooleanArray())
                            + Arrays.toString(manager.create(new long[] {7, -1}).toLongArray()));
            try (NDArray half = Torch.cast(x, ScalarType.BFLOAT16);
                    NDArray back = Torch.cast(half, ScalarType.FLOAT32)) {
                System.out.println("bfloat16 " + Arrays.toString(back.toFloatArray()));
            }
            x.setRequiresGradient(true);
            try (GradientCollector collector = Engine.getInstance().newGradientCollector()) {
                collector.backward(x.mul(x).sum());
            }
            System.out.println("gradient " + Arrays.toString(x.getGradient().toFloatArray()));
        }
        List<ProcessGroup> groups = ProcessGroups.local(2);
        System.out.println(
                "sums "
                        + ProcessGroups.run(
                                groups,
                                group -> {
                                    try (NDManager manager = NDManager.newBaseManager()) {
                                        NDArray rank = manager.create(group.rank() + 1f);
                                        group.allReduce(rank, ReduceOp.SUM).await();
                                        return rank.getFloat();
                                    }
                                }));
        groups.forEach(ProcessGroup::destroy);
    }
}
