// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the pipeline from text to ids (see the picture in tokenizer_internal.h).
 *
 * Design: added tokens are cut out twice: those that are not normalized from the text as it came, the others from what
 *         normalization made of the text in between. What is left goes through the pattern into merges.
 */
#include <stdlib.h>

#include "engine/tokenizer_internal.h"

#define MAX_TEXT_BYTES ((size_t)1 << 30) // places in a piece are 32-bit

// One call of sl_tokenizer_encode().
struct encoding {
    const struct sl_tokenizer *tokenizer;
    struct sl_bpe_scratch scratch;
    struct pcre2_real_match_data_8 *match;
    struct sl_ids ids;
    struct sl_error *err;
};

static enum sl_status encode_piece(void *arg, const char *piece, size_t n_bytes) {
    struct encoding *e = arg;
    enum sl_status status = sl_bpe_encode(&e->tokenizer->bpe, &e->scratch, piece, n_bytes, &e->ids);
    return status == SL_OK ? SL_OK : sl_fail(e->err, status, "no memory to encode a piece of %zu bytes", n_bytes);
}

static enum sl_status encode_plain(struct encoding *e, const char *text, size_t n_bytes) {
    return sl_pattern_cut(&e->tokenizer->pattern, e->match, text, n_bytes, encode_piece, e, e->err);
}

typedef enum sl_status (*encode_fn)(struct encoding *e, const char *text, size_t n_bytes);

// Tokens of `set` become their ids; what lies between them goes to `between`.
static enum sl_status encode_added(struct encoding *e, const struct sl_added_set *set, encode_fn between,
                                   const char *text, size_t n_bytes) {
    struct sl_added_cursor cursor = {.set = set, .text = text, .n_bytes = n_bytes, .pending_id = -1};
    size_t begin = 0, end = 0;
    int32_t id = -1;
    while (sl_added_next(&cursor, &begin, &end, &id)) {
        enum sl_status status = SL_OK;
        if (id < 0) {
            status = between(e, text + begin, end - begin);
        } else if (sl_ids_push(&e->ids, id) != SL_OK) {
            status = sl_fail(e->err, SL_ERR_EXHAUSTED, "no memory for %zu ids", e->ids.n);
        }
        if (status != SL_OK) {
            return status;
        }
    }
    return SL_OK;
}

static enum sl_status encode_raw(struct encoding *e, const char *text, size_t n_bytes) {
    const struct sl_tokenizer *tokenizer = e->tokenizer;
    if (!tokenizer->nfc || sl_nfc_is_trivial(text, n_bytes)) {
        return encode_added(e, &tokenizer->added_normalized, encode_plain, text, n_bytes);
    }
    char *normalized = NULL;
    size_t n_normalized = 0;
    enum sl_status status = sl_nfc(text, n_bytes, &normalized, &n_normalized);
    if (status != SL_OK) {
        return sl_fail(e->err, status, "cannot normalize a text of %zu bytes", n_bytes);
    }
    status = encode_added(e, &tokenizer->added_normalized, encode_plain, normalized, n_normalized);
    free(normalized);
    return status;
}

enum sl_status sl_tokenizer_encode(const struct sl_tokenizer *tokenizer, const char *text, size_t n_bytes,
                                   bool add_special, int32_t **ids_out, size_t *n_ids_out, struct sl_error *err) {
    size_t bad_offset = 0;
    if (n_bytes > MAX_TEXT_BYTES) {
        return sl_fail(err, SL_ERR_RANGE, "a text of %zu bytes; at most %zu can be encoded", n_bytes, MAX_TEXT_BYTES);
    }
    if (!sl_utf8_valid(text, n_bytes, &bad_offset)) {
        return sl_fail(err, SL_ERR_INVALID, "the text is not UTF-8: the byte 0x%02x at offset %zu",
                       (unsigned)(unsigned char)text[bad_offset], bad_offset);
    }
    struct encoding e = {.tokenizer = tokenizer, .match = sl_pattern_match_create(), .err = err};
    enum sl_status status = e.match ? SL_OK : SL_ERR_EXHAUSTED;
    if (status == SL_OK && add_special && tokenizer->begin_id >= 0) {
        status = sl_ids_push(&e.ids, tokenizer->begin_id);
    }
    if (status != SL_OK) {
        sl_fail(err, status, "no memory to encode a text of %zu bytes", n_bytes);
    } else {
        status = encode_added(&e, &tokenizer->added_raw, encode_raw, text, n_bytes);
    }
    sl_bpe_scratch_cleanup(&e.scratch);
    sl_pattern_match_destroy(e.match);
    if (status != SL_OK) {
        free(e.ids.ids);
        return status;
    }
    *ids_out = e.ids.ids;
    *n_ids_out = e.ids.n;
    return SL_OK;
}

int32_t sl_tokenizer_vocab_size(const struct sl_tokenizer *tokenizer) {
    return tokenizer->vocab.n;
}

int32_t sl_tokenizer_begin_id(const struct sl_tokenizer *tokenizer) {
    return tokenizer->begin_id;
}

uint64_t sl_tokenizer_fingerprint(const struct sl_tokenizer *tokenizer) {
    return tokenizer->fingerprint;
}

const char *sl_tokenizer_token_bytes(const struct sl_tokenizer *tokenizer, int32_t id, size_t *n_bytes_out) {
    if (id < 0 || id >= tokenizer->vocab.n) {
        return NULL;
    }
    *n_bytes_out = tokenizer->vocab.entries[id].n_bytes;
    return tokenizer->vocab.entries[id].bytes;
}

bool sl_tokenizer_is_special(const struct sl_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->vocab.n && tokenizer->vocab.entries[id].special;
}
