#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
Policies of every manifest in deploy/. policies.py checks deploy/base as its files are, and deploy/compose and deploy/systemd by
plain.py; deploy_check.py checks kustomize's output for every overlay and component. policies.py --self-test breaks the manifests in one way
after the other, and fails if no policy notices.

To add a policy: a function that yields violations, with @policy, and a row in BREAKS that it notices.
"""
import copy
import os
import sys

import manifests as m
import plain

POLICIES = {}
SLACK = 15  # seconds between the end of --grace and the kubelet's SIGKILL
# The allowed connections: caller, callee and port. All others must be refused.
PATHS = {("gateway", "coordinator", "grpc"), *((worker, "coordinator", "grpc") for worker in ("prefill", "decode", "kvstore")),
         *((caller, worker, "grpc") for caller in ("coordinator", "prefill", "decode", "kvstore") for worker in
           ("prefill", "decode", "kvstore")),
         *((caller, worker, "fabric") for caller in ("prefill", "decode", "kvstore") for worker in ("prefill", "decode", "kvstore")),
         ("metrics", "gateway", "http"), ("outside", "gateway", "http"),
         *(("metrics", each, "admin") for each in ("gateway", "coordinator", "prefill", "decode", "kvstore"))}


# With an etcd of the deployment's own:
ETCD_PATHS = {("coordinator", "etcd", "client"), ("etcd", "etcd", "peer"), ("metrics", "etcd", "admin")}


def policy(check):
    POLICIES[check.__name__] = check
    return check


def each(documents):
    """(name of the workload, workload, the container of our program)"""
    for workload in m.workloads(documents):
        container = m.ours(workload)
        if container:
            yield m.name(workload), workload, container


def every(documents):
    """Returns all workloads, also those of other programs."""
    return [(m.name(workload), workload, m.containers(workload)[0]) for workload in m.workloads(documents)]


@policy
def all_programs_are_there(documents):
    found = {m.program(container) for _, _, container in each(documents)}
    for program in m.PROGRAMS:
        if program not in found:
            yield f"nothing runs {program}"


@policy
def three_probes(documents):
    # A model takes minutes to load; a second without an answer is no reason to kill who computes.
    wanted = {"startupProbe": ("/startupz", 10, 5, 360), "livenessProbe": ("/livez", 10, 5, 6), "readinessProbe": ("/readyz", 5, 2, 3)}
    for name, _, container in each(documents):
        for kind, (path, period, timeout, failures) in wanted.items():
            probe = container.get(kind, {})
            have = (probe.get("httpGet", {}).get("path"), probe.get("periodSeconds"), probe.get("timeoutSeconds"),
                    probe.get("failureThreshold"))
            if have != (path, period, timeout, failures):
                yield f"{name}: {kind} is {have}, not {(path, period, timeout, failures)}"
            if probe.get("httpGet", {}).get("port") != "admin":
                yield f"{name}: {kind} does not ask the admin port"
            if "initialDelaySeconds" in probe:
                yield f"{name}: {kind} has initialDelaySeconds, which the startup probe is there for"


@policy
def grace_adds_up(documents):
    for name, workload, container in each(documents):
        before = container.get("lifecycle", {}).get("preStop", {})
        sleep = before.get("sleep", {}).get("seconds", 0)
        if before and "sleep" not in before:
            yield f"{name}: preStop is not the kubelet's sleep, and there is nothing in the image to run"
        grace = m.arguments(container).get("grace")
        if grace is None:
            yield f"{name}: no --grace"
            continue
        want = sleep + m.seconds(grace) + SLACK
        have = m.pod(workload).get("terminationGracePeriodSeconds")
        if have != want:
            yield f"{name}: terminationGracePeriodSeconds {have}, but preStop {sleep} + --grace {grace} + {SLACK} are {want:g}"
        in_front = any(m.matches({"matchLabels": service["spec"]["selector"]}, m.pod_labels(workload)) and
                       service["spec"].get("clusterIP") != "None" for service in m.of_kind(documents, "Service"))
        if in_front and sleep < 15:
            yield f"{name}: behind a Service with an address, and sleeps {sleep} s before it stops: connections still come"


@policy
def one_pod_at_a_time(documents):
    budgets = m.of_kind(documents, "PodDisruptionBudget")
    for name, workload, _ in every(documents):
        if workload["kind"] == "Job":  # it ends, and is not evicted for an upgrade of the cluster
            continue
        mine = [budget for budget in budgets if m.matches(budget["spec"]["selector"], m.pod_labels(workload))]
        if len(mine) != 1 or mine[0]["spec"].get("maxUnavailable") != 1:
            yield f"{name}: wants one PodDisruptionBudget with maxUnavailable 1, has {[m.name(budget) for budget in mine]}"


@policy
def guaranteed(documents):
    for name, workload, _ in every(documents):
        for container in m.containers(workload):
            resources = container.get("resources", {})
            limits, requests = resources.get("limits", {}), resources.get("requests", {})
            if limits != requests:
                yield f"{name}: limits {limits} are not requests {requests}"
            for what in ("cpu", "memory"):
                if what not in limits:
                    yield f"{name}: no limit of {what}"
            if m.program(container) in ("sluice-prefill", "sluice-decode") and not str(limits.get("cpu", "")).isdigit():
                yield f"{name}: cpu {limits.get('cpu')} is not whole, so that no processor is the pod's alone"


@policy
def huge_pages_are_the_arena(documents):
    # A pod with fewer of them does not start, one with more wastes them.
    for name, _, container in each(documents):
        reserved = container.get("resources", {}).get("limits", {}).get("hugepages-2Mi")
        environment = m.environment(documents, container)
        wanted = environment.get("SLUICE_HUGE_PAGES") == "yes" and m.program(container) in ("sluice-prefill", "sluice-decode", "sluice-kvstore")
        arena = environment.get("SLUICE_ARENA", "")
        if wanted != (reserved is not None) or wanted and (not arena[:1].isdigit() or m.size(arena) != m.size(reserved)):
            yield f"{name}: hugepages-2Mi {reserved}, SLUICE_HUGE_PAGES {wanted}, SLUICE_ARENA {arena}"
        if wanted and environment.get("SLUICE_TRANSPORT") != "tcp":
            yield f"{name}: huge pages want SLUICE_TRANSPORT=tcp"


@policy
def least_privilege(documents):
    for name, workload, _ in every(documents):
        spec = m.pod(workload)
        context = spec.get("securityContext", {})
        if not (context.get("runAsNonRoot") is True and context.get("runAsUser") == 65532 and context.get("runAsGroup") == 65532):
            yield f"{name}: does not run as user and group 65532"
        if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{name}: seccompProfile is not RuntimeDefault"
        if context.get("fsGroup") is not None and context.get("fsGroupChangePolicy") != "OnRootMismatch":
            yield f"{name}: fsGroup changes the modes of files that must be their user's alone"
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(key):
                yield f"{name}: {key}"
        for volume in spec.get("volumes", []):
            if "hostPath" in volume:
                yield f"{name}: volume {volume['name']} is a folder of the host"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{name}: has a token of the API server, which it does not need"
        for container in m.containers(workload) + spec.get("initContainers", []):
            own = container.get("securityContext", {})
            if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
                yield f"{name}: {container['name']} may gain privileges"
            if own.get("readOnlyRootFilesystem") is not True:
                yield f"{name}: {container['name']} may write into its root"
            if own.get("capabilities") != {"drop": ["ALL"]}:
                yield f"{name}: {container['name']} has capabilities"


@policy
def namespace_is_restricted(documents):
    for namespace in m.of_kind(documents, "Namespace"):
        if namespace["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"namespace {m.name(namespace)} does not enforce restricted"
    if not m.of_kind(documents, "Namespace"):
        yield "there is no namespace"


@policy
def options_exist(documents):
    known_anywhere = frozenset().union(*(m.options(program) for program in m.PROGRAMS))
    for config in m.of_kind(documents, "ConfigMap"):
        for variable in config.get("data") or {}:
            if variable.startswith("SLUICE_") and m.option_of(variable) not in known_anywhere:
                yield f"{m.name(config)}: {variable} is an option of no program"
    for name, _, container in every(documents):
        if container["name"] == "bench":
            for option in set(m.arguments(container)) - m.options("sluice", "bench", "cluster"):
                yield f"{name}: sluice bench cluster has no --{option}"
    for name, _, container in each(documents):
        known = m.options(m.program(container))
        given = m.arguments(container)
        for word in container.get("args", []):
            if word.lstrip("-").split("=")[0] not in given:
                yield f"{name}: argument {word!r} is not --name=value"
        for option in given:
            if option not in known:
                yield f"{name}: {m.program(container)} has no --{option}"
        for entry in container.get("env", []):
            if entry["name"].startswith("SLUICE_") and m.option_of(entry["name"]) not in known:
                yield f"{name}: {entry['name']} is not an option of {m.program(container)}"


@policy
def nothing_foreign_in_the_environment(documents):
    for name, workload, container in each(documents):
        if m.pod(workload).get("enableServiceLinks") is not False:
            yield f"{name}: Services write variables that begin with SLUICE_ into its environment"
        if "UCX_TLS" in m.environment(documents, container):
            yield f"{name}: UCX_TLS would choose the transport behind our back; there is --transport"


@policy
def ports_meet(documents):
    options = {"grpc": "listen", "http": "listen", "fabric": "fabric-listen", "admin": "admin-listen"}
    for name, workload, container in each(documents):
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        given = m.arguments(container)
        for port, number in ports.items():
            address = given.get(options.get(port, port), "")
            if not address.endswith(f":{number}"):
                yield f"{name}: port {port} is {number}, but --{options.get(port, port)} is {address!r}"
        for option in ("listen", "fabric-listen", "admin-listen"):
            if option in m.options(m.program(container)) and not given.get(option, "").startswith("$(POD_IP):"):
                yield f"{name}: --{option} is {given.get(option)!r}, which other pods cannot reach"
        if "admin" not in ports:
            yield f"{name}: no admin port"
        if container.get("env") and not any(entry["name"] == "POD_IP" for entry in container["env"]):
            yield f"{name}: POD_IP is not set"
    for service in m.of_kind(documents, "Service"):
        behind = [workload for workload in m.workloads(documents)
                  if m.matches({"matchLabels": service["spec"]["selector"]}, m.pod_labels(workload))]
        if not behind:
            yield f"service {m.name(service)} selects nothing"
        for port in service["spec"]["ports"]:
            for workload in behind:
                names = {each["name"] for container in m.containers(workload) for each in container.get("ports", [])}
                if port["targetPort"] not in names:
                    yield f"service {m.name(service)}: {m.name(workload)} has no port {port['targetPort']}"
    for workload in m.of_kind(documents, "StatefulSet"):
        if workload["spec"]["serviceName"] not in [m.name(service) for service in m.of_kind(documents, "Service")]:
            yield f"{m.name(workload)}: there is no service {workload['spec']['serviceName']}"


@policy
def addresses_lead_somewhere(documents):
    """SLUICE_COORDINATOR and the like name services and ports that are there."""
    services = {m.name(service): {port["port"] for port in service["spec"]["ports"]} for service in m.of_kind(documents, "Service")}
    for name, _, container in each(documents):
        for variable in ("SLUICE_COORDINATOR", "SLUICE_ETCD"):
            if m.option_of(variable) not in m.options(m.program(container)):
                continue
            for address in filter(None, (m.environment(documents, container).get(variable) or "").split(",")):
                host, port = address.rsplit(":", 1)
                service = host.split(".")[1 if host.split(".")[0][-1].isdigit() else 0]
                if int(port) not in services.get(service, ()):
                    yield f"{name}: {variable} has {address}, and no service {service} has port {port}"
        if "coordinator" in m.options(m.program(container)) and not m.environment(documents, container).get("SLUICE_COORDINATOR"):
            yield f"{name}: does not know where the coordinator is"


def peers_allow(peers, labels, namespace_labels):
    if not peers:
        return True
    for peer in peers:
        if "ipBlock" in peer:
            continue
        in_namespace = m.matches(peer["namespaceSelector"], namespace_labels) if "namespaceSelector" in peer else \
            namespace_labels.get("own") == "yes"
        if in_namespace and m.matches(peer.get("podSelector", {}), labels):
            return True
    return False


def allowed(documents, direction, labels, other_labels, other_namespace, port):
    """Returns whether pods with `labels` may send (Egress) or receive (Ingress)."""
    selecting = [policy["spec"] for policy in m.of_kind(documents, "NetworkPolicy")
                 if direction in policy["spec"]["policyTypes"] and m.matches(policy["spec"].get("podSelector", {}), labels)]
    if not selecting:
        return True
    side = "to" if direction == "Egress" else "from"
    return any(peers_allow(rule.get(side), other_labels, other_namespace) and
               (not rule.get("ports") or any(each["port"] == port for each in rule["ports"]))
               for spec in selecting for rule in spec.get(direction.lower(), []))


@policy
def only_these_paths(documents):
    own = {"own": "yes", "kubernetes.io/metadata.name": "sluice"}
    callers = {"outside": ({}, {"kubernetes.io/metadata.name": "other"}), "metrics": ({}, {"sluice.metrics": "allowed"})}
    pods = {}
    for name, workload, container in every(documents):
        # Raw files do not have the labels that kustomization.yaml adds.
        labels = {"app.kubernetes.io/name": "sluice", **m.pod_labels(workload)}
        pods[labels[m.COMPONENT]] = (labels, {port["name"]: port["containerPort"] for port in container.get("ports", [])})
        callers[labels[m.COMPONENT]] = (labels, own)
    paths = PATHS | (ETCD_PATHS if "etcd" in pods else set()) | ({("bench", "gateway", "http")} if "bench" in pods else set())
    for caller, (labels, namespace) in callers.items():
        for target, (target_labels, ports) in pods.items():
            for port, number in ports.items():
                may = allowed(documents, "Ingress", target_labels, labels, namespace, number)
                if namespace is own:
                    may = may and allowed(documents, "Egress", labels, target_labels, own, number)
                if may != ((caller, target, port) in paths):
                    yield f"{caller} {'may' if may else 'may not'} connect to {target}'s port {port}"


@policy
def volumes_meet(documents):
    for name, workload, container in every(documents):
        claims = workload["spec"].get("volumeClaimTemplates", [])
        there = {volume["name"] for volume in m.pod(workload).get("volumes", [])} | {m.name(claim) for claim in claims}
        mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", [])}
        for mount in mounts:
            if mount not in there:
                yield f"{name}: there is no volume {mount}"
        for volume in there - set(mounts):
            yield f"{name}: volume {volume} is mounted nowhere"
        disk = m.arguments(container).get("disk-bytes") or m.environment(documents, container).get("SLUICE_DISK_BYTES")
        if disk and m.program(container) == "sluice-kvstore":
            room = [m.size(claim["spec"]["resources"]["requests"]["storage"]) for claim in claims] + \
                [m.size(volume["emptyDir"]["sizeLimit"]) for volume in m.pod(workload).get("volumes", [])
                 if volume.get("emptyDir", {}).get("sizeLimit") and volume["name"] == "capsules"]
            if not room or m.size(disk) > 0.95 * room[0]:
                yield f"{name}: --disk-bytes {disk} of a volume of {room}: a file system wants some for itself"


def check(documents, only=None):
    """[(policy, what is wrong)]"""
    return [(name, problem) for name, function in POLICIES.items() if only in (None, name) for problem in function(documents)]


# ---- what must be noticed ----------------------------------------------------------------------------------------------------


def find(documents, kind, name):
    return next(document for document in documents if document["kind"] == kind and m.name(document) == name)


def container_of(documents, name):
    return next(container for found, _, container in each(documents) if found == name)


def spec_of(documents, name):
    return next(m.pod(workload) for found, workload, _ in each(documents) if found == name)


def without(documents, kind, name):
    documents.remove(find(documents, kind, name))


BREAKS = [
    ("all_programs_are_there", lambda d: without(d, "StatefulSet", "sluice-kvstore")),
    ("three_probes", lambda d: container_of(d, "sluice-decode").pop("startupProbe")),
    ("three_probes", lambda d: container_of(d, "sluice-decode")["livenessProbe"].update(timeoutSeconds=1)),
    ("three_probes", lambda d: container_of(d, "sluice-prefill")["readinessProbe"]["httpGet"].update(port="grpc")),
    ("grace_adds_up", lambda d: spec_of(d, "sluice-prefill").update(terminationGracePeriodSeconds=30)),
    ("grace_adds_up", lambda d: container_of(d, "sluice-gateway").update(lifecycle={"preStop": {"exec": {"command": ["sleep", "15"]}}})),
    ("grace_adds_up", lambda d: container_of(d, "sluice-gateway")["args"].remove("--grace=120s")),
    ("one_pod_at_a_time", lambda d: without(d, "PodDisruptionBudget", "sluice-decode")),
    ("one_pod_at_a_time", lambda d: find(d, "PodDisruptionBudget", "sluice-gateway")["spec"].update(maxUnavailable=2)),
    ("guaranteed", lambda d: container_of(d, "sluice-decode")["resources"]["limits"].update(memory="128Gi")),
    ("guaranteed", lambda d: container_of(d, "sluice-decode").update(resources={})),
    ("huge_pages_are_the_arena", lambda d: container_of(d, "sluice-decode")["resources"]["limits"].update({"hugepages-2Mi": "8Gi"})),
    ("huge_pages_are_the_arena", lambda d: next(iter(m.of_kind(d, "ConfigMap")))["data"].update(SLUICE_HUGE_PAGES="yes")),
    ("least_privilege", lambda d: spec_of(d, "sluice-decode")["securityContext"].update(runAsUser=0)),
    ("least_privilege", lambda d: container_of(d, "sluice-decode")["securityContext"].update(readOnlyRootFilesystem=False)),
    ("least_privilege", lambda d: container_of(d, "sluice-decode")["securityContext"].update(capabilities={"add": ["IPC_LOCK"]})),
    ("least_privilege", lambda d: spec_of(d, "sluice-decode").update(hostNetwork=True)),
    ("least_privilege", lambda d: spec_of(d, "sluice-decode")["securityContext"].pop("fsGroupChangePolicy")),
    ("namespace_is_restricted", lambda d: find(d, "Namespace", "sluice")["metadata"].update(labels={})),
    ("options_exist", lambda d: container_of(d, "sluice-decode")["args"].append("--disk=/x")),
    ("options_exist", lambda d: container_of(d, "sluice-decode")["args"].append("serve")),
    ("options_exist", lambda d: container_of(d, "sluice-decode")["env"].append({"name": "SLUICE_ARENAS", "value": "1G"})),
    ("options_exist", lambda d: next(iter(m.of_kind(d, "ConfigMap")))["data"].update(SLUICE_MODELS="/m")),
    ("nothing_foreign_in_the_environment", lambda d: spec_of(d, "sluice-decode").pop("enableServiceLinks")),
    ("nothing_foreign_in_the_environment", lambda d: container_of(d, "sluice-decode")["env"].append({"name": "UCX_TLS", "value": "tcp"})),
    ("ports_meet", lambda d: container_of(d, "sluice-decode")["ports"][0].update(containerPort=7602)),
    ("ports_meet", lambda d: find(d, "Service", "sluice-gateway")["spec"]["ports"][0].update(targetPort="https")),
    ("ports_meet", lambda d: find(d, "Service", "sluice-decode")["spec"]["selector"].update({m.COMPONENT: "decoder"})),
    ("addresses_lead_somewhere", lambda d: next(iter(m.of_kind(d, "ConfigMap")))["data"].update(SLUICE_COORDINATOR="sluice-coordinator:80")),
    ("only_these_paths", lambda d: without(d, "NetworkPolicy", "sluice-deny") or without(d, "NetworkPolicy", "sluice-workers")),
    ("only_these_paths", lambda d: find(d, "NetworkPolicy", "sluice-workers")["spec"]["ingress"].pop()),
    ("only_these_paths", lambda d: find(d, "NetworkPolicy", "sluice-workers")["spec"]["ingress"][1].pop("from")),
    ("only_these_paths", lambda d: find(d, "NetworkPolicy", "sluice-coordinator")["spec"].pop("egress")),
    ("volumes_meet", lambda d: container_of(d, "sluice-decode")["volumeMounts"].append({"name": "x", "mountPath": "/x"})),
    ("volumes_meet", lambda d: container_of(d, "sluice-kvstore")["args"].append("--disk-bytes=200G")),
]


def self_test(documents):
    """Returns the breaks that no policy noticed."""
    missed = []
    for number, (name, break_it) in enumerate(BREAKS):
        broken = copy.deepcopy(documents)
        break_it(broken)
        if not check(broken, name):
            missed.append(f"{name} does not notice break {number}")
    missed += [f"no break for {name}" for name in POLICIES if name not in {row[0] for row in BREAKS}]
    return missed


def main():
    documents = m.raw()
    root = os.path.join(m.PROJECT, "deploy")
    problems = [f"{name}: {problem}" for name, problem in check(documents)] + plain.check(root)
    if "--self-test" in sys.argv[1:]:
        problems += self_test(documents) + plain.self_test(root)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{len(POLICIES)} policies hold for {len(documents)} documents, units and compose files fit" +
              (f", and {len(BREAKS) + len(plain.BREAKS)} breaks are noticed" if "--self-test" in sys.argv[1:] else ""))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
