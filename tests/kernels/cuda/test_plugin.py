#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The plugin that nvcc built, where there is no driver: it exports one function, is loaded, and says what is missing; programs that
were not told to use it compute on the processors and log why.

    test_plugin.py PLUGIN_FOLDER    with SLUICE_BIN
"""
import os
import pathlib
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tools"))
import script  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
SLUICE = os.path.join(os.environ.get("SLUICE_BIN", "build/bin"), "sluice")
NO_DRIVER = "no NVIDIA driver (CUDA says 35); nvidia-smi must work"


def main():
    folder = sys.argv[1]
    if os.path.exists("/proc/driver/nvidia/version"):
        print("skipped: this machine has a driver; `make gpu-kit` makes what is run there")
        return 77
    plugin = os.path.join(folder, "libsluice_cuda.so")
    symbols = subprocess.run(["nm", "-D", "--defined-only", plugin], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in symbols.splitlines()]
    if names != ["sl_plugin_get"]:
        print(f"{plugin} exports {names}")
        return 1
    environment = {**os.environ, "LD_LIBRARY_PATH": folder}
    command = [SLUICE, "run", "--local", "--quiet", "--log", "info", "--model", str(ROOT / "models/demo"), "--max-new-tokens", "2"]
    for device, works, text in (("cuda", False, NO_DRIVER), ("cuda:1", False, NO_DRIVER), ("auto", True, f'device=cpu not=cuda reason="{NO_DRIVER}"')):
        done = subprocess.run(command + ["--device", device, "--prompt", "The "], capture_output=True, text=True, timeout=60, env=environment)
        if (done.returncode == 0) != works or text not in done.stderr:
            print(f"--device {device}: {done.returncode} {done.stderr}")
            return 1
    return 0


if __name__ == "__main__":
    script.needs_arguments(1, "PLUGIN_FOLDER")
    script.needs_tools("nm", way="apt-get install binutils")
    script.needs_programs(os.path.dirname(SLUICE))
    sys.exit(main())
