#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds docs/TOUR.md to the tree: the files, functions and calls that it names are there, and the numbers of lines are right to a tenth.

    tour.py ROOT           check
    tour.py ROOT --write   put the numbers in, and the new file of each function that has moved
    tour.py --self-test    show that every check finds something

A stop is a row | number | files in backticks | lines | what it teaches |. A bare name lies in the folder of the file before it; a folder
means its .c and .h files.

A step of a walk is a row | number | `file: function()` | from | what happens |. The function is defined in the file. `from` is empty, or the
number of a step of the same walk whose function names this one in its body; or that number and `name`: then the other function's body has
`name`, and so has this function's, or a line of a .c file has both `name` and this function (a service's or a verb's table of handlers).
"""
import os
import re
import sys
import tempfile

sys.dont_write_bytecode = True
import script  # noqa: E402

ROW = re.compile(r"^\| *(\S*) *\| *(`.*?) *\| *([0-9.k]*) *\| *(.*?) *\|$")
STEP = re.compile(r"^\| *(\d+) *\| *`([\w/.]+): (\w+)\(\)` *\| *(?:(\d+)(?: `(\w+)`)?)? *\| *(.*?) *\|$")
STEP_LIKE = re.compile(r"^\|[^|]*\| *`[^`|]*\(\)`")


def files_of(root, words):
    folder = ""
    for word in words:
        name = word if "/" in word or os.path.exists(os.path.join(root, word)) else os.path.join(folder, word)
        path = os.path.join(root, name)
        if os.path.isdir(path):
            folder = name.rstrip("/")
            found = [os.path.join(name, f) for f in sorted(os.listdir(path)) if f.endswith((".c", ".h", ".proto", ".py"))]
        else:
            folder = os.path.dirname(name)
            found = [name]
        yield from found


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()


def lines_of(root, words):
    return sum(read(root, name).count("\n") for name in files_of(root, words))


def body_of(source, function):
    """Returns the text of a function's body, without comments; None if the source does not define it."""
    match = re.search(rf"^\w[^;{{}}\n]*\b{function}\((?:[^;{{}}])*?\) \{{\n(.*?)^\}}", source, re.M | re.S)
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", match.group(1), flags=re.S) if match else None


def sources(root):
    """Returns {file: text} of the product's C files."""
    found = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in ("tests", "build", ".git") and not f.startswith("build-")]
        for name in files:
            if name.endswith(".c"):
                path = os.path.relpath(os.path.join(folder, name), root)
                found[path] = read(root, path)
    return found


def has_word(text, word):
    return re.search(rf"\b{word}\b", text) is not None


def check_step(code, steps, match):
    """Returns what is wrong with a step, or None. Adds its function's body to `steps`."""
    number, file, function, origin, link, _ = match.groups()
    if file not in code:
        return f"{file} is not there"
    body = body_of(code[file], function)
    if body is None:
        return f"{file} does not define {function}()"
    steps[number] = body
    if origin is None:
        return None
    if origin not in steps:
        return f"there is no step {origin} before it"
    if not has_word(steps[origin], link or function):
        return f"the function of step {origin} does not name {link or function}"
    if link and not has_word(body, link) and not any(has_word(line, link) and has_word(line, function) for text in code.values() for line in text.split("\n")):
        return f"neither the function nor a line with its name has {link}"
    return None


def moved(code, match):
    """Returns the one file that defines the step's function, if it is not in the file named."""
    file, function = match.group(2), match.group(3)
    if file in code and body_of(code[file], function) is not None:
        return None
    homes = [name for name, text in code.items() if has_word(text, function) and body_of(text, function) is not None]
    return homes[0] if len(homes) == 1 else None


def check(root, write):
    """Returns (complaints, number of stops, number of steps)."""
    text = read(root, "docs/TOUR.md").split("\n")
    code = sources(root)
    complaints, n_stops, n_steps, steps = [], 0, 0, {}
    for i, line in enumerate(text):
        where = f"docs/TOUR.md:{i + 1}"
        if line.startswith("#"):
            steps = {}
        if STEP_LIKE.match(line):
            match = STEP.match(line)
            home = match and write and moved(code, match)
            if home:
                text[i] = line = line.replace(f"`{match.group(2)}:", f"`{home}:")
                match = STEP.match(line)
            wrong = check_step(code, steps, match) if match else "this is not a step: | number | `file: function()` | from | what |"
            complaints += [f"{where}: {wrong}"] if wrong else []
            n_steps += 1
            continue
        match = ROW.match(line)
        if not match:
            continue
        number, words, said, learn = match.groups()
        n_stops += 1
        try:
            lines = lines_of(root, re.findall(r"`([^`]+)`", words))
        except OSError as error:
            complaints.append(f"{where}: {error.filename} is not there")
            continue
        if write:
            text[i] = f"| {number} | {words} | {lines} | {learn} |"
        elif not said or abs(int(said) - lines) > lines / 10:
            complaints.append(f"{where}: {words} has {lines} lines, not {said or 'none'}; tools/tour.py . --write")
    if write:
        with open(os.path.join(root, "docs", "TOUR.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(text))
    return complaints, n_stops, n_steps


def self_test():
    code = {"a.c": "static int first(int x) {\n    return second(x); // third()\n}\n\nint second(int x,\n           int y) {\n    return METHOD;\n}\n",
            "b/c.c": "int third(void) {\n    return 0;\n}\nstruct row rows[] = {{METHOD, third}};\n"}
    head = "| 1 | `a.c: first()` | | x |\n"
    cases = [
        (head + "| 2 | `a.c: second()` | 1 | x |\n| 3 | `b/c.c: third()` | 2 `METHOD` | x |\n", None),
        ("| 1 | `d.c: first()` | | x |\n", "d.c is not there"),
        ("| 1 | `a.c: third()` | | x |\n", "does not define third"),
        (head + "| 2 | `b/c.c: third()` | 1 | x |\n", "does not name third"),  # a comment does
        (head + "| 2 | `a.c: second()` | 4 | x |\n", "no step 4"),
        (head + "| 2 | `b/c.c: third()` | 1 `METHOD` | x |\n", "does not name METHOD"),
        (head + "| 2 | `a.c: second()` | 1 |\n", "not a step:"),
        ("| 1 | `a.c: second()` | | x |\n| 2 | `a.c: first()` | 1 `METHOD` | x |\n", "neither the function"),
        ("| 1 | `a.c` | 8 | x |\n", None),
        ("| 1 | `a.c` | 18 | x |\n", "has 8 lines"),
        ("| 1 | `e.c` | 18 | x |\n", "is not there"),
    ]
    for page, wanted in cases:
        with tempfile.TemporaryDirectory() as root:
            for name, content in [*code.items(), ("docs/TOUR.md", page)]:
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(content)
            complaints, _, _ = check(root, False)
            assert (not complaints) if wanted is None else (len(complaints) == 1 and wanted in complaints[0]), (page, complaints)
            if "does not define third" in (wanted or ""):
                assert not check(root, True)[0] and "`b/c.c: third()`" in read(root, "docs/TOUR.md")
    print("tour: every check finds what it is for")
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--write"]):
        print(__doc__)
        return 2
    script.needs_project(sys.argv[1])
    complaints, n_stops, n_steps = check(sys.argv[1], sys.argv[2:] == ["--write"])
    for complaint in complaints:
        print(complaint)
    print(f"tour: {n_stops} stops, {n_steps} steps, {len(complaints)} complaints")
    return 1 if complaints or n_stops == 0 or n_steps == 0 else 0


if __name__ == "__main__":
    script.help_if_asked()
    sys.exit(main())
