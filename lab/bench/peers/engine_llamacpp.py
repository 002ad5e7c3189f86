#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp for peers.py, which starts this program: engine_llamacpp.py FILE.gguf THREADS on|off (flash attention). engine.py has the
conversation. (Not named llama_cpp.py: that would be imported in place of the package.)"""
import ctypes
import os
import sys
import time

import engine

engine.needs("llama_cpp", "llama.cpp", "FILE.gguf THREADS on|off")
import llama_cpp  # noqa: E402
import llama_cpp.llama_cpp as ll  # noqa: E402

BATCH_TOKENS = 2048  # most tokens in a call of llama_decode(), llama.cpp's default; it cuts them into micro-batches of 512
WARM_UP_READ, WARM_UP_STEPS = 512, 2  # as in lab/bench/rig/cell.c

silent = ll.llama_log_callback(lambda level, text, data: None)


class Context:
    """A llama_context with room for `batch` sequences of `n_slots`, and the llama_batch that feeds it."""

    def __init__(self, n_slots, batch=1):
        p = ll.llama_context_default_params()
        p.n_ctx, p.n_seq_max, p.kv_unified = (n_slots + 255) // 256 * 256 * batch, batch, False
        p.n_batch, p.n_ubatch = BATCH_TOKENS, 512
        p.n_threads = p.n_threads_batch = threads
        p.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
        p.type_k = p.type_v = ll.GGML_TYPE_F16
        self.n_seq = batch
        self.handle = ll.llama_init_from_model(model, p)
        if not self.handle:
            raise ValueError(f"llama.cpp made no context of {batch} x {n_slots} slots")
        self.batch = ll.llama_batch_init(BATCH_TOKENS, 0, 1)
        for i in range(BATCH_TOKENS):
            self.batch.n_seq_id[i] = 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        ll.llama_batch_free(self.batch)
        ll.llama_free(self.handle)

    def _decode(self, tokens, first_position, sequences, wanted):
        """Feeds one token a row: of sequence 0 at successive positions, or of one sequence each at the same position."""
        b = self.batch
        b.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            b.token[i] = token
            b.pos[i] = first_position if sequences else first_position + i
            b.seq_id[i][0] = i if sequences else 0
            b.logits[i] = wanted or i + 1 == len(tokens)
        status = ll.llama_decode(self.handle, b)
        if status != 0:
            raise ValueError(f"llama_decode() failed with {status}")

    def read(self, n, first=0):
        """Reads positions first .. n - 1 of sequence 0, with the logits of the last. Returns seconds."""
        prompt, began = engine.prompt_of(n, n_vocab), time.perf_counter()
        for i in range(first, n, BATCH_TOKENS):
            self._decode(prompt[i:min(n, i + BATCH_TOKENS)], i, False, False)
        ll.llama_get_logits_ith(self.handle, -1)  # waits
        return time.perf_counter() - began

    def write(self, depth, n_steps):
        """Writes one token a step to every sequence, from position `depth` on. Returns seconds."""
        tokens, began = engine.prompt_of(self.n_seq, n_vocab), time.perf_counter()
        for step in range(n_steps):
            self._decode(tokens, depth + step, True, True)
            ll.llama_get_logits(self.handle)  # waits
        return time.perf_counter() - began

    def cut(self, depth):
        for s in range(self.n_seq):
            ll.llama_memory_seq_rm(ll.llama_get_memory(self.handle), s, depth, -1)

    def steps_at(self, depth, n_steps):
        """Returns tokens per second of decode steps, after some that are not counted."""
        self.write(depth, WARM_UP_STEPS)
        self.cut(depth)
        return self.n_seq * n_steps / self.write(depth, n_steps)


def load(path, n_threads):
    global model, n_vocab, threads, flash
    threads, flash = n_threads, sys.argv[3] == "on"
    ll.llama_log_set(silent, ctypes.c_void_p(0))
    ll.llama_backend_init()
    params = ll.llama_model_default_params()
    params.use_extra_bufts = os.environ.get("LLAMACPP_REPACK") != "0"
    model = ll.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise SystemExit(f"engine_llamacpp.py: llama.cpp cannot load {path}")
    n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))
    repack = "" if params.use_extra_bufts else ", weights not repacked"
    return (f"llama-cpp-python {llama_cpp.__version__}, flash attention {sys.argv[3]}, KV f16{repack}; "
            + ll.llama_print_system_info().decode().strip(" |"))


def run(prefills, n, batch, steps, goes_on):
    with Context(n + max(steps, WARM_UP_STEPS), batch) as context:
        if prefills:
            context.read(min(n, WARM_UP_READ))
            context.cut(0)
            rates = [n / context.read(n)]
            return rates + ([context.steps_at(n, steps)] if goes_on else [])
        if n > 0:
            context.read(n)
            for s in range(1, batch):
                ll.llama_memory_seq_cp(ll.llama_get_memory(context.handle), 0, s, -1, -1)
        return [context.steps_at(n, steps)]


def answer(prompt, n):
    vocab, room = ll.llama_model_get_vocab(model), 512
    ids = (ll.llama_token * room)()
    text = prompt.encode()
    n_ids = ll.llama_tokenize(vocab, text, len(text), ids, room, True, True)
    said, piece = b"", ctypes.create_string_buffer(256)
    with Context(room) as context:
        tokens, position = list(ids[:n_ids]), 0
        for _ in range(n):
            context._decode(tokens, position, False, False)
            position += len(tokens)
            logits = ll.llama_get_logits_ith(context.handle, -1)
            tokens = [max(range(n_vocab), key=lambda i: logits[i])]
            length = ll.llama_token_to_piece(vocab, tokens[0], piece, len(piece), 0, False)
            said += piece.raw[:max(0, length)]
    return said.decode(errors="replace")


if __name__ == "__main__":
    engine.serve(load, run, answer)
