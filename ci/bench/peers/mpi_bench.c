/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Measures MPI's all-reduce as `ci/bench/run.sh bench` measures this project's: float32, in place,
 * sum. A row has the median of the iterations, each with the slowest rank's time. Arguments are
 * SIZE:WARMUP:ITERATIONS.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double difference = *(const double *) a - *(const double *) b;
    return (difference > 0) - (difference < 0);
}

static void all_reduce(float *data, int count) {
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Returns an input that differs between ranks; all sums are exact. */
static long wrong(float *data, int count, int rank, int ranks) {
    long wrong = 0;
    for (int i = 0; i < count; i++) {
        data[i] = (rank + 1) * (i % 1021 + 1);
    }
    all_reduce(data, count);
    for (int i = 0; i < count; i++) {
        wrong += data[i] != ranks * (ranks + 1) / 2 * (i % 1021 + 1);
    }
    return wrong;
}

static void measure(long size, int warm_up, int iterations, int rank, int ranks) {
    int count = size / sizeof(float);
    float *data = calloc(count, sizeof(float));
    double *times = malloc(iterations * sizeof(double));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < warm_up; i++) {
        all_reduce(data, count);
    }
    for (int i = 0; i < iterations; i++) {
        double start = MPI_Wtime();
        all_reduce(data, count);
        times[i] = MPI_Wtime() - start;
    }
    MPI_Allreduce(MPI_IN_PLACE, times, iterations, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(times, iterations, sizeof(double), compare);
    double micros = times[iterations / 2] * 1e6;
    double algbw = size / micros / 1e3;
    double busbw = algbw * 2 * (ranks - 1) / ranks;
    long errors = wrong(data, count, rank, ranks);
    if (rank == 0) {
        printf("%12ld  %12d  %8s  %6s  %6d  %9.2f  %6.2f  %6.2f  %6ld\n", size, count, "float32",
               "sum", -1, micros, algbw, busbw, errors);
        fflush(stdout);
    }
    free(times);
    free(data);
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) {
        long size;
        int warm_up, iterations;
        if (sscanf(argv[i], "%ld:%d:%d", &size, &warm_up, &iterations) == 3) {
            measure(size, warm_up, iterations, rank, ranks);
        }
    }
    MPI_Finalize();
    return 0;
}
