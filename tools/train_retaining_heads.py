#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the retaining heads of a Llama folder (Locret) and write its retaining_heads.safetensors.

The model itself is frozen. For every prompt with a known answer the teacher reads both once; the label of prompt token k
at a KV head is the largest attention logit q.k / sqrt(head_dim), after RoPE, that any row from which the answer is
written (the prompt's last token and the answer's tokens) and any query head of the group gives it. The heads see the
token's own q, k, v before RoPE:

    score = W2 silu(W1 [q | k | v])          W1 [R][(heads + 2 KV heads) * head_dim], W2 [KV heads][R]
    loss  = mean smooth_l1(score, label) + 0.0025 * sum over layers of mean (score[k] - score[k + 1])^2

AdamW 0.9, 0.95, linear warm-up over two thirds of the steps, then linearly to 0; gradients clipped by value at 0.5; one
prompt a step. As the paper has it, but for the first row of the answer, which matters where answers are short.

Prompts: --data FILE with a JSON object {"prompt": ..., "answer": ...} a line; or --text FILE..., plain English into which
facts are planted in the forms that models/demo knows (models/demo/README.md). Needs torch and transformers (4.46).
"""
import argparse
import json
import pathlib
import random
import sys

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from convert_retaining_heads import FILE_NAME, tensor_entry, write_heads

WORDS = ("amber anchor apple arrow autumn badge bamboo barrel basil beacon birch bishop breeze bridge bronze butter cable "
         "cactus candle canyon carbon castle cedar cherry circle clover cobalt copper coral cotton crystal dagger desert "
         "dolphin dragon eagle ember falcon feather fern forest garden ginger glacier granite harbor hazel helmet hollow "
         "indigo island ivory jacket jasmine kettle ladder lantern laurel lemon lilac linen lotus magnet maple marble "
         "meadow mirror monsoon mosaic needle nickel oasis olive onyx orchid otter paddle pearl pepper pilot pine planet "
         "pocket prairie quartz rabbit raven ribbon river rocket saddle saffron sailor sapphire shadow silver spruce "
         "summit sunset temple thunder timber tulip tunnel valley velvet violet walnut willow winter zephyr").split()


def planted(rng, n):
    """n facts of one form, and a question about one of them: (sentences, question, answer)."""
    keys = rng.sample(WORDS, 2 * n)
    keys = [f"{a}-{b}" if rng.random() < 0.5 else a for a, b in zip(keys[::2], keys[1::2])]
    values = ["".join(rng.choice("0123456789") for _ in range(rng.randint(4, 7))) for _ in keys]
    asked = rng.randrange(n)
    key, value, form = keys[asked], values[asked], rng.randrange(3)
    if form == 0:
        sentences = [f" One of the special magic numbers for {k} is: {v}." for k, v in zip(keys, values)]
        question = (f"\nWhat is the special magic number for {key} mentioned in the provided text? The special magic "
                    f"number for {key} mentioned in the provided text is")
        return sentences, question, f" {value}."
    if form == 1:
        sentences = [f" The code of {k} is {v}." for k, v in zip(keys, values)]
        return sentences, f"\nQuestion: What is the code of {key}?\nAnswer: The code of {key} is", f" {value}."
    return [f"\n{k}: {v}\n" for k, v in zip(keys, values)], f"\n{key}:", f" {value}"


class Planted:
    """Prompts of --text: stretches of it with facts between the sentences."""

    def __init__(self, files, rng, min_chars, max_chars):
        self.rng, self.min_chars, self.max_chars = rng, min_chars, max_chars
        words = [word for name in files for word in pathlib.Path(name).read_text("utf-8", "replace").split()]
        self.text = " ".join(words)  # running text: layout is not what the heads are to learn
        if len(self.text) < 2 * max_chars:
            sys.exit(f"train_retaining_heads: --text has {len(self.text)} characters, at least {2 * max_chars} are needed")

    def __next__(self):
        rng = self.rng
        length = rng.randint(self.min_chars, self.max_chars)
        begin = rng.randrange(len(self.text) - length)
        sentences = self.text[begin:begin + length].split(". ")
        ends = [sentence + "." for sentence in sentences[:-1]] + sentences[-1:]
        facts, question, answer = planted(rng, rng.choice((1, 1, 2, 4)))
        for fact in facts:
            ends[rng.randrange(len(ends))] += fact
        return " ".join(ends) + question, answer


class Listed:
    """Prompts of --data, over and over."""

    def __init__(self, file, rng):
        self.rng, self.rows, self.order = rng, [], []
        for number, line in enumerate(pathlib.Path(file).read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
                self.rows.append((row["prompt"], row["answer"]))
            except (ValueError, KeyError, TypeError) as error:
                sys.exit(f'train_retaining_heads: {file}:{number}: expected {{"prompt": ..., "answer": ...}}: {error}')
        if not self.rows:
            sys.exit(f"train_retaining_heads: {file} is empty")

    def __next__(self):
        if not self.order:
            self.order = self.rng.sample(range(len(self.rows)), len(self.rows))
        return self.rows[self.order.pop()]


class Teacher:
    """The frozen model, with what its projections gave in the last pass."""

    def __init__(self, folder):
        self.model = LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval().requires_grad_(False)
        self.config = self.model.config
        self.config.head_dim = getattr(self.config, "head_dim", None) or (self.config.hidden_size //
                                                                          self.config.num_attention_heads)
        self.outputs = {}
        for index, layer in enumerate(self.model.model.layers):
            for name in ("q", "k", "v"):
                getattr(layer.self_attn, f"{name}_proj").register_forward_hook(self.keep(index, name))

    def keep(self, index, name):
        def hook(_module, _inputs, output):
            self.outputs[index, name] = output[0]
        return hook

    @torch.no_grad()
    def examples(self, ids, n_prompt):
        """Per layer ([n_prompt][q | k | v], labels [n_prompt][KV heads])."""
        n_kv, d = self.config.num_key_value_heads, self.config.head_dim
        self.model.model(torch.tensor([ids]), use_cache=False)
        cos, sin = self.model.model.rotary_emb(torch.zeros(1), torch.arange(len(ids))[None])
        for index in range(self.config.num_hidden_layers):
            q, k, v = (self.outputs[index, name] for name in ("q", "k", "v"))
            q_rot, k_rot = apply_rotary_pos_emb(q.view(1, len(ids), -1, d).transpose(1, 2),
                                                k.view(1, len(ids), -1, d).transpose(1, 2), cos, sin)
            rows = q_rot[0, :, n_prompt - 1:].reshape(n_kv, -1, d)  # the group's heads and the answer's rows together
            logits = rows @ k_rot[0, :, :n_prompt].transpose(1, 2) / d ** 0.5
            yield torch.cat((q, k, v), -1)[:n_prompt], logits.amax(1).T


def overlap(scores, labels):
    """Share of the labels' best tenth that the scores' best tenth has, mean over heads: the paper's measure."""
    n = max(1, len(labels) // 10)
    found = torch.zeros_like(labels).scatter(0, scores.topk(n, dim=0).indices, 1)
    return found.gather(0, labels.topk(n, dim=0).indices).mean().item()


def train(teacher, tokenize, prompts, args):
    config = teacher.config
    columns = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    heads = [tuple(torch.nn.Parameter(torch.randn(shape) * config.initializer_range)
                   for shape in ((args.hidden, columns), (config.num_key_value_heads, args.hidden)))
             for _ in range(config.num_hidden_layers)]
    parameters = [w for pair in heads for w in pair]
    optimizer = torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.95))
    warm = max(1, args.steps * 2 // 3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (args.steps - step) / max(1, args.steps - warm)))
    def examples():
        prompt, answer = next(prompts)
        before, after = tokenize(prompt), tokenize(answer, first=False)
        ids = (before + after)[-args.max_tokens:]
        n_prompt = max(2, len(ids) - len(after))
        return [(features.to(torch.bfloat16), labels) for features, labels in teacher.examples(ids, n_prompt)]

    running, pool = None, [examples() for _ in range(args.prompts)]
    if pool:
        print(f"{len(pool)} prompts, {sum(len(p[0][1]) for p in pool)} tokens", flush=True)
    for step in range(args.steps):
        loss, smooth, shares = 0.0, 0.0, []
        for layers in random.sample(pool, args.batch) if pool else (examples() for _ in range(args.batch)):
            for (w1, w2), (features, labels) in zip(heads, layers):
                scores = functional.silu(features.float() @ w1.T) @ w2.T
                loss = loss + functional.smooth_l1_loss(scores, labels) / len(heads) / args.batch
                smooth = smooth + (scores[1:] - scores[:-1]).square().mean() / args.batch
                shares.append(overlap(scores.detach(), labels))
        optimizer.zero_grad()
        (loss + 0.0025 * smooth).backward()
        torch.nn.utils.clip_grad_value_(parameters, 0.5)
        optimizer.step()
        schedule.step()
        now = torch.tensor([float(loss.detach()), sum(shares) / len(shares)])
        running = now if running is None else 0.95 * running + 0.05 * now
        if (step + 1) % 25 == 0 or step + 1 == args.steps:
            print(f"step {step + 1}: smooth-L1 {running[0]:.4f}, top-10% overlap {running[1]:.3f}", flush=True)
    return heads


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a Llama: config.json, model.safetensors, tokenizer.json")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", help="JSON lines with prompt and answer")
    source.add_argument("--text", nargs="+", help="plain text to plant facts in")
    parser.add_argument("--hidden", type=int, default=1024, help="rows R of W1 (default 1024)")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=1, help="prompts a step (default 1)")
    parser.add_argument("--prompts", type=int, default=0,
                        help="read so many prompts once and choose among them; 0: new ones every step (default)")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--max-tokens", type=int, default=10240, help="longer prompts lose their beginning")
    parser.add_argument("--chars", type=int, nargs=2, default=(1000, 3000), metavar=("MIN", "MAX"),
                        help="characters of a prompt made from --text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="bfloat16", help="of the file")
    parser.add_argument("-o", "--output", help=f"where to write (default: {FILE_NAME} in the model's folder)")
    args = parser.parse_args()
    if args.prompts and args.prompts < args.batch:
        parser.error("--prompts is below --batch")

    from tokenizers import Tokenizer
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    rng = random.Random(args.seed)
    tokenizer = Tokenizer.from_file(str(pathlib.Path(args.model) / "tokenizer.json"))
    teacher = Teacher(args.model)

    def tokenize(text, first=True):
        bos = [teacher.config.bos_token_id] if first and teacher.config.bos_token_id is not None else []
        return bos + tokenizer.encode(text, add_special_tokens=False).ids

    prompts = Listed(args.data, rng) if args.data else Planted(args.text, rng, *args.chars)
    heads = train(teacher, tokenize, prompts, args)
    dtype = getattr(torch, args.dtype)
    output = pathlib.Path(args.output) if args.output else pathlib.Path(args.model) / FILE_NAME
    write_heads(output, {f"layers.{index}.w{w + 1}": tensor_entry(weight.to(dtype))
                         for index, pair in enumerate(heads) for w, weight in enumerate(pair)})
    print(output)


if __name__ == "__main__":
    main()
