#!/usr/bin/env python3
"""Measures PyTorch's data-parallel training step, for ci/bench/run.sh bench-train --torch.

Prints {"torch": VERSION} when all ranks are ready, then reads a case a line and answers each with a line of JSON:
  {"who": CONTENDER, "rows": R, "layers": L, "width": W, "hidden": H, "warmUp": U, "steps": S}
  -> {"milliseconds": [the time of each step], "matmulError": E}, or {"refused": CAUSE} if PyTorch refuses the case
  {"forget": true} -> {}: frees models and batches
{"error": CAUSE} is a failure. The model is L times (Linear W -> H, ReLU, Linear H -> W) in float32, without TF32. Each rank has R
rows; SGD updates the model. The contenders:
  TORCH_ALONE      no communication
  TORCH_DDP        DistributedDataParallel without options
  TORCH_DDP_TUNED  gradients as views of buckets, fused SGD
  TORCH_FSDP2      fully_shard of each Linear and of the model; sharded parameters have no fused SGD
A time is the slowest rank's, from a batch on the device until the device has finished the step. E is the relative error of a float32
matmul, to compare with DJL's: about 1e-7, or 1e-4 with TF32. Each rank is a process, with one GPU and NCCL, or with --device cpu and
Gloo. Ends with its standard input, or if a rank dies or does not answer.
"""

import argparse
import json
import sys
import time

import torch_peer


class Training(torch_peer.Rank):
    """A rank, with the models that it trains."""

    def __init__(self, rank, ranks, meeting, device):
        super().__init__(rank, ranks, meeting, device)
        self.torch.backends.cuda.matmul.allow_tf32 = False
        self.torch.backends.cudnn.allow_tf32 = False
        self.models = {}

    def measure(self, case):
        if "forget" in case:
            self.models.clear()
            return {}
        key = tuple(case[name] for name in ("who", "layers", "width", "hidden"))
        if key not in self.models:
            try:
                self.models[key] = self.make(*key)
            except Exception as e:
                raise RuntimeError(f"{type(e).__name__}: {e}") from e  # a refusal, see serve
        x = self.torch.randn(case["rows"], case["width"], device=self.device)
        times = [self.step(*self.models[key], x) for _ in range(case["warmUp"] + case["steps"])]
        return {"milliseconds": times[case["warmUp"] :], "matmulError": self.matmul_error()}

    def make(self, who, layers, width, hidden):
        torch = self.torch
        linear, blocks = torch.nn.Linear, []
        for _ in range(layers):
            blocks += [linear(width, hidden, device=self.device), torch.nn.ReLU(), linear(hidden, width, device=self.device)]
        model = torch.nn.Sequential(*blocks)
        tuned = who == "TORCH_DDP_TUNED"
        if who == "TORCH_FSDP2":
            from torch.distributed.fsdp import fully_shard

            for layer in model:
                if list(layer.parameters()):
                    fully_shard(layer)
            fully_shard(model)
        elif who != "TORCH_ALONE":
            parallel = torch.nn.parallel.DistributedDataParallel
            device = None if self.device.type == "cpu" else [self.rank]
            model = parallel(model, device_ids=device, gradient_as_bucket_view=tuned)
        return model, torch.optim.SGD(model.parameters(), lr=1e-3, fused=tuned)

    def step(self, model, optimizer, x):
        self.barrier()
        begin = time.perf_counter_ns()
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
        self.synchronize()
        return (time.perf_counter_ns() - begin) / 1e6

    def matmul_error(self):
        a, b = (self.torch.randn(512, 512, device=self.device) for _ in range(2))
        exact = a.double() @ b.double()
        return (((a @ b).double() - exact).norm() / exact.norm()).item()


def run_rank(rank, ranks, meeting, cases, answers, device):
    """Runs a rank's process."""
    torch_peer.serve(rank, cases, answers, lambda: Training(rank, ranks, meeting, device))


def slowest(answers):
    """Merges the ranks' answers."""
    for answer in answers:
        if "notes" in answer:
            return {"refused": "; ".join(answer["notes"].values())}
    if not answers[0]:
        return {}
    return {
        "milliseconds": [round(max(times), 3) for times in zip(*(answer["milliseconds"] for answer in answers))],
        "matmulError": max(answer["matmulError"] for answer in answers),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()

    def use(ask):
        for line in sys.stdin:
            torch_peer.say(slowest(ask(json.loads(line))))

    torch_peer.with_ranks(arguments.ranks, run_rank, use, arguments.device, device=arguments.device)


if __name__ == "__main__":
    main()
