#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Man pages, and completion for bash, zsh and fish, of what the programs say of themselves (base/options/describe.h).

    reference.py BIN OUT    of the programs in the folder BIN, into OUT/man1, OUT/man8, OUT/bash, OUT/zsh and OUT/fish
"""
import json
import os
import subprocess
import sys

import script

SERVERS = ["sluice-coordinator", "sluice-prefill", "sluice-decode", "sluice-kvstore", "sluice-gateway"]
PATHS = {"FILE", "DIR", "PATH", "MODEL"}  # values that are completed as files
NAMES = "sluice models 2>/dev/null | awk 'NR > 1 { print $1 }'"  # of models, beside files
COMMON = [{"name": "help", "letter": "h", "default": "", "help": "print the options and exit"},
          {"name": "version", "letter": "", "default": "", "help": "print the version and exit"}]

# An option of every program that is not just a list of commands.
CONFIG = {"name": "config", "letter": "", "metavar": "FILE", "default": "", "help": "options from a file: lines of `name: value` (docs/OPERATIONS.md)",
          "variable": "SLUICE_CONFIG"}


def described(path, words):
    """Returns how a program describes itself, or the command that these words name, with all commands below it."""
    said = subprocess.run([path, *words, "--describe"], capture_output=True, text=True, timeout=60)
    if said.returncode != 0:
        raise SystemExit(f"reference.py: {path} {' '.join(words)} --describe: {said.stderr}")
    page = json.loads(said.stdout)
    for command in page.get("commands", ()):
        command["page"] = described(path, [*words, command["name"]])
    letters = {option["letter"] for option in page.setdefault("options", [])}
    page["options"] += [{**option, "letter": option["letter"] if option["letter"] not in letters else ""} for option in COMMON]
    if "commands" not in page and page.get("config", True):
        page["options"].append(CONFIG)
    return page


def all_pages(page):
    yield page
    for command in page.get("commands", ()):
        yield from all_pages(command["page"])


# --- man ---

def roff(text):
    lines = text.replace("\\", "\\e").replace("-", "\\-").split("\n")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in lines)


def section(name):
    return 8 if name in SERVERS else 1


def man(page, version, pages):
    """One page; a command's is named after it, sluice-run(1)."""
    name = page["name"].replace(" ", "-")
    usage = page.get("usage", "COMMAND [options]")
    summary = " ".join(page["summary"].split())
    first = summary.split(". ")[0].rstrip(".")
    first = first[:1].lower() + first[1:] if not first[:2].isupper() and not first.startswith("Sluice") else first
    out = [f'.TH {roff(name.upper())} {section(name)} "" "Sluice {version}" "Sluice"', ".SH NAME", f"{roff(name)} \\- {roff(first)}",
           ".SH SYNOPSIS", f".B {roff(page['name'])}", roff(usage), ".SH DESCRIPTION", roff(summary)]
    if page.get("commands"):
        out.append(".SH COMMANDS")
        for command in page["commands"]:
            out += [".TP", f".B {roff(command['name'])}", roff(command["summary"])]
    out.append(".SH OPTIONS")
    for option in page["options"]:
        words = [f"\\-{option['letter']}"] if option["letter"] else []
        words.append("\\-\\-" + roff(option["name"]))
        value = f" \\fI{roff(option['metavar'])}\\fR" if option.get("metavar") else ""
        text = option["help"] + (f" [{option['default']}]" if option["default"] else "")
        out += [".TP", ", ".join(f"\\fB{word}\\fR" for word in words) + value, roff(text)]
    variables = [f"{option['variable']} (--{option['name']})" for option in page["options"] if option.get("variable")]
    if variables:
        out += [".SH ENVIRONMENT", roff("What is not on the command line is taken from: " + ", ".join(variables) + ".")]
    if page.get("epilog"):
        out.append(".SH NOTES")
        for line in page["epilog"].split("\n"):
            out += [roff(line), ".br"]
    others = [other["name"].replace(" ", "-") for other in pages if related(page["name"], other["name"])]
    out += [".SH SEE ALSO", ", ".join(f"\\fB{roff(other)}\\fR({section(other)})" for other in others)]
    return "\n".join(out) + "\n"


def related(name, other):
    """Returns whether `other` is one step above or below the command; programs are all related."""
    if name == other:
        return False
    if " " not in name and " " not in other:
        return True
    return name.rpartition(" ")[0] == other or other.rpartition(" ")[0] == name


# --- completion ---

def takes_path(option):
    return option.get("metavar") in PATHS


def bash(page):
    """One function; what it offers depends on the words before, of which the first name a command."""
    function = "_" + page["name"].replace("-", "_")
    pages = list(all_pages(page))
    names = {p["name"] for p in pages}
    rows = []
    for p in pages:
        words = " ".join([c["name"] for c in p.get("commands", ())] + [f"--{o['name']}" for o in p["options"]])
        rows.append(f"    '{p['name']}') offered='{words}' ;;")
        paths = "|".join(f"--{o['name']}" + (f"|-{o['letter']}" if o["letter"] else "") for o in p["options"] if takes_path(o))
        values = "|".join(f"--{o['name']}" + (f"|-{o['letter']}" if o["letter"] else "") for o in p["options"]
                          if o.get("metavar") and not takes_path(o))
        rows[-1] = rows[-1][:-3] + f" paths='{paths}' values='{values}' ;;"
    below = "|".join(f"'{name}'" for name in sorted(names) if " " in name) or "''"
    return f"""# Completion for {page['name']}, made by tools/reference.py.
{function}() {{
    local key='{page['name']}' word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} offered paths values i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$key ${{COMP_WORDS[i]}}" in
        {below}) key="$key ${{COMP_WORDS[i]}}" ;;
        *) break ;;
        esac
    done
    case $key in
""" + "\n".join(rows) + f"""
    esac
    COMPREPLY=()
    if [[ "|$paths|" == *"|$before|"* ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        case $before in --model | -m) mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen -W "$({NAMES})" -- "$word") ;; esac
    elif [[ $key == 'sluice pull' && $word != -* && "|$values|" != *"|$before|"* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$({NAMES})" -- "$word")
    elif [[ "|$values|" != *"|$before|"* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$offered" -- "$word")
    fi
}}
complete -F {function} {page['name']}
"""


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def zsh(pages_of_programs):
    out = ["#compdef " + " ".join(p["name"] for p in pages_of_programs), "# Made by tools/reference.py.",
           "local key=$service i=2"]
    pages = [p for program in pages_of_programs for p in all_pages(program)]
    below = "|".join(p["name"].replace(" ", "\\ ") for p in pages if " " in p["name"])
    out += ["while (( i < CURRENT )); do", '    case "$key $words[i]" in', f"    ({below}) key=\"$key $words[i]\"; (( i++ )) ;;",
            "    (*) break ;;", "    esac", "done", "words=($service $words[i,-1])", "(( CURRENT -= i - 2 ))", "case $key in"]
    for p in pages:
        out.append(f"({p['name'].replace(' ', chr(92) + ' ')})")
        if p.get("commands"):
            rows = " ".join(quoted(f"{c['name']}:{c['summary']}") for c in p["commands"])
            out += [f"    local -a commands=({rows})", "    _describe command commands"]
        specs = []
        for o in p["options"]:
            text = o["help"].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
            value = "" if not o.get("metavar") else f":{o['metavar']}:" + ("_files" if takes_path(o) else "")
            if o.get("metavar") == "MODEL":
                value = ":MODEL:{_files; compadd ${(f)\"$(" + NAMES + ")\"}}"
            many = "*" if o.get("list") else ""
            for flag in ["--" + o["name"]] + (["-" + o["letter"]] if o["letter"] else []):
                specs.append(quoted(f"{many}{flag}[{text}]{value}"))
        rest = "" if p.get("commands") else " '*:argument:_files'"
        out += ["    _arguments -S " + " \\\n        ".join(specs) + rest, "    ;;"]
    return "\n".join(out + ["esac"]) + "\n"


def fish(page):
    """Returns the completion for fish. Its function __sluice_at finds the command that the first words name."""
    program, pages = page["name"], list(all_pages(page))
    function = "__" + program.replace("-", "_") + "_at"
    out = [f"# Completion for {program}, made by tools/reference.py.", f"function {function}", f"    set -l key '{program}'",
           "    for word in (commandline -opc)[2..-1]",
           "        contains -- \"$key $word\" " + " ".join(quoted(p["name"]) for p in pages if " " in p["name"]) + "; or break",
           "        set key \"$key $word\"", "    end", "    test \"$key\" = \"$argv\"", "end"]
    for p in pages:
        at = f"complete -c {program} -n {quoted(function + ' ' + p['name'])}"
        if p.get("commands"):
            out.append(f"{at} -f")
        for c in p.get("commands", ()):
            out.append(f"{at} -a {c['name']} -d {fish_quoted(c['summary'])}")
        for o in p["options"]:
            value = "" if not o.get("metavar") else " -r -F" if takes_path(o) else " -x"
            if o.get("metavar") == "MODEL":
                value += f' -a "({NAMES})"'.replace("$", "\\$")
            letter = f" -s {o['letter']}" if o["letter"] else ""
            out.append(f"{at} -l {o['name']}{letter}{value} -d {fish_quoted(o['help'])}")
    return "\n".join(out) + "\n"


def fish_quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def main():
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    folder, out = sys.argv[1:]
    programs = [described(os.path.join(folder, name), []) for name in ["sluice", *SERVERS]]
    said = subprocess.run([os.path.join(folder, "sluice"), "--version"], capture_output=True, text=True, check=True)
    version = said.stdout.split()[1]
    pages = [p for program in programs for p in all_pages(program)]
    files = {"zsh/_sluice": zsh(programs)}
    for page in pages:
        name = page["name"].replace(" ", "-")
        files[f"man{section(name)}/{name}.{section(name)}"] = man(page, version, pages)
    for program in programs:
        files[f"bash/{program['name']}"] = bash(program)
        files[f"fish/{program['name']}.fish"] = fish(program)
    for path, text in files.items():
        os.makedirs(os.path.dirname(os.path.join(out, path)), exist_ok=True)
        with open(os.path.join(out, path), "w", encoding="utf-8") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    script.help_if_asked()
    sys.exit(main())
