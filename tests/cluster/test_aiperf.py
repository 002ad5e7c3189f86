# SPDX-License-Identifier: Apache-2.0
"""aiperf, the load generator of NVIDIA's, replays conversations through the gateway: what it counts is what was asked for."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

from harness import MODEL, ROOT, SLOW, Cluster, run_tests, script
from test_gateway import Gateway

sys.path.insert(0, os.path.join(ROOT, "lab/sluice_eval"))
from sluice_bench.trace import read_trace  # noqa: E402
from sluice_bench.workloads import Trace, render  # noqa: E402

# Two conversations whose turns have their beginnings in common, and strangers between them; more than ten rows, as a real trace has.
ROWS = [{"timestamp": 250 * at, "input_length": length, "output_length": 5 + at, "hash_ids": ids}
        for at, (length, ids) in enumerate([(600, [0, 1]), (700, [0, 2]), (300, [10]), (1100, [0, 1, 3]), (512, [11]), (1200, [0, 2, 4]), (90, [12]),
                                            (1400, [0, 1, 3]), (40, [13]), (1500, [0, 2, 4]), (20, [14]), (1536, [0, 1, 3])])]


def aiperf():
    """Returns the program's path, or None."""
    return os.environ.get("SLUICE_AIPERF") or shutil.which("aiperf")


def with_texts(path):
    """Yields the rows with their texts: from lengths alone, aiperf makes texts in processes that find no local tokenizer."""
    work = Trace(read_trace(path))
    for request in work.requests(work.own_rate, ""):
        yield {"timestamp": round(1000 * request.at_s), "text_input": render(request.pieces, "aiperf", 1.6), "output_length": request.n_output}


def replay(url, out):
    """Returns aiperf's report. A failure shows the end of what it printed."""
    path = os.path.join(out, "trace.jsonl")
    for rows in (iter(ROWS), with_texts(path)):
        lines = [json.dumps(row) + "\n" for row in rows]
        with open(path, "w") as file:
            file.writelines(lines)
    words = [aiperf(), "profile", "-m", os.path.basename(MODEL), "-u", url, "--endpoint-type", "completions", "--streaming", "--tokenizer", MODEL,
             "--input-file", path, "--custom-dataset-type", "mooncake_trace", "--fixed-schedule", "--fixed-schedule-auto-offset",
             "--ui", "none", "--output-artifact-dir", out, "--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=300 * SLOW, stdin=subprocess.DEVNULL)
    report = os.path.join(out, "profile_export_aiperf.json")
    assert run.returncode == 0 and os.path.exists(report), f"aiperf ended with {run.returncode}:\n" + (run.stdout + run.stderr)[-3000:]
    with open(report) as file:
        return json.load(file)


def test_it_replays_conversations():
    with Cluster() as cluster, Gateway(cluster) as gateway, tempfile.TemporaryDirectory(prefix="sluice-replay-") as out:
        report = replay(f"http://{gateway.host}:{gateway.port}", out)
        assert report["request_count"]["avg"] == len(ROWS) and not report.get("error_summary"), report.get("error_summary")
        written_tokens = sum(row["output_length"] for row in ROWS)
        assert report["total_usage_completion_tokens"]["avg"] == written_tokens, report["total_usage_completion_tokens"]
        assert report["usage_prompt_cache_read_tokens"]["max"] > 0, "no turn had its beginning from the store"
        assert report["time_to_first_token"]["min"] > 0


if __name__ == "__main__":
    script.help_if_asked()
    if not aiperf():
        print("skipped: aiperf is not here (pip install aiperf, or name it by SLUICE_AIPERF)")
        sys.exit(77)
    raise SystemExit(run_tests(globals()))
