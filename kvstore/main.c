// SPDX-License-Identifier: Apache-2.0
// sluice-kvstore: keeps capsules.
#include "kvstore/kvstore.h"

static const struct sl_option options[] = {
    SL_NODE_OPTIONS("kvstore-0", "64"),
};

static enum sl_status run(const struct sl_node_config *config, struct sl_error *err) {
    return sl_kvstore_run((const struct sl_kvstore_config *)config, err);
}

int main(int argc, char **argv) {
    static const struct sl_program program = {
        .name = "sluice-kvstore",
        .usage = "[options]",
        .summary = "KV store of a Sluice cluster: keeps finished capsules in memory and ships them to workers that can "
                   "use them.",
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    struct sl_kvstore_config config = {0};
    return sl_node_main(&program, argc, argv, &config.node, run);
}
