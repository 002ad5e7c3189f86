// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/cpu/attention/heads.h"

#define LEAST_WORK 16384 // numbers: some microseconds

struct loop {
    sl_head_fn fn;
    const void *call;
};

static void run_heads(void *arg, int64_t begin, int64_t end, int member) {
    const struct loop *loop = arg;
    (void)member;
    for (int64_t h = begin; h < end; h++) {
        loop->fn(loop->call, (int)h);
    }
}

void sl_each_head(struct sl_stream *stream, int n, size_t work, sl_head_fn fn, const void *call) {
    struct loop loop = {fn, call};
    sl_stream_run(work < LEAST_WORK ? NULL : stream, n, 1, run_heads, &loop);
}
