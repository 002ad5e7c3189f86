# SPDX-License-Identifier: Apache-2.0
"""Policies of deploy/compose and deploy/systemd, as policies.py has them for Kubernetes. units() and compose() yield violations;
BREAKS are (which, words of the file, words instead), each of which must be noticed."""
import glob
import os
import re

import yaml

import manifests as m

SLACK = 15  # seconds behind --grace, as in policies.py
HARDENED = ["DynamicUser=yes", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict", "ProtectHome=yes", "PrivateTmp=yes",
            "PrivateDevices=yes", "RestrictNamespaces=yes", "SystemCallFilter=@system-service", "UMask=0077"]


def read(root):
    """{file: text} of both folders."""
    paths = glob.glob(os.path.join(root, "systemd", "*.service")) + glob.glob(os.path.join(root, "compose", "*.yaml"))
    result = {}
    for path in paths:
        with open(path) as file:
            result[os.path.relpath(path, root)] = file.read()
    return result


def given(program, words, where):
    """({option: value}, what is wrong with the words)"""
    options, problems = {}, []
    for word in words:
        match = re.fullmatch(r"--([a-z-]+)(?:=(.*))?", word)
        if not match or match[1] not in m.options(program):
            problems.append(f"{where}: {program} has no {word}")
        else:
            options[match[1]] = match[2]
    return options, problems


def units(files):
    found = set()
    for path, text in files.items():
        if not path.endswith(".service"):
            continue
        words = re.search(r"^ExecStart=(.+)$", text, re.M)[1].split()
        program = os.path.basename(words[0])
        found.add(program)
        options, problems = given(program, words[1:], path)
        yield from problems
        stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.M)
        if not stop or int(stop[1]) != m.seconds(options.get("grace", "0")) + SLACK:
            yield f"{path}: TimeoutStopSec is not --grace + {SLACK}"
        for line in HARDENED:
            if not re.search(f"^{re.escape(line)}$", text, re.M):
                yield f"{path}: no {line}"
        state = re.search(r"^StateDirectory=(.+)$", text, re.M)
        if "%S/" in text and not (state and f"%S/{state[1]}/" in text):
            yield f"{path}: writes to a folder that is not its StateDirectory"
    for program in m.PROGRAMS:
        if program not in found:
            yield f"no unit runs {program}"


def compose(files):
    document = yaml.safe_load(files["compose/compose.yaml"])
    services, found, ports = document["services"], set(), set()
    for name, service in services.items():
        where = f"compose: {name}"
        program = os.path.basename(service["command"][0])
        found.add(program)
        options, problems = given(program, service["command"][1:], where)
        yield from problems
        every = frozenset().union(*(m.options(each) for each in m.PROGRAMS))
        for variable in service.get("environment", {}):
            if m.option_of(variable) not in every:
                yield f"{where}: {variable} is an option of no program"
        if m.seconds(service.get("stop_grace_period", "0")) != m.seconds(options.get("grace", "0")) + SLACK:
            yield f"{where}: stop_grace_period is not --grace + {SLACK}"
        if service.get("user") != "65532:65532" or service.get("read_only") is not True or service.get("cap_drop") != ["ALL"]:
            yield f"{where}: more privileges than it needs"
        if not service.get("mem_limit"):
            yield f"{where}: no mem_limit, by which --arena auto goes"
        for option in ("listen", "fabric-listen"):
            host, _, port = options.get(option, "").rpartition(":")
            ports.add((name, port))
            if program in ("sluice-prefill", "sluice-decode", "sluice-kvstore") and host != service.get("hostname"):
                yield f"{where}: --{option} is not a name that others resolve"
    for program in set(m.PROGRAMS) - found:
        yield f"compose: nothing runs {program}"
    for name, service in services.items():
        host, _, port = service["environment"]["SLUICE_COORDINATOR"].rpartition(":")
        if (host, port) not in ports:
            yield f"compose: {name}: nothing listens at {host}:{port}"
        for published in service.get("ports", []):
            if (name, published.rsplit(":", 1)[1]) not in ports:
                yield f"compose: {name}: nothing listens at {published}"
            if not published.startswith("127.0.0.1:"):
                yield f"compose: {name}: {published} is open to other machines, and there are no certificates"
    for name in yaml.safe_load(files["compose/model.yaml"])["services"]:
        if "model" not in m.options(os.path.basename(services[name]["command"][0])):
            yield f"compose: {name} has no --model"


def as_pods(files):
    """The services of compose.yaml as pods.py plays them. A container's "every address" is its own one there."""
    documents = []
    for name, service in yaml.safe_load(files["compose/compose.yaml"])["services"].items():
        labels = {m.COMPONENT: name}
        environment = {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in service["environment"].items()}
        ports = {option: int(word.rsplit(":", 1)[1]) for word in service["command"]
                 for option in [word.split("=")[0][2:]] if option.endswith("listen")}
        memory = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["mem_limit"]).upper()
        probe = {kind: {"httpGet": {"path": path, "port": "admin"}} for kind, path in
                 (("startupProbe", "/startupz"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz"))}
        container = {"name": name, "command": service["command"][:1],
                     "args": [word.replace("=0.0.0.0:", "=$(POD_IP):") for word in service["command"][1:]],
                     "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                             *({"name": key, "value": value} for key, value in environment.items())],
                     "ports": [{"name": {"listen": "http" if name == "gateway" else "grpc"}.get(option, option), "containerPort": port}
                               for option, port in ports.items()] + [{"name": "admin", "containerPort": 7680}],
                     "resources": {"limits": {"memory": memory}},
                     "volumeMounts": [{"name": volume.split(":")[0], "mountPath": volume.split(":")[1]} for volume in service.get("volumes", [])],
                     **probe}
        documents.append({"kind": "Deployment", "metadata": {"name": name}, "spec": {"template": {
            "metadata": {"labels": labels}, "spec": {"containers": [container],
                                                     "terminationGracePeriodSeconds": int(m.seconds(service["stop_grace_period"]))}}}})
        documents.append({"kind": "Service", "metadata": {"name": name, "namespace": "compose"}, "spec": {"selector": labels}})
    return documents


BREAKS = [
    (units, "--grace=120s --name=decode-%H", "--grace=300s --name=decode-%H"),
    (units, "--name=decode-%H", "--names=decode-%H"),
    (units, "NoNewPrivileges=yes", "NoNewPrivileges=no"),
    (units, "StateDirectory=sluice-coordinator\n", "StateDirectory=sluice\n"),
    (units, "sluice-gateway --grace", "sluice-coordinator --grace"),
    (compose, "--fabric-listen=decode:7701", "--fabric-listen=0.0.0.0:7701"),
    (compose, "stop_grace_period: 75s", "stop_grace_period: 10s"),
    (compose, "coordinator:7600\n", "coordinator:7601\n"),
    (compose, '"127.0.0.1:8000:8000"', '"8000:8000"'),
    (compose, "read_only: true", "read_only: false"),
    (compose, "mem_limit: 2g", "shm_size: 2g"),
    (compose, "SLUICE_ARENA", "SLUICE_ARENAS"),
    (compose, "/bin/sluice-gateway", "/bin/sluice-decode"),
    (compose, "  decode: *model", "  gateway: *model"),
]


def check(root):
    files = read(root)
    return [*units(files), *compose(files)]


def self_test(root):
    """Returns the breaks that no check noticed."""
    files, missed = read(root), []
    for function, words, instead in BREAKS:
        broken = {path: text.replace(words, instead) for path, text in files.items()}
        if broken == files or not list(function(broken)):
            missed.append(f"{function.__name__} does not notice {instead!r} for {words!r}")
    return missed
