# SPDX-License-Identifier: Apache-2.0
"""The folders of this repository, and what the files of each may include. tools/lint_includes.py enforces it.

Every folder with sources has a row, at every depth, and may always include itself. A row's words are

    kvcache           that folder, and none below it
    proto/*           that folder and everything below it
    tensor/ops.h      one header

To add a folder: a row here and in docs/DESIGN.md's table, and a CMakeLists.txt with one sl_library() of the folder's name. To allow
more, change both tables in the same commit, and say why.
"""

LIBRARIES = "base kvcache text/* tensor tensor/cpu model runtime compress/* retrieve fabric rpc proto/*"

ROWS = {
    "base": "",
    "proto": "",
    "kvcache": "base proto/*",
    "text/tokenizer": "base",
    "text/chat": "base text/tokenizer",
    "tensor": "base kvcache",
    "tensor/cpu": "base tensor tensor/cpu/*",  # tiers.c chooses among those below
    "tensor/cpu/simd": "tensor",
    "tensor/cpu/dense": "tensor tensor/cpu/simd",
    "tensor/cpu/attention": "tensor tensor/cpu/simd",
    "tensor/cpu/evict": "tensor tensor/cpu/attention",
    "tensor/cpu/retrieve": "tensor tensor/cpu/simd tensor/cpu/attention",
    "model": "base kvcache tensor",
    "runtime": "base tensor tensor/cpu model text/tokenizer",
    "compress/recipe": "base kvcache",
    "compress/plan": "base kvcache tensor/ops.h compress/recipe",
    "compress/evict": "base kvcache tensor/ops.h compress/recipe compress/plan compress/evict/scores",
    "compress/evict/scores": "base kvcache tensor/ops.h compress/recipe",
    "retrieve": "base kvcache tensor/ops.h compress/recipe compress/plan",
    "fabric": "base",
    "rpc": "base proto/*",
    "service": LIBRARIES,
    "prefill": LIBRARIES + " service",
    "decode": LIBRARIES + " service",
    "kvstore": LIBRARIES + " service kvstore/*",
    "kvstore/memory": LIBRARIES + " service",
    "kvstore/annexes": LIBRARIES + " service kvstore/memory",
    "kvstore/disk": LIBRARIES + " service kvstore/memory",
    "coordinator": LIBRARIES + " service",
    "eval": "base text/tokenizer",
    "train": "base kvcache tensor model",
    # Of service/: a job without a cluster, all in this process; and for evaluations how workers get at a recipe and
    # read prompts.
    "client": "base proto/* rpc text/tokenizer text/chat tensor tensor/cpu model runtime compress/*"
    " kvcache eval train bench retrieve/annex.h retrieve/local_retriever.h service/local.h service/job_chat.h service/job_recipe.h service/job_request.h service/reader.h service/sequence.h service/step.h",
    "bench": LIBRARIES + " service client eval train",
    "tests/*": "*",
}

# Prefix of a system header -> the folders that may include it. Tests may include anything.
WRAPPED = {
    "ucp/ ucs/ uct/": "fabric",
    "grpc/": "rpc",
    "lmdb": "kvstore/disk",
    "cuda cublas nccl": "engine/cuda",
}

# Folders with more .c files, or more lines of .c and .h, than others may have: folder -> (files, lines, why).
LARGER = {
    "bench": (25, 5300, "holds every benchmark beside the command"),
    "client": (55, 12800, "holds the client library, the tool, and what evaluates"),
    "coordinator": (25, 4800, "a fifth of it is two services' handlers"),
    "eval": (25, 4600, "one file a task and a metric"),
    "fabric": (25, 5700, "one protocol, all verbs of which share its state"),
    "service": (28, 6200, "holds offloading beside what workers share"),
}

# Functions and files above the limit of lines: name -> (lines, why).
LONGER = {
    "tests/unit/service/test_offload.c": (620, "shares its fixture with nobody yet"),
    "test_recipe_survives_any_text": (110, "a table of words"),
    "test_recipe_refuses_bad_grammar": (100, "a table of what is refused"),
    "test_recipe_fingerprint_sees_what_changes_the_cache": (82, "a table of recipes"),
    "test_tokenizer_refuses_what_it_does_not_implement": (104, "a table of what is refused"),
}

# Folders that include each other today. None may be added.
OPEN_CIRCLES = [
    "bench client",  # the tool has a command `bench`, and benches run the tool's jobs
]

# Folders whose CMakeLists.txt has not exactly one library of the folder's name: folder -> its targets.
TARGETS = {
    "service": "service service_job",
    "client": "client client_tool client_eval client_train",
}
