#!/usr/bin/env python3
"""Measures a Llama's decoding written with PyTorch's operators, for ci/bench/run.sh bench-decode --torch.

Prints {"torch": VERSION} when all ranks are ready, then a line of JSON for each measurement, and at the end {"done": true}:
  {"batch": B, "method": METHOD, "micros": ...}    a step, replayed from a CUDA graph
  {"prompt": N, "matmulMicros": ...}               all matmuls of a prompt, called by the host
The methods are "nccl" and "oneShot" for several ranks, "alone" and "compiled" (by torch.compile, one function for all layers)
for one rank. "note" replaces the time of a method that PyTorch refuses; {"error": CAUSE} is a failure of the script. Weights are
random bfloat16, sharded as in this project's model, with two all-reduces a layer: NCCL's, or symmetric memory's one-shot. The
cache is static; the new token is the last of its context. Times are medians of the slowest rank. Each rank is a process with one
GPU. Ends after the last measurement, if a rank dies, or after --limit.
"""

import argparse
import signal
import statistics

import torch_peer

WARM_UP = 5
REPLAYS = 30
EPSILON = 1e-5


class Llama(torch_peer.Rank):
    """A rank's part of the model."""

    def __init__(self, rank, ranks, meeting, sizes):
        super().__init__(rank, ranks, meeting)
        self.make(sizes)

    def make(self, sizes):
        torch = self.torch
        torch.manual_seed(0)  # Then all ranks have the same embedding, and go on from the same values.
        self.sizes, self.size = sizes, sizes.head_size
        self.heads, self.kv = sizes.heads // self.ranks, max(1, sizes.kv_heads // self.ranks)
        self.inner, self.tokens = sizes.inner // self.ranks, sizes.vocabulary // self.ranks
        hidden = sizes.hidden
        self.embedding = self.matrix(sizes.vocabulary, hidden)
        self.layers = [
            {
                "norm": self.random(hidden),
                "qkv": self.matrix((self.heads + 2 * self.kv) * self.size, hidden),
                "out": self.matrix(hidden, self.heads * self.size),
                "mlp_norm": self.random(hidden),
                "gate_up": self.matrix(2 * self.inner, hidden),
                "down": self.matrix(hidden, self.inner),
            }
            for _ in range(sizes.layers)
        ]
        self.norm = self.random(hidden)
        self.head = self.matrix(self.tokens, hidden)

    def matrix(self, rows, columns):
        return self.random(rows, columns).mul_(columns**-0.5)

    def measure(self, case):
        with self.torch.no_grad():
            if "prompt" in case:
                return {"matmulMicros": self.matmuls(case["prompt"])}
            return {"micros": self.decoding(case["batch"], case["method"])}

    def decoding(self, batch, method):
        step = self.step(batch, method)  # It holds the arrays that the graph uses.
        graph = self.capture(step, 1)
        self.barrier()
        micros = self.times(graph.replay)
        self.barrier()  # Then no rank reads another's buffers any more.
        return micros

    def times(self, call):
        for _ in range(WARM_UP):
            call()
        marks = self.events(REPLAYS + 1)
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        self.torch.cuda.synchronize()
        return statistics.median(1e3 * a.elapsed_time(b) for a, b in zip(marks, marks[1:]))

    def step(self, batch, method):
        """Returns a function that decodes one token of each sequence from the token of the step before."""
        torch, dist, functional, sizes = self.torch, self.dist, self.torch.nn.functional, self.sizes
        hidden, last = sizes.hidden, sizes.context - 1
        caches = [[self.random(batch, self.kv, sizes.context, self.size) for _ in range(2)] for _ in self.layers]
        position = torch.tensor([last], device=self.device)
        angles = last * sizes.theta ** (-torch.arange(0, self.size, 2, device=self.device) / self.size)
        cos, sin = (f(torch.cat([angles, angles])).to(torch.bfloat16) for f in (torch.cos, torch.sin))
        tokens = torch.zeros(batch, dtype=torch.int64, device=self.device)
        best = torch.empty(self.ranks, 2, batch, dtype=torch.float32, device=self.device)
        if method == "oneShot":
            buffer = self.symm_mem.empty(batch, hidden, dtype=torch.bfloat16, device=self.device)
            self.symm_mem.rendezvous(buffer, self.group)

        def rotated(x):
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat([-b, a], -1) * sin

        def reduced(x, weight):
            if method == "oneShot":  # It waits for all before it reads, and before it returns.
                torch.mm(x, weight.t(), out=buffer)
                return torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", self.group)
            product = functional.linear(x, weight)
            if method == "nccl":
                dist.all_reduce(product)
            return product

        def embed(norm):
            x = functional.embedding(tokens, self.embedding)
            return x, functional.rms_norm(x, (hidden,), norm, EPSILON)

        def layer_step(x, normed, layer, cache, next_norm):
            qkv = functional.linear(normed, layer["qkv"]).view(batch, -1, self.size)
            q, k, v = qkv.split([self.heads, self.kv, self.kv], 1)
            cache[0].index_copy_(2, position, rotated(k).unsqueeze(2))
            cache[1].index_copy_(2, position, v.unsqueeze(2))
            attended = functional.scaled_dot_product_attention(rotated(q).unsqueeze(2), *cache, enable_gqa=True)
            x = x + reduced(attended.reshape(batch, -1), layer["out"])
            normed = functional.rms_norm(x, (hidden,), layer["mlp_norm"], EPSILON)
            gate, up = functional.linear(normed, layer["gate_up"]).chunk(2, -1)
            x = x + reduced(functional.silu(gate) * up, layer["down"])
            return x, functional.rms_norm(x, (hidden,), next_norm, EPSILON)

        def sample(normed):
            score, token = functional.linear(normed, self.head).max(-1)  # of this rank's tokens; float32 holds the number of each exactly
            own = torch.stack([score.float(), (token + self.rank * self.tokens).float()]).unsqueeze(0)
            if self.ranks > 1:
                dist.all_gather_into_tensor(best, own)
            else:
                best.copy_(own)
            winner = best[:, 0].argmax(0, keepdim=True)
            tokens.copy_(best[:, 1].gather(0, winner).squeeze(0))

        if method == "compiled":  # With the fastest matmuls that it finds. The call before the capture compiles.
            torch.compiler.reset()  # It compiles a function at most 8 times, and does for each batch.
            options = {"mode": "max-autotune-no-cudagraphs", "fullgraph": True, "dynamic": False}
            embed, layer_step, sample = (torch.compile(function, **options) for function in (embed, layer_step, sample))
        norms = [layer["norm"] for layer in self.layers] + [self.norm]

        def run(_):
            x, normed = embed(norms[0])
            for layer, cache, next_norm in zip(self.layers, caches, norms[1:]):
                x, normed = layer_step(x, normed, layer, cache, next_norm)
            sample(normed)

        return run

    def matmuls(self, rows):
        """Runs all matmuls of a prompt; the output matmul for its last token only."""
        linear, sizes = self.torch.nn.functional.linear, self.sizes
        x = self.random(rows, sizes.hidden)
        heads, inner = self.random(rows, self.heads * self.size), self.random(rows, self.inner)

        def call():
            for layer in self.layers:
                linear(x, layer["qkv"])
                linear(heads, layer["out"])
                linear(x, layer["gate_up"])
                linear(inner, layer["down"])
            linear(x[-1:], self.head)

        self.barrier()
        return self.times(call)


def run_rank(rank, ranks, meeting, cases, answers, sizes):
    """Runs a rank's process."""
    torch_peer.serve(rank, cases, answers, lambda: Llama(rank, ranks, meeting, sizes))


def slowest(answers):
    """Merges the ranks' answers: the slowest rank's time, or the cause of a missing one."""
    merged = {}
    for answer in answers:
        if "notes" in answer:
            return {"note": "; ".join(answer["notes"].values())}
        for name, micros in answer.items():
            merged[name] = round(max(micros, merged.get(name, 0)), 2)
    return merged


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=14336)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-size", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--theta", type=float, default=500000)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batches", type=numbers, default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--limit", type=int, default=1800, help="seconds")
    sizes = parser.parse_args()

    def late(*_):
        raise RuntimeError(f"not done after {sizes.limit} s")

    def use(ask):
        cases = [{"batch": batch, "method": "nccl" if sizes.ranks > 1 else "alone"} for batch in sizes.batches]
        cases.append({"prompt": sizes.prompt})
        # Last: a failure of oneShot ends the ranks, and to compile takes minutes.
        last = "oneShot" if sizes.ranks > 1 else "compiled"
        cases.extend({"batch": batch, "method": last} for batch in sizes.batches)
        for case in cases:
            torch_peer.say({**case, **slowest(ask(case))})
        torch_peer.say({"done": True})

    torch_peer.PATIENCE = sizes.limit
    signal.signal(signal.SIGALRM, late)
    signal.alarm(sizes.limit)
    torch_peer.with_ranks(sizes.ranks, run_rank, use, sizes)


if __name__ == "__main__":
    main()
