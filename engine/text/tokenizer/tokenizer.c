// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the pipeline from text to ids (see the diagram in tokenizer_internal.h).
 *
 * Design: added tokens are cut out twice: those that are not normalized from the original text, the others from the
 *         normalized text in between. The rest goes through the pre-tokenizer into merges.
 */
#include <stdlib.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

#define MAX_TEXT_BYTES ((size_t)1 << 30) // positions in a piece are 32-bit

// State of one call of sl_tokenizer_encode().
struct encoding {
    const struct sl_tokenizer *tokenizer;
    struct sl_bpe_scratch scratch;
    struct sl_regex_search search;
    struct sl_ids ids;
    bool first; // the part being encoded is the start of the text
    struct sl_error *err;
};

static enum sl_status encode_piece(void *arg, const char *piece, size_t n_bytes) {
    struct encoding *e = arg;
    enum sl_status status = sl_bpe_pause(&e->scratch, n_bytes);
    SL_THEN(status, sl_bpe_encode(&e->tokenizer->bpe, &e->scratch, piece, n_bytes, &e->ids));
    return status == SL_OK ? SL_OK
           : status == SL_ERR_EXHAUSTED
               ? sl_fail(e->err, status, "no memory to encode a piece of %zu bytes", n_bytes)
               : sl_fail(e->err, status, "%s while the text was tokenized", sl_status_text(status));
}

static enum sl_status encode_plain(struct encoding *e, const char *text, size_t n_bytes) {
    const struct sl_cutting cutting = {&e->tokenizer->pretokenizer, &e->search, encode_piece, e, e->err};
    return sl_pretokenizer_cut(&cutting, text, n_bytes, e->first);
}

typedef enum sl_status (*encode_fn)(struct encoding *e, const char *text, size_t n_bytes);

// Encodes tokens of `set` as their ids; passes the text between them to `between`.
static enum sl_status encode_added(struct encoding *e, const struct sl_added_set *set, encode_fn between,
                                   const char *text, size_t n_bytes) {
    struct sl_added_cursor cursor = {.set = set, .text = text, .n_bytes = n_bytes, .pending_id = -1};
    size_t begin = 0, end = 0;
    int32_t id = -1;
    bool first = e->first;
    while (sl_added_next(&cursor, &begin, &end, &id)) {
        enum sl_status status = SL_OK;
        e->first = first && begin == 0;
        if (id < 0) {
            status = between(e, text + begin, end - begin);
        } else if (sl_ids_push(&e->ids, id) != SL_OK) {
            status = sl_fail(e->err, SL_ERR_EXHAUSTED, "no memory for %zu ids", e->ids.n);
        }
        SL_TRY(status);
    }
    return SL_OK;
}

static enum sl_status encode_raw(struct encoding *e, const char *text, size_t n_bytes) {
    struct sl_text normalized = {.bytes = text, .n_bytes = n_bytes};
    enum sl_status status = sl_normalizer_run(&e->tokenizer->normalizer, &normalized);
    if (status != SL_OK) {
        sl_fail(e->err, status, "cannot normalize a text of %zu bytes", n_bytes);
    } else {
        status = encode_added(e, &e->tokenizer->added_normalized, encode_plain, normalized.bytes, normalized.n_bytes);
    }
    sl_text_cleanup(&normalized);
    return status;
}

static enum sl_status push_all(struct encoding *e, const int32_t *ids, int n) {
    enum sl_status status = SL_OK;
    for (int i = 0; i < n && status == SL_OK; i++) {
        status = sl_ids_push(&e->ids, ids[i]);
    }
    return status == SL_OK ? SL_OK : sl_fail(e->err, status, "no memory for %zu ids", e->ids.n);
}

static enum sl_status encode_whole(struct encoding *e, const char *text, size_t n_bytes, bool add_special) {
    const struct sl_template *template = &e->tokenizer->template;
    SL_FAIL_IF(!sl_regex_search_init(&e->search, n_bytes), e->err, SL_ERR_EXHAUSTED,
               "no memory to encode a text of %zu bytes", n_bytes);
    enum sl_status status = add_special ? push_all(e, template->before, template->n_before) : SL_OK;
    SL_THEN(status, encode_added(e, &e->tokenizer->added_raw, encode_raw, text, n_bytes));
    if (status == SL_OK && add_special) {
        status = push_all(e, template->after, template->n_after);
    }
    sl_regex_search_cleanup(&e->search);
    return status;
}

enum sl_status sl_tokenizer_encode(const struct sl_tokenizer *tokenizer, const char *text, size_t n_bytes,
                                   bool add_special, int32_t **ids_out, size_t *n_ids_out, struct sl_error *err) {
    size_t bad_offset = 0;
    SL_FAIL_IF(n_bytes > MAX_TEXT_BYTES, err, SL_ERR_RANGE, "a text of %zu bytes; at most %zu can be encoded", n_bytes,
               MAX_TEXT_BYTES);
    SL_FAIL_IF(!sl_utf8_valid(text, n_bytes, &bad_offset), err, SL_ERR_INVALID,
               "the text is not UTF-8: the byte 0x%02x at offset %zu", (unsigned)(unsigned char)text[bad_offset],
               bad_offset);
    struct encoding e = {.tokenizer = tokenizer, .first = true, .err = err};
    enum sl_status status = encode_whole(&e, text, n_bytes, add_special);
    sl_bpe_scratch_cleanup(&e.scratch);
    SL_TRY_OR(status, free(e.ids.ids));
    *ids_out = e.ids.ids;
    *n_ids_out = e.ids.n;
    return SL_OK;
}

int32_t sl_tokenizer_vocab_size(const struct sl_tokenizer *tokenizer) {
    return tokenizer->vocab.n;
}

int32_t sl_tokenizer_begin_id(const struct sl_tokenizer *tokenizer) {
    return tokenizer->template.n_before > 0 ? tokenizer->template.before[0] : -1;
}

uint64_t sl_tokenizer_fingerprint(const struct sl_tokenizer *tokenizer) {
    return tokenizer->fingerprint;
}

const char *sl_tokenizer_token_bytes(const struct sl_tokenizer *tokenizer, int32_t id, size_t *n_bytes_out) {
    if (id < 0 || id >= tokenizer->vocab.n) {
        return NULL;
    }
    *n_bytes_out = tokenizer->vocab.entries[id].n_text;
    return tokenizer->vocab.entries[id].text;
}

bool sl_tokenizer_is_special(const struct sl_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->vocab.n && tokenizer->vocab.entries[id].special;
}
