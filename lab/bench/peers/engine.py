# SPDX-License-Identifier: Apache-2.0
"""What the engines' programs share: the conversation with peers.py, one JSON object a line.

    to standard output    {"load_s": 1.2, "about": "version and settings"}     once, when the model is loaded
    from standard input   {"cell": "prefill:512", "also": "decode:512x1", "steps": 32} or {"text": "prompt", "steps": 8}
    to standard output    {"rates": {"prefill:512": 133.1, "decode:512x1": 25.0}}, {"text": "answer"} or {"error": "why not"}

"also" is a decode cell at the depth that the prompt reaches: an engine may measure it in the same run, because its cache is filled then.
"""
import json
import os
import re
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402

CELL = re.compile(r"(prefill):([1-9]\d*)|(decode):(\d+)(?:x([1-9]\d*))?")


def parse_cell(text):
    """Returns (whether it is a prompt, tokens, sequences) of prefill:TOKENS or decode:DEPTHxBATCH; ValueError: it is neither."""
    match = CELL.fullmatch(text)
    if not match:
        raise ValueError(f"{text}: expected prefill:TOKENS or decode:DEPTHxBATCH")
    return bool(match[1]), int(match[2] or match[4]), int(match[5] or 1)


def prompt_of(n, n_vocab, first=0):
    """The token ids that `sluice bench cells` reads. Another `first` gives a prompt that begins with another token."""
    return [i * 2654435761 % n_vocab for i in range(first, first + n)]


def needs(module, name, usage="FILE.gguf THREADS"):
    """Ends a program unless Python finds a module, which `peers.py --install NAME` brings, and it has its arguments."""
    script.help_if_asked()
    if not script.found(module):
        script.stop(f"needs the Python module {module}: lab/bench/peers/peers.py --install {name}")
    script.needs_arguments(len(usage.split()), usage)


def one_sequence(generate):
    """Returns the `run` of an engine that measures one sequence: `generate(n, steps)` returns the seconds of n tokens and of the steps after."""
    def run(prefills, n, batch, steps, goes_on):
        if batch > 1:
            raise ValueError("only one sequence is measured")
        if not prefills:
            return [steps / generate(max(n, 1), steps)[1]]
        generate(min(n, 512), 1)  # warms up
        first, rest = generate(n, steps if goes_on else 1)
        return [n / first] + ([steps / rest] if goes_on else [])
    return run


def say(**line):
    os.write(SAYS, (json.dumps(line) + "\n").encode())


def serve(load, run, answer):
    """Loads a model, then answers requests until standard input ends. `load(path, threads)` returns a text about the engine;
    `run(prefills, n, batch, steps, goes_on)` returns tokens per second of the cell and, if `goes_on`, of the decode steps after the prompt;
    `answer(prompt, n)` returns text. A ValueError is a cell that this engine does not measure."""
    global SAYS
    SAYS = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not an answer
    path, threads = sys.argv[1], int(sys.argv[2])
    began = time.perf_counter()
    about = load(path, threads)
    say(load_s=time.perf_counter() - began, about=about)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "text" in asked:
                say(text=answer(asked["text"], asked["steps"]))
                continue
            also = asked.get("also")
            rates = run(*parse_cell(asked["cell"]), asked["steps"], bool(also))
            say(rates=dict(zip([asked["cell"], also], rates)))
        except ValueError as why:
            say(error=str(why))
