// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: offloaded layers in one process: the pages stay in the session, and a remote KV is made around them for the
 *          retriever. Its answers are the reference for a cluster's.
 */
#pragma once

#include "engine/offload/retriever/retriever.h"

struct sl_retrieval {
    struct sl_remote_kv *remote_kv; // its segments borrow the session's pages; NULL if every token is resident
    struct sl_source *source;
    struct sl_retriever *retriever;
};

/*
 * Opens the retrieval. The config's session holds what the recipe keeps of the prompt in every layer; its source is
 * made here. `searched` is the memory to search: the session or, if the host cannot reach its pages, a copy in host
 * memory. Both must outlive this. Key indexes are taken from the arena of `searched`, hot caches from the config's.
 * Statuses: as of sl_retriever_create().
 */
enum sl_status sl_retrieval_open_local(const struct sl_retriever_config *config, const struct sl_session *searched,
                                       struct sl_retrieval *local_out, struct sl_error *err);
void sl_retrieval_close(struct sl_retrieval *local); // accepts zeros, leaves zeros
