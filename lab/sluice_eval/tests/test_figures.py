# SPDX-License-Identifier: Apache-2.0
"""The pictures of `sluice` commands: every kind is drawn, from one row and from many, and with missing numbers."""
import io
import json
import os
import sys
import unittest
from unittest import mock

from .support import FolderTest

from sluice_eval import figures

try:
    import matplotlib  # noqa: F401
except ImportError:
    print("skipped: matplotlib is missing (python3-matplotlib)", flush=True)
    sys.exit(77)

LONG = "h2o,budget=20%,format=int4,scope=$stabilizers:16+tail:16,chunk=64"
STATISTICS = ("first_1", "first_4", "first_64", "last_64", "slots_90", "slots_95", "slots_99", "effective_slots")
DATA = {
    "fidelity": [{"recipes": ["full", LONG], "shares": [1, 0.2], "errors": [[0, 0, 0], [0.1, None, 0.3]], "above": [0, -0.2]},
                 {"recipes": ["full"], "shares": [1], "errors": [[0]], "above": [0]}],
    "perplexity": [[{"case": name, "slots": 20.5, "block": 256, "curve": [60.0, 50 + i], "above_full": 0.2 * i, "low": None if i == 0
                     else 0.1, "high": None if i == 0 else 0.3} for i, name in enumerate(names)] for names in (["full"], ["full", LONG])],
    "profile": [{"threshold": 0.2, "dense_preference": [0.3] * n, "attention": {name: [[0.5, 0.25]] * n for name in STATISTICS}}
                for n in (1, 3)],
    "kept": [{"title": "a $ capsule", "tokens": 100, "kv_heads": 2, "map": [[0, 0.5, 1]] * n} for n in (2, 200)],
    "training": [{"title": "heads", "smooth_l1": [3.0 / (i + 1) for i in range(n)], "overlap": [0.5] * n} for n in (1, 200)],
    "evict": [[{"policy": policy, "store_bytes": size << 30, "hit_tokens_share": 0.5, "saved_s": 7 * known, "limit_tokens_share": 0.6}
               for policy in ("lru", "gdsf") for size in (1, 4)] for known in (0, 1)],
}


class Figures(FolderTest):
    def draw(self, *words, text=""):
        with mock.patch("sys.stdin", io.StringIO(text)):
            return figures.main([str(word) for word in words])

    def test_every_kind_is_drawn(self):
        self.assertEqual(set(DATA), set(figures.KINDS))
        for kind, cases in DATA.items():
            for i, data in enumerate(cases):
                path = self.folder / f"{kind}{i}.png"
                self.assertEqual(self.draw(kind, path, text=json.dumps(data)), 0, kind)
                self.assertEqual(path.read_bytes()[:8], b"\x89PNG\r\n\x1a\n", kind)
        self.assertEqual(len(os.listdir(self.folder)), sum(map(len, DATA.values())))

    def test_what_cannot_be_drawn_leaves_nothing(self):
        self.assertEqual(self.draw("check"), 0)
        with mock.patch("sys.stderr", io.StringIO()) as said:
            self.assertEqual(self.draw("evict", self.folder / "no/such.png", text=json.dumps(DATA["evict"][0])), 1)
        self.assertIn("such.png: cannot be written", said.getvalue())
        with mock.patch.dict(sys.modules, {"matplotlib": None}):
            self.assertEqual(self.draw("check"), 3)
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()
