// SPDX-License-Identifier: Apache-2.0
#include "engine/job/retrieval_statistics.h"

#include "base/clock.h"

struct sl_retriever_stats sl_retriever_stats_since(const struct sl_retriever_stats *stats,
                                                   const struct sl_retriever_stats *before) {
    struct sl_retriever_stats since = *stats;
    since.n_steps -= before->n_steps;
    since.rows_fetched -= before->rows_fetched;
    since.rows_kept -= before->rows_kept;
    since.n_asks -= before->n_asks;
    since.n_fallbacks -= before->n_fallbacks;
    since.n_replica_asks -= before->n_replica_asks;
    since.bytes_sent -= before->bytes_sent;
    since.bytes_received -= before->bytes_received;
    since.wait_ns -= before->wait_ns;
    since.round_ns -= before->round_ns;
    since.store_ns -= before->store_ns;
    since.n_probes -= before->n_probes;
    since.n_exact -= before->n_exact;
    return since;
}

void sl_retrieval_statistics_attach(const struct sl_retriever_stats *stats, Sluice__V1__Retrieval *retrieval,
                                    Sluice__V1__Statistics *message) {
    sluice__v1__retrieval__init(retrieval);
    retrieval->rows_fetched = stats->rows_fetched;
    retrieval->rows_kept = stats->rows_kept;
    retrieval->asks = stats->n_asks;
    retrieval->fallbacks = stats->n_fallbacks;
    retrieval->replica_asks = stats->n_replica_asks;
    retrieval->bytes_sent = (int64_t)stats->bytes_sent;
    retrieval->bytes_received = (int64_t)stats->bytes_received;
    retrieval->wait_ms = (double)stats->wait_ns / SL_NS_PER_MS;
    retrieval->round_ms = (double)stats->round_ns / SL_NS_PER_MS;
    retrieval->store_ms = (double)stats->store_ns / SL_NS_PER_MS;
    retrieval->recall = stats->recall;
    retrieval->probes = stats->n_probes;
    retrieval->exact = stats->n_exact;
    retrieval->row_cache_bytes = (int64_t)stats->hot_cache_bytes;
    message->retrieval = retrieval;
    message->slots_fetched = stats->rows_fetched + stats->rows_kept; // that attention saw: topk of every head and step
}
