#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/quality.md and docs/quality-tables.md: the score of models/demo under every recipe, with pictures in docs/quality/.

    make quality                     takes an hour and a half on two cores; a second run asks only the questions without an answer
    tools/quality.py --samples 1     asks a tenth of the questions and writes their tables to build/quality/look.md
    tools/quality.py --rows h2o,...  measures these recipes alone and replaces their rows in docs/quality-tables.md

`python3 -m sluice_eval` and `sluice` measure everything. This script runs them on all processors and collects its tables in docs/quality-tables.md.
The script keeps the answers in build/quality, in one file for each process. It measures attention errors and running text
again each time, which takes minutes. docs/quality.md explains the tables: people write the text between the marks WRITTEN
and END, and the script copies that text unchanged.

--rows puts new rows next to older ones. The script does so only if the full cache, which it measures again, scores as the
page says, and if no claim or summary on the page uses the rows. It measures all of the running text again. It does not
draw the pictures again, and the page says so.
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
MODEL, PLAN, WORK, PAGE, TABLES, PICTURES = (pathlib.Path(p) for p in (
    "models/demo", "lab/sluice_eval/sluice_eval/papers/demo.json", "build/quality", "docs/quality.md", "docs/quality-tables.md", "docs/quality"))
TEXTS = ["GPL-3", "Apache-2.0", "MPL-1.1", "GFDL-1.3"]  # in /usr/share/common-licenses
WRITTEN, END = "<!-- WRITTEN: by hand, kept -->", "<!-- END -->"
NOTE = "Rows measured alone, after the others:"


PACKAGE = ["python3", "-m", "sluice_eval"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "lab/sluice_eval"), "SLUICE_BIN": str(SLUICE.parent)}


def run(*arguments, program=(str(SLUICE),)):
    """Returns the standard output of a `sluice` command, or of another program. Its progress goes to the terminal."""
    command = [sys.executable if word == "python3" else word for word in program] + list(map(str, arguments))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT, check=False)
    if done.returncode != 0:
        sys.exit(f"quality: `{' '.join(command)}` failed with exit code {done.returncode}")
    return done.stdout


def shown(*arguments, program=("sluice",)):
    return "`" + " ".join(program) + " " + " ".join(f"'{a}'" if ";" in str(a) else str(a) for a in arguments) + "`"


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


def section(path, level=2):
    """Returns a page that the package wrote, without its title and with headings one level deeper."""
    lines = (ROOT / path).read_text().split("\n")
    return "\n".join("#" * (level - 1) + line if line.startswith("#") else line for line in lines[1:]).strip()


def table(head, rows):
    align = "|" + "|".join("-" if i == 0 else "-:" for i in range(len(head))) + "|"
    return "\n".join(["| " + " | ".join(head) + " |", align, *("| " + " | ".join(row) + " |" for row in rows)])


def running_text(name):
    """Writes a license as running text, which the demo model was trained on. Returns the file."""
    words = pathlib.Path("/usr/share/common-licenses", name).read_text(errors="replace").split()
    path = WORK / f"{name}.txt"
    (ROOT / path).write_text(" ".join(words))
    return path


def suites(arguments):
    answers = ask("suites", arguments.parts, "--model", MODEL, "--plan", PLAN, "--samples", arguments.samples)
    page = WORK / "suites.md"
    pictures = PICTURES if not arguments.samples else WORK
    run("run", "--model", MODEL, "--plan", PLAN, "--samples", arguments.samples, "--out", answers, "--markdown", page,
        "--png", pictures / "suites", program=PACKAGE)
    return "\n\n".join([
        "## Every preset, the papers' own settings, and combinations",
        shown("run", "--model", MODEL, "--plan", "demo", program=PACKAGE),
        section(page)])


# Tests Locret's claim about numbers with the paper's settings scaled down: a tenth of the slots, prompts read in chunks.
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
        what = ("run", "--model", model, "--tasks", "number", "--lengths", "4096,8192", "--samples",
                arguments.samples or 20, "--recipe", ";".join(recipes))
        commands.append(shown(*what, program=PACKAGE))
        answers = ask(f"heads-{model.name}", arguments.parts, *what[1:])
        lines = run(*what, "--out", answers, "--json", program=PACKAGE).splitlines()
        for row in (json.loads(line).get("row") for line in lines):
            if row and (row["recipe"] in recipes or model == MODEL):
                rows.append([recipes.get(row["recipe"], row["name"]), *(f"{100 * c['score']:.1f}" for c in row["cells"]),
                             f"{100 * row['shipped']:.1f}%"])
    return "\n\n".join([
        "## Retaining heads: the task `number`, a tenth of the slots, prompts read in chunks",
        f"{commands[0]}. The last row uses untrained heads, which this command writes: {shown(*train)}.",
        table(["recipe", "4096 tokens", "8192 tokens", "shipped"], rows)])


PAIRS = {"H2O": "score=aas", "TOVA": "score=ltas", "SnapKV": "score=snapkv,scope=recent:32"}
VALUES = {"": "", "+CAOTE": ",value=caote", "+FastCAOTE": ",value=fastcaote"}


def caote(arguments):
    """Returns a table of the attention output's error after the prompt, for X and X+CAOTE: means over texts and layers."""
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
        "`sluice eval fidelity` prints the relative error of the attention output for the 128 tokens after a prompt of 2,048. "
        f"The table has means over layers and over {len(TEXTS)} texts ({', '.join(TEXTS)} as running text). "
        "Settings are those of CAOTE's paper: no slot is protected, and the recipe evicts after every 128 tokens. "
        "\"Less\" and \"more\" compare with the same method without CAOTE.",
        table(["recipe", *(f"budget={b}" for b in budgets)], rows)])


def above_full(name, m):
    return f"{m['perplexity']:.2f}" if name == "full" else f"{m['above_full']:+.3f} [{m['low']:+.3f}, {m['high']:+.3f}]"


def stream(*arguments):
    """Returns the measurements of `sluice eval perplexity`, by recipe."""
    lines = run("eval", "perplexity", "--model", MODEL, *arguments, "--json").splitlines()
    return {m["case"]: m for m in map(json.loads, lines) if "perplexity" in m}


def one_by_one(arguments):
    """Returns a table of evictions of one slot after each token, where CAOTE's formula is exact."""
    del arguments
    recipes = {f"{base}{value},budget=256,when=chunk": x + v for x, base in PAIRS.items() if x != "SnapKV"
               for v, value in VALUES.items()}
    what = ("--tokens", 2048, "--chunk", 1, "--recipe", ";".join(["full", *recipes]))
    texts = [part for text in TEXTS[:2] for part in ("--text", running_text(text))]
    measured = stream(*texts, *what)
    return "\n\n".join([
        "## CAOTE: one slot at a time",
        "`sluice eval perplexity --chunk 1` prints nats per token above the full cache (row full: perplexity). "
        f"It reads 2,048 tokens each of {' and '.join(TEXTS[:2])} with 256 slots and evicts one slot after each token. "
        "CAOTE's formula is exact for this case.",
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
        "`sluice eval perplexity` prints nats per token above the full cache, with the 95% interval of a paired bootstrap (row full: "
        f"perplexity). It reads up to 4,096 tokens of each of {len(TEXTS)} texts and predicts each token from the kept slots and "
        "the token's own chunk of 32. "
        "Presets that cannot stream are absent. \"As in CAOTE's paper\": no slot is protected, and each head chooses its own slots.",
        table(["recipe", *(f"{b} slots" for b in budgets)], [[name, *cells] for name, cells in rows.items()])])


# ---- replacing rows of an existing page -------------------------------------------------------------------------------

def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def exchange(text, lines, n_keys):
    """Replaces the rows of `text` that have the same first cells as `lines`. Exits if the row "full" differs from the page."""
    rows = text.split("\n")
    places = {}
    for i, row in enumerate(rows):
        if row.startswith("| "):
            places.setdefault(tuple(cells_of(row)[:n_keys]), i)  # keep the first match: the table of claims comes later
    for line in lines:
        key = tuple(cells_of(line)[:n_keys])
        if key not in places:
            sys.exit(f"quality: {TABLES} has no row {' '.join(key)}")
        if key[0] == "full" and rows[places[key]] != line:
            sys.exit(f"quality: the full cache scores differently than {TABLES} says; run `make quality` to measure every row\n"
                     f"  page  {rows[places[key]]}\n  now   {line}")
        rows[places[key]] = line
    return "\n".join(rows)


def suites_rows(text, names, arguments):
    plan = json.loads((ROOT / PLAN).read_text())
    plan["recipes"] = [recipe for recipe in plan["recipes"] if recipe["name"] in names]
    claimed = {side for claim in plan.pop("claims") for side in (claim["better"], claim["worse"])} & names
    if claimed:
        sys.exit(f"quality: claims use {', '.join(sorted(claimed))}; run `make quality` to measure every row")
    unknown = names - {recipe["name"] for recipe in plan["recipes"]}
    if unknown:
        sys.exit(f"quality: {PLAN} has no recipe {', '.join(sorted(unknown))}")
    filtered, page = WORK / "rows.json", WORK / "rows.md"
    (ROOT / filtered).write_text(json.dumps(plan, indent=1))
    what = ("--model", MODEL, "--plan", filtered)
    run("run", *what, "--out", ask("rows", arguments.parts, *what), "--markdown", page, program=PACKAGE)
    lines = [row for row in (ROOT / page).read_text().split("\n") if cells_of(row)[0] in names | {"full"}]
    best = [float(cells_of(row)[3]) for row in text[text.index("### The best recipe"):].split("\n") if row.count("%") > 1]
    mean = max(float(cells_of(line)[-3]) for line in lines if not line.startswith("| full "))
    if mean >= min(best):
        sys.exit(f"quality: a row with {mean} points may be among the best for its bytes; run `make quality` to measure every row")
    return exchange(text, lines, 2)


def some_rows(arguments):
    names = set(arguments.rows.split(","))
    sections = (ROOT / TABLES).read_text().split("\n## ")
    for i, text in enumerate(sections):
        if text.startswith("Every preset"):
            title, command, others = suites_rows(text, names, arguments).split("\n\n", 2)
            note = f"{NOTE} {', '.join(sorted(names))}. The pictures show the scores before that."
            if others.startswith(NOTE):
                others = others.split("\n\n", 1)[1]
            sections[i] = "\n\n".join([title, command, note, others])
        elif text.startswith("Running text"):
            sections[i] = perplexity(arguments).removeprefix("## ")  # takes minutes, so measure all rows
    (ROOT / TABLES).write_text("\n## ".join(sections).rstrip("\n") + "\n")
    print(f"wrote {TABLES}")


def prose():
    """Returns docs/quality.md: an opening, the pictures, and the text that is between the marks now."""
    page = ROOT / PAGE
    text = page.read_text() if page.exists() else ""
    kept = text[text.index(WRITTEN):text.index(END) + len(END)] if WRITTEN in text else f"{WRITTEN}\n{END}"
    return "\n\n".join([
        "# What recipes cost in answers",
        "For operators who choose a recipe, and for developers who compare eviction methods. After this page you can choose a "
        "recipe for a given number of shipped bytes, and you know what its answers lose.",
        "models/demo answers questions with known answers under every recipe. `make quality` asks them and writes this page and "
        "[quality-tables.md](quality-tables.md), which names the command that prints each table. docs/EVALUATION.md describes the "
        "questions and the scoring, docs/RECIPES.md the recipes.",
        "![score by bytes shipped](quality/suites-pareto.png)",
        "Two more pictures: scores by [recipe](quality/suites-bars.png) and by [recipe and task](quality/suites-tasks.png). "
        "The pictures show the last full run; quality-tables.md lists rows that are newer.",
        kept]) + "\n"


def tables(sections):
    """Returns docs/quality-tables.md."""
    return "\n\n".join([
        "# What recipes cost in answers: the tables",
        "Appendix to [quality.md](quality.md), for readers who want the score of one recipe, task and length. "
        "`make quality` writes this page. Each section names the command that prints its figures.",
        *sections]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=0, help="questions per task and length; 0: as in the plan")
    parser.add_argument("--parts", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--rows", metavar="NAME,...", help="measure only these recipes of the plan")
    arguments = parser.parse_args()
    if not os.access(SLUICE, os.X_OK):
        sys.exit(f"quality: {SLUICE} does not exist; run `make build`, or set SLUICE_BIN to its folder")
    for folder in (WORK, PICTURES):
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
    if arguments.rows:
        return some_rows(arguments)
    sections = [make(arguments) for make in (heads, caote, one_by_one, perplexity, suites)]
    pages = [(WORK / "look.md", tables([sections[-1], *sections[:-1]]))]
    if not arguments.samples:
        pages = [(TABLES, pages[0][1]), (PAGE, prose())]
    for where, page in pages:
        (ROOT / where).write_text(page)
        print(f"wrote {where}")


if __name__ == "__main__":
    main()
