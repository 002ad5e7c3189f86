// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by the files of the retriever alone.
 *
 *     retriever.c        life cycle, and the attention of one layer over the fetched rows
 *     retriever_slots.c  page tables and lists of slots, over the fetched rows and the session's
 *     retriever_ask.c    questions to shares: sent, awaited, given up; how long a share has been silent
 *     retriever_open.c   questions asked once: rows that are always resident (resident_only), absmax (pull)
 *     retriever_near.c   the query goes to the keys; predictions and their recall
 *     retriever_pull.c   channels come here, are scored here, and rows follow
 *     hot_cache.c        which token is in which place (pull)
 */
#pragma once

#include "engine/offload/retriever/hot_cache.h"
#include "engine/offload/retriever/retriever.h"

// A pending question.
struct sl_retriever_pending {
    struct sl_asked *asked;         // NULL: none
    struct sl_near_request request; // its header, against which the answer is checked
    int64_t sent_ns;
};

// Parts of one layer: pieces of SL_MAX_SHARES shares.

// Adjacent offloaded heads of one layer that one share holds, in one question: all of them, or a piece.
struct sl_retriever_part {
    int share;
    int first_offloaded_head, n_offloaded_heads;
    int first_head;                             // head of first_offloaded_head in the layer
    uint64_t sequence;                          // of the next TOPK request
    bool reset;                                 // an answer was not used: the remote KV side's record is wrong
    struct sl_retriever_pending main;           // TOPK or CHANNELS of the layer's next attention
    struct sl_retriever_pending guessed, exact; // probes: with the predicted and with the true query
};

// One offloaded layer.
struct sl_retriever_layer {
    int layer;
    struct sl_retriever_part *parts; // [n_parts], ascending by offloaded head
    int n_parts;
    char **blocks; // of the arena: [n_heads], each of n_block_pages pages
    int64_t n_steps;
    int64_t n_probes;
    double recall; // moving average; meaningful when n_probes > 0
};

// The rows that a method has fetched for one KV head of the current layer.
struct sl_retriever_brought {
    bool is_missing; // no answer: attend to resident slots alone
    struct sl_near_offloaded_head_view view;
};

struct sl_retriever {
    struct sl_retriever_config config;
    struct sl_offloaded_heads offloaded_heads;
    struct sl_near_shape shape;
    const struct sl_retriever_way *method;
    int n_layers, n_heads, head_dim, n_channels; // n_heads: KV heads
    uint32_t sinks, recent, topk;
    bool keeps_none;   // keep=0: every step gets all of its rows
    uint32_t n_places; // of an offloaded head; 0: nothing to select, every layer is plain attention
    // of an offloaded head: its hot cache and, if the session holds all slots, sinks and recent ones
    uint32_t n_block_pages;
    uint32_t first_page;               // of the session; the pages before it are not needed
    struct sl_retriever_layer *layers; // [offloaded heads.n_layers]
    struct sl_retriever_part *parts;   // of all layers, one allocation
    char **blocks;                     // likewise: [offloaded heads.n_layers][n_heads]
    int64_t answer_ms;                 // how long to wait for an answer
    int64_t silent_ns[SL_MAX_SHARES];  // when the first unanswered question was sent; 0: it answers
    int asked_layer;                   // the layer for which sl_retriever_ask() was called; -1
    char *request;                     // scratch: a header and its body
    void *shared; // the device's memory that the host writes and reads; holds rows, means, slots, fresh
    char *rows;   // [n_heads][topk] staging for rows of a device with its own memory; NULL: rows are put in place
    float *means; // [n_heads][d] of the query in the question
    struct sl_retriever_brought *brought; // [n_heads]
    struct sl_lists slots;                // [n_heads] the slots to attend to
    uint32_t *n_slots;                    // [n_heads]
    struct sl_mark attended;              // after the last attention that reads `slots`
    void ***tables;                       // [n_heads] page tables: the hot cache's pages, then the session's
    size_t tables_cap;
    struct sl_kv *kv;               // [n_heads]
    struct sl_lists fresh;          // [n_heads][topk] slots for the fetched rows
    uint32_t *n_fresh;              // [n_heads]
    const void **fresh_rows;        // [n_heads]
    uint64_t *seen;                 // scratch of sl_near_next_offloaded_head()
    struct sl_retriever_pull *pull; // retrieve=pull
    struct sl_error why;            // why the last answer did not come
    struct sl_retriever_stats stats;
};

/*
 * The two methods. Both may have a question pending since the previous layer (ahead), or send it now (ask); take()
 * waits, and fills r->brought.
 */
struct sl_retriever_way {
    bool whole_layers; // a question covers all of a layer's offloaded heads of a share; false: about as many as search
                       // config.search_bytes
    // Create and destroy the method's own state, if there is something to select. Both NULL: none. destroy accepts a
    // partly created state.
    enum sl_status (*create)(struct sl_retriever *r, struct sl_error *err);
    void (*destroy)(struct sl_retriever *r);
    // NULL: nothing is asked ahead. attend: of the previous layer.
    enum sl_status (*ahead)(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                            struct sl_error *err);
    enum sl_status (*ask)(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                          struct sl_error *err);
    enum sl_status (*take)(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                           struct sl_error *err);
    void (*release)(struct sl_retriever *r, struct sl_retriever_layer *l); // the fetched rows have been copied
};
extern const struct sl_retriever_way sl_retriever_near_way, sl_retriever_near_ahead_way, sl_retriever_pull_way;

// --- retriever_slots.c
// Returns the pages of head h in a layer's block.
void sl_retriever_block_pages(const struct sl_retriever *r, const struct sl_retriever_layer *l, int h,
                              void **pages_out);
// Lists the slots for r->brought: r->fresh: where the rows go in the hot cache; r->kv, r->slots and r->n_slots: what
// every head attends to.
void sl_retriever_list_slots(struct sl_retriever *r, const struct sl_retriever_layer *l,
                             const struct sl_attend *attend);

// --- retriever_ask.c
// Computes r->means of `q`: attend->q, or its next_q. Signs cancel, as in TailorKV's code. Waits for the device.
enum sl_status sl_retriever_take_means(struct sl_retriever *r, const struct sl_attend *attend, const float *q,
                                       struct sl_error *err);
// Divides the offloaded heads of layer `index` into `parts`. Returns how many there are; parts may be NULL.
int sl_retriever_find_parts(const struct sl_retriever *r, int index, struct sl_retriever_part *parts);
/*
 * Sends a request of `kind` for a part; the body follows the header in r->request (sl_retriever_request_body()). head
 * has the fields that this kind needs besides kind, offloaded heads and shape of retrieval.
 */
void *sl_retriever_request_body(struct sl_retriever *r);
size_t sl_retriever_request_cap(const struct sl_retriever *r); // the longest body
enum sl_status sl_retriever_send(struct sl_retriever *r, const struct sl_near_request *head, size_t body_bytes,
                                 struct sl_retriever_pending *pending, struct sl_error *err);
/*
 * Waits for an answer and checks it. SL_AGAIN: none came in time, or the store could not answer just now; it counts as
 * silence of the share. SL_ERR_PEER_LOST: no answer for lost_ms, the share's stores are lost, or the answer was
 * invalid.
 */
enum sl_status sl_retriever_receive(struct sl_retriever *r, int share, struct sl_retriever_pending *pending,
                                    const uint8_t **body_out, const uint8_t **end_out, struct sl_error *err);
void sl_retriever_give_up(struct sl_retriever *r, struct sl_retriever_pending *pending);

// --- retriever_open.c
enum sl_status sl_retriever_fetch_resident(struct sl_retriever *r, struct sl_error *err);
// [offloaded heads][d]
enum sl_status sl_retriever_fetch_absmax(struct sl_retriever *r, float *absmax_out, struct sl_error *err);

static inline struct sl_near_request sl_retriever_part_request(const struct sl_retriever_part *part,
                                                               enum sl_near_kind kind) {
    return (struct sl_near_request){.magic = SL_NEAR_MAGIC,
                                    .version = SL_NEAR_VERSION,
                                    .kind = kind,
                                    .first_offloaded_head = (uint32_t)part->first_offloaded_head,
                                    .n_offloaded_heads = (uint32_t)part->n_offloaded_heads};
}
// Returns the end of the prompt's candidate tokens.
static inline int64_t sl_retriever_last_choice(const struct sl_retriever *r) {
    return r->config.n_prompt - r->recent;
}
