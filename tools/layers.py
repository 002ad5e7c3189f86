# SPDX-License-Identifier: Apache-2.0
"""The folders of this repository, and what the files of each may include. tools/lint_includes.py enforces it.

Every folder with sources has a row, at every depth, and may always include itself. A row's words are

    kvcache           that folder, and none below it
    proto/*           that folder and everything below it
    engine/tensor/ops.h      one header

To add a folder: a row here, a word in docs/DESIGN.md's table, and a CMakeLists.txt with one sl_library() of the folder's name. To
allow more, change the row and say why.
"""

# Groups of folders, and how high each stands. A folder includes its own group and lower ones only: the engine reads and writes
# in one process and knows no network.
GROUPS = {
    "base": 0,
    "proto": 0,
    "engine": 1,
    "net": 2,
    "prefill": 3,
    "decode": 4,  # an aggregated worker reads by the code of prefill
    "kvstore": 3,
    "coordinator": 3,
    "client": 3,
    "gateway": 4,
    "gateway/openai": 2,  # messages of the HTTP API, which the tool reads from files too
    "lab": 4,
    "client/sluice": 5,  # main() of the tool, which has commands of the laboratory
}

ROWS = {
    "base": "",
    "base/options": "base",
    "base/fiber": "base",
    "net/trust": "base base/options",
    "net/admin": "base net/trust",
    "net/document": "base net/trust",
    "proto": "proto/*",
    "engine/kvcache": "base proto/*",
    "net/fabric/link": "base net/trust",
    "net/fabric/core": "base net/fabric/link",
    "net/fabric": "base base/fiber net/trust net/fabric/core",
    "net/trace": "base",
    "net/rpc/connections": "base net/trust",
    "net/rpc": "base base/fiber proto/* net/trust net/trace net/rpc/connections",
    "net/rpc/standard": "base base/fiber proto/* net/rpc",
    "net/trace/otlp": "base proto/* net/trace net/rpc",
    "engine/model/generation": "base",
    "engine/tensor": "base engine/kvcache",
    "engine/model/gguf": "base engine/tensor",
    "engine/text/tokenizer": "base engine/model/gguf",
    "engine/text/chat": "base engine/model/gguf engine/text/tokenizer",
    "engine/tensor/cpu": "base engine/tensor engine/tensor/cpu/*",  # tiers.c chooses among those below
    "engine/tensor/cpu/simd": "engine/tensor",
    "engine/tensor/cpu/pages": "engine/tensor engine/tensor/cpu/simd",
    "engine/tensor/cpu/dense": "engine/tensor engine/tensor/cpu/simd",
    "engine/tensor/cpu/attention": "base engine/tensor engine/tensor/cpu/pages engine/tensor/cpu/simd",
    "engine/tensor/cpu/attention/integer": "engine/tensor engine/tensor/cpu/pages engine/tensor/cpu/attention",
    "engine/tensor/cpu/evict": "base engine/kvcache engine/tensor engine/tensor/cpu/pages engine/tensor/cpu/simd engine/tensor/cpu/attention",
    "engine/tensor/cpu/retrieve": "engine/tensor engine/tensor/cpu/pages engine/tensor/cpu/simd engine/tensor/cpu/attention",
    "engine/tensor/ranks": "base engine/tensor",
    "engine/tensor/timed": "base engine/tensor",
    "engine/tensor/cuda": "engine/kvcache engine/tensor",
    "engine/tensor/cuda/dense": "engine/tensor engine/tensor/cuda",
    "engine/tensor/cuda/attention": "engine/tensor/cuda",
    "engine/tensor/cuda/evict": "engine/tensor/cuda",
    "engine/tensor/cuda/retrieve": "engine/tensor/cuda",
    "engine/tensor/cuda/table": "base engine/tensor engine/tensor/cuda engine/tensor/cuda/attention engine/tensor/cuda/dense engine/tensor/cuda/evict engine/tensor/cuda/retrieve",
    "engine/tensor/cuda/group": "base engine/tensor engine/tensor/cuda engine/tensor/cuda/table",
    "engine/tensor/cuda/plugin": "base engine/tensor engine/tensor/cuda engine/tensor/cuda/dense engine/tensor/cuda/group engine/tensor/cuda/table",
    "engine/sampling": "base engine/tensor",
    "engine/model": "base engine/sampling engine/kvcache engine/tensor engine/model/gguf engine/model/generation",
    "engine/runtime": "base base/options engine/kvcache engine/tensor engine/tensor/cpu engine/tensor/ranks engine/tensor/timed engine/model engine/text/tokenizer",
    "engine/compress/recipe": "base engine/kvcache",
    "engine/compress/plan": "base engine/kvcache engine/tensor engine/compress/recipe",
    "engine/compress/evict": "base engine/tensor engine/compress/recipe engine/compress/plan engine/compress/evict/scores",
    "engine/compress/evict/scores": "engine/tensor engine/compress/recipe",
    "net/node": "base base/options net/trust net/admin proto/* engine/kvcache net/fabric net/rpc net/rpc/standard net/trace/otlp engine/text/tokenizer engine/runtime",
    "engine/offload/remote_kv": "base engine/kvcache engine/tensor engine/compress/recipe",
    "engine/offload/retriever": "base engine/kvcache engine/compress/recipe engine/compress/plan engine/offload/remote_kv",
    "net/offload/remote": "base proto/* net/fabric engine/compress/plan engine/offload/remote_kv",
    "net/offload/prefill": "base proto/* engine/kvcache net/fabric engine/tensor engine/runtime net/node engine/compress/plan engine/offload/remote_kv net/offload/remote",
    # The meaning of a job, shared by workers and by the coordinator, which has no data plane.
    "engine/job": "base engine/sampling proto/* engine/kvcache engine/text/* engine/model engine/compress/* engine/offload/retriever",
    "engine/runner": "base engine/sampling engine/kvcache engine/text/tokenizer engine/model engine/runtime engine/compress/* engine/offload/retriever engine/job",
    "net/store": "base proto/* engine/kvcache engine/compress/plan net/rpc net/node engine/job engine/runner",
    "prefill": "base proto/* engine/kvcache engine/compress/* net/node net/offload/prefill net/store engine/job engine/runner",
    "decode": "base prefill net/trace proto/* engine/kvcache engine/runtime engine/compress/* net/node net/offload/remote net/store engine/job engine/runner",
    "kvstore/memory": "base engine/kvcache net/node engine/offload/remote_kv",
    "kvstore/remote_kv": "base net/fabric engine/kvcache engine/compress/plan engine/offload/remote_kv kvstore/memory kvstore/disk",
    "kvstore/disk": "base engine/kvcache engine/offload/remote_kv kvstore/memory",
    "kvstore/capsules": "base kvstore/memory kvstore/disk kvstore/remote_kv",
    "kvstore": "base proto/* engine/kvcache net/fabric net/node kvstore/*",
    "coordinator/workers": "base base/fiber net/trust proto/* engine/kvcache net/rpc engine/compress/recipe engine/compress/plan engine/offload/remote_kv/offloaded_heads.h engine/offload/remote_kv/segment_head.h",
    "coordinator/jobs": "base base/fiber engine/sampling net/trust proto/* engine/kvcache engine/text/* engine/model engine/compress/recipe coordinator/workers engine/job",
    "coordinator/documents": "base base/fiber net/trust proto/* net/rpc engine/kvcache engine/compress/recipe engine/offload/remote_kv coordinator/election coordinator/workers",
    "coordinator/state": "base proto/* coordinator/jobs engine/job",
    "coordinator/election": "base base/fiber net/trust proto/* net/rpc",
    "coordinator/run": "base base/fiber proto/* engine/kvcache engine/text/tokenizer engine/model engine/job net/rpc net/trace coordinator/workers coordinator/jobs coordinator/election",
    "coordinator": "base base/fiber base/options net/trust net/document net/admin proto/* net/trace/otlp net/rpc net/rpc/standard engine/text/tokenizer engine/model engine/offload/remote_kv coordinator/* engine/job",
    "client/libsluice": "base net/trust proto/* net/rpc",
    "gateway/openai": "base proto/* engine/compress/recipe",
    "gateway/access": "base net/trust",
    "gateway/head": "gateway/openai net/admin",
    "gateway": "base base/options gateway/access gateway/head gateway/openai net/trust net/document net/admin net/trace net/trace/otlp net/rpc client/libsluice",
    "client/cli": "base base/options net/trust proto/* engine/kvcache engine/text/tokenizer engine/tensor engine/model engine/runtime net/rpc engine/compress/recipe engine/job engine/runner client/libsluice",
    "client/cli/jsonl": "base engine/kvcache engine/text/tokenizer engine/model engine/compress/plan engine/job engine/runner gateway/openai client/cli",
    "client/cli/pull": "base base/options net/trust engine/model engine/model/gguf client/cli",
    "client/cli/doctor": "base net/trust net/fabric/core net/rpc engine/tensor/cpu engine/model client/cli",
    "client/cli/chat": "base proto/* engine/text/tokenizer engine/runtime engine/compress/recipe client/cli",
    "client/cli/commands": "base base/options net/document net/rpc proto/* engine/text/tokenizer engine/compress/recipe client/cli client/cli/doctor client/cli/jsonl",
    "lab": "base base/options engine/runtime client/cli",
    "lab/measure": "base net/document engine/text/tokenizer engine/kvcache engine/tensor engine/tensor/cpu engine/compress/* engine/offload/remote_kv engine/job engine/runner client/cli lab",
    "lab/train": "base engine/text/tokenizer engine/tensor engine/model client/cli lab",
    "lab/bench/rig": "base proto/* engine/tensor engine/tensor/timed engine/model engine/runtime engine/runner engine/compress/evict net/rpc net/node engine/offload/remote_kv net/offload/remote engine/job client/cli lab",
    "lab/simulate": "base base/options proto/* engine/kvcache engine/model engine/compress/recipe engine/compress/plan engine/job engine/runner net/node prefill/schedule.h kvstore/memory coordinator/workers client/cli lab",
    "lab/bench": "base base/options engine/kvcache engine/tensor engine/tensor/cpu engine/tensor/timed engine/runtime engine/compress/* net/fabric engine/job engine/runner client/cli lab lab/simulate lab/bench/rig lab/bench/replay lab/bench/store lab/bench/coordinator",
    "lab/bench/coordinator": "base base/fiber proto/* net/rpc engine/model client/cli lab",
    "lab/bench/store": "base proto/* engine/kvcache net/node kvstore/memory client/cli lab lab/bench/rig",
    "lab/bench/replay": "base base/options engine/kvcache kvstore/memory client/cli lab lab/simulate",
    "client/sluice": "base client/cli client/cli/* lab/*",  # alone links the tool's commands and the laboratory's
    "tests/*": "*",
}

# Prefix of a system header -> the folders that may include it. Tests may include anything.
WRAPPED = {
    "ucp/ ucs/ uct/": "net/fabric/core",
    "openssl/": "net/trust net/fabric/link net/rpc/connections",
    "intel-ipsec-mb": "net/fabric/link",
    "grpc/": "net/rpc net/rpc/standard",
    "microhttpd": "net/admin gateway gateway/head",
    "gnutls/": "gateway",
    "jwt.h": "gateway/access",
    "curl/": "client/cli/pull",
    "zip.h": "client/cli/pull client/cli/commands",
    "histedit.h": "client/cli/chat",
    "sqlite3.h": "coordinator/state",
    "zlib.h": "coordinator/documents",
    "cuda_runtime cublas nccl": "engine/tensor/cuda/plugin",
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

# Structs that a header declares and several files define, each its own: requests of the two kinds of sources.
OPAQUE = ["sl_asked"]

# Folders that include each other today. None may be added.
OPEN_CIRCLES = []
