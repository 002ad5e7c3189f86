#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the score of models/demo under every recipe, and writes the tables as docs/quality/*.csv, with pictures beside them.

    make quality                     takes an hour and a half on two cores; a second run asks only the questions without an answer
    tools/quality.py --samples 1     asks a tenth of the questions and writes their tables to build/quality
    tools/quality.py --rows h2o,...  measures these recipes alone and replaces their rows in docs/quality/suites.csv
    tools/quality.py --later         prints the tables of real models from docs/quality/later.csv, and the losses in recommend.c
    tools/quality.py --later --write writes them there, and into docs/quality.md
    tools/quality.py --papers smollm2  trains heads for a pulled model and asks it what judges the papers' claims (docs/quality/papers.csv), hours
    tools/quality.py --repeat-heads smollm2  trains heads on texts that are repeated, and asks about other texts (docs/quality/repeat-heads.csv), an hour
    tools/quality.py --papers        judges them by papers.csv; writes docs/quality/papers-claims.csv
    tools/quality.py --check         holds the figures in docs/quality.md to the tables; runs nothing

`python3 -m sluice_eval` and `sluice` measure everything. This script runs them on all processors and collects their figures.
The script keeps the answers in build/quality, in one file for each process. It measures attention errors and running text
again each time, which takes minutes. docs/quality.md, which people write, explains the tables.

--rows puts new rows next to older ones, marked in the last column. The script does so only if the full cache, which it measures
again, scores as the table says, and if no claim or summary uses the rows. It measures all of the running text again. It does not
draw the pictures again.

--check compares two kinds of tables in docs/quality.md with suites.csv: one whose first column is "ships at most" has the name and
the budget of a row in its last column, and the row's mean in "points"; one whose first column is "mean" has a mean for each budget. It compares
the tables of real models, and the losses in engine/compress/recipe/recommend.c, with later.csv.
"""
import argparse
import collections
import contextlib
import csv
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build/bin")) / "sluice"
MODEL, PLAN, WORK, PAGE, TABLES = (pathlib.Path(p) for p in (
    "models/demo", "lab/sluice_eval/sluice_eval/papers/demo.json", "build/quality", "docs/quality.md", "docs/quality"))
TEXTS = ["GPL-3", "Apache-2.0", "MPL-1.1", "GFDL-1.3"]  # in /usr/share/common-licenses
INTERVAL = ["to_full", "low", "high"]


PACKAGE = ["python3", "-m", "sluice_eval"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "lab/sluice_eval"), "SLUICE_BIN": str(SLUICE.parent)}


def run(*arguments, program=(str(SLUICE),)):
    """Returns the standard output of a `sluice` command, or of another program. Its progress goes to the terminal."""
    command = [sys.executable if word == "python3" else word for word in program] + list(map(str, arguments))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT, check=False)
    if done.returncode != 0:
        sys.exit(f"quality: `{' '.join(command)}` failed with exit code {done.returncode}")
    return done.stdout


def ask(name, parts, *arguments):
    """Asks the questions in `parts` processes of one thread each. Returns the file with all answers."""
    files = [WORK / f"{name}-{i + 1}-of-{parts}.jsonl" for i in range(parts)]
    commands = [[sys.executable, *PACKAGE[1:], "run", *map(str, arguments), "--threads", "1", "--part", f"{i + 1}/{parts}",
                 "--out", str(files[i])] for i in range(parts)]
    logs = [ROOT / file.with_suffix(".log") for file in files]
    running = [subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=open(log, "w") if i > 0 else None)
               for i, (command, log) in enumerate(zip(commands, logs))]  # the first process shows its progress on the terminal
    while any(process.poll() is None for process in running) and not any(process.poll() for process in running):
        time.sleep(0.2)
    failed = next((i for i, process in enumerate(running) if process.poll()), None)
    if failed is not None:
        for process in running:
            process.terminate()
            process.wait()
        why = f"; see {logs[failed]}" if failed > 0 else ""
        sys.exit(f"quality: `{' '.join(commands[failed])}` failed with exit code {running[failed].returncode}{why}. "
                 "The answers so far are in build/quality.")
    whole = WORK / f"{name}.jsonl"
    with open(ROOT / whole, "wb") as out:
        for file in files:
            out.write((ROOT / file).read_bytes())
    return whole


def write(folder, name, rows):
    """Writes a table, whose first row has the names of the columns."""
    path = folder / f"{name}.csv"
    with open(ROOT / path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    print(f"wrote {path}")


def read(name):
    """Returns the rows of a table as dictionaries."""
    with open(ROOT / TABLES / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def running_text(name):
    """Writes a license as running text, which the demo model was trained on. Returns the file."""
    words = pathlib.Path("/usr/share/common-licenses", name).read_text(errors="replace").split()
    path = WORK / f"{name}.txt"
    (ROOT / path).write_text(" ".join(words))
    return path


def points(share):
    return "" if share is None else f"{100 * share:.1f}"


def interval(difference):
    return ["" if value is None else f"{100 * value:+.1f}" for value in (difference["mean"], difference["low"], difference["high"])]


def bytes_of(row):
    return [points(row["shipped"]), points(row["offloaded"]) if row["offloaded"] else ""]


def suite_row(row, later=False):
    """Returns a row of suites.csv from a report's row."""
    lengths = [[cell["score"] for cell in row["cells"] if cell["tokens"] == n and cell["score"] is not None] for n in (4096, 8192)]
    means = [sum(scores) / len(scores) if scores else None for scores in lengths]
    difference = ["", "", ""] if row["name"] == "full" else interval(row["to_full"])
    return [row["name"], row["budget"], *map(points, [*row["tasks"].values(), *means, row["mean"]]), *bytes_of(row), *difference,
            "yes" if later else ""]


def suite_head(row):
    return ["recipe", "budget", *row["tasks"], "at_4096", "at_8192", "mean", "shipped_percent", "to_stores_percent", *INTERVAL,
            "newer_than_pictures"]


CLAIM_HEAD = ["paper", "claim", "budget", "better", "worse", "difference", "low", "high", "at_least", "verdict"]


def claim_row(claim):
    return [claim["paper"], claim["text"], claim["budget"], points(claim["better_score"]), points(claim["worse_score"]),
            *interval(claim["difference"]), f"{100 * claim['by']:+.1f}", claim["verdict"]]


def choice_row(choice, rows):
    row = next(row for row in rows if (row["name"], row["budget"]) == (choice["name"], choice["budget"]))
    return [f"{100 * choice['most']:.0f}", "yes" if choice["offloads"] else "no", row["name"], row["budget"], points(row["mean"]), *bytes_of(row),
            *interval(row["to_full"]), row["recipe"]]


def suites(arguments, folder):
    answers = ask("suites", arguments.parts, "--model", MODEL, "--plan", PLAN, "--samples", arguments.samples)
    lines = [json.loads(line) for line in run("run", "--model", MODEL, "--plan", PLAN, "--samples", arguments.samples, "--out", answers, "--json",
                                              "--png", folder / "suites", program=PACKAGE).splitlines()]
    rows, claims, choices = ([line[kind] for line in lines if kind in line] for kind in ("row", "claim", "choice"))
    write(folder, "suites", [suite_head(rows[0]), *map(suite_row, rows)])
    write(folder, "claims", [CLAIM_HEAD, *map(claim_row, claims)])
    write(folder, "best", [["ships_percent", "offloads", "name", "budget", "mean", "shipped_percent", "to_stores_percent", *INTERVAL, "recipe"],
                           *(choice_row(choice, rows) for choice in choices)])


# Tests Locret's claim about numbers with the paper's settings scaled down: a tenth of the slots, prompts read in chunks.
BUDGET = "budget=0.1,chunk=256"
HEADS = [("locret, trained heads", MODEL, f"locret,{BUDGET},scope=stabilizers:128+tail:32"),
         ("locret, untrained heads", WORK / "untrained", f"locret,{BUDGET},scope=stabilizers:128+tail:32"),
         ("h2o", MODEL, f"h2o,{BUDGET}"),
         ("snapkv", MODEL, f"snapkv,when=chunk,{BUDGET}"),
         ("chance", MODEL, f"score=random,when=chunk,positions=slot,{BUDGET},scope=stabilizers:128+tail:32")]


def heads(arguments, folder):
    untrained = WORK / "untrained"
    shutil.rmtree(ROOT / untrained, ignore_errors=True)
    shutil.copytree(ROOT / MODEL, ROOT / untrained, ignore=shutil.ignore_patterns("retaining_heads.safetensors"))
    run("train-heads", "--model", MODEL, "--hidden", 256, "--steps", 0, "--out", untrained / "retaining_heads.safetensors")
    rows = []
    for model in (MODEL, untrained):
        recipes = {recipe: name for name, of, recipe in HEADS if of == model}
        what = ("run", "--model", model, "--tasks", "number", "--lengths", "4096,8192", "--samples",
                arguments.samples or 20, "--recipe", ";".join(recipes))
        answers = ask(f"heads-{model.name}", arguments.parts, *what[1:])
        lines = run(*what, "--out", answers, "--json", program=PACKAGE).splitlines()
        for row in (json.loads(line).get("row") for line in lines):
            if row and (row["recipe"] in recipes or model == MODEL):
                rows.append([recipes.get(row["recipe"], row["name"]), *(points(c["score"]) for c in row["cells"]), points(row["shipped"])])
    write(folder, "heads", [["recipe", "at_4096", "at_8192", "shipped_percent"], *rows])


PAIRS = {"H2O": "score=aas", "TOVA": "score=ltas", "SnapKV": "score=snapkv,scope=recent:32"}
VALUES = {"": "", "+CAOTE": ",value=caote", "+FastCAOTE": ",value=fastcaote"}


def caote(arguments, folder):
    """Writes the attention output's error after the prompt, for X and X+CAOTE: means over texts and layers."""
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
    write(folder, "attention-error", [["recipe", *(f"budget_{b}" for b in budgets)],
                                      *([x + v, *(f"{mean[x + v, b]:.4f}" for b in budgets)] for x in PAIRS for v in VALUES)])


def above_full(name, m):
    """Returns nats per token above the full cache, with the interval's ends; of the row full the perplexity."""
    return [f"{m['perplexity']:.2f}", "", ""] if name == "full" else [f"{m[key]:+.3f}" for key in ("above_full", "low", "high")]


def stream(*arguments):
    """Returns the measurements of `sluice eval perplexity`, by recipe."""
    lines = run("eval", "perplexity", "--model", MODEL, *arguments, "--json").splitlines()
    return {m["case"]: m for m in map(json.loads, lines) if "perplexity" in m}


def one_by_one(arguments, folder):
    """Writes what evictions of one slot after each token cost, where CAOTE's formula is exact."""
    del arguments
    recipes = {f"{base}{value},budget=256,when=chunk": x + v for x, base in PAIRS.items() if x != "SnapKV"
               for v, value in VALUES.items()}
    what = ("--tokens", 2048, "--chunk", 1, "--recipe", ";".join(["full", *recipes]))
    texts = [part for text in TEXTS[:2] for part in ("--text", running_text(text))]
    measured = stream(*texts, *what)
    write(folder, "one-slot", [["recipe", "slots_256", "low", "high"], *([recipes.get(c, c), *above_full(c, m)] for c, m in measured.items())])


def perplexity(arguments, folder):
    del arguments
    budgets, rows = (256, 512, 1024), {}
    texts = [part for text in TEXTS for part in ("--text", running_text(text))]
    for i, budget in enumerate(budgets):
        bare = {f"{base}{value},when=chunk,budget={budget}": f"{x}{value.replace(',value=', '+')}, as in CAOTE's paper"
                for x, base in (("h2o", "score=aas"), ("tova", "score=ltas")) for value in ("", ",value=caote", ",value=fastcaote")}
        measured = stream(*texts, "--budget", budget) | stream(*texts, "--recipe", ";".join(["full", *bare]))
        for case, m in measured.items():
            name = bare.get(case, case.replace(f",budget={budget}", ""))
            rows.setdefault(name, [["", "", ""]] * len(budgets))[i] = above_full(name, m)
    write(folder, "running-text", [["recipe", *(f"slots_{b}{column}" for b in budgets for column in ("", "_low", "_high"))],
                                   *([name, *(value for cell in cells for value in cell)] for name, cells in rows.items())])


# ---- replacing rows of an existing table ------------------------------------------------------------------------------

def exchange(table, lines):
    """Replaces the rows of `table` that have the same recipe and budget as `lines`. Exits if the row "full" differs."""
    places = {(row["recipe"], row["budget"]): i for i, row in enumerate(table)}
    for line in lines:
        row = dict(zip(table[0], line))
        place = places.get((row["recipe"], row["budget"]))
        if place is None:
            sys.exit(f"quality: {TABLES}/suites.csv has no row {row['recipe']} {row['budget']}")
        if row["recipe"] != "full":
            table[place] = row
        elif row != table[place]:
            sys.exit(f"quality: the full cache scores differently than {TABLES}/suites.csv says; run `make quality` to measure every row\n"
                     f"  table  {table[place]}\n  now    {row}")
    return table


def some_rows(arguments):
    names = set(arguments.rows.split(","))
    plan = json.loads((ROOT / PLAN).read_text())
    plan["recipes"] = [recipe for recipe in plan["recipes"] if recipe["name"] in names]
    claimed = {side for claim in plan.pop("claims") for side in (claim["better"], claim["worse"])} & names
    if claimed:
        sys.exit(f"quality: claims use {', '.join(sorted(claimed))}; run `make quality` to measure every row")
    unknown = names - {recipe["name"] for recipe in plan["recipes"]}
    if unknown:
        sys.exit(f"quality: {PLAN} has no recipe {', '.join(sorted(unknown))}")
    filtered = WORK / "rows.json"
    (ROOT / filtered).write_text(json.dumps(plan, indent=1))
    what = ("--model", MODEL, "--plan", filtered)
    lines = run("run", *what, "--out", ask("rows", arguments.parts, *what), "--json", program=PACKAGE).splitlines()
    rows = [row for row in (json.loads(line).get("row") for line in lines) if row and row["name"] in names | {"full"}]
    mean = 100 * max(row["mean"] for row in rows if row["name"] != "full")
    if mean >= min(float(row["mean"]) for row in read("best")):
        sys.exit(f"quality: a row with {mean:.1f} points may be among the best for its bytes; run `make quality` to measure every row")
    table = exchange(read("suites"), [suite_row(row, row["name"] in names) for row in rows])
    write(TABLES, "suites", [list(table[0]), *(row.values() for row in table)])
    perplexity(arguments, TABLES)  # takes minutes, so measure all rows


# ---- holding the page to the tables -----------------------------------------------------------------------------------

def check(page, suites_csv):
    """Returns (complaints, number of figures compared)."""
    means = {(row["recipe"], row["budget"]): row["mean"] for row in suites_csv}
    complaints, n, head = [], 0, []
    for number, line in enumerate(page.split("\n"), 1):
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells or not head:
            head = cells
        elif re.match(r"^\|[-:|]+$", line) or head[0] not in ("ships at most", "mean"):
            continue
        else:
            if head[0] == "mean":
                wanted = [((cells[0], budget if budget.endswith("%") else ""), cell) for budget, cell in zip(head[1:], cells[1:]) if cell]
            else:
                name, _, budget = cells[-1].partition(" ")
                wanted = [((name, budget), cells[head.index("points")])]
            n += len(wanted)
            complaints += [f"{PAGE}:{number}: {' '.join(key)} has {said}; suites.csv says {means.get(key)}" for key, said in wanted
                           if means.get(key) != said]
    return complaints, n


# The rows of the page's tables of real models, by when the question comes; later.csv has more.
LISTED = {"aware": ("full", *(f"full,format={bits}" for bits in ("int8", "int4")),
                    *(f"snapkv,pool=max:31,heads=layer,budget={budget},format=int4" for budget in (0.5, 0.2, 0.1))),
          "agnostic": ("full", "snapkv,budget=0.5", *(f"full,format={bits}" for bits in ("int8", "int4", "k4v3", "k4v2", "int3")),
                       *(f"kvzip,{rest},format=int4" for rest in ("heads=pages,budget=0.56", "heads=pages,budget=0.33",
                                                                  "score=reconstruct_sum,heads=pages,budget=0.33", "heads=pages,budget=0.2")))}
MODELS = {("smollm2", "1024"): "SmolLM2-135M", ("qwen2.5-coder-0.5b", "2048"): "Qwen2.5-Coder-0.5B",
          ("qwen2.5-coder", "2048"): "Qwen2.5-Coder-1.5B", ("qwen2.5-coder", "8192"): "the same, 8,192 tokens"}
SOURCE = "engine/compress/recipe/recommend.c"


def measured(mode):
    """Returns the rows of sluice_eval's table by model, tokens and recipe. Incomplete documents have no row in later.csv."""
    sys.path.insert(0, ENVIRONMENT["PYTHONPATH"])
    from sluice_eval.documents import table_rows  # needs NumPy
    rows = [row for row in read("later") if row["mode"] == mode]
    return {key: {row[0]: row for row in table_rows([row for row in rows if (row["model"], row["tokens"]) == key], 1)} for key in MODELS}


def recommended(mode):
    """Returns by recipe, whatever the order of its words, the percent of the bytes that recommend.c has it for."""
    source = (ROOT / SOURCE).read_text(encoding="utf-8").replace('" WIDE "', "").replace('WIDE "', '"' + re.search(r'define WIDE "(.*)"', (ROOT / SOURCE).read_text())[1])
    table = source[source.index({"aware": "recommendations[] = {", "agnostic": "for_later[] = {"}[mode]):]
    rows = re.findall(r'\{([0-9.]+), "([^"]+)", false', table[:table.index("};")])
    return {frozenset(recipe.split(",")): f"{100 * float(share):.0f}%" for share, recipe in rows}


def real(mode):
    """Returns the table of real models as lines of Markdown, and its rows by model and recipe."""
    tables, shares = measured(mode), recommended(mode)
    has_interval = lambda row: row is not None and "[" in row[4]  # one document gives none, and no figure
    columns = [key for key in MODELS if any(has_interval(tables[key].get(recipe)) for recipe in LISTED[mode])]
    lines = ["| recipe | for | " + " | ".join(MODELS[key] for key in columns) + " |", "|-" * (2 + len(columns)) + "|"]
    for recipe in LISTED[mode]:
        found = [tables[key].get(recipe) for key in columns]
        cells = [f"{row[2]}: {row[4]}, n={row[7].split(' ')[0]}" if has_interval(row) else f"{row[3]} points" if row and recipe == "full" else ""
                 for row in found]
        if any(cells):
            lines.append(f"| `{recipe}` | {shares.get(frozenset(recipe.split(',')), '')} | " + " | ".join(cells) + " |")
    return lines, tables


def losses(tables):
    """Returns the lines of recommend.c: what its recipes for later questions lost, at each length of the largest model that was asked."""
    names = {model: name for (model, _), name in reversed(MODELS.items())}
    lines = []
    for recipe in filter(lambda recipe: frozenset(recipe.split(",")) in recommended("agnostic") and recipe != "full", LISTED["agnostic"]):
        found = {int(tokens): (model, rows[recipe]) for (model, tokens), rows in tables.items() if recipe in rows and "[" in rows[recipe][4]}
        for tokens, (model, row) in sorted(found.items()):
            mean, high, low = (f"{-float(figure) + 0:.1f}" for figure in re.findall(r"[-+][0-9.]+", row[4]))
            lines.append(f'    {{"{recipe}", {tokens}, "{names[model]}", {mean}, {low}, {high}}},')
    return lines


def later():
    """Returns the lines of both tables of the page, and those of recommend.c."""
    lines, tables = real("agnostic")
    return [real("aware")[0], lines], losses(tables)


def put(text, pattern, parts):
    """Returns the text with the parts in the places that match, in order."""
    places = list(re.finditer(pattern, text))
    if len(places) != len(parts):
        sys.exit(f"quality: {len(places)} places for {len(parts)} tables: {pattern}")
    for place, lines in reversed(list(zip(places, parts))):
        text = text[:place.start()] + "".join(f"{line}\n" for line in lines) + text[place.end():]
    return text


def write_later():
    tables, lines = later()
    for path, pattern, parts in ((PAGE, r"\| recipe \| for \|[^\n]*\n(?:\|[^\n]*\n)+", tables), (SOURCE, r'(?: +\{"[^"]+", [1-9][^\n]*\n)+', [lines])):
        (ROOT / path).write_text(put((ROOT / path).read_text(encoding="utf-8"), pattern, parts), encoding="utf-8")


def check_later(page, source):
    tables, lines = later()
    wanted = [*tables[0], *tables[1]]
    complaints = [f"{PAGE}: lacks the line of `tools/quality.py --later`: {line}" for line in wanted if line not in page]
    complaints += [f"LISTED[{mode}] lacks {','.join(sorted(words))}, which recommend.c has" for mode in LISTED
                   for words in recommended(mode).keys() - set(map(frozenset, (recipe.split(",") for recipe in LISTED[mode])))]
    said = re.findall(r'^    \{"[^"]+", [1-9][^\n]*', source, re.M)
    complaints += [f"{SOURCE}: {a} is {b} by later.csv" for a, b in itertools.zip_longest(said, lines) if a != b]
    return complaints, len(wanted) + len(lines)


# ---- the papers' claims on a real model -------------------------------------------------------------------------------

# Recipes that show which part of D2O loses points: each switches one part off, or takes another score.
PARTS = ("layers=uniform", "evicted=drop", "when=end", "exempt=0-1+last", "scope=sinks:4+recent:32", "layers=uniform,score=snapkv,scope=sinks:4+recent:32")
CAUSES = [*(f"d2o,budget=0.5,{part}" for part in PARTS), "h2o,budget=0.5,when=end", "h2o,budget=0.5,scope=sinks:4+recent:32,when=end",
          "snapkv,budget=0.5", "random,budget=0.5,when=end"]


def papers_claims(mode):
    """Yields the demo plan's claims and, if the question is in the prompt, what D2O loses by, with two recipes each.

    Budgets are half of the prompt, where fewer points lie between two methods than the plan expects of Locret's at a tenth.
    """
    plan = json.loads((ROOT / PLAN).read_text())
    recipes = {recipe["name"]: recipe["recipe"].replace("{budget}", "0.5") for recipe in plan["recipes"] if isinstance(recipe, dict)}
    for claim in plan["claims"]:
        if claim["paper"] == "Locret":
            claim = {**claim, "by": min(claim["by"], 0), "needs": {"least": 0.5}}
        yield claim, recipes[claim["better"]], recipes.get(claim["worse"], claim["worse"])
    for recipe in CAUSES if mode == "aware" else ():
        yield {"paper": "cause", "text": f"{recipe} above d2o", "by": 0, "needs": {"least": 0.5}}, recipe, "d2o,budget=0.5"


def train_heads(model, name, rows, *options):
    """Returns a folder with the model and retaining heads, which are trained on these prompts and answers if it has none."""
    folder, models = ROOT / WORK / name / model, pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"), "sluice/models")
    folder.mkdir(parents=True, exist_ok=True)
    for file in (models / model).iterdir():
        if not (folder / file.name).exists():
            (folder / file.name).symlink_to(file)
    random.Random(1).shuffle(rows)
    data = folder.parent / f"{model}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows[:1200]))
    if not (folder / "retaining_heads.safetensors").exists():
        run("train-heads", "--model", folder, "--data", data, "--hidden", 256, "--batch", 2, "--lr", 0.003, *options)
    return folder


def training_documents(n):
    """Yields documents of the kinds that are asked about, n of each, but not those: a task that needs more tokens yields fewer."""
    from sluice_eval.document_tasks import WRITERS, Texts, make_document
    from sluice_eval.errors import EvalError
    for index, task in ((index, task) for index in range(n) for task in WRITERS):
        with contextlib.suppress(EvalError):
            yield make_document(task, 9001, index, 560 + index * 37 % 400, Texts.open([], None), lambda text: int(len(text) / 3.3))


def papers_heads(model):
    """Returns a folder with the model and Locret's heads: they learn from answers. Training takes a third of an hour."""
    rows = [{"prompt": document.text + question.text, "answer": f" {' '.join(question.answers)}."} for document in training_documents(90)
            for question in document.questions if not question.checks and not question.metric]
    return train_heads(model, "heads", rows, "--steps", 180, "--warm-up", 60, "--max-tokens", 1200)


def repeat_heads(model):
    """Measures heads that learn what KVzip would keep (as KVzap does, arXiv 2601.07891), by texts and code that they have not seen."""
    sys.path.insert(0, ENVIRONMENT["PYTHONPATH"])
    rows = [{"prompt": document.text + "\n\nRepeat the previous context exactly.\n\n", "answer": document.text}
            for document in training_documents(60)]
    folder = train_heads(model, "repeat-heads", rows, "--steps", 120, "--warm-up", 40, "--max-tokens", 2600)
    essay = ROOT / WORK / "readmes.txt"
    readmes = sorted(file for file in pathlib.Path("/usr/share/doc").glob("*/README*") if file.is_file())
    essay.write_bytes(b"".join(re.sub(rb"[^\t\n -~]", b"", file.read_bytes()) for file in readmes))
    recipes = [f"kvzip,score={score},heads=pages,budget={budget},format=int4"
               for score, budget in (("reconstruct", 0.33), ("cis", 0.56), ("cis", 0.33), ("cis", 0.2))]
    run("documents", "--model", folder, "--mode", "agnostic", "--seed", 5, "--tokens", 1024, "--documents", 25, "--threads", 1, "--deadline", 3600,
        "--essay", essay, "--code", "/usr/lib/python3.11", "--tasks", "code-python,table,hops,needles,minutes",
        "--out", TABLES / "repeat-heads.csv", "--recipe", ";".join(recipes), program=PACKAGE)


def papers_measure(model):
    sys.path.insert(0, ENVIRONMENT["PYTHONPATH"])
    folder = papers_heads(model)
    for mode in ("aware", "agnostic"):
        recipes = dict.fromkeys(recipe for _, *both in papers_claims(mode) for recipe in both)
        run("documents", "--model", folder, "--mode", mode, "--seed", 2, "--tokens", 1024, "--threads", 1, "--deadline", 3600,
            "--out", TABLES / "papers.csv", "--recipe", ";".join(recipes), program=PACKAGE)


def papers():
    """Returns the table of the claims, judged as sluice_eval/report.py does, but over documents. `sluice_eval documents` asks what a
    claim needs: --mode and --recipe "BETTER;WORSE" of its line, --seed 2 --tokens 1024; of a cluster (--url) where a document's layers are
    offloaded."""
    sys.path.insert(0, ENVIRONMENT["PYTHONPATH"])
    from sluice_eval.bootstrap import bootstrap_mean  # needs NumPy
    from sluice_eval.report import Verdict, verdict_of
    mean = lambda values: sum(values) / len(values)
    on_demo = collections.defaultdict(list)
    for row in read("claims"):
        on_demo[row["paper"], row["claim"]].append(f"{row['budget']}: {row['verdict']}".removeprefix(": "))
    scores, n_questions = collections.defaultdict(dict), {}  # of (mode, recipe): {document: its mean}; of a document
    for row in read("papers"):
        if not row["refused"]:
            values = [float(value) / 100 for value in row["points"].split()]
            scores[row["mode"], row["recipe"]][row["document"]], n_questions[row["document"]] = mean(values), len(values)
    table = [["mode", *CLAIM_HEAD, "questions", "on_models_demo", "better_recipe", "worse_recipe"]]
    for mode in ("aware", "agnostic"):
        for claim, *recipes in papers_claims(mode):
            better, worse, full = (scores[mode, recipe] for recipe in (*recipes, "full"))
            both = [document for document in better if document in worse and document in full]
            means = [mean([one[document] for document in both]) if both else None for one in (better, worse, full)]
            interval = bootstrap_mean([[better[document] - worse[document] for document in both]], 1)
            known = types.SimpleNamespace(by=claim["by"], needs_least=claim["needs"]["least"])
            verdict = verdict_of(Verdict(known, "", "", *means, interval, len(both)))
            table.append([mode, *claim_row({**claim, "budget": "50%" if "=0.5" in recipes[0] else "", "better_score": means[0], "worse_score": means[1],
                                            "difference": {end: getattr(interval, end) if both else None for end in ("mean", "low", "high")},
                                            "verdict": verdict}), sum(n_questions[document] for document in both),
                          "; ".join(on_demo[claim["paper"], claim["text"]]), *recipes])
    return table


def self_test():
    rows = [{"recipe": "h2o", "budget": "20%", "mean": "7.8"}, {"recipe": "int8", "budget": "", "mean": "95.7"}]
    choose = "| ships at most | recipe | points | row |\n|-|-|-|-|\n| 55% | x | {} | `{}` |\n"
    means = "| mean | 20% | whole |\n|-|-:|-:|\n| `h2o` | {} | |\n| `int8` | | {} |\n"
    assert check(choose.format("95.7", "int8") + "\n" + means.format("7.8", "95.7"), rows) == ([], 3)
    for page in (choose.format("95.8", "int8"), choose.format("95.7", "int9"), means.format("7.9", "95.7"), means.format("7.8", "9.57")):
        assert len(check(page, rows)[0]) == 1, page
    assert put("a\nb 1\nb 2\nc\nb 3\n", r"(?:b[^\n]*\n)+", [["x"], ["y", "z"]]) == "a\nx\nc\ny\nz\n"
    print("quality: the check finds figures that differ from the table")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=0, help="questions per task and length; 0: as in the plan")
    parser.add_argument("--parts", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--rows", metavar="NAME,...", help="measure only these recipes of the plan")
    parser.add_argument("--later", action="store_true", help="print the tables of real models")
    parser.add_argument("--write", action="store_true", help="with --later: into docs/quality.md and recommend.c")
    parser.add_argument("--papers", nargs="?", const="", metavar="MODEL", help="judge the papers' claims on a real model, or ask it")
    parser.add_argument("--repeat-heads", metavar="MODEL", help="train heads on repeated texts, and ask about other texts")
    parser.add_argument("--check", action="store_true", help="compare docs/quality.md with the tables")
    parser.add_argument("--self-test", action="store_true", help="show that --check finds something")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    if arguments.later and arguments.write:
        return write_later()
    if arguments.later:
        tables, lines = later()
        print("\n".join([*tables[0], *tables[1], "", *lines]))
        return 0
    if arguments.papers is not None:
        return papers_measure(arguments.papers) if arguments.papers else write(TABLES, "papers-claims", papers())
    if arguments.repeat_heads:
        return repeat_heads(arguments.repeat_heads)
    if arguments.check:
        page, source = ((ROOT / path).read_text(encoding="utf-8") for path in (PAGE, SOURCE))
        complaints, n = check(page, read("suites"))
        try:
            more, n_more = check_later(page, source)
            complaints, n = complaints + more, n + n_more
        except ImportError:
            print("quality: later.csv is not compared: NumPy is missing")
        print("\n".join([*complaints, f"quality: {n} figures, {len(complaints)} complaints"]))
        return 1 if complaints or n == 0 else 0
    if not os.access(SLUICE, os.X_OK):
        sys.exit(f"quality: {SLUICE} does not exist; run `make build`, or set SLUICE_BIN to its folder")
    for folder in (WORK, TABLES):
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
    if arguments.rows:
        return some_rows(arguments)
    for measure in (heads, caote, one_by_one, perplexity, suites):
        measure(arguments, WORK if arguments.samples else TABLES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
