# SPDX-License-Identifier: Apache-2.0
"""What the scripts in tools/ and tests/ share when a person starts one: --help prints the script's docstring, and a script that lacks
something says in one sentence what it is and how to get it, and exits with 2. tests/unit/tools/test_scripts.py starts all of them.

No check here imports the module that it looks for: the caller does that afterwards.
"""
import importlib.util
import os
import shutil
import sys

DEBIAN = {"google.protobuf": "python3-protobuf", "grpc": "python3-grpcio", "jinja2": "python3-jinja2", "numpy": "python3-numpy"}
PIP = {"Levenshtein": "python-Levenshtein"}  # where the package has another name than its module


def stop(sentence, code=2):
    """Prints why the script cannot run, and ends it."""
    print(f"{os.path.basename(sys.argv[0])}: {sentence}", file=sys.stderr)
    sys.exit(code)


def asked_for_help():
    return any(word in ("-h", "--help") for word in sys.argv[1:])


def help_if_asked():
    """Prints the docstring of the script that was started and ends it, if its command line asks for help."""
    if asked_for_help():
        print((sys.modules["__main__"].__doc__ or "").strip())
        sys.exit(0)


def found(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that it would be part of
        return False


def needs(*modules, code=2):
    """Ends the script unless Python finds these modules; with `code`, which is 77 for a script that CTest then skips."""
    missing = [module for module in modules if not found(module)]
    if missing:
        help_if_asked()  # a parser of the script's own is not reached
        ways = [f"apt-get install {DEBIAN[module]}" if module in DEBIAN else f"pip install {PIP.get(module, module)}" for module in missing]
        stop(f"needs the Python module {' and '.join(missing)}: {'; '.join(ways)}", code)


def needs_arguments(n, usage):
    """Ends a script without a parser unless it has at least `n` arguments; `usage` names them."""
    help_if_asked()
    if len(sys.argv) <= n:
        stop(f"usage: {os.path.basename(sys.argv[0])} {usage}; --help says more")


def needs_project(folder):
    """Ends a script unless the folder that it is to check is that of the project."""
    if not os.path.isfile(os.path.join(folder, "docs", "TOUR.md")):
        stop(f"{folder} has no docs/TOUR.md: give the folder of the project")


def needs_programs(folder, *programs):
    """Ends the script unless `folder` has these programs of ours, or sluice where none is named."""
    for program in programs or ("sluice",):
        if not os.access(os.path.join(folder, program), os.X_OK):
            stop(f"there is no {program} in {folder}: run `make build`, or let SLUICE_BIN name the folder of the programs")


def needs_tools(*names, way):
    """Ends the script unless PATH has these programs of others; `way` says how to get them."""
    missing = [name for name in names if not shutil.which(name)]
    if missing:
        stop(f"needs {' and '.join(missing)} in PATH: {way}")
