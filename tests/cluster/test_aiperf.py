# SPDX-License-Identifier: Apache-2.0
"""aiperf, the load generator of NVIDIA's, replays conversations through the gateway: what it counts is what was asked for."""
import os
import sys
import tempfile

from harness import MODEL, Cluster, run_tests, script
from replay_trace import aiperf, common_words, replay, written
from test_gateway import Gateway

# Two conversations whose turns have their beginnings in common, and strangers between them; more than ten rows, as a real trace has.
ROWS = [{"timestamp": 250 * at, "input_length": length, "output_length": 5 + at, "hash_ids": ids}
        for at, (length, ids) in enumerate([(600, [0, 1]), (700, [0, 2]), (300, [10]), (1100, [0, 1, 3]), (512, [11]), (1200, [0, 2, 4]), (90, [12]),
                                            (1400, [0, 1, 3]), (40, [13]), (1500, [0, 2, 4]), (20, [14]), (1536, [0, 1, 3])])]


def test_it_replays_conversations():
    with Cluster() as cluster, Gateway(cluster) as gateway, tempfile.TemporaryDirectory(prefix="sluice-replay-") as out:
        report = replay(f"http://{gateway.host}:{gateway.port}", os.path.basename(MODEL), written(ROWS, 1, 100, common_words()), out,
                        deadline_s=300)
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
