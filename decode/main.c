// SPDX-License-Identifier: Apache-2.0
// sluice-decode: writes answers from capsules.
#include "decode/decode.h"

static const struct sl_option options[] = {
    SL_NODE_OPTIONS("decode-0", "16"),
    SL_NODE_MODEL_OPTIONS,
    {"retrieve-deadline", 0, SL_OPTION_DURATION, "500ms", "TIME",
     "longest wait for a store's answer about offloaded layers; after it a layer uses what it has for one step",
     SL_FIELD(sl_decode_config, retrieve_deadline_ms), 1, 60000},
    {"retrieve-lost", 0, SL_OPTION_DURATION, "3s", "TIME", "fail a job when a store has not answered for this time",
     SL_FIELD(sl_decode_config, retrieve_lost_ms), 1, 3600000},
    {"aggregated", 0, SL_OPTION_FLAG, NULL, NULL,
     "read prompts, too, between the steps of answers: nothing is shipped, and no prefill worker is needed. The next "
     "two options are for this",
     SL_FIELD(sl_decode_config, aggregated)},
    SL_PREFILL_OPTIONS(sl_decode_config),
};

int main(int argc, char **argv) {
    static const struct sl_program program = {
        .name = "sluice-decode",
        .usage = "--model DIR [options]",
        .summary =
            "Decode worker of a Sluice cluster: receives compressed KV cache into leased memory and writes the answer.",
        SL_OPTIONS(options),
    };
    struct sl_decode_config config = {.node = {.needs_model = true, .check_fn = sl_decode_config_check}};
    return sl_node_main(&program, argc, argv, &config.node, sl_decode_run);
}
