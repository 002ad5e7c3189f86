// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of ranks share: the device, and how an operation becomes one of every rank.
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "base/team.h"
#include "tensor/ranks/ranks.h"

#define SL_RANKS_CALL_BYTES 512

struct sl_ranks {
    struct sl_device device;
    struct sl_stream streams[SL_N_STREAMS]; // beside them the host's loops run in rank 0's team
    struct sl_ops ops;                      // what is called
    const struct sl_ops *each;              // what it becomes on every rank
    int n;
    struct sl_device *devices[SL_MAX_RANKS];
    struct sl_team *teams[SL_MAX_RANKS];
    struct sl_team *crew; // a thread a rank; whoever drives is rank 0's
    struct sl_team_vigil vigil;
    pthread_mutex_t turn;                          // of those who call: it is about the following
    _Alignas(64) char called[SL_RANKS_CALL_BYTES]; // the call: it stays where a rank is lost, which may come back to it
    atomic_int lost;                               // rank; -1: none
    atomic_size_t weight_bytes[SL_MAX_RANKS];
};

// A call of an operation: a struct of its own begins with it.
struct sl_ranks_call {
    struct sl_ranks *ranks;
    int n; // ranks that take part: all, or rank 0 alone
    void (*run)(const struct sl_ranks_call *call, int rank,
                struct sl_stream *stream); // its part, in the rank's compute stream
};

static inline struct sl_ranks *sl_ranks_of(const struct sl_stream *stream) {
    return (struct sl_ranks *)stream->device;
}

// A call of so many bytes by call->n ranks; rank 0 alone is whoever calls. Nothing is done where a rank is lost. What ranks
// find out they write where pointers of the call lead.
void sl_ranks_run(const struct sl_ranks_call *call, size_t bytes);
#define SL_RANKS_RUN(c)                                                                                                \
    do {                                                                                                               \
        _Static_assert(sizeof(c) <= SL_RANKS_CALL_BYTES, "a call of ranks");                                           \
        sl_ranks_run((const struct sl_ranks_call *)&(c), sizeof(c));                                                   \
    } while (0)

// A call that touches about so many numbers: few are sooner done by one rank than others have begun.
#define SL_RANKS_LEAST_WORK 16384
static inline struct sl_ranks_call sl_ranks_call(struct sl_stream *stream, size_t work,
                                                 void (*run)(const struct sl_ranks_call *, int, struct sl_stream *)) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    return (struct sl_ranks_call){ranks, work < SL_RANKS_LEAST_WORK ? 1 : ranks->n, run};
}

struct sl_share {
    int64_t first, n;
};

// Units [0, total) in n shares, each as large as any but for one.
static inline struct sl_share sl_share_of(int64_t total, int rank, int n) {
    int64_t first = total * rank / n;
    return (struct sl_share){first, total * (rank + 1) / n - first};
}

// What is said of heads, from head `first` on.
static inline struct sl_vectors sl_vectors_from(struct sl_vectors x, int64_t first) {
    return (struct sl_vectors){x.at != NULL ? x.at + (size_t)first * x.stride : NULL, x.stride};
}
static inline struct sl_lists sl_lists_from(struct sl_lists x, int64_t first) {
    return (struct sl_lists){x.at != NULL ? x.at + (size_t)first * x.stride : NULL, x.stride};
}
static inline struct sl_counts sl_counts_from(struct sl_counts x, int64_t first) {
    return (struct sl_counts){x.host != NULL ? x.host + first : NULL, x.device != NULL ? x.device + first : NULL};
}

void sl_ranks_fill_dense(struct sl_ops *ops);     // dense.c: weights and rows
void sl_ranks_fill_attention(struct sl_ops *ops); // attention.c
void sl_ranks_fill_heads(struct sl_ops *ops);     // heads.c: pages and slots
