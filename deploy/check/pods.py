# SPDX-License-Identifier: Apache-2.0
"""
Does the part of a kubelet that matters here: runs the pods of rendered manifests from the image's root (jail.py), with the arguments,
environment, volumes and memory limits that the manifests give them. A pod's address is one of 127.0.0.0/8, so that ports can stay the
same; Services are names in /etc/hosts; certificates, keys and the model are what an administrator would have provided. Network policies,
and the load balancing of Services, are not emulated.
"""
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

import image_demo
import jail
import manifests as m

KEY = "sk-of-acme"
SMALL = 2 << 30  # limits up to this are set; machines that try this need not have 64 GiB


def make_readable(folder):
    """As a Secret or the CSI driver has them: root's, readable for fsGroup."""
    for name in os.listdir(folder):
        os.chown(os.path.join(folder, name), 0, jail.USER)
        os.chmod(os.path.join(folder, name), 0o440)
    os.chmod(folder, 0o755)


class Pod:
    def __init__(self, cluster, workload, index, address):
        self.workload, self.address = workload, address
        self.container = m.containers(workload)[0]
        self.name = f"{m.name(workload)}-{index}"
        given = {"status.podIP": address, "metadata.name": self.name}
        self.environment = m.environment(cluster.documents, self.container)
        for entry in self.container.get("env", []):
            if "valueFrom" in entry:
                self.environment[entry["name"]] = given[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for key, value in self.environment.items():
            self.environment[key] = value and value.replace("0.0.0.0:", address + ":")  # there is one network for all here
        self.words = [re.sub(r"\$\((\w+)\)", lambda match: self.environment[match[1]], word)
                      for word in self.container["command"] + self.container.get("args", [])]
        self.mounts = {"/etc/hosts": cluster.hosts}
        if self.container["command"] == ["/bin/etcd"]:
            self.mounts["/bin/etcd"] = shutil.which("etcd")  # as build.sh --etcd would put it there
        volumes = {volume["name"]: volume for volume in m.pod(workload).get("volumes", [])}
        for mounted in self.container.get("volumeMounts", []):
            self.mounts[mounted["mountPath"]] = cluster.volume(self, volumes.get(mounted["name"], {"emptyDir": {}}))
        self.limit = m.size(self.container["resources"]["limits"]["memory"])
        if self.limit > SMALL:
            self.environment["SLUICE_ARENA"] = "64M"

    def port(self, name):
        return next(port["containerPort"] for port in self.container["ports"] if port["name"] == name)

    def probe(self, kind):
        wanted = self.container[kind]["httpGet"]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{self.address}:{self.port(wanted['port'])}{wanted['path']}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return None, str(error)

    def wait_for(self, kind, seconds=30):
        end = time.monotonic() + seconds
        while (answer := self.probe(kind))[0] != 200:
            if time.monotonic() > end:
                raise AssertionError(f"{self.name}: {kind} says {answer} after {seconds} s")
            time.sleep(0.2)


class Cluster:
    """All pods of the manifests, one of a kind, but every one of `all_of`."""

    def __init__(self, documents, inside, all_of=()):
        self.documents, self.inside = documents, inside
        self.hosts = os.path.join(inside.folder, "hosts")
        self.certificates = os.path.join(inside.folder, "certificates")
        planned = [(workload, index) for workload in m.workloads(documents)
                   for index in range(workload["spec"].get("replicas", 1) if m.name(workload) in all_of else 1)]
        addresses = [f"127.20.0.{1 + number}" for number in range(len(planned))]
        with open(self.hosts, "w") as file:
            file.write("127.0.0.1 localhost\n")
            for (workload, index), address in zip(planned, addresses):
                for service in m.of_kind(documents, "Service"):
                    if m.matches({"matchLabels": service["spec"]["selector"]}, m.pod_labels(workload)):
                        own = f"{m.name(workload)}-{index}.{m.name(service)}"
                        file.write(f"{address} {m.name(service)} {own} {own}.{service['metadata']['namespace']}.svc\n")
        os.chmod(self.hosts, 0o644)
        self.pods = [Pod(self, workload, index, address) for (workload, index), address in zip(planned, addresses)]

    def certificate(self, who, folder, names, hosts=""):
        """ROLE/NAME, into a folder, under the names of certificate and key."""
        subprocess.run([os.path.join(m.PROJECT, "tools", "test-ca.sh"), self.certificates, who], check=True,
                       env={**os.environ, "HOSTS": f"localhost {hosts}".strip()})
        os.makedirs(folder, exist_ok=True)
        for end, name in zip((".pem", ".key"), names):
            with open(os.path.join(self.certificates, who.replace("/", "-") + end)) as source, open(os.path.join(folder, name), "w") as file:
                file.write(source.read())
        with open(os.path.join(self.certificates, "ca.pem")) as source, open(os.path.join(folder, "ca.crt"), "w") as file:
            file.write(source.read())
        make_readable(folder)
        return folder

    def secret(self, name):
        folder = os.path.join(self.inside.folder, "secret-" + name)
        if os.path.isdir(folder):
            return folder
        if name == "sluice-https":
            return self.certificate("client/users", folder, ("tls.crt", "tls.key"))
        if name == "sluice-tenants":
            return self.certificate("client/acme", folder, ("client-acme.pem", "client-acme.key"))
        os.makedirs(folder)
        if name == "sluice-api-keys":
            with open(os.path.join(folder, "keys"), "w") as file:
                file.write(f"{hashlib.sha256(KEY.encode()).hexdigest()} acme answers=8\n")
        elif name == "sluice-salt":
            with open(os.path.join(folder, "salt"), "wb") as file:
                file.write(os.urandom(32))
        else:
            raise AssertionError(f"nobody has said what is in the Secret {name}")
        make_readable(folder)
        return folder

    def volume(self, pod, volume):
        """Returns the path that is mounted for a volume; None: an empty folder."""
        if "persistentVolumeClaim" in volume:
            return image_demo.MODEL
        if "secret" in volume:
            return self.secret(volume["secret"]["secretName"])
        if "csi" in volume:
            asked = {key.split("/")[1]: value.replace("${POD_NAME}", pod.name) for key, value in volume["csi"]["volumeAttributes"].items()}
            return self.certificate(asked["uri-sans"].split("/", 3)[3], os.path.join(self.inside.folder, f"csi-{pod.name}"),
                                    ("tls.crt", "tls.key"), asked.get("dns-names", ""))
        return None

    def of(self, component):
        return [pod for pod in self.pods if m.pod_labels(pod.workload)[m.COMPONENT] == component]

    def start(self, models=None):
        """models: of overlays whose image has one, {path: folder}."""
        order = {"etcd": 0, "coordinator": 1}
        for pod in sorted(self.pods, key=lambda pod: order.get(m.pod_labels(pod.workload)[m.COMPONENT], 2)):
            pod.mounts.update(models or {})
            limits = {"limit_bytes": int(pod.limit)} if pod.limit <= SMALL else {}
            start = self.inside.serve if m.program(pod.container) else self.inside.begin
            start(pod.name, pod.words, mounts=pod.mounts, environment=pod.environment, **limits)
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            for pod in self.pods:
                if "httpGet" in pod.container[kind]:
                    pod.wait_for(kind)

    def keep_to_their_limits(self):
        """Checks that --arena auto has read the memory limit, where one could be set."""
        said = self.inside.said()
        for pod in self.pods:
            if pod.limit <= SMALL and self.inside.groups and pod.environment.get("SLUICE_ARENA") == "auto" and \
                    "arena" in m.options(m.program(pod.container)):
                own = next(word[len("--name="):] for word in pod.words if word.startswith("--name="))
                lines = [line for line in said.splitlines() if own in line and "arena=" in line]
                assert lines and "/sys/fs/cgroup" in lines[0], f"{pod.name} does not go by its memory limit: {lines}"

    def kill(self, name):
        process = self.inside.running.pop(name)
        process.kill()
        process.wait()
        process.stdout.close()

    def is_secure(self):
        return self.pods[0].environment.get("SLUICE_INSECURE") != "yes"

    def ask(self):
        """By the tool as a client inside of the cluster, and by a user over HTTP."""
        coordinator = next(pod for pod in self.pods if "SLUICE_COORDINATOR" in pod.environment).environment["SLUICE_COORDINATOR"]
        mounts, options, key, context, scheme = {"/etc/hosts": self.hosts}, (), None, None, "http"
        if self.is_secure():
            own = self.certificate("client/acme", os.path.join(self.inside.folder, "client"), ("tls.crt", "tls.key"))
            mounts["/client"] = own
            options = ("--tls-ca", "/client/ca.crt", "--tls-cert", "/client/tls.crt", "--tls-key", "/client/tls.key")
            context, key, scheme = ssl.create_default_context(cafile=os.path.join(own, "ca.crt")), KEY, "https"
            context.check_hostname = False
        image_demo.ask(self.inside, coordinator, options, mounts=mounts)
        gateway = self.of("gateway")[0]
        url = f"{scheme}://{gateway.address}:{gateway.port('http')}"
        image_demo.over_http(url, key, context)
        if self.is_secure():
            try:
                image_demo.over_http(url, "sk-of-nobody", context)
            except urllib.error.HTTPError as error:
                assert error.code == 401, error
            else:
                raise AssertionError("a key that nobody has is let in")

    def stop_in_time(self):
        """Each pod ends by itself, with 0, before the kubelet would kill it."""
        for pod in reversed(self.pods):
            if pod.name not in self.inside.running:
                continue  # killed on the way
            code = self.inside.stop(pod.name, m.pod(pod.workload)["terminationGracePeriodSeconds"])
            assert code == 0 or (code == -15 and not m.program(pod.container)), f"{pod.name} ended with {code}"


def play(documents, root, models=None, all_of=(), more=None):
    """Start, ask, stop; raises AssertionError or OSError with what is wrong. more(cluster): what else to do with it while it runs."""
    with jail.Jail(root) as inside:
        try:
            cluster = Cluster(documents, inside, all_of)
            cluster.start(models)
            cluster.keep_to_their_limits()
            time.sleep(1)
            cluster.ask()
            if more:
                more(cluster)
            cluster.stop_in_time()
        except BaseException:
            sys.stderr.write(inside.said()[-6000:])
            raise
