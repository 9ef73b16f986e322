# SPDX-License-Identifier: Apache-2.0
"""Writes random tiny embedding models, and the vectors that sentence-transformers computes for them; or measures it.

usage: make_embedding_fixtures.py FOLDER [NAME ...]
       make_embedding_fixtures.py --bench MODEL [--device cuda] [--trace FILE]

Each folder FOLDER/NAME is a model in sentence-transformers' layout, in float32, with expected.json:

  sentence_transformers   its version
  texts, tokens, vectors  texts of mixed lengths, the tokens of each with special ones, and its vector

--bench prints how many texts of 8 to 256 words a second MODEL embeds in batches of 32, sorted by length as
sentence-transformers does; --trace also writes it as TorchScript, input_ids and attention_mask to token vectors, for DJL's own
engine.
"""
import argparse
import json
import os
import random
import time

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
LETTERS = [chr(ord("a") + i) for i in range(26)]
SIZES = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    max_position_embeddings=200, pad_token_id=1, bos_token_id=0, eos_token_id=2)

# name: model_type, entries of config.json, pooling
MODELS = {
    "bert": ("bert", {}, "mean"),
    "bert-cls": ("bert", dict(hidden_act="gelu_new"), "cls"),
    "xlm-roberta": ("xlm-roberta", dict(type_vocab_size=1, layer_norm_eps=1e-5), "max"),
    "modernbert": ("modernbert", dict(
        local_attention=16, cls_token_id=0, sep_token_id=2, global_attn_every_n_layers=2), "mean"),
    "qwen3": ("qwen3", dict(num_key_value_heads=2, head_dim=8), "lasttoken"),
}


def tokenizer():
    words = SPECIAL + LETTERS + ["##" + letter for letter in LETTERS] + ["ab", "##cd"]
    result = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    result.normalizer = normalizers.BertNormalizer(lowercase=True)
    result.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    result.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 0))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=result, cls_token="[CLS]", pad_token="[PAD]", sep_token="[SEP]",
        unk_token="[UNK]", model_max_length=128), len(words)


def text(words):
    return " ".join("".join(random.choices(LETTERS, k=random.randint(1, 4))) for _ in range(words))


def make(folder, name):
    model_type, entries, pooling = MODELS[name]
    random.seed(name)
    torch.manual_seed(len(name))
    fast, size = tokenizer()
    config = transformers.AutoConfig.for_model(model_type, vocab_size=size, **{**SIZES, **entries})
    plain = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for key, weight in plain.named_parameters():  # No norm of 1, no bias of 0.
            norm = "norm" in key.lower() and key.endswith("weight")
            scale = 0.2 if weight.dim() == 1 else weight.shape[-1] ** -0.5
            weight.copy_(torch.randn(weight.shape) * scale + (1 if norm else 0))
    source = os.path.join(folder, name + "-source")
    plain.save_pretrained(source)
    fast.save_pretrained(source)
    transformer = Transformer(source, max_seq_length=128)
    model = SentenceTransformer(
        modules=[transformer, Pooling(config.hidden_size, pooling_mode=pooling), Normalize()],
        device="cpu")
    target = os.path.join(folder, name)
    model.save(target)
    texts = [text(words) for words in (1, 30, 3, 12, 12, 2, 25)]
    with open(os.path.join(target, "expected.json"), "w") as file:
        json.dump({
            "sentence_transformers": sentence_transformers.__version__,
            "texts": texts,
            "tokens": [fast(each)["input_ids"] for each in texts],
            "vectors": model.encode(texts).tolist()}, file)
        file.write("\n")
    print(name, sorted(os.listdir(target)))


class Traced(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def bench(directory, device, trace):
    random.seed(1)
    model = SentenceTransformer(directory, device=device)
    texts = [text(random.randint(8, 256)) for _ in range(512)]
    model.encode(texts[:64], batch_size=32)
    start = time.perf_counter()
    model.encode(texts, batch_size=32)
    print(f"{len(texts) / (time.perf_counter() - start):.1f} texts/s, sentence-transformers",
          sentence_transformers.__version__, device, torch.get_num_threads(), "threads")
    if trace:
        inner = Traced(model[0].auto_model.eval().cpu())
        ids = torch.ones(2, 16, dtype=torch.long)
        torch.jit.trace(inner, (ids, torch.ones_like(ids)), strict=False).save(trace)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--bench")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trace")
    options = parser.parse_args()
    if options.bench:
        bench(options.bench, options.device, options.trace)
        return
    for name in options.names or MODELS:
        make(options.folder, name)


if __name__ == "__main__":
    main()
