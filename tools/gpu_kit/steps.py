# SPDX-License-Identifier: Apache-2.0
"""The steps of a visit, in the order of what they are worth. Each returns its verdict and its row of the report's first table.

To add one: a function of the visit (visit.py), and a row of STEPS. Estimates add up to less than the 480 s of a visit.
"""
import collections
import glob
import json
import os
import re
import shutil
import time

from visit import KIT

Step = collections.namedtuple("Step", "name seconds run")
QUESTION = "What is the special magic number for lantern mentioned in the provided text? The special magic number for lantern is"
DEMO = os.path.join(KIT, "models", "demo")
TINY = ["--rows", 16, "--slots", 128, "--hidden-size", 64, "--ffn", 96, "--heads", 4, "--kv-heads", 2, "--vocab", 2000, "--head-dim", 64,
        "--copy", "1M", "--runs", 1, "--seconds", 0.1]
SIZES = ["1024 16384", "2048 65536", "2048 131072"]  # rows and slots


def json_lines(text):
    """Objects that a command printed one a line, among whatever else."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:  # a line that was cut off by the end of its command
                pass
    return found


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line]
    return lines[-1][:200] if lines else "it printed nothing"


def why_not(visit):
    """Why the device cannot be opened, in a sentence; None: it can."""
    visit.step, visit.step_end = "opens", min(visit.end, time.monotonic() + 60)
    code, text = visit.run("device", visit.sluice("run", "--local", "--log", "info", "--model", DEMO, "--device", visit.device, "--prompt",
                                                  "The ", "--max-new-tokens", 2))
    named = re.search(r'device=cuda:\d+ is="([^"]+)"', text)
    visit.facts["device"] = named.group(1) if named else f"{visit.device} device"
    return None if code == 0 else last_line(text)


def results_of(visit, name, command, most=None):
    """The results of a bench by their case, also of one that did not end; and its exit code."""
    code, text = visit.run(name, command, most)
    return code, {result["case"]: result for result in json_lines(text) if result.get("case", "CPU steal") != "CPU steal"}, text


# --- opens ---------------------------------------------------------------------------------------------------------------


def opens(visit):
    if not visit.small:
        code, text = visit.run("driver", ["nvidia-smi"])
        driver = re.search(r"Driver Version: (\S+).*?CUDA Version: (\S+)", text)
        visit.row("driver", "passed" if code == 0 else "failed", f"{driver.group(1)}, CUDA {driver.group(2)}" if driver else last_line(text))
        visit.row("libcublasLt.so.13", "found" if visit.cublaslt else "not found", visit.cublaslt or "but the loader may know one")
    code, got, text = results_of(visit, "copy", visit.sluice("bench", "kernels", "--device", visit.device, "--only", "norm", "--json",
                                                             *(TINY if visit.small else ["--seconds", 0.2])))
    copy, product = got.get("copy"), got.get("product of bf16")
    if code != 0 or not copy or not product:
        return "failed", {"figure": last_line(text)}
    visit.facts["bandwidth"], visit.facts["peak"] = copy["value"] * 1e9, product["value"] * 1e12
    peers = torch_peers(visit, "peaks")
    by_torch = {peer["case"]: peer for peer in peers}
    torch_copy, torch_gemm = by_torch.get("copy"), by_torch.get("gemm peak")
    if torch_gemm:
        visit.facts["peak"] = torch_gemm["value"] * 1e12
    visit.row("copy, GB/s", "measured", f"{copy['value']:.0f}", f"torch {torch_copy['value']:.0f}" if torch_copy else "no torch",
              f"{copy['value'] / torch_copy['value']:.2f}" if torch_copy else "")
    visit.row("product of bf16, TFLOP/s", "measured", f"{product['value']:.3g} (own)",
              f"{torch_gemm['value']:.0f} (torch, cuBLASLt, 8,192 cubed)" if torch_gemm else "no torch",
              f"{product['value'] / torch_gemm['value']:.2f}" if torch_gemm else "")
    return "passed", {"figure": f"{copy['value']:.0f} GB/s, {visit.facts['peak'] / 1e12:.3g} TFLOP/s", "peer": visit.facts.get("device", visit.device)}


def torch_peers(visit, what, *more):
    if visit.small and not os.environ.get("KIT_TORCH"):
        return []
    code, text = visit.run(f"torch-{what}", [visit.torch, os.path.join(KIT, "peers.py"), what, *more])
    found = json_lines(text)
    if code != 0 or not found:
        visit.row(f"torch, {what}", "skipped" if code == 3 else "failed", last_line(re.sub(r"\n# .*", "", text)))
    return found


# --- answers -------------------------------------------------------------------------------------------------------------


def document(lines):
    return " ".join([f"Line {n} of a long text says that the sky over the harbour was grey and the boats stayed in." for n in range(lines)] +
                    ["One of the special magic numbers for lantern is: 48213. That is all."])


def write_document(lines):
    path = os.path.join(KIT, "work", "document.txt")
    with open(path, "w", encoding="ascii") as file:
        file.write(document(lines))
    return path


def recipe_of(preset):
    if preset == "full" or preset.startswith("tailorkv"):
        return preset
    return f"{preset},budget=80,chunk=64" + (",scope=stabilizers:32+tail:16" if preset.startswith("locret") else "")


def answer(visit, preset, device, path):
    return visit.run(f"{preset}-{device}", visit.sluice(
        "run", "--local", "--quiet", "--model", DEMO, "--device", device, "--arena", "24M" if visit.small else "512M", "--recipe",
        recipe_of(preset), "--prompt-file", path, "--question", QUESTION, "--max-new-tokens", 3 if visit.small else 16, "--ignore-eos"),
        None if visit.small else 60)


def chunks_agree(visit, gemm):
    """Logits are the same to the bit, however a prompt is cut into chunks."""
    prompt = 128 if visit.small else 1024
    files = [os.path.join(KIT, "work", f"logits-{gemm}-{chunk}") for chunk in (64, prompt)]
    for chunk, file in zip((64, prompt), files):
        code, text = visit.run(f"chunks-{gemm}-{chunk}", visit.sluice(
            "bench", "cells", "--device", visit.device, "--model", DEMO, "--cell", f"prefill:{prompt}", "--chunk", chunk, "--runs", 1,
            "--logits", file, variables=[f"SLUICE_GEMM={gemm}"] if gemm else []))
        if code != 0:
            return False, last_line(text)
    with open(files[0], "rb") as one, open(files[1], "rb") as other:
        first, second = one.read(), other.read()
    return first == second and any(first), "logits of chunks of 64 and of the whole prompt"


def answers(visit):
    path = write_document(1 if visit.small else 60)
    if visit.small:
        presets = ["full", "snapkv"]
    else:
        code, text = visit.run("recipes", visit.sluice("recipes", "--json"))
        presets = [recipe["name"] for recipe in json_lines(text) if "name" in recipe]
    counts = collections.Counter()

    def both(preset):
        return answer(visit, preset, "cpu", path), answer(visit, preset, visit.device, path)

    for preset, ((here_code, here), (there_code, there)) in visit.together(both, presets, 2 if visit.small else 6):
        if there_code != 0 and here_code == 0 and "use --device cpu" in there:
            counts["refused by name"] += 1
            visit.row(preset, "refused", last_line(there))
        elif here_code == there_code == 0 and here == there and here.strip():
            counts["alike"] += 1
        else:
            counts["not alike"] += 1
            visit.row(preset, "failed", f"device ({there_code}): {last_line(there)}", f"processors ({here_code}): {last_line(here)}")
    for gemm in [""] if visit.small else ["own", "wgmma", "cublaslt"]:
        same, what = chunks_agree(visit, gemm)
        counts["not alike"] += not same
        visit.row(f"chunks {gemm}".strip(), "passed" if same else "failed", what)
    figure = ", ".join(f"{n} {what}" for what, n in counts.items() if n) + f" of {len(presets)}"
    return "failed" if counts["not alike"] or not counts["alike"] else "passed", {"figure": figure, "peer": "processors"}


# --- kernels and sanitizer -----------------------------------------------------------------------------------------------


def check_programs(visit):
    """Returns the programs that check this device, the large one first: it takes as long as the others together."""
    others = "kernels_cuda_" if visit.small else "kernels_emulated_"
    names = (os.path.basename(path) for path in glob.glob(os.path.join(KIT, "checks", "*")))
    return sorted((name for name in names if not name.startswith(others)), key=lambda name: "model_sizes" not in name)


def failed_tests(text):
    names = sorted(set(re.findall(r"\[  FAILED  \] (test_\w+)", text)))
    reasons = re.findall(r"\[  ERROR   \] --- (.*)", text)
    return f"{', '.join(names)}: {reasons[0]}" if names and reasons else ", ".join(names) or last_line(re.sub(r"\n# .*", "", text))


def kernels(visit):
    programs = check_programs(visit)
    failed = []
    for program, (code, text) in visit.together(lambda name: visit.run(name, visit.ours(f"checks/{name}")), programs, 2 if visit.small else 5):
        skipped = len(re.findall(r"\[  SKIPPED \] test_", text)) // 2
        visit.row(program, "passed" if code == 0 else "out of time" if code == 124 else "failed",
                  failed_tests(text) if code else f"{text.count('[       OK ]')} tests" + (f", {skipped} of processors alone" if skipped else ""))
        failed += [program] if code else []
    return "failed" if failed else "passed", {"figure": ", ".join(failed) or f"{len(programs)} programs", "peer": "the reference tier"}


# Small programs that launch every kernel between them, those first that launch the most: counted in the emulator.
COVERING = ["bench", "model_sizes", "wgmma", "scores", "choose", "stats", "dense", "estimate", "retrieve", "kv", "evict"]
RACES = ["bench", "wgmma", "model_sizes"]


def sanitizer(visit):
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if not tool:
        return "skipped", {"figure": "no compute-sanitizer here"}
    kind = "emulated" if visit.small else "cuda"

    def program(name):
        if name == "bench":
            return visit.sluice("bench", "kernels", "--device", visit.device, *TINY)
        path = f"checks/kernels_{kind}_{name}"
        if not os.path.exists(os.path.join(KIT, path)):
            return None
        return visit.ours(path, *(["--small"] if name == "model_sizes" else []))

    jobs = [(what, name) for what, names in (("memcheck", COVERING), ("racecheck", RACES)) for name in names if program(name)]

    def look(job):
        return visit.run(f"{job[0]}-{job[1]}", [tool, "--tool", job[0], "--target-processes", "all", "--error-exitcode", "9", *program(job[1])])

    bad, ended = [], 0
    for (what, name), (code, text) in visit.together(look, jobs, 2 if visit.small else 5):
        summary = re.search(r"(?:ERROR|RACECHECK) SUMMARY: .*", text)
        verdict = "out of time" if code == 124 else "passed" if code == 0 and summary else "failed"
        visit.row(f"{what} of {name}", verdict, summary.group(0) if summary else last_line(re.sub(r"\n# .*", "", text)))
        bad += [f"{what} of {name}"] if verdict == "failed" else []
        ended += verdict == "passed"
    verdict = "failed" if bad else "passed" if ended == len(jobs) else "out of time"
    return verdict, {"figure": ", ".join(bad) or f"{ended} of {len(jobs)} runs without an error"}


# --- floors --------------------------------------------------------------------------------------------------------------


def gaps(visit):
    """Operations of the largest size that was measured, those first that lose the most time to their floor: (name, us lost)."""
    found = visit.facts.get("gaps", {})
    return sorted(found.items(), key=lambda item: -item[1])


def floor_rows(visit, size, got, peers):
    by_case = {peer["case"]: peer for peer in peers if peer["size"] == size}
    for case, result in got.items():
        if "ratio" not in result:
            continue
        peer = by_case.get(case)
        verdict = "measured" if "aim" not in result else "reached" if result["reached"] else "missed"
        predicted = f", predicted {result['aim']:.3g}" if "aim" in result else ""
        visit.rows.append({"step": visit.step, "name": f"{case}; {size}", "verdict": verdict,
                           "figure": f"{result['value']:.1f} us, {result['ratio']:.3g} of the floor{predicted}",
                           "peer": f"torch {peer['us']:.1f} us" if peer else "",
                           "ratio": f"{result['value'] / peer['us']:.2f}" if peer else ""})
    visit.save()


def floors(visit):
    sizes = ["16 128"] if visit.small else SIZES
    peers = torch_peers(visit, "floors", *sizes)
    n, reached, failures = 0, 0, []
    for size in sizes:
        rows, slots = size.split()
        options = TINY if visit.small else ["--rows", rows, "--slots", slots, "--seconds", 0.4, "--runs", 25]
        code, got, text = results_of(visit, f"size-{size}", visit.sluice("bench", "kernels", "--device", visit.device, "--json", *options))
        floor_rows(visit, size, got, peers)
        lost = {case: result["value"] * (1 - result["ratio"]) for case, result in got.items() if "ratio" in result}
        visit.facts["gaps"] = lost or visit.facts.get("gaps", {})
        if "matmul down, bf16" in got:
            visit.facts["products"] = got["matmul down, bf16"]["ratio"] * got["matmul down, bf16"]["reference_value"] * 1e12
        n += len([result for result in got.values() if "aim" in result])
        reached += len([result for result in got.values() if result.get("reached")])
        failures += [f"{size}: {last_line(text)}"] if code else []
    turns = collections.defaultdict(list)
    for turn in range(1 if visit.small else 2):  # by turns: a card that warms up favors no one
        for gemm in ["own"] if visit.small else ["own", "wgmma", "cublaslt"]:
            options = TINY if visit.small else ["--seconds", 0.3, "--runs", 15]
            code, got, text = results_of(visit, f"{gemm}-{turn}", visit.sluice(
                "bench", "kernels", "--device", visit.device, "--json", "--only", "matmul", *options,
                variables=[f"SLUICE_GEMM={gemm}", "SLUICE_LOG=info"]))
            for case, result in got.items():
                if case.startswith("matmul") and "row" not in case:
                    turns[case, gemm].append(result["value"])
            failures += [f"{gemm}: {last_line(text)}"] if code else []
    by_case = {peer["case"]: peer for peer in peers if peer["size"].startswith("2048")}
    for (case, gemm), values in turns.items():
        peer = by_case.get(case)
        visit.row(f"{case}, {gemm}", "measured", f"{min(values):.1f} us", f"torch {peer['us']:.1f} us" if peer else "",
                  f"{min(values) / peer['us']:.2f}" if peer else "")
    worst = gaps(visit)[:1]
    row = {"figure": "; ".join(failures) or f"{reached} of {n} predictions reached",
           "peer": f"most is lost by {worst[0][0]}: {worst[0][1]:.0f} us" if worst else ""}
    return "failed" if failures else "passed", row


def transport(visit, needed):
    """Shared memory where /dev/shm has room for so many bytes, which containers often have not: root may enlarge it. Else TCP."""
    def room():
        free = os.statvfs("/dev/shm")
        return free.f_bavail * free.f_frsize
    if room() < needed and not visit.small:
        visit.run("shm", ["mount", "-o", "remount,size=95%", "/dev/shm"])
    if room() < needed:
        visit.row("/dev/shm", "too small", f"{room() / 1e9:.1f} GB of the {needed / 1e9:.1f} that are needed", "by TCP instead")
        return "tcp"
    return "shm"


# --- model ---------------------------------------------------------------------------------------------------------------


def cell_rows(visit, got):
    """Rows of bench cells: a rate, and the memory beside it."""
    for case, result in got.items():
        if case.startswith("memory of "):
            continue
        memory = got.get(f"memory of {case}")
        cell, _, recipe = case.partition(" ")
        kind, _, shape = cell.partition(":")
        tokens = int(shape.partition("x")[0]) if kind == "prefill" else int(shape.partition("x")[2] or 1)
        seconds = tokens / result["value"]
        visit.row(case, "measured", f"{result['value']:.4g} tokens/s, {seconds:.4g} s" if kind == "prefill" else
                  f"{result['value']:.4g} tokens/s, a step {seconds * 1e3:.3g} ms", f"{memory['value']:.2f} GB at most" if memory else "")
        name = recipe.partition(",")[0]
        if cell == "prefill:131072":
            visit.facts[f"prefill 128k {name}"] = seconds
            visit.facts[f"memory 128k {name}"] = memory["value"] if memory else None
        if cell == "decode:8192x64" and "int4" in recipe:
            visit.facts["decode 64 int4"] = seconds


def model(visit):
    small = visit.small
    shape = ["--geometry", "tiny", "--layers", 2] if small else ["--geometry", "8b", "--layers", 32]
    common = ["bench", "cells", "--device", visit.device, *shape, "--json", "--runs", 1]
    lengths = [128] if small else [8192, 32768, 131072]
    prompts = [word for n in lengths for word in ("--cell", f"prefill:{n}")]
    steps = [word for n in ([2] if small else [1, 16, 64]) for word in ("--cell", f"decode:{128 if small else 8192}x{n}")]
    depth = ["--tokens", 1024, "--steps", 4] if small else ["--tokens", 131072, "--steps", 24]
    runs = [
        ("prefill-full", [*common, *prompts, "--recipe", "full,chunk=64" if small else "full,chunk=2048"], 60),
        ("decode", [*common, "--tokens", 2 if small else 16, *steps, "--recipe", "full", "--recipe", "full,format=int8", "--recipe",
                    "full,format=int4"], 45),
        ("prefill-h2o", [*common, *prompts, "--recipe", "h2o,budget=0.25,chunk=64" if small else "h2o,budget=0.25,chunk=2048"], 45),
        ("prefill-locret", [*common, *prompts, "--retaining-heads", 32 if small else 1024, "--recipe",
                            "locret,budget=80,chunk=64,scope=stabilizers:32+tail:16" if small else "locret"], 30),
        ("decode-store", ["bench", "decode", "--device", visit.device, "--transport", transport(visit, 1e9 if small else 31e9), *shape, "--json",
                          *depth, "--recipe", "tailorkv", "--recipe", "tailorkv-near"], 90),
    ]
    failures, no_room = [], 0
    for name, command, most in runs:
        code, got, text = results_of(visit, name, visit.sluice(*command, variables=["SLUICE_EMULATED_MEMORY=4000000000"] if small else []),
                                     None if small else most)
        if name == "decode-store":
            store_rows(visit, got)
        else:
            cell_rows(visit, got)
        without = re.findall(r"^bench: (.*no room.*)$", text, re.M)
        for line in without:
            visit.row(f"{name}: a cell", "no room", line)
        no_room += len(without)
        if code and (code == 124 or not without or not got):
            failures.append(f"{name}: {'out of time' if code == 124 else last_line(re.sub(chr(10) + '# .*', '', text))}")
            visit.row(name, "out of time" if code == 124 else "failed", failures[-1])
    full = visit.facts.get("prefill 128k full")
    figure = f"prefill of 128k {full:.2f} s" if full else f"{len([row for row in visit.rows if row['step'] == 'model'])} rows"
    return ("failed" if failures else "passed"), {"figure": "; ".join(failures) or figure + (f", {no_room} cells without room" if no_room else "")}


def store_rows(visit, got):
    """Rows of bench decode: by recipe its step, memory, and how much of the waiting was hidden."""
    recipes = collections.defaultdict(dict)
    for case, result in got.items():
        what, recipe, tokens = case.split(" ")
        recipes[recipe, int(tokens)][what] = result
    for (recipe, tokens), of in recipes.items():
        if "ms/token" not in of:
            continue
        step, memory, resident = of["ms/token"], of.get("memory"), of.get("resident")
        hidden = f", {of['hidden']['value']:.0f}% of waiting hidden" if "hidden" in of else ""
        visit.row(f"decode at {tokens} {recipe}", "measured", f"{step['value']:.3g} ms{hidden}",
                  f"{memory['value']:.2f} GB at most" if memory else "", f"{step['ratio']:.2f} times less than full" if "ratio" in step else "")
        if recipe == "tailorkv" and tokens == 131072:
            visit.facts["decode 128k tailorkv"] = step["value"] / 1e3
            visit.facts["resident 128k tailorkv"] = resident["value"] * (1 << 20)


# --- cluster -------------------------------------------------------------------------------------------------------------


def statistics(text):
    ttft, tpot = re.search(r"^TTFT +([\d.]+) ms", text, re.M), re.search(r"^TPOT +([\d.]+) ms", text, re.M)
    return (float(ttft.group(1)) if ttft else None, float(tpot.group(1)) if tpot else None)


def cluster(visit):
    path = write_document(1 if visit.small else 60)
    tokens = 4 if visit.small else 64
    state = os.path.join(KIT, "work", "cluster.state")
    ask = ["--prompt-file", path, "--question", QUESTION, "--max-new-tokens", tokens, "--ignore-eos", "--recipe", "full"]
    local = ["run", "--local", "--model", DEMO, "--device", visit.device, "--arena", "512M" if not visit.small else "24M", *ask]
    port = int(os.environ.get("KIT_PORT", 0))
    place = [f"XDG_RUNTIME_DIR={os.path.join(KIT, 'work', 'run')}"]  # what `sluice status` lists here stays the user's
    code, text = visit.run("up", visit.sluice(
        "up", "--detach", "--model", DEMO, "--device", visit.device, "--transport", transport(visit, 60e6), "--no-gateway", "--kvstore", 0, "--port", port,
        "--name", f"gpu-kit-{os.getpid()}", "--state-file", state, "--arena", "256M" if not visit.small else "24M", "--json",
        "--", "--staging", "24M", variables=place))
    ready = re.search(r"rpc=([\d.]+:\d+)|\"rpc\": *\"([\d.]+:\d+)\"", text)
    if code != 0 or not ready:
        return "failed", {"figure": f"up: {last_line(re.sub(chr(10) + '# .*', '', text))}"}
    address = ready.group(1) or ready.group(2)
    try:
        remote = ["run", "--coordinator", address, *ask]
        for name in ("warm", "cluster"):
            code, text = visit.run(name, visit.sluice(*remote))
            if code:
                return "failed", {"figure": f"{name}: {last_line(re.sub(chr(10) + '# .*', '', text))}"}
        in_cluster = statistics(text)
        _, quiet = visit.run("cluster-text", visit.sluice(*remote, "--quiet"))
    finally:
        visit.run("down", visit.sluice("down", address, variables=place))
    code, text = visit.run("one-process", visit.sluice(*local))
    one = statistics(text)
    _, quiet_one = visit.run("one-process-text", visit.sluice(*local, "--quiet"))
    same = quiet == quiet_one and quiet.strip() != ""
    for name, here, there in (("time to first token, ms", in_cluster[0], one[0]), ("time per token, ms", in_cluster[1], one[1])):
        visit.row(name, "measured" if here and there else "failed", f"{here}", f"one process, which begins with it: {there}",
                  f"{here / there:.2f}" if here and there else "")
    visit.row("tokens", "equal" if same else "failed", repr(quiet.strip()[:60]), repr(quiet_one.strip()[:60]))
    if not visit.small and transport(visit, 5e9) == "shm":  # four workers with staging memory of 1 GB
        code, got, text = results_of(visit, "ttft", visit.sluice("bench", "ttft", "--device", visit.device, "--model", DEMO, "--tokens", 4000,
                                                                 "--runs", 5, "--json"))
        for case, result in got.items():
            visit.row(case, "measured", f"{result['value']:.1f} ms", f"{result.get('reference', '')} {result.get('reference_value', '')}",
                      f"{result['ratio']:.2f}" if "ratio" in result else "")
    passed = same and all(in_cluster) and all(one) and code == 0
    return "passed" if passed else "failed", {"figure": f"first token after {in_cluster[0]} ms, tokens {'equal' if same else 'differ'}",
                                              "peer": f"one process {one[0]} ms"}


# --- profile -------------------------------------------------------------------------------------------------------------

# The kernel to profile, by the beginning of an operation's name.
KERNEL_OF = [("attend, a prompt", "attend_tensor"), ("attend, a step, f16", "attend_alone"), ("attend, a step", "attend_packed"),
             ("attend_slots", "attend"), ("fold", "stats_tensor"), ("window_sums", "stats_tensor"), ("value_change", "change_of_slots"),
             ("select", "select_slots"), ("norm", "norm_rows"), ("pick", "pick_"), ("nearest", "nearest"), ("merge", "merge_slots"),
             ("quantize", "quantize"), ("matmul down, 1", "few_rows"), ("matmul qkv, 1", "few_rows"), ("matmul up, 1 ", "few_rows"),
             ("matmul up, 8", "few_rows"), ("matmul up, 16", "some_rows"), ("matmul", "wgmma|many_rows|some_rows")]


def profile(visit):
    tool = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    if not tool:
        return "skipped", {"figure": "no ncu here"}
    worst = [case for case, _ in gaps(visit)][:5]
    if not worst:
        return "skipped", {"figure": "the step floors left no rows to choose from"}
    options = TINY if visit.small else ["--rows", 2048, "--slots", 131072, "--seconds", 0.01, "--runs", 1]
    done = 0
    for case in worst[:2] if visit.small else worst:
        kernel = next((kernel for name, kernel in KERNEL_OF if case.startswith(name)), case.split(",")[0].split(" ")[0])
        code, text = visit.run(f"ncu-{case}", [tool, "--target-processes", "all", "--csv", "--set", "basic", "--section", "WarpStateStats",
                                               "--section", "MemoryWorkloadAnalysis", "--kernel-name", f"regex:{kernel}",
                                               "--launch-skip", "1", "--launch-count", "1",
                                               *visit.sluice("bench", "kernels", "--device", visit.device, "--only", case, *options)])
        found = dict(re.findall(r'"((?:Compute \(SM\)|Memory|DRAM) Throughput|Duration|Registers Per Thread|Achieved Occupancy)","[^"]*","([^"]*)"', text))
        done += bool(found)
        visit.row(case, "measured" if found else "out of time" if code == 124 else "failed",
                  ", ".join(f"{name} {value}" for name, value in found.items()) or last_line(re.sub(r"\n# .*", "", text)))
    return "passed" if done else "failed", {"figure": f"{done} kernels"}


STEPS = [
    Step("opens", 15, opens),
    Step("answers", 45, answers),
    Step("kernels", 75, kernels),
    Step("sanitizer", 45, sanitizer),
    Step("floors", 80, floors),
    Step("model", 130, model),
    Step("cluster", 25, cluster),
    Step("profile", 40, profile),
]
