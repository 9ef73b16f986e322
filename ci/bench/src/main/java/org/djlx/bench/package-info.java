/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * ReportOptions - --json and --commit
 * BenchReport - a report as JSON
 * Stats - medians and quantiles
 * BenchCase - a size and a number of calls
 * TorchPeer - PyTorch in a child process
 * BenchOp - the collectives of bench
 * BenchJob - one rank of a benchmark on the CPU
 * BenchRow - a row of nccl-tests' table
 * BenchProgram - a program that prints such a table
 * BenchComparison - the medians of several programs, and the targets
 * GpuBenchPlan - parses the cases of bench-gpu
 * GpuBenchCase - an operation at one size, its contenders and expected result
 * GpuBenchJob - the ranks of bench-gpu
 * GpuBenchRank - one of them
 * GpuBenchRow - the results of an operation at one size
 * GpuBenchResults - the rows of all cases, with PyTorch's times
 * GpuBenchTable - the rows as text
 * ResultsPages - the figures of README.md and docs
 * ResultsSection - one file of ci/results as Markdown
 * SpeedUpChart - a bar chart as SVG
 * SideBySide - measures several contenders in turns
 * Contender - one way to do an operation
 * CallTimes - the cost of a call
 * Lane - the work that a rank issues: marks, recordings
 * CudaLane - a stream of a GPU
 * Meeting - synchronizes the hosts of all ranks
 * Baseline - the collectives to compare with
 * NcclBaseline - NCCL without a process group
 * BlockBench - one rank of bench-block
 * TrainBench - one contender of bench-train
 * DecodeBench - clients of the HTTP server
 * StepBench - callers of a generator
 * FileReads - reads a model's files
 * DecodePeer - decoding written with PyTorch's operators
 */
/**
 * Benchmarks of collectives, fused operators, transformer blocks, training steps and text
 * generation, beside other programs. {@code ci/bench.sh} runs them and stores reports in {@code
 * ci/results}. The base of all: {@code BenchReport} writes a report, {@code Stats} computes
 * medians; on GPUs {@code SideBySide} measures contenders in turns.
 *
 * <p>The commands of {@code ci/bench/run.sh}:
 *
 * <ul>
 *   <li>{@link org.djlx.bench.Main} - the command line
 *   <li>{@link org.djlx.bench.BenchCommand} - {@code bench}: a collective on the CPU, in
 *       nccl-tests' table
 *   <li>{@link org.djlx.bench.BenchCompareCommand} - {@code bench-compare}: all-reduce on the CPU
 *       beside other programs
 *   <li>{@link org.djlx.bench.CoalescedBenchCommand} - {@code bench-coalesced}: coalesced
 *       collectives beside separate ones
 *   <li>{@link org.djlx.bench.GpuBenchCommand} - {@code bench-gpu}: all-reduce and fused operators
 *       on GPUs
 *   <li>{@link org.djlx.bench.PagesCommand} - {@code pages}: tables and charts of README.md and
 *       docs
 *   <li>{@link org.djlx.bench.BlockBenchCommand} - {@code bench-block}: a tensor-parallel
 *       transformer block
 *   <li>{@link org.djlx.bench.TrainBenchCommand} - {@code bench-train}: data-parallel training
 *       steps
 *   <li>{@link org.djlx.bench.DecodeBenchCommand} - {@code bench-decode}: text generation
 * </ul>
 */
package org.djlx.bench;
