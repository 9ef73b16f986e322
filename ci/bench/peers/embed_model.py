# SPDX-License-Identifier: Apache-2.0
"""Writes a random BERT and its trace for DJL's PyTorch engine: DIR/{config.json,model.safetensors,tokenizer.json,modules.json,...},
DIR/traced/{traced.pt,tokenizer.json}. Needs torch, transformers.

    embed_model.py DIR [HIDDEN LAYERS HEADS [ATTENTION]]    # 384 6 12 (MiniLM-L6) sdpa
"""
import json
import pathlib
import shutil
import string
import sys

import torch
import transformers

directory = pathlib.Path(sys.argv[1])
hidden, layers, heads = (int(value) for value in (sys.argv[2:5] or ("384", "6", "12")))
attention = sys.argv[5] if len(sys.argv) > 5 else "sdpa"

torch.manual_seed(1)
config = transformers.BertConfig(
    hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * hidden, attn_implementation=attention)
model = transformers.BertModel(config, add_pooling_layer=False).eval()
with torch.no_grad():  # as in trained models: not the same for all tokens, biases and norms that matter
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.normal_(0, 0.1)
        elif "LayerNorm" in name:
            parameter.normal_(1, 0.1)
        else:
            parameter.normal_(0, 0.05)
model.save_pretrained(directory)


def write(name, value):
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + list(string.ascii_lowercase) + ["##" + c for c in string.ascii_lowercase]
for first in string.ascii_lowercase:  # 26 * 26 words of 2 letters, and 26 * 26 * 26 of 3
    for second in string.ascii_lowercase:
        tokens.append(first + second)
        tokens.extend(first + second + third for third in string.ascii_lowercase)
special = [
    {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for i in range(4)]
write("tokenizer.json", {
    "version": "1.0", "added_tokens": special,
    "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
              "vocab": {token: i for i, token in enumerate(tokens)}}})
write("modules.json", [
    {"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + kind}
    for i, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")))])
write("1_Pooling/config.json", {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True})

traced = directory / "traced"
traced.mkdir(exist_ok=True)
ids = torch.randint(4, 1000, (3, 17))
mask = torch.ones_like(ids)
mask[1, 9:] = 0


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


with torch.no_grad():
    trace = torch.jit.trace(Encoder(), (ids, mask), strict=False)
trace.save(str(traced / "traced.pt"))
shutil.copy(directory / "tokenizer.json", traced)
