# SPDX-License-Identifier: Apache-2.0
"""The parts of manifests and programs that policies.py reads: documents by kind, ports by name, options by --help, quantities as numbers."""
import functools
import glob
import os
import re
import subprocess

import yaml

PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("SLUICE_BIN", os.path.join(PROJECT, "build", "bin"))
PROGRAMS = ["sluice-coordinator", "sluice-gateway", "sluice-prefill", "sluice-decode", "sluice-kvstore"]
COMPONENT = "app.kubernetes.io/component"


def raw(folder=os.path.join(PROJECT, "deploy", "base")):
    """The files of the base as they are, without kustomize: the ConfigMap is made of config.env here, and the labels are added
    that kustomization.yaml adds."""
    documents = []
    for path in sorted(glob.glob(os.path.join(folder, "*.yaml"))):
        if os.path.basename(path) != "kustomization.yaml":
            with open(path) as file:
                documents += [document for document in yaml.safe_load_all(file) if document]
    with open(os.path.join(folder, "config.env")) as file:
        pairs = [line.rstrip("\n").split("=", 1) for line in file if line.strip() and not line.startswith("#")]
    documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sluice-config"}, "data": dict(pairs)})
    return documents


def of_kind(documents, *kinds):
    return [document for document in documents if document["kind"] in kinds]


def workloads(documents):
    return of_kind(documents, "Deployment", "StatefulSet", "Job")


def name(document):
    return document["metadata"]["name"]


def pod(workload):
    return workload["spec"]["template"]["spec"]


def pod_labels(workload):
    return workload["spec"]["template"]["metadata"]["labels"]


def containers(workload):
    return pod(workload)["containers"]


def program(container):
    """The program of Sluice that a container runs; None: it runs another program."""
    base = os.path.basename((container.get("command") or [""])[0])
    return base if base in PROGRAMS else None


def ours(workload):
    """The container of a program of Sluice; None: the workload has none."""
    return next((container for container in containers(workload) if program(container)), None)


def arguments(container):
    """{"listen": "$(POD_IP):7600", "pin": None}"""
    return {match[1]: match[2] for match in (re.fullmatch(r"--([a-z-]+)(?:=(.*))?", word) for word in container.get("args", []))
            if match}


def environment(documents, container):
    """All that the container's environment has, of ConfigMaps too."""
    result = {}
    for source in container.get("envFrom", []):
        wanted = source.get("configMapRef", {}).get("name")
        for config in of_kind(documents, "ConfigMap"):
            if name(config) == wanted:
                result.update(config.get("data") or {})
    result.update({entry["name"]: entry.get("value") for entry in container.get("env", [])})
    return result


@functools.lru_cache(maxsize=None)
def options(which, *words):
    """Names of a program's options, or of a command's, as --help has them."""
    text = subprocess.run([os.path.join(BIN, which), *words, "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
    return frozenset(re.findall(r"^ +(?:-\w, )?--([a-z][a-z-]*)", text, re.M))


def option_of(variable):
    return variable[len("SLUICE_"):].lower().replace("_", "-")


def matches(selector, labels):
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for rule in selector.get("matchExpressions") or []:
        if rule["operator"] == "In" and labels.get(rule["key"]) not in rule["values"]:
            return False
        if rule["operator"] not in ("In",):
            raise ValueError(f"operator {rule['operator']} is not understood here")
    return True


def size(text):
    """Kubernetes' 64Gi and 1G, and our own programs' 180G, which are powers of 1024 there."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()
    factor = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    return float(number) * factor[unit]


def seconds(text):
    number, unit = re.fullmatch(r"([0-9.]+)(ms|s|m|h)", text).groups()
    return float(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]
