#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds README.md and docs/*.md to docs/STYLE.md: pages that are named exist, scripts that pages print can be run, pages open with their
reader, and none is too long.

    lint_pages.py ROOT         check
    lint_pages.py --self-test  show that every check finds something

A page is named by a link, or as docs/NAME.md in any tracked text file. "docs/NAME.md (Heading)" names a heading of that page.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import script  # noqa: E402

MAX_WORDS, MAX_ALL = 2500, 23800
NAMED = re.compile(r"\bdocs/[\w-]+\.md\b")
HEADING_NAMED = re.compile(r"\b(docs/[\w-]+\.md) \(([A-Z][\w ]+)\)")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
SCRIPT = re.compile(r"(?:^|`|; )((?:tools|tests|lab|deploy)/[\w/.-]+\.(?:py|sh))\b", re.M)
MARKER = re.compile(r"^(<{7} |>{7} |={7}$)")
READERS = re.compile(r"\b(operator|developer|user|reviewer|contributor)s?\b")
TEXTS = (".c", ".h", ".cc", ".cu", ".cuh", ".proto", ".py", ".sh", ".md", ".txt", ".yaml", ".cmake", ".in", ".service", ".html", "Makefile")
SKIPPED = ("tests/golden/", "tests/fuzz/corpus/", "tools/lint_pages.py", "tools/lint_includes.py")


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
        return file.read()


def opening(text):
    """Returns the first paragraph after the title."""
    return text.split("\n\n")[1].replace("\n", " ").strip() if text.startswith("# ") and "\n\n" in text else ""


def check_page(root, name, text):
    folder = os.path.dirname(name)
    n = len(text.split())
    if n > MAX_WORDS:
        yield f"{name}: {n} words, at most {MAX_WORDS}"
    first = opening(text)
    if name != "README.md" and not (first.startswith("This page tells ") and READERS.search(first)):
        yield f"{name}: the first paragraph does not say what the page tells its readers (\"This page tells operators ...\")"
    for number, line in enumerate(text.split("\n"), 1):
        if MARKER.match(line):
            yield f"{name}:{number}: a merge left a marker"
        for target in LINK.findall(line):
            if "://" not in target and not os.path.exists(os.path.join(root, folder, target)):
                yield f"{name}:{number}: the link to {target} leads nowhere"


def check(root, names):
    """Returns (complaints, number of words of all pages). names: the files that may name pages."""
    pages = ["README.md", *sorted(os.path.relpath(path, root) for path in glob.glob(os.path.join(root, "docs", "*.md")))]
    texts = {page: read(root, page) for page in pages}
    headings = {page: set(re.findall(r"^#+ (.+)$", text, re.M)) for page, text in texts.items()}
    complaints = [complaint for page in pages for complaint in check_page(root, page, texts[page])]
    n_words = sum(len(text.split()) for text in texts.values())
    complaints += [f"README.md and docs: {n_words} words, at most {MAX_ALL}"] if n_words > MAX_ALL else []
    for name in names:
        if not name.endswith(TEXTS) or name.startswith(SKIPPED) or not os.path.isfile(os.path.join(root, name)):
            continue
        text = read(root, name)
        complaints += [f"{name}: there is no {page}" for page in sorted(set(NAMED.findall(text))) if page not in texts]
        complaints += [f"{name}: {page} has no heading \"{heading}\"" for page, heading in HEADING_NAMED.findall(text)
                       if page in texts and heading not in headings[page]]
        complaints += [f"{name}: {path} is not executable" for path in sorted(set(SCRIPT.findall(text))) if name.endswith(".md")
                       and os.path.isfile(os.path.join(root, path)) and read(root, path).startswith("#!") and not os.access(os.path.join(root, path), os.X_OK)]
    return complaints, n_words


def self_test():
    good = "# A\n\nThis page tells users what A is.\n\n## Part\n\ndocs/A.md (Part), [B](B.md), [site](http://b/)\n"

    def complaints(page, code=""):
        with tempfile.TemporaryDirectory() as root:
            for name, text in (("README.md", "# R\n\nR is.\n"), ("docs/A.md", page), ("docs/B.md", good), ("base/a.c", code),
                               ("tools/a.py", "#!/usr/bin/python3\n"), ("tools/b.py", "import a\n")):
                os.makedirs(os.path.dirname(os.path.join(root, name)) or root, exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(text)
            return check(root, ["docs/A.md", "base/a.c", "base/none.c"])[0]

    assert not complaints(good, "// docs/B.md\n"), complaints(good)
    for page, code, wanted in ((good, "// docs/C.md\n", "base/a.c: there is no docs/C.md"),
                               (good + "docs/B.md (Other)", "", "no heading \"Other\""),
                               (good + "[C](C.md)", "", "leads nowhere"),
                               (good.replace("users", "all"), "", "the first paragraph"),
                               (good.replace("This page tells", "For"), "", "the first paragraph"),
                               (good + "<<<<<<< HEAD\n", "", "a marker"),
                               (good + "`tools/a.py --x`, `tools/b.py`", "", "docs/A.md: tools/a.py is not executable"),
                               (good + "word " * MAX_WORDS, "", f"at most {MAX_WORDS}")):
        found = complaints(page, code)
        assert len(found) == 1 and wanted in found[0], (wanted, found)
    assert any(f"at most {MAX_ALL}" in found for found in complaints(good + "word " * MAX_ALL))
    print("lint_pages: every check finds what it is for")
    return 0


def main():
    script.needs_arguments(1, "ROOT | --self-test")
    if sys.argv[1] == "--self-test":
        return self_test()
    script.needs_project(sys.argv[1])
    script.needs_tools("git", way="apt-get install git")
    names = subprocess.run(["git", "-C", sys.argv[1], "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    complaints, n_words = check(sys.argv[1], names)
    for complaint in complaints:
        print(complaint)
    print(f"lint_pages: {n_words} words, {len(complaints)} complaints")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
