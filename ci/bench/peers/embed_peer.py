#!/usr/bin/env python3
"""Measures sentence-transformers on a GPU, for ci/bench/run.sh bench-embed --torch.

    embed_peer.py DIR TYPE    # a model's directory; float32, float16 or bfloat16

Prints {"sentenceTransformers": VERSION} when it is ready, then reads a case a line and answers each with a line of JSON:
  {"texts": [TEXT, ...]} -> {"wallMillis": W, "cpuMillis": C, "batchSize": B, "vectors": [[...], ...]}
from texts to vectors in the host's memory, with the fastest of BATCH_SIZES. Ends with its standard input.
"""
import json
import sys
import time

import sentence_transformers
import torch

BATCH_SIZES = (32, 128, 512)  # 32 is the default


def measure(model, texts, batch_size):
    cpu, start = time.process_time(), time.perf_counter()
    vectors = model.encode(texts, batch_size=batch_size)
    end = time.perf_counter()
    return {
        "wallMillis": (end - start) * 1e3, "cpuMillis": (time.process_time() - cpu) * 1e3, "batchSize": batch_size,
        "vectors": vectors}


def main():
    directory, dtype = sys.argv[1:]
    model = sentence_transformers.SentenceTransformer(
        directory, device="cuda", model_kwargs={"dtype": getattr(torch, dtype)})
    print(json.dumps({"sentenceTransformers": sentence_transformers.__version__}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        best = min((measure(model, case["texts"], size) for size in BATCH_SIZES), key=lambda each: each["wallMillis"])
        best["vectors"] = best["vectors"].tolist()
        print(json.dumps(best), flush=True)


if __name__ == "__main__":
    main()
