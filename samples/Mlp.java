// SPDX-License-Identifier: Apache-2.0
import ai.djl.ndarray.*;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.djlx.collectives.*;
import org.djlx.fusedops.FusedOps;

public class Mlp {
    public static void main(String[] args) {
        List<ProcessGroup> groups = ProcessGroups.local(4); // 4 ranks in this JVM, on the CPU
        System.out.println(ProcessGroups.run(groups, group -> { // runs each rank on its own thread
            try (NDManager manager = NDManager.newBaseManager(group.device())) {
                NDArray x = manager.ones(new Shape(2, 8));
                NDArray w1 = manager.ones(new Shape(8, 4)); // 4 of 16 columns
                NDArray w2 = manager.ones(new Shape(4, 8)); // 4 of 16 rows
                NDArray h = FusedOps.allGatherMatmul(x, List.of(w1), 0, group).outputs().get(0);
                return FusedOps.matmulReduceScatter(h, w2, ReduceOp.SUM, 0, group).getFloat(0, 0);
            }
        }));
        groups.forEach(ProcessGroup::destroy);
    }
}
