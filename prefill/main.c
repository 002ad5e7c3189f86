// SPDX-License-Identifier: Apache-2.0
// sluice-prefill: reads prompts and ships their compressed KV.
#include "prefill/prefill.h"

static const struct sl_option options[] = {
    SL_NODE_OPTIONS("prefill-0", "16"),
    SL_NODE_MODEL_OPTIONS,
    SL_PREFILL_OPTIONS(sl_prefill_config),
};

int main(int argc, char **argv) {
    static const struct sl_program program = {
        .name = "sluice-prefill",
        .usage = "--model DIR [options]",
        .summary =
            "Prefill worker of a Sluice cluster: reads prompts chunk by chunk, compresses their KV cache and ships it "
            "to a decode worker.",
        SL_OPTIONS(options),
    };
    struct sl_prefill_config config = {.node = {.needs_model = true}};
    return sl_node_main(&program, argc, argv, &config.node, sl_prefill_run);
}
