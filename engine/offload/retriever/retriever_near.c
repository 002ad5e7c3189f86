// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: retrieve=near: the query goes to the store that has the keys, and the rows that the hot cache lacks come
 *          back.
 *
 * Recall of predictions (ahead=1): from time to time a layer's predicted and true query are both sent for tokens alone
 *     (SL_NEAR_PROBE), one with the prediction and one with the attention. The answers are read one step later: no
 *     thread waits for them, and the step in which they count does not depend on when they arrive. So the same steps
 *     make the same choices on every machine.
 */
#include <string.h>

#include "base/ascending.h"
#include "engine/offload/retriever/retriever_internal.h"

#define PROBE_EVERY   16   // steps of a layer between two probes; layers take turns
#define RECALL_WEIGHT 0.25 // of the newest probe in a layer's moving average

// --- questions -------------------------------------------------------------------------------------------------------

// Sends the query r->means.
static enum sl_status send_query(struct sl_retriever *r, const struct sl_retriever_part *part, uint32_t flags,
                                 struct sl_retriever_pending *pending, struct sl_error *err) {
    size_t d = (size_t)r->head_dim, bytes = (size_t)part->n_offloaded_heads * d * sizeof *r->means;
    struct sl_near_request head = sl_retriever_part_request(part, SL_NEAR_TOPK);
    head.flags = flags;
    head.n_channels = (uint32_t)r->n_channels;
    head.topk = r->topk;
    head.places = r->n_places;
    head.first = r->sinks;
    head.last = sl_retriever_last_choice(r);
    head.sequence = part->sequence;
    memcpy(sl_retriever_request_body(r), r->means + (size_t)part->first_head * d, bytes);
    return sl_retriever_send(r, &head, bytes, pending, err);
}

// Sends the questions of the layer's next attention.
static enum sl_status send_all(struct sl_retriever *r, struct sl_retriever_layer *l, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        struct sl_retriever_part *part = &l->parts[p];
        bool forgets = part->reset || r->keeps_none;
        status = send_query(r, part, forgets ? SL_NEAR_RESET : 0, &part->main, err);
        part->reset = false;
        part->sequence++;
    }
    return status;
}

static enum sl_status ask(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                          struct sl_error *err) {
    if (l->parts[0].main.asked != NULL) {
        return SL_OK;
    }
    enum sl_status status = sl_retriever_take_means(r, attend, attend->q, err);
    return status == SL_OK ? send_all(r, l, err) : status;
}

// --- predictions -----------------------------------------------------------------------------------------------------

// Counts the tokens in both answers of a part, of *n_out; false: one of them did not come.
static bool compare(struct sl_retriever *r, struct sl_retriever_part *part, uint32_t *common_out, uint32_t *n_out) {
    const uint8_t *guessed, *guessed_end, *exact, *exact_end;
    struct sl_error err;
    size_t row_bytes = sl_near_row_bytes(&r->shape);
    *common_out = *n_out = 0;
    if (part->guessed.asked == NULL || part->exact.asked == NULL ||
        sl_retriever_receive(r, part->share, &part->guessed, &guessed, &guessed_end, &err) != SL_OK ||
        sl_retriever_receive(r, part->share, &part->exact, &exact, &exact_end, &err) != SL_OK) {
        return false;
    }
    for (int i = 0; i < part->n_offloaded_heads; i++) {
        struct sl_near_offloaded_head_view a, b;
        if (sl_near_next_offloaded_head(&part->guessed.request, row_bytes, r->seen, &guessed, guessed_end, &a, &err) !=
                SL_OK ||
            sl_near_next_offloaded_head(&part->exact.request, row_bytes, r->seen, &exact, exact_end, &b, &err) !=
                SL_OK) {
            return false;
        }
        *common_out += (uint32_t)sl_ascending_common(a.places, a.n_rows, b.places, b.n_rows);
        *n_out += b.n_rows;
    }
    return true;
}

// Updates the recall with the last step's probes of this layer, if there were any.
static void harvest(struct sl_retriever *r, struct sl_retriever_layer *l) {
    uint32_t common = 0, n = 0;
    bool is_whole = true;
    for (int p = 0; p < l->n_parts; p++) {
        uint32_t part_common, part_n;
        is_whole &= compare(r, &l->parts[p], &part_common, &part_n);
        sl_retriever_give_up(r, &l->parts[p].guessed);
        sl_retriever_give_up(r, &l->parts[p].exact);
        common += part_common;
        n += part_n;
    }
    if (is_whole && n > 0) {
        double recall = (double)common / n;
        l->recall += l->n_probes == 0 ? recall : RECALL_WEIGHT * (recall - l->recall);
        l->n_probes++;
        r->stats.n_probes++;
    }
}

static bool is_probed(const struct sl_retriever *r, const struct sl_retriever_layer *l) {
    return l->n_steps % PROBE_EVERY == (l - r->layers) % PROBE_EVERY;
}

static enum sl_status ahead(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                            struct sl_error *err) {
    harvest(r, l);
    SL_TRY(sl_retriever_take_means(r, attend, attend->next_q, err));
    if (l->n_probes == 0 || l->recall >= r->config.least_recall) {
        SL_TRY(send_all(r, l, err));
    }
    for (int p = 0; p < l->n_parts && is_probed(r, l); p++) {
        SL_TRY(send_query(r, &l->parts[p], SL_NEAR_PROBE, &l->parts[p].guessed, err));
    }
    return SL_OK;
}

static enum sl_status ask_unless_ahead(struct sl_retriever *r, struct sl_retriever_layer *l,
                                       const struct sl_attend *attend, struct sl_error *err) {
    bool is_exact = l->parts[0].main.asked == NULL, probes = false;
    for (int p = 0; p < l->n_parts; p++) {
        probes |= l->parts[p].guessed.asked != NULL && l->parts[p].exact.asked == NULL;
    }
    r->stats.n_exact += is_exact;
    enum sl_status status = is_exact || probes ? sl_retriever_take_means(r, attend, attend->q, err) : SL_OK;
    status = status == SL_OK && is_exact ? send_all(r, l, err) : status;
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        struct sl_retriever_part *part = &l->parts[p];
        if (part->guessed.asked != NULL && part->exact.asked == NULL) {
            status = send_query(r, part, SL_NEAR_PROBE, &part->exact, err);
        }
    }
    return status;
}

// --- answers ---------------------------------------------------------------------------------------------------------

static enum sl_status take_part(struct sl_retriever *r, struct sl_retriever_part *part, struct sl_error *err) {
    const uint8_t *at, *end;
    size_t row_bytes = sl_near_row_bytes(&r->shape);
    enum sl_status status = sl_retriever_receive(r, part->share, &part->main, &at, &end, err);
    part->reset |= status != SL_OK;
    for (int i = 0; i < part->n_offloaded_heads; i++) {
        r->brought[part->first_head + i].is_missing = status != SL_OK;
    }
    for (int i = 0; status == SL_OK && i < part->n_offloaded_heads; i++) {
        struct sl_near_offloaded_head_view *view = &r->brought[part->first_head + i].view;
        status = sl_near_next_offloaded_head(&part->main.request, row_bytes, r->seen, &at, end, view, err);
        if (status == SL_OK && view->n_rows != r->topk) {
            status = sl_fail(err, SL_ERR_PEER_CORRUPT, "retrieval: an answer of %u rows, expected %u", view->n_rows,
                             r->topk);
        }
    }
    return status == SL_AGAIN ? SL_OK : status;
}

static enum sl_status take(struct sl_retriever *r, struct sl_retriever_layer *l, const struct sl_attend *attend,
                           struct sl_error *err) {
    enum sl_status status = SL_OK;
    (void)attend;
    for (int p = 0; status == SL_OK && p < l->n_parts; p++) {
        status = take_part(r, &l->parts[p], err);
    }
    return status;
}

static void release(struct sl_retriever *r, struct sl_retriever_layer *l) {
    for (int p = 0; p < l->n_parts; p++) {
        sl_retriever_give_up(r, &l->parts[p].main);
    }
}

const struct sl_retriever_way sl_retriever_near_way = {.ask = ask, .take = take, .release = release};
const struct sl_retriever_way sl_retriever_near_ahead_way = {
    .ahead = ahead, .ask = ask_unless_ahead, .take = take, .release = release};
