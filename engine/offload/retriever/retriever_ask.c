// SPDX-License-Identifier: Apache-2.0
// Questions to shares. See retriever_internal.h.
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "engine/offload/retriever/retriever_internal.h"

#define MAX_PIECES 16 // of a layer's offloaded heads

/*
 * Returns how many offloaded heads a question has. A store answers each question with one thread. If a layer's search
 * is long, several questions share its offloaded heads, so that the threads share the work.
 */
static int offloaded_heads_of_a_question(const struct sl_retriever *r) {
    if (r->method->whole_layers) {
        return r->n_heads;
    }
    int64_t bits = r->shape.max_tokens * r->n_channels * sl_kv_format_bits(r->shape.scan);
    int64_t offloaded_heads = (r->config.search_bytes * 8 + bits - 1) / (bits > 0 ? bits : 1);
    int64_t least = (r->n_heads + MAX_PIECES - 1) / MAX_PIECES;
    offloaded_heads = offloaded_heads > least ? offloaded_heads : least;
    return offloaded_heads < r->n_heads ? (int)offloaded_heads : r->n_heads;
}

int sl_retriever_find_parts(const struct sl_retriever *r, int index, struct sl_retriever_part *parts) {
    const struct sl_source *source = r->config.source;
    int begin = index * r->n_heads, end = begin + r->n_heads, n = 0, most = offloaded_heads_of_a_question(r);
    for (int s = 0; s < source->n_shares; s++) {
        int first = source->shares[s].first_offloaded_head, last = first + source->shares[s].n_offloaded_heads;
        first = first > begin ? first : begin;
        last = last < end ? last : end;
        for (; first < last; first += most, n++) {
            if (parts != NULL) {
                parts[n] = (struct sl_retriever_part){.share = s,
                                                      .first_offloaded_head = first,
                                                      .n_offloaded_heads = last - first < most ? last - first : most,
                                                      .first_head = first - begin};
            }
        }
    }
    return n;
}

enum sl_status sl_retriever_take_means(struct sl_retriever *r, const struct sl_attend *attend, const float *q,
                                       struct sl_error *err) {
    r->config.ops->mean_query(r->config.stream, attend, q, r->means);
    return sl_stream_wait(r->config.stream, err);
}

void *sl_retriever_request_body(struct sl_retriever *r) {
    return r->request + sizeof(struct sl_near_request);
}

size_t sl_retriever_request_cap(const struct sl_retriever *r) {
    size_t queries = (size_t)r->n_heads * (size_t)r->head_dim * sizeof(float);
    size_t channels = (size_t)r->n_heads * (size_t)r->n_channels * sizeof(uint16_t);
    size_t tokens = ((size_t)r->sinks + r->recent + r->topk) * sizeof(uint32_t);
    size_t most = queries > channels ? queries : channels;
    return most > tokens ? most : tokens;
}

enum sl_status sl_retriever_send(struct sl_retriever *r, const struct sl_near_request *head, size_t body_bytes,
                                 struct sl_retriever_pending *pending, struct sl_error *err) {
    struct sl_source *source = r->config.source;
    assert(pending->asked == NULL && body_bytes <= sl_retriever_request_cap(r));
    size_t capacity = sl_near_answer_limit(&r->shape, head);
    SL_FAIL_IF(capacity == 0, err, SL_ERR_UNSUPPORTED,
               "retrieval: an answer about %u offloaded heads would be longer than %zu bytes", head->n_offloaded_heads,
               SL_NEAR_MAX_ANSWER_BYTES);
    memcpy(r->request, head, sizeof *head);
    pending->sent_ns = sl_now_ns();
    enum sl_status status =
        source->ops->ask(source, (struct sl_near_request *)r->request, sizeof *head + body_bytes, capacity,
                         pending->sent_ns + r->answer_ms * SL_NS_PER_MS, &pending->asked, err);
    memcpy(&pending->request, r->request, sizeof *head); // as completed by the source
    return status;
}

void sl_retriever_give_up(struct sl_retriever *r, struct sl_retriever_pending *pending) {
    if (pending->asked != NULL) {
        r->config.source->ops->forget(r->config.source, &pending->asked);
    }
}

// Returns true if the share may answer the next question: the store was too slow or too busy. False if every connection
// to it was cut and none could be opened in all that time: it is lost, and to go on would only write worse tokens.
static bool is_passing(enum sl_status status) {
    return status == SL_ERR_DEADLINE || status == SL_ERR_EXHAUSTED || status > SL_OK;
}

enum sl_status sl_retriever_receive(struct sl_retriever *r, int share, struct sl_retriever_pending *pending,
                                    const uint8_t **body_out, const uint8_t **end_out, struct sl_error *err) {
    struct sl_source *source = r->config.source;
    const void *answer;
    size_t bytes;
    struct sl_near_answer head;
    struct sl_error why = {.text = "no answer"};
    int64_t begin_ns = sl_now_ns();
    enum sl_status status = source->ops->wait(source, pending->asked, &answer, &bytes, &why);
    int64_t now = sl_now_ns();
    r->stats.wait_ns += now - begin_ns;
    r->stats.round_ns += now - pending->sent_ns;
    SL_THEN(status, sl_near_check(&pending->request, answer, bytes, &head, body_out, &why));
    if (status == SL_OK) {
        *end_out = (const uint8_t *)answer + bytes;
        r->stats.store_ns += (int64_t)head.scan_ns;
        r->silent_ns[share] = 0;
        return SL_OK;
    }
    sl_retriever_give_up(r, pending);
    if (!is_passing(status)) { // the remote KV is gone, or its answer is invalid: a retry with other stores may work
        return sl_fail_from(err, SL_ERR_PEER_LOST, &why, "offloaded layers: %s", why.text);
    }
    if (r->silent_ns[share] == 0) {
        r->silent_ns[share] = pending->sent_ns;
    }
    if (now - r->silent_ns[share] < r->config.lost_ms * SL_NS_PER_MS) {
        r->why = why;
        return SL_AGAIN;
    }
    return sl_fail_from(err, SL_ERR_PEER_LOST, &why, "offloaded layers: no answer for %lld ms: %s",
                        (long long)((now - r->silent_ns[share]) / SL_NS_PER_MS), why.text);
}
