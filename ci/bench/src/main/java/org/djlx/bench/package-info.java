/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Times of collective operations, fused operators, transformer blocks, training steps and text
 * generation, on the CPU and on GPUs, beside other programs.
 *
 * <pre>
 *   BenchCommand           bench: nccl-tests' table of a collective on the CPU
 *   BenchCompareCommand    bench-compare: all-reduce on the CPU beside other programs
 *   CoalescedBenchCommand  bench-coalesced: several tensors in a call beside a call for each
 *   GpuBenchCommand        bench-gpu: all-reduces and fused operators on GPUs
 *   BenchChartCommand      bench-chart: charts of that
 *   BlockBenchCommand      bench-block: a tensor-parallel transformer block
 *   TrainBenchCommand      bench-train: data-parallel training steps
 *   DecodeBenchCommand     bench-decode: text from a Llama
 *   ReportOptions          options of commands that keep what they have measured
 *   BenchReport            what they keep, as JSON
 *   DeviceRanks            ranks on GPUs, or on the CPU
 *   Meeting                where ranks wait for each other beside what is measured
 *
 *   BenchOp                the collectives of bench
 *   BenchCase              a size, and how often
 *   BenchJob               one rank of bench
 *   BenchRow               a row of the table
 *   BenchProgram           a program that prints such a table
 *   BenchComparison        the rows of several, and the targets
 *
 *   GpuBenchPlan           what is to be measured on GPUs
 *   GpuBenchCase           an operation at one size, the ways to do it, and what is right
 *   GpuBenchJob            the ranks
 *   GpuBenchRank           one of them
 *   GpuBenchRow            what an operation takes
 *   GpuBenchResults        the rows, with PyTorch's figures
 *   GpuBenchTable          the rows as text
 *   GpuBenchCharts         the rows as pictures
 *   SideBySide             measures several ways to do an operation in turns
 *   Contender              one of these ways
 *   CallTimes              what a way's calls cost
 *   Baseline               the collectives that ours are compared with
 *   NcclBaseline           NCCL's, without a process group
 *   Recorder               what a rank enqueues, to be enqueued again
 *   CudaRecorder           the same as a CUDA graph
 *   Marks                  marks in the work of a rank, and the time between them
 *   CudaMarks              events of a GPU
 *   TorchPeer              PyTorch in a process of its own
 *
 *   BlockBench             one rank of bench-block
 *   TrainBench             one rank of bench-train
 *   DecodeBench            clients of the HTTP server
 *   StepBench              callers of a generator
 *   FileReads              how fast a model's files can be read
 *   DecodePeer             the decoding written with PyTorch's operators
 * </pre>
 */
package org.djlx.bench;
