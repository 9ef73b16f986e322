# SPDX-License-Identifier: Apache-2.0
"""Checks that PEFT loads an adapter that `finetune` has written, or writes one with PEFT.

usage: check_adapter.py check MODEL TUNED
       check_adapter.py make MODEL OUT [--rank R] [--rslora] [--target-modules q_proj,v_proj]

check   MODEL is the model that was fine-tuned, TUNED the folder of `finetune --lora R --save TUNED`. PEFT must load TUNED/adapter with
        every tensor of the file and no other, and MODEL with the adapter must give the log-probabilities of TUNED, the merged model,
        to 1e-4 in float32, and the same greedy tokens.
make    writes a random adapter of MODEL to OUT/adapter and the model with it merged to OUT/merged, both with PEFT, and prints greedy
        tokens of the merged model for PROMPT as JSON: those that `serve MODEL --lora a=OUT/adapter` must give for the model a.
"""
import argparse
import json
import os

import peft
import torch
import transformers
from safetensors.torch import load_file

PROMPT = [3, 17, 42, 99, 5, 61, 8, 120, 33, 7, 11, 64]


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def scores(model, tokens):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0], -1)


def greedy(model, count=24):
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(int(scores(model, tokens)[-1].argmax()))
    return tokens[len(PROMPT):]


def check(args):
    adapter = os.path.join(args.folder, "adapter")
    model = peft.PeftModel.from_pretrained(load(args.model), adapter).eval()
    written = load_file(os.path.join(adapter, "adapter_model.safetensors"))
    loaded = peft.get_peft_model_state_dict(model)
    assert written.keys() == loaded.keys(), sorted(written.keys() ^ loaded.keys())
    for name, values in written.items():
        assert torch.equal(values, loaded[name].float()), name
    config = model.peft_config["default"]
    print("peft", peft.__version__, "r", config.r, "alpha", config.lora_alpha, "rslora", config.use_rslora, "dropout", config.lora_dropout,
          "targets", sorted(config.target_modules))
    merged = load(args.folder)
    difference = (scores(model, PROMPT) - scores(merged, PROMPT)).abs().max().item()
    effect = (scores(load(args.model), PROMPT) - scores(merged, PROMPT)).abs().max().item()
    print(f"{len(written)} tensors; log-probabilities differ by {difference:.2e}; the adapter changes them by {effect:.2e}")
    assert difference < 1e-4 < effect
    assert greedy(model) == greedy(merged)
    print("passed")


def make(args):
    torch.manual_seed(1)
    targets = args.target_modules.split(",")
    config = peft.LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, use_rslora=args.rslora, lora_dropout=0.1, target_modules=targets, init_lora_weights=False,
        task_type="CAUSAL_LM")
    model = peft.get_peft_model(load(args.model), config).eval()
    for name, values in model.named_parameters():
        if "lora_B" in name:
            values.data.mul_(0.1)
    model.save_pretrained(os.path.join(args.folder, "adapter"))
    merged = model.merge_and_unload()
    merged.save_pretrained(os.path.join(args.folder, "merged"))
    print(json.dumps({"prompt": PROMPT, "tokens": greedy(merged)}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["check", "make"])
    parser.add_argument("model")
    parser.add_argument("folder")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rslora", action="store_true")
    parser.add_argument("--target-modules", default="q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj")
    args = parser.parse_args()
    check(args) if args.command == "check" else make(args)


main()
