#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds comments, docs and the help of options to plain English (docs/STYLE.md): finds comments that open without a verb, and words
that hide who acts.

    lint_words.py ROOT           check; exits with 1 if a folder has more findings than tools/lint_words.counts allows
    lint_words.py ROOT --list    print every finding
    lint_words.py ROOT --write   write today's counts, which may only fall
    lint_words.py --self-test    show that every rule finds something, and nothing in plain sentences
"""
import collections
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import script  # noqa: E402

RULES = {
    "a comment opens with a verb, or with its subject": re.compile(r"^(Of|What|Whether|Whose|Where|Who|How|In the place of|As long as) [a-z`]"),
    "say who acts: the coordinator, the caller, this thread": re.compile(
        r"\b([Ww]hoever|[Ww]homever|[Ww]hom|[Nn]obody|[Ss]omebody|[Ee]verybody|[Aa]nybody)\b"),
    "\"after\", for time": re.compile(r"\bbehind (it|that|this|them|the last|every|each|a step|its attention)\b"),
    "the field's word": re.compile(r"\b(spoil(s|ed|t)?|let go of|lets go of|hand(s|ed)? on|without a word)\b"),
}
HELP_RULE = "a help text names what the option sets, or what it does"
HELP = re.compile(r"^(of|for|that|to|between|until|likewise)\b|\bso (many|long|much)\b(?! (that|as)\b)|\b[Ww]ithout[:,]")
# The last literals before the field of an option's row, and the help of an option of argparse.
HELP_OF_SOURCE = re.compile(
    r"""(?:\{|ROW\()\s*"[a-z0-9-]+",\s*(?:0|'.'),\s*SL_OPTION_\w+,[^;{}]*?((?:"(?:\\.|[^"\\\n])*"[\s\\]*)+),[\s\\]*\w*(?:FIELD|OPTION)\(""")
HELP_OF_SCRIPT = re.compile(r'''\bhelp=f?("(?:\\.|[^"\\\n])*")''')
SOURCES = {".c", ".h", ".cc", ".cu", ".cuh", ".proto"}
SCRIPTS = {".py", ".sh", ".cmake", ".yaml", ".yml"}
SKIPPED = ("tests/golden/", "tests/fuzz/corpus/", "tests/fuzz/dictionaries/", "models/", "docs/quality/", "tools/lint_words.py")
COMMENT = re.compile(r'//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def comments_of_source(text):
    """[(line number, text)] of each comment; the lines of one paragraph are joined, as one sentence may go over several."""
    found, last_end = [], -2
    for match in COMMENT.finditer(text):
        body = match.group("line") if match.group("line") is not None else match.group("block")
        if body is None:
            continue
        number = text.count("\n", 0, match.start()) + 1
        trailing = text[text.rfind("\n", 0, match.start()) + 1:match.start()].strip() != ""
        for i, line in enumerate(body.split("\n")):
            line = line.strip().lstrip("*").strip()
            goes_on = found and not trailing and number + i == last_end + 1 and line and found[-1][1]
            if goes_on:
                found[-1] = (found[-1][0], f"{found[-1][1]} {line}")
            else:
                found.append((number + i, line))
            last_end = number + i
    return found


def comments_of_script(text):
    return [(i + 1, line.split("#", 1)[1].strip()) for i, line in enumerate(text.split("\n")) if re.match(r"^\s*#[^!]", line)]


def paragraphs_of_page(text):
    found, in_code = [], False
    for i, line in enumerate(text.split("\n")):
        in_code ^= line.startswith("```")
        if not in_code and not line.startswith(("    ", "```")):
            found.append((i + 1, line.lstrip("|-*> ").strip()))
    return found


def help_findings(extension, text):
    found = []
    for match in (HELP_OF_SCRIPT if extension == ".py" else HELP_OF_SOURCE).finditer(text):
        words = HELP.search("".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', match.group(1))))
        if words:
            found.append((text.count("\n", 0, match.start()) + 1, HELP_RULE, words.group(0)))
    return found


def findings(path, text):
    extension = os.path.splitext(path)[1]
    if extension in SOURCES:
        parts, opens = comments_of_source(text), True
    elif extension in SCRIPTS or path.endswith(("Makefile", "CMakeLists.txt")):
        parts, opens = comments_of_script(text), True
    elif extension == ".md":
        parts, opens = paragraphs_of_page(text), False
    else:
        return []
    found = help_findings(extension, text)
    for number, part in parts:
        prose = re.sub(r"`[^`]*`", "``", part)  # names, and words that are only mentioned
        for i, (rule, pattern) in enumerate(RULES.items()):
            match = pattern.match(part) if i == 0 and opens else pattern.search(prose) if i > 0 else None
            if match:
                found.append((number, rule, match.group(0)))
    return found


def folder_of(path):
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0] if len(parts) > 1 else "."


def self_test():
    plain = "// Returns how many pages a session still needs.\n/* Waits until the store has answered. */\nint x; // bytes of both\n"
    assert not findings("a.c", plain), findings("a.c", plain)
    wrong = ("// Of a session: its pages.\n\nint a; // Whether it lives.\n/*\n * Freed by whoever asks.\n */\n\n"
             "// Packs behind the last eviction.\n\n// A failure that spoils it.\n")
    rules = {rule for _, rule, _ in findings("a.c", wrong)}
    assert rules == set(RULES), set(RULES) - rules
    assert len(findings("a.c", wrong)) == 5
    assert findings("a.py", "# Whether it lives\n") and findings("a.md", "Nobody asks.\n")
    assert not findings("a.c", 'char *s = "Nobody asks"; // a text\n') and not findings("a.md", "```\nnobody\n```\n")
    row = '{"seed", 0, SL_OPTION_INT, "1", "N", %s, SL_FIELD(options, seed)},\n'
    assert not findings("a.c", row % '"seed of the draws"') and not findings("a.py", 'add("--seed", help="seed of the draws")\n')
    for wrong in ('"of the draws"', '"wait "\n "so long"', '"a seed; without: 1"'):
        assert [rule for _, rule, _ in findings("a.c", row % wrong)] == [HELP_RULE], wrong
    assert findings("a.py", 'add("--seed", help="of the draws")\n')
    assert not findings("a.md", "The field `everybody` is true.\n")
    print("lint_words: every rule finds what it is for")


def main():
    if "--self-test" in sys.argv:
        return self_test()
    root = sys.argv[1]
    script.needs_project(root)
    paths = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    counts = collections.Counter()
    for path in filter(None, paths):
        if path.startswith(SKIPPED) or not os.path.exists(os.path.join(root, path)):
            continue
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            for number, rule, words in findings(path, file.read()):
                counts[folder_of(path)] += 1
                if "--list" in sys.argv:
                    print(f"{path}:{number}: \"{words}\": {rule}")
    allowed_path = os.path.join(root, "tools/lint_words.counts")
    if "--write" in sys.argv:
        with open(allowed_path, "w", encoding="utf-8") as file:
            file.writelines(f"{folder} {n}\n" for folder, n in sorted(counts.items()))
    with open(allowed_path, encoding="utf-8") as file:
        allowed = {folder: int(n) for folder, n in (line.split() for line in file)}
    more = [f for f in sorted(counts) if counts[f] > allowed.get(f, 0)]
    for folder in more:
        print(f"{folder}: {counts[folder]} findings, {allowed.get(folder, 0)} were there; lint_words.py . --list names them")
    print(f"lint_words: {sum(counts.values())} findings in {len(counts)} folders, {len(more)} with more than before")
    return 1 if more else 0


if __name__ == "__main__":
    script.needs_arguments(1, "ROOT [--list | --write] | --self-test")
    script.needs_tools("git", way="apt-get install git")
    sys.exit(main())
