# SPDX-License-Identifier: Apache-2.0
"""The page of what a capsule keeps: where sentences begin, and what of each is shown."""
import io
import json
import os
import unittest
from unittest import mock

from .support import FolderTest

from sluice_eval import retention


def cut(text, *more):
    """Cuts a text into tokens of three characters, which all have the share 0.5."""
    return [[text[i:i + 3], 0.5] for i in range(0, len(text), 3)] + list(more)


class Sentences(unittest.TestCase):
    def test_a_sentence_begins_after_a_period_and_space_or_an_empty_line(self):
        for text, expected in [("abc. def", ["abc.", " def"]), ("abc.def", ["abc.def"]), ("ab.  cd", ["ab.  ", "cd"]),
                               ("abc\n\nde", ["abc\n\n", "de"]), ("abc\nde", ["abc\nde"]), ("", [])]:
            tokens = [[part, 1] for part in (["abc.", " def"] if text == "abc. def" else list(text))]
            found = ["".join(part for part, _ in one) for one in retention.sentences(tokens)]
            self.assertEqual("".join(found), text)
            self.assertEqual(len(found), len(expected), (text, found))

    def test_tokens_of_the_same_share_are_one_element(self):
        self.assertEqual(retention.span_of(3, [["a<", 0.5], ["b", 0.504], ["c", 1]]),
                         '<span title="sentence 3: 66.8% of its slots are kept"><i class=k50>a&lt;b</i><i class=k100>c</i></span>')
        self.assertIn("not in the capsule", retention.span_of(1, [["x", None]]))
        self.assertEqual(retention.percent(["x", None]), None)


class Page(FolderTest):
    def test_a_page_is_written_whole_or_not_at_all(self):
        data = {"label": "a & b", "model": "00ff", "layers": 2, "kv_heads": 1, "tokens": cut("A text. More.", ["end", None])}
        for path, code in (("page", 0), ("no/page", 1)):
            with mock.patch("sys.stdin", io.StringIO(json.dumps(data))), mock.patch("sys.stderr", io.StringIO()) as said:
                self.assertEqual(retention.main(str(self.folder / path)), code, said.getvalue())
        page = (self.folder / "page").read_text()
        self.assertIn("a &amp; b<br>model 00ff, 2 layers of 1 KV heads<br>5 tokens, 50.0% of their slots", page)
        self.assertEqual(os.listdir(self.folder), ["page"])


if __name__ == "__main__":
    unittest.main()
