// SPDX-License-Identifier: Apache-2.0
// sluice-prefill: reads prompts and ships their compressed KV.
#include "prefill/prefill.h"

static const struct sl_option options[] = {
    SL_NODE_OPTIONS("prefill-0", "16"),
    SL_NODE_MODEL_OPTIONS,
    {"max-chunk", 0, SL_OPTION_INT, "3072", "TOKENS", "largest chunk that a recipe may ask for",
     SL_FIELD(sl_prefill_config, chunk_tokens), 64, 8192},
    {"checkpoint-after", 0, SL_OPTION_DURATION, "10s", "TIME",
     "store what was read of a long prompt after this time, and after each further half; 0: never",
     SL_FIELD(sl_prefill_config, checkpoint_ms), 0, 86400000},
    {"checkpoint-share", 0, SL_OPTION_FLOAT, "0.25", "SHARE",
     "a prompt's checkpoint takes at most this share of its store's --arena",
     SL_FIELD(sl_prefill_config, checkpoint_share), 0, 1},
};

static enum sl_status run(const struct sl_node_config *config, struct sl_error *err) {
    return sl_prefill_run((const struct sl_prefill_config *)config, err);
}

int main(int argc, char **argv) {
    static const struct sl_program program = {
        .name = "sluice-prefill",
        .usage = "--model DIR [options]",
        .summary =
            "Prefill worker of a Sluice cluster: reads prompts chunk by chunk, compresses their KV cache and ships it "
            "to a decode worker.",
        SL_OPTIONS(options),
    };
    struct sl_prefill_config config = {0};
    return sl_node_main(&program, argc, argv, &config.node, run);
}
