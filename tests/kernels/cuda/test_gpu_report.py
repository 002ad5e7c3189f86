#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the report of the kit with the output that benches print on a GPU: rows, aims reached and missed, the operations that ncu looks at. Tests
also that the estimates fit a visit.

    test_gpu_report.py SOURCE_FOLDER
"""
import json
import os
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402
script.needs_arguments(1, "SOURCE_FOLDER")

SOURCE = sys.argv[1]
sys.path.insert(0, os.path.join(SOURCE, "tools", "gpu_kit"))
os.environ.update(KIT_LIBRARIES="/nowhere", KIT_TORCH="/bin/false", DEVICE="cuda", LD_LIBRARY_PATH="/driver/folder")
import report  # noqa: E402
import steps  # noqa: E402
import visit as visits  # noqa: E402

CELLS = [("prefill:8192 full,chunk=2048", 14000.0, 20.0), ("prefill:131072 full,chunk=2048", 131072 / 20.0, 33.4),
         ("prefill:131072 h2o,budget=0.25,chunk=2048", 131072 / 22.0, 20.1), ("prefill:131072 locret", 131072 / 8.0, 16.9),
         ("decode:8192x64 full,format=int4", 64 / 0.012, 40.0)]
STORE = [("ms/token full 131072", 9.0), ("ms/token tailorkv 131072", 5.0), ("resident tailorkv 131072", 800.0), ("memory tailorkv 131072", 17.5),
         ("hidden tailorkv 131072", 80.0)]
KERNELS = [{"bench": "kernels", "case": "copy", "value": 4000.0, "unit": "GB/s"},
           {"bench": "kernels", "case": "product of bf16", "value": 480.0, "unit": "TFLOP/s"},
           {"bench": "kernels", "case": "matmul down, bf16", "value": 500.0, "unit": "us", "reference": "product, TFLOP/s",
            "reference_value": 480.0, "ratio": 1.2, "aim": 1.2, "reached": True},
           {"bench": "kernels", "case": "fold", "value": 900.0, "unit": "us", "reference": "product, TFLOP/s", "reference_value": 480.0,
            "ratio": 0.3, "aim": 0.55, "reached": False},
           {"bench": "kernels", "case": "norm", "value": 30.0, "unit": "us", "reference": "copy, GB/s", "reference_value": 4000.0, "ratio": 0.8,
            "aim": 0.8, "reached": True}]


def cells():
    lines = []
    for case, rate, memory in CELLS:
        lines.append({"bench": "cells", "case": case, "value": rate, "unit": "tokens/s"})
        lines.append({"bench": "cells", "case": f"memory of {case}", "value": memory, "unit": "GB"})
    return lines


def play(visit, lines, code=0, text=""):
    """Benches print those of these lines that are theirs, and `text`; there is no PyTorch, and nothing else."""
    def run(name, command, most=None):
        if "bench" not in command:
            return 3, f"no {name} here"
        bench = command[command.index("bench") + 1]
        return code, "\n".join(json.dumps(line) for line in lines if line["bench"] == bench) + "\n" + text
    visit.run = run


def main():
    with tempfile.TemporaryDirectory() as folder:
        visits.WORK = report.KIT = folder
        predictions = subprocess.run([sys.executable, os.path.join(SOURCE, "tools/gpu_counts/aims.py"), "--json"], capture_output=True, check=True)
        for name, data in (("aims.json", predictions.stdout), ("commit", b"0123")):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
        visit = visits.Visit(480, folder)
        visit.table, visit.write = steps.STEPS, report.text
        assert visit.libraries.split(":")[:2] == ["/nowhere", "/driver/folder"], visit.libraries  # the driver's folder is not lost
        assert f"LD_LIBRARY_PATH={visit.libraries}" in visit.sluice("run"), visit.sluice("run")
        assert sum(step.seconds for step in steps.STEPS) < 480, "estimates are longer than a visit"

        play(visit, KERNELS + cells() + [{"bench": "decode", "case": case, "value": value, "unit": "x"} for case, value in STORE])
        by_name = {step.name: step for step in steps.STEPS}
        for name in ("opens", "floors", "model"):
            visit.do(by_name[name])
            assert visit.steps[name]["verdict"] == "passed", visit.steps[name]
        with open(os.path.join(folder, "report.md"), encoding="utf-8") as file:
            text = file.read()
        flop = json.loads(predictions.stdout)["prefill_flop"]
        for line in (
                f"| prefill 128k full, of what its products' rate takes | at least 0.6 | 0.61 | {flop / 576e12 / 20:.2f} | missed |",
                "| prefill 128k, h2o at a quarter, of full | at most 1 | 0.78 | 1.10 | missed |",
                "| prefill 128k, locret, of full | at most 0.6 | 0.32 | 0.40 | reached |",
                "| memory at 128k, locret, GB | at most 17 | 16.82 | 16.90 | reached |",
                "| decode at 128k, tailorkv, of its floor | at most 1.5 | 1.23 | 1.26 | reached |",
                "| decode, 64 sequences of 8k, int4, of bandwidth | at least 0.7 | 0.73 | 0.72 | reached |",
                "| fold; 2048 131072 | missed | 900.0 us, 0.3 of the floor, predicted 0.55 |",
                "| decode at 131072 tailorkv | measured | 5 ms, 80% of waiting hidden | 17.50 GB at most |",
        ):
            assert line in text, f"no line {line}\n{text}"
        assert [case for case, _ in steps.gaps(visit)][0] == "fold", visit.facts["gaps"]

        play(visit, [cells()[0], {"bench": "decode", "case": "ms/token full 131072", "value": 9.0, "unit": "ms"}], 3, "bench: full: decode:8192x64: the device has no room for 85000000000 bytes\n")
        visit.do(by_name["model"])
        assert visit.steps["model"]["verdict"] == "passed", visit.steps["model"]  # a card that is too small is not a failure
        assert any(row["verdict"] == "no room" for row in visit.rows)
        play(visit, [], 124)
        visit.do(by_name["model"])
        assert visit.steps["model"]["verdict"] == "failed", visit.steps["model"]
        visit.end = visit.begin  # no time is left
        visit.do(steps.STEPS[-1])
        assert visit.steps["profile"]["verdict"] == "skipped", visit.steps["profile"]
    print("the report says what the benches said")


if __name__ == "__main__":
    main()
