#!/usr/bin/env python3
"""Measures PyTorch's operators on symmetric memory, for ci/bench/run.sh bench-gpu --torch.

Prints {"torch": VERSION} when all ranks are ready, then reads a case a line and answers each with a line of JSON:
  {"operation": "allReduce", "bytes": N, "turns": T, "rounds": R}
  {"operation": "allGatherMatmul" or "matmulReduceScatter", "mnk": [M, N, K], "turns": T, "rounds": R}
  -> {"columns": {NAME: {"gpuMicros": ..., "hostMicros": ...}}, "replay": {NAME: micros}, "notes": {NAME: cause}}
{"error": CAUSE} is a failure of the script. Inputs are bfloat16 and rotate over T turns. Times are medians of the slowest
rank. A graph holds one call of each turn. Each rank is a process with one GPU. Ends with its standard input, or if a rank
dies or does not answer.
"""

import argparse
import json
import os
import queue
import statistics
import sys
import tempfile
import time

PATIENCE = 100  # seconds for a case, and for the start
WARM_UP = 200  # as many as ours
CALLS = 5  # of each in a round, behind one that is not counted
LAUNCHES = 2  # of its graph, likewise


class Rank:
    """One rank, in a process of its own, on a GPU or, with device "cpu", on the CPU."""

    def __init__(self, rank, ranks, meeting, device="cuda"):
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symm_mem

        self.torch, self.dist, self.symm_mem, self.rank, self.ranks = torch, dist, symm_mem, rank, ranks
        if device == "cpu":
            self.device = torch.device("cpu")
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
            return
        torch.cuda.set_device(rank)
        self.device = torch.device("cuda", rank)
        dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=ranks, device_id=self.device)
        self.group = dist.group.WORLD.group_name
        if hasattr(symm_mem, "enable_symm_mem_for_group"):
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # newer versions do without, and say so
                symm_mem.enable_symm_mem_for_group(self.group)
        self.barrier()

    def synchronize(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def barrier(self):
        self.synchronize()
        self.dist.barrier()
        self.synchronize()

    def random(self, *sizes):
        return self.torch.randn(*sizes, device=self.device, dtype=self.torch.bfloat16)

    def contenders(self, case):
        """Returns, by name, a function that runs a turn and one that restores overwritten inputs."""
        ops, turns = self.torch.ops.symm_mem, case["turns"]

        def nothing():
            pass

        if case["operation"] == "allReduce":
            inputs = [self.random(case["bytes"] // 2) for _ in range(turns)]
            tensors = [self.symm_mem.empty(case["bytes"] // 2, dtype=self.torch.bfloat16, device=self.device) for _ in inputs]
            for tensor in tensors:
                self.symm_mem.rendezvous(tensor, self.group)

            def reset():
                for tensor, source in zip(tensors, inputs):
                    tensor.copy_(source)

            reset()
            return {
                "torchOneShot": (lambda i: ops.one_shot_all_reduce(tensors[i], "sum", self.group), nothing),
                "torchTwoShot": (lambda i: ops.two_shot_all_reduce_(tensors[i], "sum", self.group), reset),
            }
        m, n, k = case["mnk"]
        if case["operation"] == "allGatherMatmul":
            parts = [self.random(m // self.ranks, k) for _ in range(turns)]
            wholes = [self.random(m, k) for _ in range(turns)]
            bs = [self.random(k, n // self.ranks) for _ in range(turns)]
            return {
                "torch": (lambda i: ops.fused_all_gather_matmul(parts[i], [bs[i]], 0, self.group, return_A=False), nothing),
                "torchMatmul": (lambda i: wholes[i] @ bs[i], nothing),
            }
        wholes = [self.random(m, k // self.ranks) for _ in range(turns)]
        bs = [self.random(k // self.ranks, n) for _ in range(turns)]
        return {
            "torch": (lambda i: ops.fused_matmul_reduce_scatter(wholes[i], bs[i], "sum", 0, self.group), nothing),
            "torchMatmul": (lambda i: wholes[i] @ bs[i], nothing),
        }

    def events(self, count):
        return [self.torch.cuda.Event(enable_timing=True) for _ in range(count)]

    def measure(self, case):
        turns, rounds = case["turns"], case["rounds"]
        contenders = self.contenders(case)
        graphs, notes = {}, {}
        for name, (call, _) in contenders.items():
            self.barrier()
            for i in range(WARM_UP):
                call(i % turns)
            try:
                graphs[name] = self.capture(call, turns)
            except RuntimeError as e:
                notes[name] = str(e)
        gpu, host, replay = ({name: [] for name in contenders} for _ in range(3))
        for _ in range(rounds):
            for name, (call, reset) in contenders.items():
                reset()
                self.barrier()
                call(0)
                marks = self.events(CALLS + 1)
                marks[0].record()
                for i in range(CALLS):
                    start = time.perf_counter_ns()
                    call((i + 1) % turns)
                    host[name].append((time.perf_counter_ns() - start) / 1e3)
                    marks[i + 1].record()
                self.torch.cuda.synchronize()
                gpu[name] += [1e3 * a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
                if name in graphs:
                    reset()
                    self.barrier()
                    graphs[name].replay()
                    marks = self.events(LAUNCHES + 1)
                    marks[0].record()
                    for i in range(LAUNCHES):
                        graphs[name].replay()
                        marks[i + 1].record()
                    self.torch.cuda.synchronize()
                    replay[name] += [1e3 * a.elapsed_time(b) / turns for a, b in zip(marks, marks[1:])]
        self.barrier()  # Then no rank reads another's tensors any more.
        graphs.clear()
        return {
            "columns": {
                name: {"gpuMicros": statistics.median(gpu[name]), "hostMicros": statistics.median(host[name])} for name in contenders
            },
            "replay": {name: statistics.median(times) for name, times in replay.items() if times},
            "notes": notes,
        }

    def capture(self, call, turns):
        """Records a call of each turn on a stream that is warmed up; other threads may use CUDA meanwhile."""
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for i in range(turns):
                call(i)
        self.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for i in range(turns):
                call(i)
        return graph


def run_rank(rank, ranks, meeting, cases, answers):
    """Runs a rank's process."""
    serve(rank, cases, answers, lambda: Rank(rank, ranks, meeting))


def serve(rank, cases, answers, start):
    """Answers cases with the function that `start` returns, until the process ends."""
    try:
        here = start()
        answers.put({"torch": here.torch.__version__})
        while True:
            case = cases.get()
            try:
                answers.put(here.measure(case))
            except RuntimeError as e:  # What PyTorch refuses, it refuses on all ranks; the next case may go well.
                answers.put({"columns": {}, "replay": {}, "notes": {"torch": str(e)}})
            if here.device.type == "cuda":
                here.torch.cuda.empty_cache()
    except Exception as e:
        answers.put({"error": f"rank {rank}: {type(e).__name__}: {e}"})
        time.sleep(5)  # The parent is to read it, and then ends all.


def slowest(answers):
    """Merges the ranks' answers."""
    merged = {"columns": {}, "replay": {}, "notes": {}}
    for answer in answers:
        for name, times in answer["columns"].items():
            column = merged["columns"].setdefault(name, {})
            for key, micros in times.items():
                column[key] = round(max(micros, column.get(key, 0)), 2)
        for name, micros in answer["replay"].items():
            merged["replay"][name] = round(max(micros, merged["replay"].get(name, 0)), 2)
        merged["notes"].update(answer["notes"])
    return merged


def say(value):
    print(json.dumps(value), flush=True)


def collect(queues, processes):
    """Returns one answer of each rank; raises if a rank fails, dies or does not answer."""
    end, answers = time.monotonic() + PATIENCE, []
    for rank, answers_of_rank in enumerate(queues):
        while len(answers) == rank:
            try:
                answers.append(answers_of_rank.get(timeout=0.5))
            except queue.Empty:
                if time.monotonic() > end:
                    raise RuntimeError(f"rank {rank} has not answered for {PATIENCE} s") from None
                if not processes[rank].is_alive():
                    raise RuntimeError(f"rank {rank} has ended") from None
        if "error" in answers[rank]:
            raise RuntimeError(answers[rank]["error"])
    return answers


def with_ranks(ranks, run, use, *more, device="cuda"):
    """Starts the ranks' processes, calls `use` and ends the processes; prints a failure as {"error": CAUSE}.

    `run` is the code of a rank: (rank, ranks, meeting, cases, answers, *more). `use` gets a function that sends a case to all ranks and returns
    their answers."""
    try:
        import torch
        import torch.multiprocessing as mp
    except ImportError as e:
        say({"error": str(e)})
        return
    if device == "cuda" and torch.cuda.device_count() < ranks:
        say({"error": f"PyTorch {torch.__version__} sees {torch.cuda.device_count()} GPUs for {ranks} ranks"})
        return
    # Multicast can take a host out of service.
    os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1")
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        cases, answers = ([context.SimpleQueue() for _ in range(ranks)], [context.Queue() for _ in range(ranks)])
        processes = [context.Process(target=run, args=(r, ranks, f"{folder}/meeting", cases[r], answers[r], *more), daemon=True) for r in range(ranks)]

        def ask(case):
            for one in cases:
                one.put(case)
            return collect(answers, processes)

        try:
            for process in processes:
                process.start()
            say(collect(answers, processes)[0])
            use(ask)
        except (RuntimeError, OSError) as e:
            say({"error": str(e)})
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, required=True)

    def use(ask):
        for line in sys.stdin:
            say(slowest(ask(json.loads(line))))

    with_ranks(parser.parse_args().ranks, run_rank, use)


if __name__ == "__main__":
    main()
