# SPDX-License-Identifier: Apache-2.0
"""The folders of this repository, and what the files of each may include. tools/lint_includes.py enforces it.

Every folder with sources has a row, at every depth, and may always include itself. A row's words are

    kvcache           that folder, and none below it
    proto/*           that folder and everything below it
    tensor/ops.h      one header

To add a folder: a row here and in docs/DESIGN.md's table, and a CMakeLists.txt with one sl_library() of the folder's name. To allow
more, change both tables in the same commit, and say why.
"""

ROWS = {
    "base": "",
    "options": "base",
    "trust": "base options",
    "admin": "base trust",
    "proto": "proto/*",
    "kvcache": "base proto/*",
    "fabric/link": "base trust",
    "fabric/core": "base fabric/link",
    "fabric": "base trust fabric/core",
    "trace": "base",
    "rpc": "base proto/* trust trace",
    "trace/otlp": "base proto/* trace rpc",
    "model/generation": "base",
    "model/gguf": "base tensor/half.h",
    "text/tokenizer": "base model/gguf",
    "text/chat": "base model/gguf text/tokenizer",
    "tensor": "base kvcache",
    "tensor/cpu": "base tensor tensor/cpu/*",  # tiers.c chooses among those below
    "tensor/cpu/simd": "tensor",
    "tensor/cpu/dense": "tensor tensor/cpu/simd",
    "tensor/cpu/attention": "base tensor tensor/cpu/simd",
    "tensor/cpu/evict": "base kvcache tensor tensor/cpu/attention",
    "tensor/cpu/retrieve": "tensor tensor/cpu/simd tensor/cpu/attention",
    "tensor/ranks": "base tensor",
    "tensor/cuda/emu": "tensor",
    "tensor/cuda": "kvcache tensor tensor/cuda/emu",
    "tensor/cuda/dense": "tensor tensor/cuda",
    "tensor/cuda/attention": "tensor/cuda",
    "tensor/cuda/evict": "tensor/cuda",
    "tensor/cuda/retrieve": "tensor/cuda",
    "tensor/cuda/table": "base tensor tensor/cuda tensor/cuda/attention tensor/cuda/dense tensor/cuda/evict tensor/cuda/retrieve",
    "tensor/cuda/group": "base tensor tensor/cuda tensor/cuda/table",
    "tensor/cuda/emulated": "base tensor/cuda/emu tensor/cuda/table",
    "tensor/cuda/plugin": "base tensor tensor/cuda tensor/cuda/dense tensor/cuda/group tensor/cuda/table",
    "model": "base kvcache tensor model/gguf model/generation",
    "runtime": "base options kvcache tensor tensor/cpu tensor/ranks tensor/cuda/emulated tensor/cuda/table model text/tokenizer",
    "compress/recipe": "base kvcache",
    "compress/plan": "base kvcache tensor compress/recipe",
    "compress/evict": "base tensor compress/recipe compress/plan compress/evict/scores",
    "compress/evict/scores": "tensor compress/recipe",
    "node": "base options trust admin proto/* kvcache fabric rpc trace/otlp text/tokenizer runtime",
    "offload/annex": "base kvcache tensor compress/recipe",
    "offload/retriever": "base kvcache compress/recipe compress/plan offload/annex",
    "offload/remote": "base proto/* fabric compress/plan offload/annex",
    "offload/prefill": "base proto/* kvcache fabric tensor runtime node compress/plan offload/annex offload/remote",
    # What a job means, the same for those who run it and for the coordinator, which has no data plane.
    "job": "base proto/* kvcache text/* model compress/* offload/retriever",
    "runner": "base kvcache text/tokenizer model runtime compress/* offload/retriever job",
    "prefill": "base proto/* kvcache rpc compress/* node offload/prefill job runner",
    "decode": "base trace proto/* kvcache runtime compress/* node offload/remote job runner",
    "kvstore/memory": "base kvcache node offload/annex",
    "kvstore/annexes": "base fabric compress/plan offload/annex kvstore/memory",
    "kvstore/disk": "base kvcache kvstore/memory",
    "kvstore/capsules": "base kvstore/memory kvstore/disk",
    "kvstore": "base proto/* kvcache fabric node kvstore/*",
    "coordinator/workers": "base trust proto/* kvcache rpc compress/recipe compress/plan offload/annex/lanes.h",
    "coordinator/jobs": "base trust proto/* kvcache text/* model compress/recipe coordinator/workers job",
    "coordinator/state": "base proto/* coordinator/jobs job",
    "coordinator/election": "base trust proto/* rpc",
    "coordinator": "base options trust admin proto/* kvcache trace trace/otlp rpc text/tokenizer model coordinator/* job",
    "libsluice": "base trust proto/* rpc",
    "gateway/openai": "base proto/* compress/recipe",
    "gateway": "base options gateway/openai trust admin trace trace/otlp rpc libsluice",
    "cli": "base options trust proto/* kvcache text/tokenizer tensor model runtime rpc compress/recipe job runner libsluice",
    "cli/pull": "base options trust model model/gguf cli",
    "cli/chat": "base proto/* text/tokenizer runtime compress/recipe cli",
    "cli/commands": "base kvcache compress/recipe cli",
    "lab": "base options runtime cli",
    "lab/measure": "base kvcache tensor tensor/cpu compress/* offload/annex job runner cli lab",
    "lab/eval/metrics": "base",
    "lab/eval/tasks": "base text/tokenizer lab lab/eval/metrics",
    "lab/eval/run": "base options trust kvcache text/tokenizer model runtime rpc compress/recipe compress/plan job runner libsluice cli lab"
    " lab/eval/metrics lab/eval/tasks",
    "lab/eval/report": "compress/recipe cli lab lab/eval/tasks lab/eval/run",
    "lab/eval": "base options cli lab lab/measure lab/eval/*",
    "lab/train": "base options text/tokenizer tensor model cli lab lab/eval/tasks",
    "lab/bench/rig": "base proto/* fabric tensor model runtime compress/plan rpc node offload/annex offload/retriever offload/remote job cli lab",
    "lab/plan": "base kvcache compress/recipe compress/plan job cli lab lab/bench/rig",
    "lab/bench": "base options kvcache tensor tensor/cpu tensor/cuda/emulated tensor/ranks model runtime compress/* fabric job runner cli lab lab/bench/rig",
    "sluice": "base options cli cli/* lab/*",  # alone links the tool's commands and the laboratory's
    "tests/*": "*",
}

# Prefix of a system header -> the folders that may include it. Tests may include anything.
WRAPPED = {
    "ucp/ ucs/ uct/": "fabric/core",
    "openssl/": "trust fabric/link",
    "intel-ipsec-mb": "fabric/link",
    "grpc/": "rpc",
    "microhttpd": "admin gateway",
    "gnutls/": "gateway",
    "jwt.h": "gateway",
    "curl/ zip.h": "cli/pull",
    "histedit.h": "cli/chat",
    "cuda_runtime cublas nccl": "tensor/cuda/plugin",
}

# Folders with more .c files, or more lines of .c and .h, than others may have: folder -> (files, lines, why).
LARGER = {}

# Functions (and files, by their path) above the limit of lines: name -> (lines, why).
LONGER = {
    "test_recipe_survives_any_text": (110, "a table of words"),
    "test_recipe_refuses_bad_grammar": (100, "a table of what is refused"),
    "test_recipe_fingerprint_sees_what_changes_the_cache": (82, "a table of recipes"),
    "test_tokenizer_refuses_what_it_does_not_implement": (104, "a table of what is refused"),
}

# Folders that include each other today. None may be added.
OPEN_CIRCLES = []
