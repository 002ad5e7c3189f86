# SPDX-License-Identifier: Apache-2.0
"""The same seeds give the same questions as ever: a generator in C wrote the golden file; properties of every task."""
import hashlib
import json
import unittest

from .support import GOLDEN, MODEL, ROOT, FolderTest, needs_sluice

from sluice_eval.errors import EvalError, RefusedError, UsageError
from sluice_eval import joined
from sluice_eval.hashing import hash_tokens, xxh3
from sluice_eval.haystack import NOISE, open_haystack
from sluice_eval.metrics import score
from sluice_eval.process import SluiceProcess
from sluice_eval.rng import Random, below_array, permute, permute_array
from sluice_eval.tasks import TASKS, TaskConfig, find_task, make_sample
from sluice_eval.tokenizers import SluiceTokenizer
from sluice_eval.words import N_PAIRS, WORDS, split_pair, word_pair

import numpy as np


def words_config(n_tokens, haystack=None, **more):
    """Counts words instead of tokens, and quarters of long ones, so that no model is needed."""
    return TaskConfig(lambda text: sum(1 + len(word) // 8 for word in text.split()), n_tokens, haystack=haystack,
                      **{"seed": 5, **more})


class Numbers(unittest.TestCase):
    def test_hashes_are_xxh3(self):
        """Values of XXH3_64bits_withSeed of libxxhash."""
        data = bytes(range(251)) * 9
        for n, expected in KNOWN_HASHES.items():
            self.assertEqual(f"{xxh3(data[:n]):016x}", expected, n)
        self.assertEqual(f"{xxh3(b'passkey', 7):016x}", "f76789464f8ad3c3")
        self.assertRaises(ValueError, xxh3, data[:17], 1)
        self.assertEqual(len(hash_tokens([1, 2, 3])), 16)

    def test_arrays_draw_what_single_numbers_draw(self):
        one, many = Random("a", 3, 4), Random("a", 3, 4)
        limits = np.array([1, 2, 7, 1000, (1 << 32) - 1] * 3, dtype=np.uint64)
        drawn = below_array(many.next_array(15), limits)
        self.assertEqual(drawn.tolist(), [one.below(int(n)) for n in limits])
        self.assertEqual(one.next(), many.next())

    def test_permutations_are_permutations(self):
        for n in (1, 2, 5, 64, 100, 1000):
            images = [permute(i, n, 9) for i in range(n)]
            self.assertEqual(sorted(images), list(range(n)))
            self.assertEqual(permute_array(np.arange(n), n, 9).tolist(), images)
        self.assertNotEqual([permute(i, 100, 1) for i in range(100)], [permute(i, 100, 2) for i in range(100)])

    def test_no_word_is_part_of_another(self):
        for word in WORDS:
            self.assertEqual([other for other in WORDS if word in other], [word])
        self.assertEqual(len({word_pair(i) for i in range(0, N_PAIRS, 7)}), len(range(0, N_PAIRS, 7)))
        self.assertEqual([split_pair(i, 3) for i in range(6)], [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)])


class Joined(unittest.TestCase):
    def test_a_pair_has_its_facts_in_two_documents(self):
        facts, haystack = joined.draw_facts(3, 1), open_haystack([str(ROOT / "LICENSE")])
        texts = joined.write_documents(facts, haystack, 20, Random("documents", 3, 1))
        self.assertEqual(texts, joined.write_documents(facts, haystack, 20, Random("documents", 3, 1)))
        questions = {question.kind: question for question in joined.ask_pair(facts)}
        self.assertEqual(tuple(questions), joined.KINDS)
        where = {kind: [[answer in text for text in texts] for answer in question.answers] for kind, question in questions.items()}
        self.assertEqual(where, {"one": [[False, True]], "both": [[True, False], [False, True]], "hop": [[False, True]],
                                 "chain": [[True, True], [False, True]]})
        self.assertIn(f"The code word of {facts.name} is: {facts.word}.", texts[0])  # of which only the second has the number
        self.assertIn(f"magic numbers for {facts.word} is: {facts.word_value}.", texts[1])
        self.assertIn(f"VAR {facts.copy} = VAR {facts.variable}.", texts[1])
        self.assertIn(facts.name, questions["hop"].text)
        self.assertNotIn(facts.word, questions["hop"].text)

    def test_the_table_compares_pairs(self):
        scores = {kind: {"joined, reread 0": [1.0, 0.5], "one text": [1.0, 1.0]} for kind in joined.KINDS}
        lines = joined.table(scores, 1).splitlines()
        self.assertEqual(lines[2], "| one | 2 | 100.0 | -25.0 [-50.0, +0.0] |")
        self.assertTrue(lines[-1].startswith("| all | 8 | 100.0 | -25.0 ["), lines[-1])
        self.assertEqual(joined.score("12 and 7", ("12", "8")), 0.5)


# KNOWN_HASHES[n] is the hash of the first n bytes of 0, 1, ..., 250, 0, 1, ...
KNOWN_HASHES = {
    0: "2d06800538d394c2", 1: "c44bdff4074eecdb", 3: "5f4299fc161c9cbb", 4: "60dab036a58211f2",
    8: "3a1c2d7c85af88f8", 9: "e9612598145bb9dc", 16: "8355e3a6f61770db", 17: "9ef341a99de37328",
    64: "6187eb9089b0ed55", 128: "85c6174c7ff4c46b", 129: "ec7642b431ba3e5a", 240: "375a384d957fe865",
    241: "02e8cd95421c6d02", 1024: "e5d78bafa45b2aa5", 1025: "e95c42288f28186e", 2259: "1b0fc0246c32e780",
}


class Tasks(unittest.TestCase):
    def setUp(self):
        self.essay = open_haystack([str(ROOT / "LICENSE")])

    def test_a_prompt_is_as_long_as_fits_and_has_what_is_asked(self):
        for task in TASKS:
            config = words_config(2600, self.essay)
            for index in range(2):
                sample = make_sample(task, config, index)
                self.assertLessEqual(config.count_tokens(sample.prompt), 2600, task.name)
                self.assertGreater(config.count_tokens(sample.prompt), 2400, task.name)
                self.assertTrue(all(answer in sample.prompt for answer in sample.answers), task.name)
                self.assertAlmostEqual(score(sample, sample.completion), 1, msg=task.name)
                self.assertEqual(score(sample, ""), 0, task.name)

    def test_samples_differ_and_repeat(self):
        for task in TASKS:
            config = words_config(2600, self.essay)
            self.assertEqual(make_sample(task, config, 1), make_sample(task, config, 1))
            self.assertNotEqual(make_sample(task, config, 1), make_sample(task, config, 2))
            self.assertNotEqual(make_sample(task, config, 1), make_sample(task, words_config(2600, self.essay, seed=6), 1))

    def test_a_depth_places_the_fact(self):
        task = find_task("niah-noise")
        for depth in (0, 0.5, 1):
            sample = make_sample(task, words_config(1000, depth=depth), 0)
            at = sample.prompt.index(sample.answers[0]) / len(sample.prompt)
            self.assertAlmostEqual(at, depth, delta=0.07)

    def test_impossible_questions_are_refused(self):
        self.assertRaises(RefusedError, make_sample, find_task("common-words"), words_config(200), 0)
        self.assertRaises(UsageError, make_sample, find_task("multivalue"), words_config(2000, self.essay, depth=0.5), 0)
        self.assertRaises(UsageError, make_sample, find_task("kv"), words_config(2000, depth=1.5), 0)
        self.assertRaises(EvalError, make_sample, find_task("niah-essay"), words_config(2000), 0)
        with self.assertRaisesRegex(UsageError, 'did you mean "niah-essay"'):
            find_task("niah-esay")


class Haystacks(FolderTest):
    def test_white_space_becomes_one_space_and_sentences_end_with_periods(self):
        haystack = open_haystack([self.write("a", "One two.\n\n Three\tfour. Five 5.5"), self.write("b", " Six")])
        self.assertEqual([haystack.sentences(i, 1) for i in range(haystack.n)], [" One two.", " Three four.", " Five 5.5 Six"])
        self.assertEqual(haystack.sentences(2, 2), " Five 5.5 Six One two.")
        self.assertTrue(haystack.contains("5.5 Six") and not haystack.contains("Seven"))
        self.assertEqual(NOISE.n, 4)

    def test_a_text_without_periods_is_cut(self):
        haystack = open_haystack([self.write("a", "word " * 300), self.write("b", "\u20ac" * 500)])
        parts = [haystack.sentences(i, 1) for i in range(haystack.n)]
        self.assertTrue(all(len(part.encode()) <= 600 for part in parts))
        self.assertEqual("".join(parts), " word" * 300 + " " + "\u20ac" * 500)

    def test_what_is_no_text_is_refused(self):
        for text, said in [("", "no text"), (" \n", "no text"), ("a\0b", "byte 0")]:
            with self.assertRaisesRegex(UsageError, said):
                open_haystack([self.write("a", text)])
        (self.folder / "a").write_bytes(b"abc \xff")
        with self.assertRaisesRegex(UsageError, "not UTF-8"):
            open_haystack([str(self.folder / "a")])
        self.assertRaises(EvalError, open_haystack, [str(self.folder / "none")])


@needs_sluice
class Golden(unittest.TestCase):
    def test_questions_are_those_of_the_c_generator(self):
        haystack = open_haystack([str(ROOT / "LICENSE")])
        golden = json.loads((GOLDEN / "questions.json").read_text())
        self.assertGreater(len(golden), 80)
        with SluiceProcess(MODEL) as process:
            tokenizer = SluiceTokenizer(process)
            for name, length, seed, index, n_tokens, digest in golden:
                config = TaskConfig(lambda text: len(tokenizer.encode(text)), length, seed, haystack=haystack)
                sample = make_sample(find_task(name), config, index)
                text = "\0".join([sample.prompt, *sample.answers, sample.completion])
                found = hashlib.sha256(text.encode()).hexdigest()[:16]
                self.assertEqual((found, len(tokenizer.encode(sample.prompt))), (digest, n_tokens), (name, length, seed, index))


if __name__ == "__main__":
    unittest.main()
