// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the files of the retriever share and nobody else needs.
 *
 *     retriever.c        life cycle, and the attention of one layer over what a method has brought
 *     retriever_slots.c  of what the method has brought and the session has: page tables and lists of slots
 *     retriever_ask.c    questions to shares: sent, waited for, given up; how long a share has been silent
 *     retriever_open.c   what is asked once: rows that are always resident (resident_only), absmax (pull)
 *     retriever_near.c   the query goes to the keys; predictions and their recall
 *     retriever_pull.c   channels come here, are scored here, and rows follow
 *     hot_cache.c        which token lies in which place (pull)
 */
#pragma once

#include "offload/retriever/hot_cache.h"
#include "offload/retriever/retriever.h"

// A question under way.
struct sl_retriever_pending {
    struct sl_asked *asked;         // NULL: none
    struct sl_near_request request; // its head, which the answer is checked against
    int64_t sent_ns;
};

// Of a layer: pieces of SL_MAX_SHARES shares.
#define SL_RETRIEVER_MAX_PARTS (SL_MAX_SHARES + 16)

// Adjacent lanes of one layer that one share holds, asked about in one question: all of them, or a piece.
struct sl_retriever_part {
    int share;
    int first_lane, n_lanes;
    int first_head;                             // of the layer: that of first_lane
    uint64_t sequence;                          // of the next TOPK request
    bool reset;                                 // an answer was not used: what the annex side remembers is not so
    struct sl_retriever_pending main;           // TOPK or CHANNELS of the layer's next attention
    struct sl_retriever_pending guessed, exact; // probes: with the predicted and with the true query
};

// One offloaded layer.
struct sl_retriever_layer {
    int layer;
    struct sl_retriever_part *parts; // [n_parts], ascending by lane
    int n_parts;
    char **blocks; // of the arena: [n_heads], each of n_block_pages pages
    int64_t n_steps;
    int64_t n_probes;
    double recall; // moving average; meaningful when n_probes > 0
};

// What a method has brought for one KV head of the layer at hand.
struct sl_retriever_brought {
    bool is_missing; // no answer: resident slots alone
    struct sl_near_lane_view view;
};

struct sl_retriever {
    struct sl_retriever_config config;
    struct sl_lanes lanes;
    struct sl_near_shape shape;
    const struct sl_retriever_way *method;
    int n_layers, n_heads, head_dim, n_channels; // n_heads: KV heads
    uint32_t sinks, recent, topk;
    bool keeps_none;        // keep=0: every step is sent all of its rows
    uint32_t n_places;      // of a lane; 0: there is nothing to choose, every layer is plain attention
    uint32_t n_block_pages; // of a lane: its hot cache, and where the session holds all slots, sinks and recent ones
    uint32_t first_page;    // of the session: those before it are not needed
    struct sl_retriever_layer *layers; // [lanes.n_layers]
    struct sl_retriever_part *parts;   // behind every layer's
    char **blocks;                     // likewise: [lanes.n_layers][n_heads]
    int64_t answer_ms;                 // that an answer is waited for
    int64_t silent_ns[SL_MAX_SHARES];  // when the first question was sent that has had no answer since; 0: it answers
    int asked_layer;                   // sl_retriever_ask() has been called for it; -1
    char *request;                     // scratch: a head and what follows it
    void *shared; // memory of the device's that the host writes and reads, behind rows, means, slots, fresh
    char *rows; // [n_heads][topk] rows on their way into a device's own memory; NULL: they are put from where they are
    float *means;                         // [n_heads][d] of the query that is asked about
    struct sl_retriever_brought *brought; // [n_heads]
    struct sl_lists slots;                // [n_heads] what is attended to
    uint32_t *n_slots;                    // [n_heads]
    struct sl_mark attended;              // behind the last attention that reads `slots`
    void ***tables;                       // [n_heads] page tables: the hot cache's pages, then the session's
    size_t tables_cap;
    struct sl_kv *kv;               // [n_heads]
    struct sl_lists fresh;          // [n_heads][topk] slots of the rows that have come
    uint32_t *n_fresh;              // [n_heads]
    const void **fresh_rows;        // [n_heads]
    struct sl_retriever_pull *pull; // retrieve=pull
    struct sl_error why;            // the last answer did not come
    struct sl_retriever_stats stats;
};

/*
 * The two ways. What they have in common: a question may be under way since the layer before (ahead), or is sent now
 * (ask); take() waits, and fills r->brought.
 */
struct sl_retriever_way {
    bool
        whole_layers; // a question is about a layer's lanes of a share; false: about as many as search config.search_bytes
    // Where there is something to choose: what the way needs of its own. Both NULL: nothing. destroy copes with halves.
    enum sl_status (*create)(struct sl_retriever *r, struct sl_error *err);
    void (*destroy)(struct sl_retriever *r);
    // NULL: nothing is asked ahead. attend: of the layer before.
    enum sl_status (*ahead)(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                            struct sl_error *err);
    enum sl_status (*ask)(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                          struct sl_error *err);
    enum sl_status (*take)(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                           struct sl_error *err);
    void (*release)(struct sl_retriever *r, struct sl_retriever_layer *l); // what was brought has been copied
};
extern const struct sl_retriever_way sl_retriever_near_way, sl_retriever_near_ahead_way, sl_retriever_pull_way;

// --- retriever_slots.c
// The pages of head h in a layer's block.
void sl_retriever_block_pages(const struct sl_retriever *r, const struct sl_retriever_layer *l, int h,
                              void **pages_out);
// Of what r->brought has: r->fresh says where it goes in the hot cache; r->kv, r->slots and r->n_slots what every head attends
// to.
void sl_retriever_list_slots(struct sl_retriever *r, const struct sl_retriever_layer *l,
                             const struct sl_attend *attend);

// --- retriever_ask.c
// r->means of `q`: attend->q, or its next_q. Signs cancel, as in TailorKV's code. Waits for the device.
enum sl_status sl_retriever_take_means(struct sl_retriever *r, const struct sl_attend *attend, const float *q,
                                       struct sl_error *err);
// Lanes l->parts into `parts`. Returns how many there are; parts may be NULL.
int sl_retriever_find_parts(const struct sl_retriever *r, int index, struct sl_retriever_part *parts);
/*
 * Send a request of `kind` for a part; what follows the head lies behind it in r->request (sl_retriever_request_body()). head has
 * what this kind needs beside kind, lanes and shape of retrieval.
 */
void *sl_retriever_request_body(struct sl_retriever *r);
size_t sl_retriever_request_cap(const struct sl_retriever *r); // bytes of the longest body
enum sl_status sl_retriever_send(struct sl_retriever *r, const struct sl_near_request *head, size_t body_bytes,
                                 struct sl_retriever_pending *pending, struct sl_error *err);
/*
 * Wait for an answer and check it. SL_AGAIN: none came in time, or the store could not just now; it has been counted
 * against the share. SL_ERR_PEER_LOST: nor has any for lost_ms, the share's stores are lost, or what came was
 * none.
 */
enum sl_status sl_retriever_receive(struct sl_retriever *r, int share, struct sl_retriever_pending *pending,
                                    const uint8_t **body_out, const uint8_t **end_out, struct sl_error *err);
void sl_retriever_give_up(struct sl_retriever *r, struct sl_retriever_pending *pending);

// --- retriever_open.c
enum sl_status sl_retriever_fetch_resident(struct sl_retriever *r, struct sl_error *err);
enum sl_status sl_retriever_fetch_absmax(struct sl_retriever *r, float *absmax_out, struct sl_error *err); // [lanes][d]

static inline struct sl_near_request sl_retriever_part_request(const struct sl_retriever_part *part,
                                                               enum sl_near_kind kind) {
    return (struct sl_near_request){.magic = SL_NEAR_MAGIC,
                                    .version = SL_NEAR_VERSION,
                                    .kind = kind,
                                    .first_lane = (uint32_t)part->first_lane,
                                    .n_lanes = (uint32_t)part->n_lanes};
}
// The prompt's tokens that may be chosen.
static inline int64_t sl_retriever_last_choice(const struct sl_retriever *r) {
    return r->config.n_prompt - r->recent;
}
