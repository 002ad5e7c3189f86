// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the KV store: keeps finished capsules in memory under a byte budget, finds the longest stored prefix of a
 *          prompt and ships it to whoever holds a grant for it.
 *
 * Design: capsules arrive like at a decode worker, in leased landings (service/landing.h). A keeper thread shelves what
 *         has landed and ends pins that nobody renews. Handlers of Fetch send from the shelf; a pinned capsule is not
 *         evicted.
 */
#ifndef SL_KVSTORE_KVSTORE_H
#define SL_KVSTORE_KVSTORE_H

#include "service/node.h"

struct sl_kvstore_config {
    struct sl_node_config node; // first: the option table counts on it
};

// The whole life of a worker: open, serve until SIGTERM, close.
enum sl_status sl_kvstore_run(const struct sl_kvstore_config *config, struct sl_error *err);

#endif
