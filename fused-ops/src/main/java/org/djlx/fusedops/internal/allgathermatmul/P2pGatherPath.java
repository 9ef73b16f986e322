// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allgathermatmul;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.fusedops.GatheredMatmul;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.internal.allgathermatmul.AllGatherMatmul.Output;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.internal.path.P2pPath;
import org.djlx.fusedops.kernel.Product.Scales;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.TensorTemplate;
import org.djlx.nativeops.torch.Torch;

abstract class P2pGatherPath extends P2pPath<GatheredMatmul, P2pGatherPath.Call> {

    final AllGatherMatmul operator;
    final InPlace inPlace;
    final TensorTemplate gathered; // the gathered A, the front dimension in front
    private final List<TensorTemplate> productsOfBs; // likewise

    /**
     * The arrays of a call.
     *
     * @param gathered the address of the gathered A; 0 if A is not gathered into an array
     * @param gatheredA the gathered A; the shard if A is not gathered into an array
     * @param scales the scales of A and of each B; null without scales
     * @param used all arrays, kept for graph replays
     */
    record Call(
            long shard,
            long[] bs,
            long[] outs,
            long gathered,
            List<NDArray> products,
            NDArray gatheredA,
            Scales[] scales,
            NDArray[] used) {

        boolean isScaledByRow() {
            return scales[0] != null && scales[0].byRow();
        }
    }

    /** The operands that the path reads without a copy. Other operands are copied row by row. */
    record InPlace(boolean shard, boolean[] bs, MatrixLayout[] layouts) {

        InPlace(AllGatherMatmul operator, boolean shard, boolean[] bs, MatrixLayout[] layouts) {
            this(shard, bs, layouts.clone());
            for (int i = 0; i < bs.length; i++) {
                if (!bs[i]) {
                    long columns = operator.columns().get(i);
                    this.layouts[i] = MatrixLayout.contiguous(operator.inner(), columns);
                }
            }
        }

        /** For matmuls that a library computes. */
        static InPlace of(AllGatherMatmul operator, Operands operands) {
            MatrixLayout[] layouts = layouts(operands);
            boolean[] bs = new boolean[layouts.length];
            for (int i = 0; i < bs.length; i++) {
                bs[i] = Axes.isUsable(layouts[i]);
            }
            return new InPlace(operator, isFront(operator, operands), bs, layouts);
        }

        /** Returns whether the shard is contiguous, with the front dimension in front. */
        static boolean isFront(AllGatherMatmul operator, Operands operands) {
            return operator.frontDim() == 0 && operands.infos()[0].isContiguous();
        }

        static MatrixLayout[] layouts(Operands operands) {
            MatrixLayout[] layouts = new MatrixLayout[operands.infos().length - 1];
            for (int i = 0; i < layouts.length; i++) {
                layouts[i] = Axes.layout(operands.infos()[1 + i]);
            }
            return layouts;
        }
    }

    P2pGatherPath(AllGatherMatmul operator, ProcessGroup group, Choice choice, InPlace inPlace) {
        super(group, operator, choice, operator.workload().partBytes());
        this.operator = operator;
        this.inPlace = inPlace;
        gathered = new TensorTemplate(group.device(), operator.gatheredFront(), operator.type());
        productsOfBs =
                IntStream.range(0, inPlace.bs.length)
                        .mapToObj(
                                b ->
                                        new TensorTemplate(
                                                group.device(),
                                                operator.productFront(b),
                                                operator.typeOfProduct()))
                        .toList();
    }

    @Override
    protected final Call arrays(OperationScope scope, Operands operands) {
        NDArray a = operands.array(0);
        NDManager manager = a.getManager();
        NDArray shard = inPlace.shard ? a : scope.front(a, operator.frontDim(), operator.type());
        long shardAddress = inPlace.shard ? operands.address(0) : Torch.dataPointer(shard);
        int count = inPlace.bs.length;
        NDArray[] used = new NDArray[2 + 2 * count + operands.scales().size()];
        Scales[] scales = new Scales[count];
        long[] bs = new long[count];
        long[] outs = new long[count];
        List<NDArray> products = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            NDArray given = operands.array(1 + i);
            NDArray b = inPlace.bs[i] ? given : copyOfB(scope, given);
            bs[i] = inPlace.bs[i] ? operands.address(1 + i) : Torch.dataPointer(b);
            TensorTemplate.Created out = scope.result(manager, productsOfBs.get(i));
            outs[i] = out.address();
            products.add(out.array());
            scales[i] = operands.scales(i);
            used[2 * i] = b;
            used[2 * i + 1] = out.array();
        }
        TensorTemplate.Created whole =
                returnsA()
                        ? scope.result(manager, gathered)
                        : workspace(scope, new TensorTemplate.Created(shard, 0));
        used[2 * count] = shard;
        used[2 * count + 1] = whole.array();
        for (int i = 0; i < operands.scales().size(); i++) {
            used[2 * count + 2 + i] = operands.scales().get(i);
        }
        scope.hold(used);
        return new Call(
                shardAddress, bs, outs, whole.address(), products, whole.array(), scales, used);
    }

    NDArray copyOfB(OperationScope scope, NDArray b) {
        return scope.copy(b, operator.type());
    }

    final boolean returnsA() {
        return operator.output() == Output.PRODUCTS_AND_A;
    }

    /**
     * Returns the array to gather A into if the caller does not ask for A.
     *
     * @param none the shard at address 0, returned if A is not gathered
     */
    TensorTemplate.Created workspace(OperationScope scope, TensorTemplate.Created none) {
        return none;
    }

    @Override
    protected final GatheredMatmul result(Call call) {
        List<NDArray> outputs = new ArrayList<>(call.products.size());
        for (NDArray product : call.products) {
            outputs.add(Axes.restore(product, operator.frontDim()));
        }
        return new GatheredMatmul(
                returnsA() ? Axes.restore(call.gatheredA, operator.frontDim()) : null, outputs);
    }
}
