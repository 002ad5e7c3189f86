# SPDX-License-Identifier: Apache-2.0
"""Purpose: the demo model in PyTorch (a Llama), its growth by layers, its files, and the optimizer that trains it.

Design: the parameters live in float32 (`Trainer.master`); the forward pass works on a bfloat16 copy, so that every
product runs on matrix units; the sum of the layers stays float32. Logits are made only of the positions that count.
Matrices inside the layers are trained with Muon (momentum, orthogonalized), the embedding and the norms with Adam.
"""

import json
import os
import shutil

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

CONFIG = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "vocab_size": 2048,
    "max_position_embeddings": 32768,
}


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, heads, groups, size = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.heads, self.groups, self.size = heads, groups, size
        self.input_layernorm = nn.Parameter(torch.ones(width))
        self.post_attention_layernorm = nn.Parameter(torch.ones(width))
        self.q, self.k, self.v = (nn.Linear(width, n * size, bias=False) for n in (heads, groups, groups))
        self.o = nn.Linear(heads * size, width, bias=False)
        self.gate, self.up = (nn.Linear(width, c["intermediate_size"], bias=False) for _ in range(2))
        self.down = nn.Linear(c["intermediate_size"], width, bias=False)


HF_NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
}


def norm(x, weight, eps):
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(weight.dtype)


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Llama(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        c = self.config = {**CONFIG, **(config or {})}
        self.embed = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(c["hidden_size"]))
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(
                    p, std=0.02 / (2 * len(self.layers)) ** 0.5 if name.endswith(("o.weight", "down.weight")) else 0.02
                )

    def angles(self, positions):
        """Cosines and sines of RoPE for positions [B][L], as [B][1][L][head_dim / 2]."""
        half = self.config["head_dim"] // 2
        rate = self.config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64, device=positions.device) / half)
        angle = positions[:, None, :, None].double() * rate
        return angle.cos().float(), angle.sin().float()

    def forward(self, tokens, cos, sin, index):
        """Logits [len(index)][vocab] of the flat positions `index` of tokens [B][L]."""
        batch, length = tokens.shape
        eps = self.config["rms_norm_eps"]
        x = self.embed(tokens).float()
        for layer in self.layers:
            h = norm(x, layer.input_layernorm, eps)
            q, k, v = (m(h).view(batch, length, -1, layer.size).transpose(1, 2) for m in (layer.q, layer.k, layer.v))
            repeat = layer.heads // layer.groups
            k = rotate(k, cos, sin).repeat_interleave(repeat, 1)
            a = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v.repeat_interleave(repeat, 1), is_causal=True)
            x = x + layer.o(a.transpose(1, 2).reshape(batch, length, -1))
            h = norm(x, layer.post_attention_layernorm, eps)
            x = x + layer.down(F.silu(layer.gate(h)) * layer.up(h))
        x = norm(x.view(batch * length, -1)[index], self.norm, eps)
        return F.linear(x, self.embed.weight).float()


def load(folder, plan=None):
    """The model in a Hugging Face folder. `plan` names its layers anew, "0,1,+1,2": "+n" is a copy of layer n that at
    first adds nothing (its two output matrices are zero), so the grown model computes what the old one did."""
    with open(os.path.join(folder, "config.json")) as file:
        config = {k: v for k, v in json.load(file).items() if k in CONFIG}
    weights = {k: v.float() for k, v in load_file(os.path.join(folder, "model.safetensors")).items()}
    plan = plan.split(",") if plan else [str(i) for i in range(config["num_hidden_layers"])]
    model = Llama({**config, "num_hidden_layers": len(plan)})
    with torch.no_grad():
        model.embed.weight.copy_(weights["model.embed_tokens.weight"])
        model.norm.copy_(weights["model.norm.weight"])
        for layer, source in zip(model.layers, plan):
            for name, hf in HF_NAMES.items():
                part = getattr(layer, name)
                target = part.weight if isinstance(part, nn.Linear) else part
                target.copy_(weights[f"model.layers.{source.lstrip('+')}.{hf}.weight"])
                if source.startswith("+") and name in ("o", "down"):
                    target.zero_()
    return model


def save(model, folder, tokenizer):
    """Write the model as a Hugging Face folder in bfloat16; `tokenizer` is a tokenizer.json to lay beside it."""
    os.makedirs(folder, exist_ok=True)
    out = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm}
    for i, layer in enumerate(model.layers):
        for name, hf in HF_NAMES.items():
            part = getattr(layer, name)
            out[f"model.layers.{i}.{hf}.weight"] = part.weight if isinstance(part, nn.Linear) else part
    save_file(
        {k: v.detach().to(torch.bfloat16).contiguous().clone() for k, v in out.items()},
        os.path.join(folder, "model.safetensors"),
        metadata={"format": "pt"},
    )
    end = model.config["vocab_size"] - 3
    fixed = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
    }
    special = "<|endoftext|>"
    files = {
        "config.json": {**fixed, **model.config},
        "generation_config.json": {"bos_token_id": end, "eos_token_id": end, "do_sample": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": special,
            "eos_token": special,
            "add_bos_token": True,
            "model_max_length": model.config["max_position_embeddings"],
        },
    }
    for name, content in files.items():
        with open(os.path.join(folder, name), "w") as file:
            file.write(json.dumps(content, indent=1) + "\n")
    target = os.path.join(folder, "tokenizer.json")
    if os.path.abspath(tokenizer) != os.path.abspath(target):
        shutil.copyfile(tokenizer, target)


def orthogonalize(g):
    """Newton-Schulz: each matrix of the stack g [n][rows][columns] with its singular values drawn towards 1."""
    x = g.to(torch.bfloat16)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(5):
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.transpose(1, 2) if tall else x).float()


class Trainer:
    """float32 parameters, their bfloat16 working copy, and the optimizer's state."""

    def __init__(self, model):
        self.master = dict(model.named_parameters())
        self.work = Llama(model.config).to(next(model.parameters()).device, torch.bfloat16)
        self.copies = dict(self.work.named_parameters())
        self.model, self.step_count = model, 0
        self.first = {n: torch.zeros_like(p) for n, p in self.master.items()}
        self.matrices = {}  # shape -> names: one stacked product for all layers
        for n, p in self.master.items():
            if n.startswith("layers.") and p.dim() == 2:
                self.matrices.setdefault(tuple(p.shape), []).append(n)
        self.others = [n for n in self.master if not any(n in names for names in self.matrices.values())]
        self.second = {n: torch.zeros_like(self.master[n]) for n in self.others}
        self.refresh()

    @torch.no_grad()
    def refresh(self):
        for n, p in self.master.items():
            self.copies[n].copy_(p)

    @torch.no_grad()
    def step(self, rate, clip=1.0):
        """One update from the gradients of the working copy; returns their norm. Both methods move a weight by about
        0.2 * rate (Muon) or rate / 3 (Adam) a step."""
        self.step_count += 1
        grads = {n: self.copies[n].grad.float() for n in self.master}
        size = torch.stack([g.norm() for g in grads.values()]).norm()
        scale = torch.clamp(clip / (size + 1e-6), max=1.0)
        for shape, names in self.matrices.items():
            update = []
            for n in names:
                self.first[n].lerp_(grads[n] * scale, 0.05)
                update.append(torch.lerp(grads[n] * scale, self.first[n], 0.95))
            update = orthogonalize(torch.stack(update)) * (0.2 * max(shape) ** 0.5 * rate)
            for n, u in zip(names, update):
                self.master[n].mul_(1 - 0.05 * rate).sub_(u)
        t = self.step_count
        for n in self.others:
            g = grads[n] * scale
            self.first[n].lerp_(g, 0.1)
            self.second[n].lerp_(g * g, 0.02)
            mean, var = self.first[n] / (1 - 0.9**t), self.second[n] / (1 - 0.98**t)
            self.master[n].sub_(rate / 3 * mean / (var.sqrt() + 1e-8))
        for c in self.copies.values():
            c.grad = None
        self.refresh()
        return size.item()

    def state(self):
        return {
            "config": self.model.config,
            "master": self.master,
            "first": self.first,
            "second": self.second,
            "steps": self.step_count,
        }

    @torch.no_grad()
    def restore(self, state):
        for part, here in (("master", self.master), ("first", self.first), ("second", self.second)):
            for n, value in state[part].items():
                here[n].copy_(value)
        self.step_count = state["steps"]
        self.refresh()
