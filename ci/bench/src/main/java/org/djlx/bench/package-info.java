// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * BenchCommand - bench: all-reduce on the CPU, in nccl-tests' table
 * BenchCompareCommand - bench-compare: all-reduce on the CPU beside other programs
 * GpuBenchCommand - bench-gpu: all-reduce and fused operators on GPUs
 * MessageBenchCommand - bench-messages: messages of nccl by where they run
 * BlockBenchCommand - bench-block: a tensor-parallel transformer block
 * TrainBenchCommand - bench-train: data-parallel training steps
 * DecodeBenchCommand - bench-decode: text generation
 * LlamaCppCommand - bench-llama-cpp: text generation on CPUs beside llama.cpp
 * EmbedBenchCommand - bench-embed: embeddings beside DJL's engine, or sentence-transformers
 * PagesCommand - pages: tables and charts of README.md and docs
 * CheckCommand - check: the goals that the figures of ci/results miss
 * ReportCommand - a command that writes a report
 * BenchReport - a report as JSON
 * Stats - medians and quantiles
 * BenchCase - a size and a number of calls
 * TorchPeer - PyTorch or another program in a child process
 * BenchJob - one rank of a benchmark on the CPU
 * BenchRow - a row of nccl-tests' table
 * GpuBenchPlan - parses the cases of bench-gpu
 * GpuBenchCase - an operation at one size, its contenders and expected result
 * GpuBenchJob - the ranks of bench-gpu
 * GpuBenchRow - the results of an operation at one size
 * ResultsPages - writes the figures of README.md and docs
 * ResultsSection - the tables and charts of a report, by results.jinja
 * SideBySide - measures contenders in turns, on the CPU and on GPUs
 * BenchRank - one rank of such a measurement
 * Contender - one way to do an operation
 * CallTimes - the cost of a call
 * Lane - the work that a rank issues: marks, recordings
 * CudaLane - a stream of a GPU
 * HostLane - a thread on the CPU
 * Meeting - synchronizes the hosts of all ranks
 * Baseline - the collectives to compare with
 * NcclBaseline - NCCL without a process group
 * BlockBench - one rank of bench-block
 * TrainBench - one contender of bench-train
 * DecodeBench - clients of the HTTP server
 * StepBench - callers of a generator
 * RandomAdapter - a LoRA adapter with random values
 * DecodePeer - decoding written with PyTorch's operators
 */
/**
 * Benchmarks of collectives, fused operators, transformer blocks, training steps and text
 * generation, beside other programs. {@code ci/bench.sh} runs them and stores reports in {@code
 * ci/results}. The base of all: {@code BenchReport} writes a report, {@code Stats} computes
 * medians, {@code SideBySide} measures and checks contenders in turns.
 *
 * <ul>
 *   <li>{@link org.djlx.bench.Main} - the command line {@code ci/bench/run.sh}
 * </ul>
 */
package org.djlx.bench;
