# SPDX-License-Identifier: Apache-2.0
"""Writes random tiny models of each supported architecture, and the tokens and log-probabilities
that transformers computes for them.

usage: make_fixtures.py FOLDER [NAME ...]

Each folder FOLDER/NAME has config.json, generation_config.json, model.safetensors (bfloat16) and
expected.json. The models compute in float32, on the CPU, with eager attention, from weights that
are rounded to bfloat16. expected.json:

  transformers    version of transformers
  cases[]
    prompt        token ids
    tokens        the greedy continuation
    logprobs      log-probability of each token of the continuation
    top           for each step the 8 most likely tokens and their log-probabilities
    gap           smallest difference between the two most likely tokens of a step
    bfloat16      largest difference of these log-probabilities if transformers computes the same
                  tokens in bfloat16
    cache         largest difference if transformers computes the same tokens without KV cache:
                  rounding, except with dynamic rope, where it rotates all keys anew

ModelFixturesTest reads the folders in src/test/resources/org/djlx/llm/model/fixtures.
"""
import json
import os
import sys
import traceback
import zlib

import safetensors.torch
import torch
import transformers

VOCABULARY = 131
STEPS = 24
TOP = 8
BASE = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
    rms_norm_eps=1e-6, bos_token_id=0, eos_token_id=1, pad_token_id=None,
    tie_word_embeddings=False)
DEFAULT = {"rope_type": "default", "rope_theta": 10000.0}


def rope(kind, **entries):
    return {"rope_type": kind, "rope_theta": 10000.0, **entries}


# name: model_type, entries of config.json, and lengths of the prompts
MODELS = {
    "llama-bias": ("llama", dict(
        attention_bias=True, mlp_bias=True, rope_parameters=rope(
            "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64)), [40]),
    "llama-yarn": ("llama", dict(
        tie_word_embeddings=True, rope_parameters=rope(
            "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=8.0,
            beta_slow=1.0)), [40]),
    "llama-yarn-mscale": ("llama", dict(
        num_hidden_layers=1, tie_word_embeddings=True, rope_parameters=rope(
            "yarn", factor=8.0, original_max_position_embeddings=32, mscale=1.0,
            mscale_all_dim=0.6, truncate=False)), [40]),
    # The prompt is shorter than max_position_embeddings, and the continuation goes beyond.
    "llama-dynamic": ("llama", dict(
        max_position_embeddings=44, rope_parameters=rope("dynamic", factor=2.0)), [40]),
    "mistral": ("mistral", dict(sliding_window=16, rope_parameters=DEFAULT), [40]),
    "qwen2": ("qwen2", dict(
        use_sliding_window=True, sliding_window=16, max_window_layers=1, rope_parameters=DEFAULT,
        head_dim=None), [40]),
    "qwen3": ("qwen3", dict(num_key_value_heads=4, tie_word_embeddings=True,
                            rope_parameters=DEFAULT), [40]),
    "ernie4-5": ("ernie4_5", dict(use_bias=True, rope_parameters=DEFAULT), [40]),
    "exaone4": ("exaone4", dict(
        num_hidden_layers=4, sliding_window=16, sliding_window_pattern=2,
        layer_types=["sliding_attention", "full_attention"] * 2, rope_parameters=DEFAULT), [40]),
    "gemma": ("gemma", dict(
        hidden_act="gelu_pytorch_tanh", head_dim=24, tie_word_embeddings=True,
        rope_parameters=DEFAULT), [40]),
    "gemma2": ("gemma2", dict(
        sliding_window=16, query_pre_attn_scalar=24, attn_logit_softcapping=5.0,
        final_logit_softcapping=4.0, tie_word_embeddings=True, rope_parameters=DEFAULT), [40]),
    "gemma3": ("gemma3_text", dict(
        num_hidden_layers=3, sliding_window=16, query_pre_attn_scalar=24, tie_word_embeddings=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": DEFAULT,
            "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 8.0}}),
        [40]),
    "glm": ("glm", dict(
        attention_bias=True, partial_rotary_factor=0.5, rope_parameters={
            **DEFAULT, "partial_rotary_factor": 0.5}), [40]),
    "glm4": ("glm4", dict(
        attention_bias=True, partial_rotary_factor=0.5, rope_parameters={
            **DEFAULT, "partial_rotary_factor": 0.5}), [40]),
    "gpt-oss": ("gpt_oss", dict(
        num_hidden_layers=2, num_local_experts=5, num_experts_per_tok=2, sliding_window=16,
        rope_parameters=rope(
            "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0,
            beta_slow=1.0, truncate=False)), [40]),
    "granite": ("granite", dict(
        attention_bias=True, mlp_bias=True, embedding_multiplier=6.0, logits_scaling=3.0,
        residual_multiplier=0.3, attention_multiplier=0.4, tie_word_embeddings=True,
        rope_parameters=DEFAULT, head_dim=None), [40]),
    "granite4": ("granitemoehybrid", dict(
        num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=48,
        layer_types=["attention"] * 2, position_embedding_type="rope", attention_bias=True,
        embedding_multiplier=6.0, logits_scaling=3.0, residual_multiplier=0.3,
        attention_multiplier=0.4, tie_word_embeddings=True, rope_parameters=DEFAULT,
        head_dim=None), [40]),
    "olmo3": ("olmo3", dict(
        num_hidden_layers=4, sliding_window=16, attention_bias=True, head_dim=None,
        rope_parameters={"sliding_attention": DEFAULT, "full_attention": DEFAULT}), [40]),
    "seed-oss": ("seed_oss", dict(
        attention_bias=True, attention_out_bias=True, mlp_bias=True, rope_parameters=DEFAULT),
        [40]),
    "olmo2": ("olmo2", dict(attention_bias=True, rope_parameters=DEFAULT, head_dim=None), [40]),
    "phi3": ("phi3", dict(num_key_value_heads=4, rope_parameters=DEFAULT, head_dim=None), [40]),
    # One prompt beyond the original length, and one that stays within it.
    "phi3-longrope": ("phi3", dict(
        head_dim=None, sliding_window=48, partial_rotary_factor=0.75, tie_word_embeddings=True,
        original_max_position_embeddings=36,
        rope_parameters=rope(
            "longrope", partial_rotary_factor=0.75, original_max_position_embeddings=36,
            short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            long_factor=[1.0, 1.5, 2.0, 4.0, 6.0, 7.0])), [40, 12]),
    "mixtral": ("mixtral", dict(
        intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, rope_parameters=DEFAULT,
        sliding_window=None), [40]),
    "qwen3-moe": ("qwen3_moe", dict(
        num_hidden_layers=3, moe_intermediate_size=16, num_experts=8, num_experts_per_tok=2,
        norm_topk_prob=True, mlp_only_layers=[1], decoder_sparse_step=1, tie_word_embeddings=True,
        rope_parameters=DEFAULT), [40]),
    "qwen3-moe-unnormalized": ("qwen3_moe", dict(
        num_hidden_layers=1, moe_intermediate_size=16, num_experts=8, num_experts_per_tok=3,
        norm_topk_prob=False, mlp_only_layers=[], decoder_sparse_step=1, rope_parameters=DEFAULT),
        [40]),
    "smollm3": ("smollm3", dict(
        num_hidden_layers=4, tie_word_embeddings=True, no_rope_layers=[1, 0, 1, 1],
        use_sliding_window=True, sliding_window=16, rope_parameters=DEFAULT, head_dim=None), [40]),
}


def create(model_type, entries):
    values = {**BASE, **entries}
    if values["head_dim"] is None:
        del values["head_dim"]
    config = transformers.AutoConfig.for_model(model_type, **values)
    options = dict(attn_implementation="eager", dtype=torch.float32)
    try:
        return transformers.AutoModelForCausalLM.from_config(
            config, experts_implementation="eager", **options)
    except (TypeError, ValueError, KeyError):
        return transformers.AutoModelForCausalLM.from_config(config, **options)


def randomize(model, model_type):
    """Fills the weights such that each of them matters: no norm of 1, no bias of 0."""
    sharpness = 4 if model.config.tie_word_embeddings else 1
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape)
            if "embed_tokens" in name or "lm_head" in name:
                # A tied embedding is small beside what layers add: no token predicts itself.
                values *= 0.3 / sharpness
            elif name == "model.norm.weight":
                values = 0.2 * values + sharpness - (1 if model_type.startswith("gemma") else 0)
            elif weight.dim() == 1:
                values *= 0.2
                if "norm" in name and not model_type.startswith("gemma"):
                    values += 1
            else:
                sharp = any(part in name for part in ("q_proj", "k_proj", "qkv_proj", ".gate."))
                values *= (1.5 if sharp else 1.0) / weight.shape[-1] ** 0.5
            weight.copy_(values.to(torch.bfloat16).float())


@torch.no_grad()
def cached(model, prompt, forced=None):
    """Log-probabilities of each step with a KV cache: greedy, or of the forced tokens."""
    past, rows, tokens = None, [], []
    step = torch.tensor([prompt])
    for i in range(STEPS):
        out = model(input_ids=step, past_key_values=past, use_cache=True)
        past = out.past_key_values
        row = torch.log_softmax(out.logits[0, -1].float(), -1)
        token = int(row.argmax()) if forced is None else forced[i]
        rows.append(row)
        tokens.append(token)
        step = torch.tensor([[token]])
    return torch.stack(rows), tokens


@torch.no_grad()
def uncached(model, prompt, tokens):
    """As cached, by one forward pass over all tokens."""
    logits = model(input_ids=torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1:].float(), -1)


def original_names(folder, model_type):
    """Stores experts as the published checkpoints do: one matrix an expert."""
    if model_type == "gpt_oss":  # All experts are one tensor.
        return
    path = os.path.join(folder, "model.safetensors")
    tensors = safetensors.torch.load_file(path)
    result = {}
    for name, value in tensors.items():
        if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
            prefix = name.rsplit(".", 1)[0]
            for expert in range(value.shape[0]):
                if name.endswith("down_proj"):
                    parts = {"down_proj": value[expert]}
                else:
                    half = value.shape[1] // 2
                    parts = {"gate_proj": value[expert][:half], "up_proj": value[expert][half:]}
                for part, matrix in parts.items():
                    result[f"{prefix}.{expert}.{part}.weight"] = matrix
        else:
            result[name] = value
    if model_type == "mixtral":
        renamed = {}
        for name, value in result.items():
            name = name.replace(".mlp.", ".block_sparse_moe.")
            for new, old in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
                if ".experts." in name:
                    name = name.replace(new, old)
            renamed[name] = value
        result = renamed
    if result.keys() != tensors.keys():
        print("  renamed experts")
        safetensors.torch.save_file(
            {name: value.contiguous() for name, value in result.items()}, path,
            metadata={"format": "pt"})


def rounded(values):
    return [round(float(value), 7) for value in values]


def compute(name, seed):
    """Returns a random model in bfloat16 and its cases."""
    model_type, entries, lengths = MODELS[name]
    torch.manual_seed(zlib.crc32(name.encode()) + seed)
    model = create(model_type, entries).eval()
    randomize(model, model_type)
    prompts = [torch.randint(3, VOCABULARY, (length,)).tolist() for length in lengths]
    results = []
    for prompt in prompts:
        rows, tokens = cached(model, prompt)
        difference = float((rows - uncached(model, prompt, tokens)).abs().max())
        results.append((prompt, tokens, rows, difference))
    model = model.to(torch.bfloat16)
    cases = []
    for prompt, tokens, rows, difference in results:
        top = rows.topk(TOP)
        half, _ = cached(model, prompt, tokens)
        error = float((half.gather(1, top.indices) - top.values).abs().max())
        cases.append({
            "prompt": prompt,
            "tokens": tokens,
            "logprobs": rounded(rows[i, token] for i, token in enumerate(tokens)),
            "top": [{"tokens": top.indices[i].tolist(), "logprobs": rounded(top.values[i])}
                    for i in range(STEPS)],
            "gap": round(float((top.values[:, 0] - top.values[:, 1]).min()), 7),
            "bfloat16": round(error, 5),
            "cache": float(f"{difference:.2g}")})
    return model, cases


def make(folder, name):
    model_type = MODELS[name][0]
    for seed in range(40):
        model, cases = compute(name, seed)
        # A fixture tells differences if its text varies and is not decided by rounding.
        if all(len(set(case["tokens"])) >= 8 and case["gap"] > 0.01 and case["bfloat16"] < 0.25
               for case in cases):
            break
    print("  seed", seed, "cache", [case["cache"] for case in cases])
    target = os.path.join(folder, name)
    os.makedirs(target, exist_ok=True)
    model.config.dtype = torch.bfloat16
    try:
        # Sampling defaults, which generation honours.
        model.generation_config = transformers.GenerationConfig(
            bos_token_id=0, eos_token_id=[1, 2], do_sample=True, temperature=0.7, top_p=0.8,
            top_k=20)
    except Exception:
        traceback.print_exc()
    model.save_pretrained(target)
    original_names(target, model_type)
    with open(os.path.join(target, "expected.json"), "w") as file:
        json.dump({"transformers": transformers.__version__, "cases": cases}, file)
        file.write("\n")
    size = sum(os.path.getsize(os.path.join(target, file)) for file in os.listdir(target))
    print(f"  {size / 1000:.0f} KB, files {sorted(os.listdir(target))}")
    print("  gap", [case["gap"] for case in cases], "bfloat16",
          [case["bfloat16"] for case in cases], "distinct tokens",
          [len(set(case["tokens"])) for case in cases])
    with safetensors.safe_open(os.path.join(target, "model.safetensors"), "pt") as file:
        names = [key for key in file.keys() if ".layers." not in key or ".layers.0." in key]
        print("  " + ", ".join(f"{key} {list(file.get_slice(key).get_shape())}" for key in names))


def main():
    folder = sys.argv[1]
    torch.set_num_threads(4)
    print("transformers", transformers.__version__, "torch", torch.__version__)
    failed = []
    for name in sys.argv[2:] or MODELS:
        print(name, flush=True)
        try:
            make(folder, name)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            failed.append(name)
    print("failed:", failed or "none")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
