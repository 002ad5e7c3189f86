# SPDX-License-Identifier: Apache-2.0
"""A Prometheus that reads the pods of pods.py under the labels that the Prometheus operator gives them, and what it answers."""
import json
import os
import subprocess
import time
import urllib.parse
import urllib.request

import yaml

import manifests as m

ADDRESS = "127.20.1.1:9090"
INTERVAL = "10s"  # stands for Grafana's $__rate_interval


class Prometheus:
    def __init__(self, cluster):
        self.folder = os.path.join(cluster.inside.folder, "prometheus")
        os.makedirs(self.folder)
        groups = [{"targets": [f"{pod.address}:{pod.port('admin')}"],
                   "labels": {"job": m.name(pod.workload), "service": m.name(pod.workload), "pod": pod.name, "namespace": "sluice"}}
                  for pod in cluster.pods if m.program(pod.container)]
        with open(os.path.join(self.folder, "prometheus.yml"), "w") as file:
            yaml.safe_dump({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                            "scrape_configs": [{"job_name": "pods", "static_configs": groups}]}, file)

    def __enter__(self):
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.process = subprocess.Popen(["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
                                         f"--web.listen-address={ADDRESS}"], stdout=self.log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 30
        while True:
            try:
                # All are read: of a counter two samples are needed.
                if len(self.query("count_over_time(up[1m]) > 2 and up == 1")) == len(self.query("up")) > 0:
                    return self
            except (OSError, ValueError):  # it starts, in plain text
                pass
            if time.monotonic() > end or self.process.poll() is not None:
                self.__exit__()
                with open(os.path.join(self.folder, "log")) as file:
                    raise AssertionError(f"Prometheus does not read every pod: {file.read()[-1000:]}")
            time.sleep(0.3)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self.log.close()

    def query(self, expression):
        url = f"http://{ADDRESS}/api/v1/query?" + urllib.parse.urlencode({"query": expression.replace("$__rate_interval", INTERVAL)})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(url, timeout=10) as reply:
                return json.load(reply)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts: who waits asks again
                raise
            raise AssertionError(f"{expression}: {error.read().decode()[:300]}")


def silent(cluster, expressions):
    """The (where, PromQL) that have no series, or no number, while the cluster answers."""
    with Prometheus(cluster) as prometheus:
        for _ in range(3):
            cluster.ask()
        time.sleep(2)
        return [f"{where}: no series of {expression}" for where, expression in expressions
                if not any(series["value"][1] != "NaN" for series in prometheus.query(expression))]
