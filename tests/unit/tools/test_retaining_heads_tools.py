#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tools/convert_retaining_heads.py: what it makes of a checkpoint, and what it says of files that are not right."""
import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402
script.needs("numpy", code=77)  # CTest skips it

import numpy  # noqa: E402

TOOLS = pathlib.Path(__file__).resolve().parents[3] / "tools"
LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 3, 4, 2, 8, 5
COLUMNS = (HEADS + 2 * KV_HEADS) * HEAD_DIM
CONFIG = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
          "hidden_size": HEADS * HEAD_DIM}
TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "<i1"}  # NumPy has no bf16: its bits


def have(*modules):
    return all(importlib.util.find_spec(name) for name in modules)


def checkpoint(dtype="F32", prefix="model.", columns=COLUMNS):
    """A checkpoint's tensors: key -> (dtype, array)."""
    rng = numpy.random.default_rng(1)
    tensors = {}
    for layer in range(LAYERS):
        for w, shape in ((1, (HIDDEN, columns)), (2, (KV_HEADS, HIDDEN))):
            values = rng.standard_normal(shape)
            if dtype == "BF16":
                values = values.astype("<f4").view("<u4") >> 16
            tensors[f"{prefix}layers.{layer}.self_attn.fc{w}.weight"] = (dtype, values.astype(TYPES[dtype]))
    return tensors


def safetensors(tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for _, array in tensors.values())


def parsed(data):
    """Returns the tensors of a safetensors file, name -> (dtype, array); every byte must belong to one."""
    (length,) = struct.unpack_from("<Q", data)
    header, body, tensors, end = json.loads(data[8:8 + length]), data[8 + length:], {}, 0
    for name, entry in header.items():
        begin, stop = entry["data_offsets"]
        assert begin == end, f"{name} begins at {begin}, the one before ends at {end}"
        tensors[name] = (entry["dtype"], numpy.frombuffer(body[begin:stop], TYPES[entry["dtype"]]).reshape(entry["shape"]))
        end = stop
    assert end == len(body)
    return tensors


class Convert(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "model"
        self.model.mkdir()
        self.environment = dict(os.environ)
        self.configure(CONFIG)

    def configure(self, config):
        (self.model / "config.json").write_text(json.dumps(config))

    def convert(self, data, name="heads.safetensors", words=()):
        (self.folder / name).write_bytes(data)
        return subprocess.run([sys.executable, "-B", TOOLS / "convert_retaining_heads.py", self.folder / name, self.model,
                               *words], capture_output=True, text=True, timeout=120, env=self.environment)

    def assert_made(self, tensors, **options):
        done = self.convert(safetensors(tensors), **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        made = parsed((self.model / "retaining_heads.safetensors").read_bytes())
        self.assertEqual(list(made), [f"layers.{layer}.w{w}" for layer in range(LAYERS) for w in (1, 2)])
        for key, (dtype, array) in tensors.items():
            layer, w = key.split("layers.")[1].split(".")[0], key[-len("1.weight")]
            self.assertEqual(made[f"layers.{layer}.w{w}"][0], dtype)
            numpy.testing.assert_array_equal(made[f"layers.{layer}.w{w}"][1], array)
        return done

    def assert_refused(self, data, *words, name="heads.safetensors"):
        done = self.convert(data, name=name)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertNotIn("Traceback", done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual([path.name for path in self.model.iterdir()], ["config.json"])  # nothing is written

    def test_heads_keep_type_shape_and_values(self):
        for dtype in ("F32", "F16", "BF16"):
            self.assert_made(checkpoint(dtype))

    def test_any_prefix_and_any_order_of_keys(self):
        for prefix in ("", "module.base_model.model.layers_of."):
            tensors = checkpoint(prefix=prefix)
            self.assert_made(dict(reversed(tensors.items())))

    def test_other_tensors_of_the_checkpoint_stay_behind(self):
        other = {"model.embed_tokens.weight": ("F32", numpy.zeros((2, 2), "<f4")),
                 "model.layers.0.self_attn.q_proj.weight": ("I8", numpy.zeros((2, 2), "<i1"))}
        heads = checkpoint()
        done = self.convert(safetensors({**other, **heads}))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(parsed((self.model / "retaining_heads.safetensors").read_bytes())), len(heads))

    def test_data_begins_at_a_multiple_of_8(self):
        self.assert_made(checkpoint())
        (length,) = struct.unpack_from("<Q", (self.model / "retaining_heads.safetensors").read_bytes())
        self.assertEqual(length % 8, 0)

    def test_head_dim_of_the_configuration_comes_first(self):
        self.configure({**CONFIG, "head_dim": 2 * HEAD_DIM})
        self.assert_made(checkpoint(columns=2 * COLUMNS))

    def test_without_kv_heads_every_head_is_one(self):
        self.configure({**CONFIG, "num_key_value_heads": None})
        self.assertIn(f"wants [{HIDDEN}, {3 * HEADS * HEAD_DIM}]", self.convert(safetensors(checkpoint())).stderr)

    def test_output_goes_where_it_is_told(self):
        done = self.convert(safetensors(checkpoint()), words=("-o", self.folder / "elsewhere"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(parsed((self.folder / "elsewhere").read_bytes())), 2 * LAYERS)
        self.assertFalse((self.model / "retaining_heads.safetensors").exists())

    def test_layers_that_are_missing_or_too_many_are_named(self):
        tensors = checkpoint()
        del tensors["model.layers.1.self_attn.fc2.weight"]
        self.assert_refused(safetensors(tensors), "model.layers.1.self_attn.fc2.weight is missing", "3 layers")
        tensors = checkpoint()
        tensors["model.layers.3.self_attn.fc1.weight"] = tensors["model.layers.0.self_attn.fc1.weight"]
        self.assert_refused(safetensors(tensors), "has layer 3", "0 to 2")

    def test_wrong_shapes_are_named_with_the_right_ones(self):
        self.assert_refused(safetensors(checkpoint(columns=COLUMNS + 1)), f"[{HIDDEN}, {COLUMNS}]",
                            f"[{HIDDEN}, {COLUMNS + 1}]")
        tensors = checkpoint()
        tensors["model.layers.2.self_attn.fc1.weight"] = ("F32", numpy.zeros((HIDDEN + 1, COLUMNS), "<f4"))
        self.assert_refused(safetensors(tensors), "model.layers.2.self_attn.fc1.weight has shape")
        tensors["model.layers.2.self_attn.fc1.weight"] = ("F32", numpy.zeros(HIDDEN * COLUMNS, "<f4"))
        self.assert_refused(safetensors(tensors), "model.layers.2.self_attn.fc1.weight has shape")

    def test_types_that_the_engine_does_not_know_are_refused(self):
        tensors = checkpoint()
        tensors["model.layers.0.self_attn.fc2.weight"] = ("I8", numpy.zeros((KV_HEADS, HIDDEN), "<i1"))
        self.assert_refused(safetensors(tensors), "type I8", "F32, F16 or BF16")

    def test_heads_of_another_form_are_refused(self):
        tensors = {**checkpoint(), "model.layers.0.self_attn.fc1.bias": ("F32", numpy.zeros(HIDDEN, "<f4"))}
        self.assert_refused(safetensors(tensors), "fc1.bias", "without biases")
        self.assert_refused(safetensors({"lm_head.weight": ("F32", numpy.zeros((2, 2), "<f4"))}), "no retaining heads",
                            "lm_head.weight")

    def test_files_that_are_broken_are_refused(self):
        whole = safetensors(checkpoint())
        self.assert_refused(whole[:-1], "truncated")
        for data in (b"", whole[:20], b"\xff" * 64, struct.pack("<Q", 2) + b"[]"):
            self.assert_refused(data, "not a safetensors file")

    def test_a_model_without_configuration_is_refused(self):
        whole = safetensors(checkpoint())
        for text in ("", "[]", "{}", '{"num_attention_heads": "four"}'):
            (self.model / "config.json").write_text(text)
            self.assert_refused(whole, "config.json")
        (self.model / "config.json").unlink()
        self.assertIn("config.json", self.convert(whole).stderr)

    def test_a_pytorch_file_says_that_it_needs_torch(self):
        (self.folder / "torch.py").write_text("raise ImportError('hidden from this test')")
        self.environment["PYTHONPATH"] = str(self.folder)
        self.assert_refused(b"PK", "torch is not installed", name="heads.bin")

    @unittest.skipUnless(have("torch"), "needs torch")
    def test_a_pytorch_file_gives_what_safetensors_give(self):
        import torch
        tensors = checkpoint("F16")
        torch.save({key: torch.from_numpy(array) for key, (_, array) in tensors.items()}, self.folder / "state.bin")
        done = self.convert((self.folder / "state.bin").read_bytes(), name="heads.bin")
        self.assertEqual(done.returncode, 0, done.stderr)
        from_state = (self.model / "retaining_heads.safetensors").read_bytes()
        self.assert_made(tensors)
        self.assertEqual((self.model / "retaining_heads.safetensors").read_bytes(), from_state)
        self.assertNotEqual(self.convert(b"PK broken", name="heads.bin").returncode, 0)


if __name__ == "__main__":
    script.help_if_asked()
    unittest.main()
