#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""docs/quality.md: what every recipe costs models/demo in answers, with its pictures in docs/quality/.

    make quality                     an hour and a half on two cores; answers that were given are not asked again
    tools/quality.py --samples 1     a tenth of the questions: a look, written to build/quality/look.md
    tools/quality.py --rows h2o,...  these recipes alone, their rows put into the page in place of those that it has

Everything is measured by `sluice`; this only runs it, on all processors, and makes one page of what it says. Answers are
kept in build/quality, for as many processes as there were; the sections about errors and running text take minutes and
are measured anew. What stands between the marks WRITTEN and END in docs/quality.md is somebody's reading of the
tables and is taken over as it is.

Rows that are measured alone are beside others that were measured before: that goes only where the full cache, which is asked again,
answers as the page says, and where nothing else on the page was made of them; running text is measured anew as a whole. What cannot be
brought up to date is said on the page: the pictures.
"""
import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build/bin")) / "sluice"
MODEL, PLAN, WORK, PAGE, PICTURES = (pathlib.Path(p) for p in (
    "models/demo", "lab/eval/papers/demo.json", "build/quality", "docs/quality.md", "docs/quality"))
TEXTS = ["GPL-3", "Apache-2.0", "MPL-1.1", "GFDL-1.3"]  # of /usr/share/common-licenses
WRITTEN, END = "<!-- WRITTEN: by hand, kept -->", "<!-- END -->"


def run(*arguments, **options):
    """The standard output of a `sluice` command, whose progress goes to the terminal."""
    command = [str(SLUICE), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options)
    if done.returncode != 0:
        sys.exit(f"quality: `{' '.join(command)}` failed with exit code {done.returncode}")
    return done.stdout


def shown(*arguments):
    return "`sluice " + " ".join(f"'{a}'" if ";" in str(a) else str(a) for a in arguments) + "`"


def ask(name, parts, *arguments):
    """Questions in `parts` processes, a thread each; the file of all answers."""
    files = [WORK / f"{name}-{i + 1}-of-{parts}.jsonl" for i in range(parts)]
    commands = [[str(SLUICE), "eval", "suites", *map(str, arguments), "--threads", "1", "--part", f"{i + 1}/{parts}",
                 "--out", str(files[i])] for i in range(parts)]
    logs = [ROOT / file.with_suffix(".log") for file in files]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=open(log, "w") if i > 0 else None)
               for i, (command, log) in enumerate(zip(commands, logs))]  # the first one's progress is for the terminal
    while any(process.poll() is None for process in running) and not any(process.poll() for process in running):
        time.sleep(0.2)
    failed = next((i for i, process in enumerate(running) if process.poll()), None)
    if failed is not None:
        for process in running:
            process.terminate()
            process.wait()
        why = f"; {logs[failed]} says why" if failed > 0 else ""
        sys.exit(f"quality: `{' '.join(commands[failed])}` failed with exit code {running[failed].returncode}{why}. "
                 "The answers so far are kept.")
    whole = WORK / f"{name}.jsonl"
    with open(ROOT / whole, "wb") as out:
        for file in files:
            out.write((ROOT / file).read_bytes())
    return whole


def section(path, level=2):
    """A page that sluice wrote, one level deeper, without its title."""
    lines = (ROOT / path).read_text().split("\n")
    return "\n".join("#" * (level - 1) + line if line.startswith("#") else line for line in lines[1:]).strip()


def table(head, rows):
    align = "|" + "|".join("-" if i == 0 else "-:" for i in range(len(head))) + "|"
    return "\n".join(["| " + " | ".join(head) + " |", align, *("| " + " | ".join(row) + " |" for row in rows)])


def running_text(name):
    """A licence as running text, which is what the demo model knows."""
    words = pathlib.Path("/usr/share/common-licenses", name).read_text(errors="replace").split()
    path = WORK / f"{name}.txt"
    (ROOT / path).write_text(" ".join(words))
    return path


def suites(arguments):
    answers = ask("suites", arguments.parts, "--model", MODEL, "--plan", PLAN, "--samples", arguments.samples)
    page = WORK / "suites.md"
    pictures = PICTURES if not arguments.samples else WORK
    run("eval", "suites", "--model", MODEL, "--plan", PLAN, "--samples", arguments.samples, "--out", answers, "--markdown", page,
        "--png", pictures / "suites")
    return "\n\n".join([
        "## Every preset, the papers' own settings, and combinations",
        shown("eval", "suites", "--model", MODEL, "--plan", PLAN),
        "![score by bytes shipped](quality/suites-pareto.png)",
        section(page),
        "Scores by recipe, and by recipe and task: [bars](quality/suites-bars.png), [tasks](quality/suites-tasks.png)."])


# Locret's claim about numbers, at its own settings in proportion: a tenth of the slots, read in chunks.
BUDGET = "budget=0.1,chunk=256"
HEADS = [("locret, trained heads", MODEL, f"locret,{BUDGET},scope=stabilizers:128+tail:32"),
         ("locret, untrained heads", WORK / "untrained", f"locret,{BUDGET},scope=stabilizers:128+tail:32"),
         ("h2o", MODEL, f"h2o,{BUDGET}"),
         ("snapkv", MODEL, f"snapkv,when=chunk,{BUDGET}"),
         ("chance", MODEL, f"score=random,when=chunk,positions=slot,{BUDGET},scope=stabilizers:128+tail:32")]


def heads(arguments):
    untrained = WORK / "untrained"
    shutil.rmtree(ROOT / untrained, ignore_errors=True)
    shutil.copytree(ROOT / MODEL, ROOT / untrained, ignore=shutil.ignore_patterns("retaining_heads.safetensors"))
    train = ("train-heads", "--model", MODEL, "--hidden", 256, "--steps", 0, "--out", untrained / "retaining_heads.safetensors")
    run(*train)
    rows, commands = [], []
    for model in (MODEL, untrained):
        recipes = {recipe: name for name, of, recipe in HEADS if of == model}
        what = ("eval", "suites", "--model", model, "--tasks", "number", "--lengths", "4096,8192", "--samples",
                arguments.samples or 20, "--recipe", ";".join(recipes))
        commands.append(shown(*what))
        answers = ask(f"heads-{model.name}", arguments.parts, *what[2:])
        for row in (json.loads(line).get("row") for line in run(*what, "--out", answers, "--json").splitlines()):
            if row and (row["recipe"] in recipes or model == MODEL):
                rows.append([recipes.get(row["recipe"], row["name"]), *(f"{100 * c['score']:.1f}" for c in row["cells"]),
                             f"{100 * row['shipped']:.1f}%"])
    return "\n\n".join([
        "## Retaining heads: numbers, a tenth of the slots, read in chunks",
        f"{commands[0]}, and the same with heads as they are before training ({shown(*train)}).",
        table(["recipe", "4096 tokens", "8192 tokens", "shipped"], rows)])


PAIRS = {"H2O": "score=aas", "TOVA": "score=ltas", "SnapKV": "score=snapkv,scope=recent:32"}
VALUES = {"": "", "+CAOTE": ",value=caote", "+FastCAOTE": ",value=fastcaote"}


def caote(arguments):
    """Of texts and layers: the error of the attention output over what follows the prompt, X beside X+CAOTE."""
    del arguments
    errors, budgets = collections.defaultdict(list), ("0.1", "0.2", "0.5")
    recipes = {f"{base}{value},budget={b},when=chunk,chunk=128": (x + v, b)
               for x, base in PAIRS.items() for v, value in VALUES.items() for b in budgets}
    what = ("eval", "fidelity", "--model", MODEL, "--tokens", 2048, "--recipe", ";".join(recipes))
    for text in TEXTS:
        for line in run(*what, "--text", running_text(text), "--json").splitlines():
            measured = json.loads(line)
            recipe, _, kind = measured["case"].partition(": ")
            if kind == "attention error" and recipe in recipes:
                errors[recipes[recipe]].append(measured["value"])
    mean = {key: sum(values) / len(values) for key, values in errors.items()}
    rows = []
    for x in PAIRS:
        for v in VALUES:
            rows.append([x + v, *(f"{mean[x + v, b]:.4f}" + ("" if not v else " (less)" if mean[x + v, b] < mean[x, b] else
                                  " (more)") for b in budgets)])
    return "\n\n".join([
        "## CAOTE: error of the attention output",
        "CAOTE's own settings: nothing protected, evicted behind every 128 tokens. Relative error over the 128 tokens behind a "
        f"prompt of 2,048, mean over layers and over {len(TEXTS)} texts ({', '.join(TEXTS)} as running text): "
        "`sluice eval fidelity`. Beside: whether it is less or more than without.",
        table(["recipe", *(f"budget={b}" for b in budgets)], rows)])


def above_full(name, m):
    return f"{m['perplexity']:.2f}" if name == "full" else f"{m['above_full']:+.3f} [{m['low']:+.3f}, {m['high']:+.3f}]"


def stream(*arguments):
    """What `sluice eval perplexity` measured, by recipe."""
    lines = run("eval", "perplexity", "--model", MODEL, *arguments, "--json").splitlines()
    return {m["case"]: m for m in map(json.loads, lines) if "perplexity" in m}


def one_by_one(arguments):
    """What CAOTE's formula is exact for: behind every token one slot goes."""
    del arguments
    recipes = {f"{base}{value},budget=256,when=chunk": x + v for x, base in PAIRS.items() if x != "SnapKV"
               for v, value in VALUES.items()}
    what = ("--tokens", 2048, "--chunk", 1, "--recipe", ";".join(["full", *recipes]))
    texts = [part for text in TEXTS[:2] for part in ("--text", running_text(text))]
    measured = stream(*texts, *what)
    return "\n\n".join([
        "## CAOTE: one slot at a time",
        f"What its formula is exact for: {' and '.join(TEXTS[:2])}, 2,048 tokens of each, 256 slots, one evicted behind every token. "
        "Nats a token above the full cache's: `sluice eval perplexity --chunk 1`.",
        table(["recipe", "256 slots"], [[recipes.get(c, c), above_full(c, m)] for c, m in measured.items()])])


def perplexity(arguments):
    del arguments
    budgets, rows = (256, 512, 1024), {}
    texts = [part for text in TEXTS for part in ("--text", running_text(text))]
    for i, budget in enumerate(budgets):
        bare = {f"{base}{value},when=chunk,budget={budget}": f"{x}{value.replace(',value=', '+')}, as in CAOTE's paper"
                for x, base in (("h2o", "score=aas"), ("tova", "score=ltas")) for value in ("", ",value=caote", ",value=fastcaote")}
        measured = stream(*texts, "--budget", budget) | stream(*texts, "--recipe", ";".join(["full", *bare]))
        for case, m in measured.items():
            name = bare.get(case, case.replace(f",budget={budget}", ""))
            rows.setdefault(name, [""] * len(budgets))[i] = above_full(name, m)
    return "\n\n".join([
        "## Running text that streams through the cache",
        f"{len(TEXTS)} texts, up to 4,096 tokens of each, each predicted from so many slots and its own chunk of 32: nats a token above "
        "the full cache's, with the 95% interval of a paired bootstrap (full: perplexity): `sluice eval perplexity`. Presets that "
        "do not stream are left out. As in CAOTE's paper: nothing protected, each head for itself.",
        table(["recipe", *(f"{b} slots" for b in budgets)], [[name, *cells] for name, cells in rows.items()])])


# ---- some rows of a page that is there --------------------------------------------------------------------------------

def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def exchange(text, lines, n_keys):
    """The table rows `lines` in the place of those of the page with the same first cells, and "full" as it stands there."""
    rows = text.split("\n")
    places = {}
    for i, row in enumerate(rows):
        if row.startswith("| "):
            places.setdefault(tuple(cells_of(row)[:n_keys]), i)  # a table of claims may follow
    for line in lines:
        key = tuple(cells_of(line)[:n_keys])
        if key not in places:
            sys.exit(f"quality: {PAGE} has no row {' '.join(key)}")
        if key[0] == "full" and rows[places[key]] != line:
            sys.exit(f"quality: the full cache does not do as {PAGE} says, which was made elsewhere: measure everything\n"
                     f"  there  {rows[places[key]]}\n  now    {line}")
        rows[places[key]] = line
    return "\n".join(rows)


def suites_rows(text, names, arguments):
    plan = json.loads((ROOT / PLAN).read_text())
    plan["recipes"] = [recipe for recipe in plan["recipes"] if recipe["name"] in names]
    claimed = {side for claim in plan.pop("claims") for side in (claim["better"], claim["worse"])} & names
    if claimed or {recipe["name"] for recipe in plan["recipes"]} != names:
        sys.exit(f"quality: {', '.join(sorted(claimed or names))}: claims are made of it, or {PLAN} does not have it; measure everything")
    filtered, page = WORK / "rows.json", WORK / "rows.md"
    (ROOT / filtered).write_text(json.dumps(plan, indent=1))
    what = ("--model", MODEL, "--plan", filtered)
    run("eval", "suites", *what, "--out", ask("rows", arguments.parts, *what), "--markdown", page)
    lines = [row for row in (ROOT / page).read_text().split("\n") if cells_of(row)[0] in names | {"full"}]
    best = [float(cells_of(row)[3]) for row in text[text.index("### The best recipe"):].split("\n") if row.count("%") > 1]
    mean = max(float(cells_of(line)[-3]) for line in lines if not line.startswith("| full "))
    if mean >= min(best):
        sys.exit(f"quality: a row with {mean} points may be among the best for its bytes; measure everything")
    return exchange(text, lines, 2)


def some_rows(arguments):
    names = set(arguments.rows.split(","))
    head, rest = (ROOT / PAGE).read_text().split(END)
    sections = rest.split("\n## ")
    for i, text in enumerate(sections):
        if text.startswith("Every preset"):
            title, command, picture, others = suites_rows(text, names, arguments).split("\n\n", 3)
            said = f"Measured alone, later than the other rows: {', '.join(sorted(names))}. The pictures show what stood there before."
            if others.startswith("Measured alone"):
                others = others.split("\n\n", 1)[1]
            sections[i] = "\n\n".join([title, command, picture, said, others])
        elif text.startswith("Running text"):
            sections[i] = perplexity(arguments).removeprefix("## ")  # in minutes, so all of it
    (ROOT / PAGE).write_text(head + END + "\n## ".join(sections).rstrip("\n") + "\n")
    print(f"written: {PAGE}")


def written():
    """What somebody wrote into the page; the marks alone where there is none."""
    page = ROOT / PAGE
    text = page.read_text() if page.exists() else ""
    if WRITTEN not in text:
        return f"{WRITTEN}\n{END}"
    return text[text.index(WRITTEN):text.index(END) + len(END)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=0, help="questions of a task and length; 0: as the plan says")
    parser.add_argument("--parts", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--rows", metavar="NAME,...", help="of the plan's recipes: these alone")
    arguments = parser.parse_args()
    if not os.access(SLUICE, os.X_OK):
        sys.exit(f"quality: {SLUICE} is not there; `make build` makes it, or SLUICE_BIN says where it is")
    for folder in (WORK, PICTURES):
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
    if arguments.rows:
        return some_rows(arguments)
    sections = [make(arguments) for make in (heads, caote, one_by_one, perplexity, suites)]
    page = "\n\n".join([
        "# What recipes cost in answers",
        "models/demo answers questions whose answers are known, under every recipe. Made by `make quality`; "
        "docs/EVALUATION.md says what is asked and how it is counted, docs/RECIPES.md what the recipes are.",
        written(), sections[-1], *sections[:-1]])
    where = PAGE if not arguments.samples else WORK / "look.md"
    (ROOT / where).write_text(page + "\n")
    print(f"written: {where}")


if __name__ == "__main__":
    main()
