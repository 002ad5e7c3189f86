# SPDX-License-Identifier: Apache-2.0
"""The text of report.md: a table of the steps, the aims beside predictions and measurements, and every row of every step."""
import json
import os

KIT = os.path.dirname(os.path.abspath(__file__))


def aims():
    with open(os.path.join(KIT, "aims.json"), encoding="utf-8") as file:
        return json.load(file)


def line(*cells):
    return "| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def step_lines(visit):
    yield line("step", "estimate, s", "took, s", "verdict", "figure", "floor or peer", "ratio")
    yield "|-|-|-|-|-|-|-|"
    for step in visit.table:
        done = visit.steps.get(step.name, {"verdict": "not begun", "seconds": 0, "row": {}})
        row = done["row"]
        yield line(step.name, step.seconds, f"{done['seconds']:.0f}", done["verdict"], row.get("figure", ""), row.get("peer", ""),
                   row.get("ratio", ""))
    yield line("all", sum(step.seconds for step in visit.table), f"{sum(done['seconds'] for done in visit.steps.values()):.0f}", "", "", "", "")


def measured(facts, predicted):
    """By aim, what was measured: None where it was not. Times are seconds, rates bytes and operations a second."""
    full, h2o, locret = (facts.get(f"prefill 128k {name}") for name in ("full", "h2o", "locret"))
    rate, bandwidth = facts.get("products"), facts.get("bandwidth")
    step, batch = facts.get("decode 128k tailorkv"), facts.get("decode 64 int4")
    resident = facts.get("resident 128k tailorkv")
    return {
        "full_of_products": predicted["prefill_flop"] / rate / full if full and rate else None,
        "h2o_of_full": h2o / full if h2o and full else None,
        "locret_of_full": locret / full if locret and full else None,
        "tailorkv_of_floor": step * bandwidth / (predicted["weight_bytes"] + resident) if step and bandwidth and resident else None,
        "int4_of_bandwidth":
            (predicted["weight_bytes"] + predicted["int4_page_bytes"]) / bandwidth / batch if batch and bandwidth else None,
        "locret_gb": facts.get("memory 128k locret"),
    }


AIMS = [  # what, key, aim, whether more is better
    ("prefill 128k full, of what its products' rate takes", "full_of_products", 0.60, True),
    ("prefill 128k, h2o at a quarter, of full", "h2o_of_full", 1.00, False),
    ("prefill 128k, locret, of full", "locret_of_full", 0.60, False),
    ("decode at 128k, tailorkv, of its floor", "tailorkv_of_floor", 1.50, False),
    ("decode, 64 sequences of 8k, int4, of bandwidth", "int4_of_bandwidth", 0.70, True),
    ("memory at 128k, locret, GB", "locret_gb", 17.0, False),
]


def aim_lines(visit):
    predicted = aims()
    got = measured(visit.facts, predicted)
    yield line("aim", "at", "predicted", "measured", "verdict")
    yield "|-|-|-|-|-|"
    for name, key, aim, more in AIMS:
        value = got[key]
        verdict = "not measured" if value is None else "reached" if (value >= aim if more else value <= aim) else "missed"
        yield line(name, f"{'at least' if more else 'at most'} {aim:g}", f"{predicted[key]:.2f}",
                   "" if value is None else f"{value:.2f}", verdict)


def row_lines(visit, step):
    rows = [row for row in visit.rows if row["step"] == step.name]
    if rows:
        yield ""
        yield f"## {step.name}"
        yield ""
        yield line("what", "verdict", "figure", "floor or peer", "ratio")
        yield "|-|-|-|-|-|"
    for row in rows:
        yield line(row["name"], row["verdict"], row["figure"], row["peer"], row["ratio"])


def text(visit):
    with open(os.path.join(KIT, "commit"), encoding="ascii") as file:
        commit = file.read().strip()
    lines = [f"# A visit to {visit.facts.get('device', visit.device)}", "",
             f"Commit {commit}. Ratios of times and rates are ours over the peer's; of floors, the part of the floor that was reached.", ""]
    lines += step_lines(visit)
    lines += ["", "## Aims", ""]
    lines += aim_lines(visit)
    for step in visit.table:
        lines += row_lines(visit, step)
    return "\n".join(lines) + "\n"
