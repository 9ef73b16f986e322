// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.op;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.GatheredMatmul;
import org.djlx.fusedops.LowContention;

/** The operations of {@code op}, named after the methods that they call. */
enum OpKind {
    allReduce(Reads.ONE, Yields.EVERYWHERE, Takes.REDUCE) {
        @Override
        List<NDArray> run(OpCall call) {
            call.group().allReduce(call.input(), call.reduceOp()).await();
            return List.of(call.input());
        }
    },
    allReduceCoalesced(Reads.SOME, Yields.EVERYWHERE, Takes.REDUCE) {
        @Override
        List<NDArray> run(OpCall call) {
            call.group().allReduceCoalesced(call.inputs(), call.reduceOp()).await();
            return call.inputs();
        }
    },
    reduce(Reads.ONE, Yields.ON_ROOT, Takes.REDUCE, Takes.ROOT) {
        @Override
        List<NDArray> run(OpCall call) {
            call.group().reduce(call.input(), call.root(), call.reduceOp()).await();
            return call.isRoot() ? List.of(call.input()) : List.of();
        }
    },
    broadcast(Reads.ONE_ON_ROOT, Yields.EVERYWHERE, Takes.ROOT) {
        @Override
        List<NDArray> run(OpCall call) {
            NDArray like = call.resultLikeRoots();
            NDArray tensor = call.isRoot() ? call.input() : like;
            call.group().broadcast(tensor, call.root()).await();
            return List.of(tensor);
        }
    },
    allGather(Reads.ONE, Yields.EVERYWHERE) {
        @Override
        List<NDArray> run(OpCall call) {
            List<NDArray> outputs = call.results();
            call.group().allGather(outputs, call.input()).await();
            return outputs;
        }
    },
    allGatherIntoTensor(Reads.ONE, Yields.EVERYWHERE) {
        @Override
        List<NDArray> run(OpCall call) {
            NDArray output = call.result(gathered(call, call.input()));
            call.group().allGatherIntoTensor(output, call.input()).await();
            return List.of(output);
        }
    },
    allGatherCoalesced(Reads.SOME, Yields.EVERYWHERE) {
        @Override
        List<NDArray> run(OpCall call) {
            List<NDArray> outputs = call.results(input -> gathered(call, input));
            call.group().allGatherCoalesced(outputs, call.inputs()).await();
            return outputs;
        }
    },
    gather(Reads.ONE, Yields.ON_ROOT, Takes.ROOT) {
        @Override
        List<NDArray> run(OpCall call) {
            List<NDArray> outputs = call.isRoot() ? call.results() : null;
            call.group().gather(outputs, call.input(), call.root()).await();
            return call.isRoot() ? outputs : List.of();
        }
    },
    scatter(Reads.ONE_PER_RANK_ON_ROOT, Yields.EVERYWHERE, Takes.ROOT) {
        @Override
        List<NDArray> run(OpCall call) {
            NDArray output = call.resultLikeRoots();
            List<NDArray> inputs = call.isRoot() ? call.inputs() : null;
            call.group().scatter(output, inputs, call.root()).await();
            return List.of(output);
        }
    },
    reduceScatter(Reads.ONE_PER_RANK, Yields.EVERYWHERE, Takes.REDUCE) {
        @Override
        List<NDArray> run(OpCall call) {
            NDArray output = call.result(call.input().getShape());
            call.group().reduceScatter(output, call.inputs(), call.reduceOp()).await();
            return List.of(output);
        }
    },
    reduceScatterTensor(Reads.ONE, Yields.EVERYWHERE, Takes.REDUCE) {
        @Override
        List<NDArray> run(OpCall call) {
            NDArray output = call.result(scattered(call, call.input(), name()));
            call.group().reduceScatterTensor(output, call.input(), call.reduceOp()).await();
            return List.of(output);
        }
    },
    reduceScatterCoalesced(Reads.SOME, Yields.EVERYWHERE, Takes.REDUCE) {
        @Override
        List<NDArray> run(OpCall call) {
            List<NDArray> outputs = call.results(input -> scattered(call, input, name()));
            call.group().reduceScatterCoalesced(outputs, call.inputs(), call.reduceOp()).await();
            return outputs;
        }
    },
    allToAll(Reads.ONE_PER_RANK, Yields.EVERYWHERE) {
        @Override
        List<NDArray> run(OpCall call) {
            List<NDArray> outputs = call.resultsLikeExchanged();
            call.group().allToAll(outputs, call.inputs()).await();
            return outputs;
        }
    },
    allToAllSingle(Reads.ONE, Yields.EVERYWHERE) {
        @Override
        List<NDArray> run(OpCall call) {
            NDArray output = call.result(call.input().getShape());
            call.group().allToAllSingle(output, call.input()).await();
            return List.of(output);
        }
    },
    barrier(Reads.NOTHING, Yields.NOTHING) {
        @Override
        List<NDArray> run(OpCall call) {
            call.group().barrier().await();
            return List.of();
        }
    },
    allGatherMatmul(Reads.ONE, Yields.EVERYWHERE, Takes.B, Takes.DIM) {
        @Override
        List<NDArray> run(OpCall call) {
            GatheredMatmul result =
                    FusedOps.allGatherMatmul(call.input(), call.bs(), call.dim(), call.group());
            List<NDArray> results = new ArrayList<>();
            for (NDArray output : result.outputs()) {
                results.add(named("product_" + results.size(), output));
            }
            results.add(named("gathered", result.gathered().orElseThrow()));
            return results;
        }
    },
    matmulReduceScatter(Reads.ONE, Yields.EVERYWHERE, Takes.B, Takes.DIM, Takes.REDUCE) {
        @Override
        List<NDArray> run(OpCall call) {
            if (call.bs().size() != 1) {
                throw new IllegalArgumentException(
                        String.format("matmulReduceScatter takes one B, not %s", call.bs().size()));
            }
            NDArray result =
                    FusedOps.matmulReduceScatter(
                            call.input(),
                            call.bs().get(0),
                            call.reduceOp(),
                            call.dim(),
                            call.group());
            return List.of(named("product", result));
        }
    },
    lowContentionAllGather(Reads.ONE, Yields.EVERYWHERE) {
        @Override
        List<NDArray> run(OpCall call) {
            NDArray output = call.result(gathered(call, call.input()));
            LowContention.allGather(call.group(), output, call.input()).await();
            return List.of(output);
        }
    },
    lowContentionReduceScatter(Reads.ONE, Yields.EVERYWHERE, Takes.REDUCE) {
        @Override
        List<NDArray> run(OpCall call) {
            NDArray output = call.result(scattered(call, call.input(), name()));
            LowContention.reduceScatter(call.group(), output, call.input(), call.reduceOp())
                    .await();
            return List.of(output);
        }
    };

    /** The arrays that ranks pass. */
    enum Reads {
        NOTHING,
        ONE,
        ONE_ON_ROOT,
        SOME,
        ONE_PER_RANK,
        ONE_PER_RANK_ON_ROOT
    }

    /** The ranks that have results. */
    enum Yields {
        NOTHING,
        ON_ROOT,
        EVERYWHERE
    }

    /** The other arguments of an operation. */
    enum Takes {
        REDUCE,
        ROOT,
        B,
        DIM
    }

    private final Reads reads;
    private final Yields yields;
    private final Set<Takes> takes;

    OpKind(Reads reads, Yields yields, Takes... takes) {
        this.reads = reads;
        this.yields = yields;
        this.takes = Set.of(takes);
    }

    /** Runs the operation and returns this rank's results, which a GPU may still be computing. */
    abstract List<NDArray> run(OpCall call);

    boolean reads() {
        return reads != Reads.NOTHING;
    }

    boolean readsOn(int rank, int root) {
        boolean onRoot = reads == Reads.ONE_ON_ROOT || reads == Reads.ONE_PER_RANK_ON_ROOT;
        return reads() && (!onRoot || rank == root);
    }

    /** Returns whether a rank may pass any number of arrays. */
    boolean readsSome() {
        return reads == Reads.SOME;
    }

    /** Returns the number of arrays that a rank passes, if it is fixed. */
    int inputs(int worldSize) {
        boolean perRank = reads == Reads.ONE_PER_RANK || reads == Reads.ONE_PER_RANK_ON_ROOT;
        return perRank ? worldSize : 1;
    }

    /** Returns whether --split divides the root's array into one part for each rank. */
    boolean scattersParts() {
        return reads == Reads.ONE_PER_RANK_ON_ROOT;
    }

    Yields yields() {
        return yields;
    }

    boolean takes(Takes what) {
        return takes.contains(what);
    }

    private static int worldSize(OpCall call) {
        return call.group().worldSize();
    }

    private static Shape gathered(OpCall call, NDArray input) {
        Shape shape = input.getShape();
        long rows = shape.dimension() == 0 ? 1 : shape.get(0);
        return withFirst(shape, Math.multiplyExact(rows, worldSize(call)));
    }

    private static Shape scattered(OpCall call, NDArray input, String operation) {
        Shape shape = input.getShape();
        if (shape.dimension() == 0 || shape.get(0) % worldSize(call) != 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: the first dimension of the input, of shape %s, is not divisible by"
                                    + " %d, the number of ranks",
                            operation, shape, worldSize(call)));
        }
        return withFirst(shape, shape.get(0) / worldSize(call));
    }

    private static Shape withFirst(Shape shape, long size) {
        long[] sizes = shape.dimension() == 0 ? new long[1] : shape.getShape().clone();
        sizes[0] = size;
        return new Shape(sizes);
    }

    private static NDArray named(String name, NDArray array) {
        array.setName(name);
        return array;
    }
}
