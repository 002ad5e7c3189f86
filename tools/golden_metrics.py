#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden scores for lab/sluice_eval: the metrics of LongBench, InfiniteBench and RULER by their published definitions.

    tools/golden_metrics.py [--out tests/golden/metrics/scores.json]            write the cases
    tools/golden_metrics.py --check [--out tests/golden/metrics/scores.json]    compare what is there with that

ROUGE and the edit ratio come from the packages that the benchmarks call (pip: rouge, rouge_score, fuzzywuzzy,
python-Levenshtein); the rest is said again here with Python's own str, re and Counter, whose idea of white space, digits
and letters the package shares. Texts are chosen to be hostile: empty, of spaces or dots only,
with marks, foreign digits, wide punctuation, articles beside quotes, and answers that hide in longer words.
"""
import argparse
import json
import random
import re
import string
import sys
from collections import Counter
from pathlib import Path

import script
script.needs("fuzzywuzzy", "Levenshtein", "rouge", "rouge_score", code=77)  # CTest skips it
from fuzzywuzzy import fuzz  # noqa: E402
from Levenshtein import ratio  # noqa: E402
from rouge import Rouge  # noqa: E402
from rouge_score import rouge_scorer  # noqa: E402

CJK_PUNCTUATION = set(
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿"
    "–—‘’‛“”„‟…‧﹏."
) | set(string.punctuation)


# --- the metrics -----------------------------------------------------------------------------------------------------
def best(one):
    return lambda text, answers, classes: max(float(one(text, answer, classes)) for answer in answers)


def f1_of(a, b):
    shared = sum((Counter(a) & Counter(b)).values())
    return 2 * shared / (len(a) + len(b)) if shared else 0.0


def squad_words(text):
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(?:the|an|a)\b", " ", plain).split()


def characters(text):
    return [c for c in text.lower() if c not in CJK_PUNCTUATION and not c.isspace()]


def rouge_l(text, answer):
    try:
        return Rouge().get_scores([text], [answer], avg=True)["rouge-l"]["f"]
    except ValueError:  # no sentence
        return 0.0


def apart(text):  # every character a word, dots as they are
    return ".".join(" ".join(sentence) for sentence in text.split("."))


def rouge_lsum(text, answers, classes):
    scorer = rouge_scorer.RougeScorer(["rougeLsum"])
    return float(max(scorer.score(answer, text)["rougeLsum"].fmeasure for answer in answers))


def code_line(text):
    lines = text.lstrip("\n").split("\n")
    return next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")


def classification(text, answer, classes):
    named = [name for name in classes if name in text]
    for name in named:  # the list loses members under the loop, as published
        if name in answer and name != answer:
            named.remove(name)
    return 1 / len(named) if answer in named else 0.0


def share(numbers, wanted):
    return numbers.count(wanted) / len(numbers) if numbers else 0.0


def numbers_after(label):
    return lambda text, answer, classes: share(re.findall(r"\d+", text), re.search(label + r"(\d+)", answer).group(1))


def words_without(separators, text):
    return text.translate({ord(c): " " for c in separators}).split()


def first_decimal(text, answer, classes):
    found = re.search(r"[0-9]+\.[0-9]+|[0-9]+", text)
    return found is not None and float(found.group()) == float(answer)


def last_integer(text, answer, classes):
    words = words_without(".`'\":", text)
    return bool(words) and re.fullmatch("[+-]?[0-9]+", words[-1]) is not None and int(words[-1]) == int(answer)


def choice(text, answers, classes):
    text = text.strip()
    if text[:1] and text[0] in "ABCD":
        return text[0] in answers
    if not text or text in answers:
        return bool(text)
    text = re.sub(" +", " ", re.sub("[\n\"'.,?!{}]", " ", text))
    for phrase in ("answer is:", "answer:", "answer is", "option is"):
        if phrase in text:
            rest = text[text.index(phrase) + len(phrase) + 1 :]
            return bool(rest) and rest.startswith(tuple(answers))
    return next((word in answers for word in text.split() if word in "ABCD"), False)


def code_choice(text, answers, classes):
    text = text.strip()
    if text[:2] in (answers[1] + ".", answers[1] + ":"):
        return True
    text = re.sub(" +", " ", re.sub("[\n`'\"*-]|Option|option", " ", text))
    for phrase in ("answer is:", "is:", "answer:", "correct option is:"):
        if phrase in text:
            rest = text[text.index(phrase) + len(phrase) + 1 :]
            return bool(rest) and rest.startswith((answers[1], answers[0]))
    return False


KEY_SEPARATORS = "\n:\"'.,?!{}"
METRICS = {
    "contains-all": lambda text, answers, _: sum(a.lower() in text.lower() for a in answers) / len(answers),
    "contains-any": best(lambda text, answer, _: answer.lower() in text.lower()),
    "exact": best(lambda text, answer, _: answer.strip() == text.strip()),
    "f1": best(lambda text, answer, _: f1_of(squad_words(text), squad_words(answer))),
    "f1-zh": best(lambda text, answer, _: f1_of(characters(text), characters(answer))),
    "rouge-l": best(lambda text, answer, _: rouge_l(text, answer)),
    "rouge-l-zh": best(lambda text, answer, _: rouge_l(apart(text), apart(answer))),
    "rouge-lsum": rouge_lsum,
    "edit-similarity": best(lambda text, answer, _: fuzz.ratio(code_line(text), answer) / 100),
    "classification": best(classification),
    "count": best(lambda text, answer, _: share(re.findall(r"\d+", text), answer)),
    "paragraph": best(numbers_after("Paragraph ")),
    "paragraph-zh": best(numbers_after("段落")),
    "first-number": best(lambda text, answer, _: (re.findall("[0-9]+", text) or [""])[0] == answer),
    "first-decimal": best(first_decimal),
    "last-integer": best(last_integer),
    "kv": best(lambda text, answer, _: answer in words_without(KEY_SEPARATORS, text)),
    "speaker": lambda text, answers, _: answers[0] in [w.upper() for w in words_without(KEY_SEPARATORS, text)],
    "choice": choice,
    "code-choice": code_choice,
}

# --- hostile texts ---------------------------------------------------------------------------------------------------
WORDS = (
    "cat Cat CAT sat on mat dog a an the The A. an' the, theatre na\u00efve nai\u0308ve Stra\u00dfe STRASSE \u0130stanbul 42 "
    "\u0663\u0664 x\u00b2 \u2167 snake_case it's"
).split()
MARKS = [" "] * 4 + ["  ", ". ", ".", "..", ", ", "\n", "\t", "\u00a0", "\u3000", "\x85"]
MARKS += ["-", "\u2014", "\u2019", "_", "\u2026"]
HAN = list("北京是中国的首都人口很多。，、！？「」《〈") + ["a", "THE", " ", "42", "."]
CODE = ["x = 1", "x = 2", "return x", "  return y  # y", "// no", "```python", "def f(a, b):", "def g(a):", "", "π = 3"]
UUIDS = ["5ba8-11", "5BA8-11", "99ff-22"]
KEYED = ["the value is ", "\"", ": ", "{", "}", "'", ".", ", ", "!", "\n", " "]
PHRASES = ["the answer is: ", "answer: ", "answer is ", "option is ", "The correct option is: ", "is: ", "I pick "]
PHRASES += ["Option ", "A", "B", "C", "D", "AB", "fast_sort", "Paris", " ", ".", "\n", '"', "- ", "**", "`", "A.", "B:"]
PHRASES += ["(C)", "answer is:"]


def glued(rng, words, marks, most):
    return "".join(rng.choice(words) + rng.choice(marks) for _ in range(rng.randrange(most + 1)))


def related(rng, text, words, marks):
    """Another text, of the first one's pieces in part."""
    pieces = re.split(r"(\s)", text)
    kept = [p for p in pieces if rng.random() < 0.7]
    return "".join(kept) + glued(rng, words, marks, 4)


def free(rng):
    text = glued(rng, WORDS, MARKS, 14)
    return text, [related(rng, text, WORDS, MARKS) for _ in range(rng.randrange(1, 4))], []


def summaries(rng):
    text = glued(rng, WORDS[:12], [" ", " ", " ", ". ", ".\n", "\n"], 24)
    return text, [related(rng, text, WORDS[:12], [" ", ". ", "\n"]) for _ in range(rng.randrange(1, 3))], []


def chinese(rng):
    text = glued(rng, HAN, [""], 20)
    return text, ["".join(c for c in text if rng.random() < 0.7) + glued(rng, HAN, [""], 5)], []


def code(rng):
    lines = [rng.choice(CODE) for _ in range(rng.randrange(4))]
    return "\n" * rng.randrange(2) + "\n".join(lines), [rng.choice(CODE)], []


def classes(rng):
    names = rng.sample(["Food", "Food and drink", "Drink", "Sport", "Sports event", "event", "Other"], 5)
    return " ".join(rng.sample(names, rng.randrange(4))), [rng.choice(names)], names


def numbers(form):
    def make(rng):
        digits = ["1", "12", "7", "٣", "007"]
        return glued(rng, digits + ["x", "Paragraph "], [" ", ", ", "", "."], 6), [form.format(rng.choice(digits))], []

    return make


def decimals(rng):
    wanted = rng.choice(["3", "3.5", "-3", "12"])
    return glued(rng, ["3", "3.5", "3.50", "12", "-3", "+12", "03", "v"], [" ", ". ", ".", "", ": "], 4), [wanted], []


def integers(rng):
    return decimals(rng)[0], [rng.choice(["3", "-3", "12"])], []


def keys(rng):
    return "".join(rng.choice(UUIDS + KEYED + KEYED) for _ in range(rng.randrange(7))), rng.sample(UUIDS, 2), []


def options(rng):
    return "".join(rng.choice(PHRASES) for _ in range(rng.randrange(6))), ["fast_sort", rng.choice("ABCD")], []


def trimmed(rng):
    answer = rng.choice(["42", "the cat", ""])
    return rng.choice(["", " ", "\n", "\u3000\x1f"]) + rng.choice([answer, answer + ".", "other"]) + " \n", [answer, "x"], []


SOURCES = {
    "f1-zh": chinese,
    "rouge-l-zh": chinese,
    "rouge-l": summaries,
    "rouge-lsum": summaries,
    "edit-similarity": code,
    "classification": classes,
    "count": numbers("{}"),
    "paragraph": numbers("see Paragraph {}, there"),
    "paragraph-zh": numbers("段落{}"),
    "first-number": numbers("{}"),
    "first-decimal": decimals,
    "last-integer": integers,
    "kv": keys,
    "speaker": keys,
    "choice": options,
    "code-choice": options,
    "exact": trimmed,
}
BY_HAND = [
    ("f1", "", ["", "x"], []),
    ("f1", "the", ["a"], []),
    ("f1", "ΟΔΟΣ the", ["οδος"], []),
    ("f1", "a\u0301 b", ["b"], []),
    ("rouge-l", "", ["x"], []),
    ("rouge-l", " ", [" "], []),
    ("rouge-l", "...", ["x"], []),
    ("rouge-l", ". .", ["x. ."], []),
    ("rouge-l", "a b a b c. d", ["b a c d. a"], []),
    ("rouge-lsum", "\n\n", ["x"], []),
    ("rouge-lsum", "\u212a 1", ["k 1"], []),
    ("edit-similarity", "", [""], []),
    ("edit-similarity", "# a", [""], []),
    ("edit-similarity", "# a", ["x"], []),
    ("edit-similarity", "a" * 40, ["a" + "b" * 39], []),
    ("edit-similarity", "ab" * 100, ["b" * 100], []),
    ("edit-similarity", "aébc", ["aebc"], []),
    ("choice", "", ["x", "A"], []),
    ("choice", "Axel", ["x", "A"], []),
    ("contains-all", "x", ["", "X", "y"], []),
    ("contains-any", "İSTANBUL", ["i\u0307stanbul"], []),
    ("speaker", "it was straße.", ["IT"], []),
    ("count", "", ["1"], []),
    ("first-number", "a-b", ["1"], []),
]


def cases():
    rng = random.Random(20)
    for metric, text, answers, names in BY_HAND:
        yield metric, text, answers, names
    for metric in METRICS:
        wanted = {"zero": 6, "some": 12}  # of both kinds, so that no metric passes by always saying 0
        for _ in range(10000):
            text, answers, names = SOURCES.get(metric, free)(rng)
            kind = "some" if METRICS[metric](text, answers, names) else "zero"
            if wanted[kind] > 0:
                wanted[kind] -= 1
                yield metric, text, answers, names
            if not any(wanted.values()):
                break


def written():
    lines = []
    for metric, text, answers, names in cases():
        case = {"metric": metric, "text": text, "answers": answers}
        if names:
            case["classes"] = names
        case["score"] = float(METRICS[metric](text, answers, names))
        lines.append(json.dumps(case, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tests/golden/metrics/scores.json"))
    parser.add_argument("--check", action="store_true")
    options_given = parser.parse_args()
    assert round(100 * ratio("ab", "a")) == fuzz.ratio("ab", "a"), "fuzzywuzzy fell back on difflib"
    if not options_given.check:
        options_given.out.parent.mkdir(parents=True, exist_ok=True)
        options_given.out.write_text(written(), encoding="utf-8")
    elif options_given.out.read_text(encoding="utf-8") != written():
        sys.exit(f"{options_given.out} is not what tools/golden_metrics.py writes")


if __name__ == "__main__":
    main()
