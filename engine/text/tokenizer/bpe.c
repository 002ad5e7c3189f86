// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: byte pair encoding of one piece: starts from its single bytes, or characters, and repeatedly applies the
 *          merge of lowest rank (leftmost first) of two adjacent symbols.
 *
 * Design: symbols form a doubly linked list in an array; possible merges are in a binary heap ordered by (rank,
 *         position). A candidate is not removed when a neighbor changes: it is checked when it is popped. A piece of
 *         n bytes has at most n - 1 candidates at first, and each of at most n - 1 merges adds two: O(n log n).
 *
 *         SentencePiece vocabularies have no pre-tokenizer, so a whole text is one piece. If no merge continues from
 *         another character into a mark, which loading checks, the piece is encoded word by word: the ids are the
 *         same and the heap stays small.
 *
 * Invariant: Invariant: the heap never holds more than 3 n candidates, for which grow() makes room.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/locals.h"
#include "base/hash.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

#define EMPTY_SLOT UINT64_MAX
#define MARK_BYTES (sizeof(SL_MARK) - 1)

struct sl_bpe_symbol {
    int32_t id; // -1 once it is merged into its left neighbor
    int32_t previous, next;
};

struct sl_bpe_candidate {
    uint64_t order; // rank << 32 | place of the left symbol
    int32_t result;
};

enum sl_status sl_ids_push(struct sl_ids *ids, int32_t id) {
    if (!SL_GROW(ids->ids, ids->n, ids->capacity)) {
        return SL_ERR_EXHAUSTED;
    }
    ids->ids[ids->n++] = id;
    return SL_OK;
}

// --- table of merges -------------------------------------------------------------------------------------------------
static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

// Returns the slot of `pair`, or the empty one where it belongs. Multiplication spreads the ids over the high bits.
static struct sl_merge *find_slot(const struct sl_bpe *bpe, uint64_t pair) {
    uint64_t hash = (pair ^ pair >> 29) * 0x9e3779b97f4a7c15u;
    size_t mask = bpe->n_slots - 1;
    size_t i = (size_t)(hash ^ hash >> 32) & mask;
    while (bpe->slots[i].pair != pair && bpe->slots[i].pair != EMPTY_SLOT) {
        i = (i + 1) & mask;
    }
    return &bpe->slots[i];
}

struct halves {
    char *left, *right; // in the file's alphabet
    char *joined;       // room for both, as the vocabulary spells them
};

// Returns the two halves of a merge, "left right" or ["left", "right"]. The caller frees `left`, which holds all three.
static enum sl_status read_halves(const json_t *merge, size_t rank, struct halves *halves_out, struct sl_error *err) {
    const char *left = json_string_value(json_is_string(merge) ? merge : json_array_get(merge, 0)), *right = NULL;
    size_t n_left = left ? strcspn(left, json_is_string(merge) ? " " : "") : 0;
    if (json_is_string(merge)) {
        right = left[n_left] == ' ' && !strchr(left + n_left + 1, ' ') ? left + n_left + 1 : NULL;
    } else if (json_array_size(merge) == 2) {
        right = json_string_value(json_array_get(merge, 1));
    }
    SL_FAIL_IF(!left || !right, err, SL_ERR_INVALID, "merge %zu is neither \"left right\" nor [\"left\", \"right\"]",
               rank);
    size_t n_right = strlen(right);
    char *block = malloc(2 * (n_left + n_right) + 3);
    SL_FAIL_IF(!block, err, SL_ERR_EXHAUSTED, "no memory for merge %zu", rank);
    *halves_out = (struct halves){block, block + n_left + 1, block + n_left + n_right + 2};
    memcpy(block, left, n_left);
    block[n_left] = '\0';
    memcpy(halves_out->right, right, n_right + 1);
    return SL_OK;
}

// Returns the id of a half, and appends its bytes to joined[*n_joined].
static enum sl_status half_id(const struct sl_bpe *bpe, const char *half, size_t rank, char *joined, size_t *n_joined,
                              int32_t *id_out, struct sl_error *err) {
    size_t n_bytes = 0;
    int32_t id = -1;
    if (sl_vocab_spell(bpe->vocab, half, joined + *n_joined, &n_bytes)) {
        id = sl_vocab_find(bpe->vocab, joined + *n_joined, n_bytes);
    }
    SL_FAIL_IF(id < 0, err, SL_ERR_INVALID, "merge %zu names the token \"%.64s\", which the vocabulary lacks", rank,
               half);
    *n_joined += n_bytes;
    *id_out = id;
    return SL_OK;
}

static bool begins_with_mark(const char *text, size_t n_bytes) {
    return n_bytes >= MARK_BYTES && memcmp(text, SL_MARK, MARK_BYTES) == 0;
}

static bool ends_with_mark(const char *text, size_t n_bytes) {
    return n_bytes >= MARK_BYTES && begins_with_mark(text + n_bytes - MARK_BYTES, MARK_BYTES);
}

static enum sl_status add_halves(struct sl_bpe *bpe, const struct halves *halves, size_t rank, struct sl_error *err) {
    const char *left = halves->left, *right = halves->right, *joined = halves->joined;
    int32_t left_id = -1, right_id = -1;
    size_t n_joined = 0;
    SL_TRY(half_id(bpe, left, rank, halves->joined, &n_joined, &left_id, err));
    size_t n_left = n_joined;
    SL_TRY(half_id(bpe, right, rank, halves->joined, &n_joined, &right_id, err));
    if (begins_with_mark(joined + n_left, n_joined - n_left) && !ends_with_mark(joined, n_left)) {
        bpe->cuts_at_marks = false;
    }
    struct sl_merge *slot = find_slot(bpe, pair_of(left_id, right_id));
    SL_FAIL_IF(slot->pair != EMPTY_SLOT, err, SL_ERR_INVALID, "merge %zu, of \"%.64s\" and \"%.64s\", repeats merge %d",
               rank, left, right, slot->rank);
    int32_t result = sl_vocab_find(bpe->vocab, joined, n_joined);
    SL_FAIL_IF(result < 0, err, SL_ERR_INVALID, "merge %zu makes \"%.64s%.64s\", which the vocabulary lacks", rank,
               left, right);
    *slot = (struct sl_merge){pair_of(left_id, right_id), (int32_t)rank, result};
    int32_t record[3] = {left_id, right_id, result};
    bpe->digest = sl_hash(record, sizeof(record), bpe->digest);
    return SL_OK;
}

static enum sl_status add_merge(struct sl_bpe *bpe, const json_t *merge, size_t rank, struct sl_error *err) {
    struct halves halves = {0};
    SL_TRY(read_halves(merge, rank, &halves, err));
    enum sl_status status = add_halves(bpe, &halves, rank, err);
    free(halves.left);
    return status;
}

// Finds the tokens of single bytes. Some vocabularies lack bytes that their training never saw.
static void find_byte_tokens(struct sl_bpe *bpe) {
    for (int byte = 0; byte < 256; byte++) {
        char spelling[8] = {(char)byte};
        size_t n_bytes = 1;
        if (!bpe->vocab->byte_level) {
            n_bytes = (size_t)snprintf(spelling, sizeof(spelling), "<0x%02X>", (unsigned)byte);
        }
        bpe->byte_ids[byte] = sl_vocab_find(bpe->vocab, spelling, n_bytes);
    }
}

// Finds the token for characters without a token. Without it they are dropped.
static enum sl_status find_unknown(struct sl_bpe *bpe, const json_t *model, struct sl_error *err) {
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    if (!unknown || !unknown[0]) {
        return SL_OK;
    }
    bpe->unknown_id = sl_vocab_find(bpe->vocab, unknown, strlen(unknown));
    SL_FAIL_IF(bpe->unknown_id < 0 && !bpe->vocab->byte_level, err, SL_ERR_INVALID,
               "model: unk_token \"%.64s\" is not in the vocabulary", unknown);
    return SL_OK;
}

// Finds how characters become tokens in a vocabulary that is not byte-level.
static enum sl_status load_characters(struct sl_bpe *bpe, struct sl_error *err) {
    bpe->cuts_at_marks = sl_vocab_find(bpe->vocab, SL_MARK, MARK_BYTES) >= 0;
    for (int c = 0; c < 128; c++) {
        char character = (char)c;
        bpe->ascii_ids[c] = sl_vocab_find(bpe->vocab, &character, 1);
    }
    SL_FAIL_IF(bpe->unknown_id < 0 && !bpe->byte_fallback, err, SL_ERR_UNSUPPORTED,
               "model has neither unk_token nor byte_fallback nor a pre_tokenizer "
               "ByteLevel: text that it does not know would be lost");
    return SL_OK;
}

static enum sl_status load_merges(struct sl_bpe *bpe, const json_t *merges, struct sl_error *err) {
    SL_FAIL_IF(!json_is_array(merges), err, SL_ERR_INVALID, "model.merges is missing or not an array");
    size_t n_slots = 16;
    while (n_slots < json_array_size(merges) * 2) {
        n_slots *= 2;
    }
    bpe->slots = malloc(n_slots * sizeof(*bpe->slots));
    SL_FAIL_IF(!bpe->slots, err, SL_ERR_EXHAUSTED, "no memory for %zu merges", json_array_size(merges));
    bpe->n_slots = n_slots;
    for (size_t i = 0; i < n_slots; i++) {
        bpe->slots[i].pair = EMPTY_SLOT;
    }
    for (size_t rank = 0; rank < json_array_size(merges); rank++) {
        SL_TRY(add_merge(bpe, json_array_get(merges, rank), rank, err));
    }
    return SL_OK;
}

enum sl_status sl_bpe_load(struct sl_bpe *bpe, const struct sl_vocab *vocab, const json_t *model,
                           struct sl_error *err) {
    *bpe = (struct sl_bpe){.vocab = vocab, .unknown_id = -1};
    SL_TRY(sl_json_bool(model, "model", "ignore_merges", false, &bpe->ignore_merges, err));
    SL_TRY(sl_json_bool(model, "model", "byte_fallback", false, &bpe->byte_fallback, err));
    SL_TRY(sl_json_bool(model, "model", "fuse_unk", false, &bpe->fuse_unknown, err));
    SL_FAIL_IF(vocab->byte_level && bpe->byte_fallback, err, SL_ERR_UNSUPPORTED,
               "model sets byte_fallback, which is not supported with ByteLevel");
    find_byte_tokens(bpe);
    enum sl_status status = find_unknown(bpe, model, err);
    if (status == SL_OK && !vocab->byte_level) {
        status = load_characters(bpe, err);
    }
    SL_THEN(status, load_merges(bpe, json_object_get(model, "merges"), err));
    SL_TRY_OR(status, sl_bpe_cleanup(bpe));
    int32_t record[4] = {bpe->unknown_id, bpe->byte_fallback, bpe->fuse_unknown, bpe->ignore_merges};
    bpe->digest = sl_hash(record, sizeof(record), bpe->digest);
    return SL_OK;
}

void sl_bpe_cleanup(struct sl_bpe *bpe) {
    free(bpe->slots);
    *bpe = (struct sl_bpe){0};
}

// --- heap ------------------------------------------------------------------------------------------------------------
static void heap_push(struct sl_bpe_candidate *heap, size_t *n, struct sl_bpe_candidate candidate) {
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 2].order > candidate.order) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = candidate;
}

static struct sl_bpe_candidate heap_pop(struct sl_bpe_candidate *heap, size_t *n) {
    struct sl_bpe_candidate top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t child = 1; child < *n; child = 2 * i + 1) {
        if (child + 1 < *n && heap[child + 1].order < heap[child].order) {
            child++;
        }
        if (last.order <= heap[child].order) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

// --- pauses ----------------------------------------------------------------------------------------------------------
#define WORK_PER_PAUSE 8192 // less than a millisecond

void sl_tokenizer_set_pause(sl_tokenizer_pause_fn fn, void *arg) {
    struct sl_locals *own = sl_locals();
    own->pause = fn;
    own->pause_arg = arg;
}

enum sl_status sl_bpe_pause(struct sl_bpe_scratch *scratch, size_t n_work) {
    scratch->n_work += n_work;
    if (scratch->n_work < WORK_PER_PAUSE) {
        return SL_OK;
    }
    scratch->n_work = 0;
    const struct sl_locals *own = sl_locals();
    return own->pause ? own->pause(own->pause_arg) : SL_OK;
}

// --- one piece -------------------------------------------------------------------------------------------------------
void sl_bpe_scratch_cleanup(struct sl_bpe_scratch *scratch) {
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (struct sl_bpe_scratch){0};
}

static enum sl_status grow(struct sl_bpe_scratch *scratch, size_t n_bytes) {
    if (n_bytes <= scratch->capacity) {
        return SL_OK;
    }
    size_t capacity = n_bytes < 64 ? 64 : n_bytes;
    struct sl_bpe_symbol *symbols = malloc(capacity * sizeof(*symbols));
    struct sl_bpe_candidate *heap = malloc(3 * capacity * sizeof(*heap));
    if (!symbols || !heap) {
        free(symbols);
        free(heap);
        return SL_ERR_EXHAUSTED;
    }
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (struct sl_bpe_scratch){symbols, heap, capacity, scratch->n_work};
    return SL_OK;
}

// Pushes the merge of the symbol at `place` and its right neighbor onto the heap, if there is one.
static void consider(const struct sl_bpe *bpe, struct sl_bpe_scratch *scratch, size_t *n_heap, int32_t place) {
    int32_t next = place < 0 ? -1 : scratch->symbols[place].next;
    if (next < 0) {
        return;
    }
    uint64_t pair = pair_of(scratch->symbols[place].id, scratch->symbols[next].id);
    const struct sl_merge *merge = find_slot(bpe, pair);
    if (merge->pair == pair) {
        uint64_t order = (uint64_t)(uint32_t)merge->rank << 32 | (uint32_t)place;
        heap_push(scratch->heap, n_heap, (struct sl_bpe_candidate){order, merge->result});
    }
}

static enum sl_status apply_merges(const struct sl_bpe *bpe, struct sl_bpe_scratch *scratch, size_t n_symbols) {
    struct sl_bpe_symbol *symbols = scratch->symbols;
    size_t n_heap = 0;
    enum sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i + 1 < n_symbols; i++) {
        consider(bpe, scratch, &n_heap, (int32_t)i);
        status = sl_bpe_pause(scratch, 1);
    }
    while (n_heap > 0) {
        SL_THEN(status, sl_bpe_pause(scratch, 1));
        SL_TRY(status);
        struct sl_bpe_candidate top = heap_pop(scratch->heap, &n_heap);
        int32_t place = (int32_t)(uint32_t)top.order;
        struct sl_bpe_symbol *left = &symbols[place];
        if (left->id < 0 || left->next < 0) {
            continue;
        }
        // Stale if the two symbols are no longer a pair that makes this token. They may be another pair that makes
        // the same token at another rank; the models' own tokenizers accept that as well.
        struct sl_bpe_symbol *right = &symbols[left->next];
        uint64_t pair = pair_of(left->id, right->id);
        const struct sl_merge *merge = find_slot(bpe, pair);
        if (merge->pair != pair || merge->result != top.result) {
            continue;
        }
        left->id = top.result;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) {
            symbols[left->next].previous = place;
        }
        consider(bpe, scratch, &n_heap, left->previous);
        consider(bpe, scratch, &n_heap, place);
    }
    return status;
}

// --- the symbols to begin with ---------------------------------------------------------------------------------------
static void add_symbol(struct sl_bpe_scratch *scratch, size_t *n, int32_t id) {
    scratch->symbols[*n] = (struct sl_bpe_symbol){id, (int32_t)*n - 1, (int32_t)*n + 1};
    ++*n;
}

// Adds the unknown token for characters without a token: one per run if unknowns are fused. Adds nothing if there is
// no such token.
static void add_unknown(const struct sl_bpe *bpe, struct sl_bpe_scratch *scratch, size_t *n, bool was_unknown) {
    if (bpe->unknown_id >= 0 && (!was_unknown || !bpe->fuse_unknown)) {
        add_symbol(scratch, n, bpe->unknown_id);
    }
}

static void add_bytes(const struct sl_bpe *bpe, struct sl_bpe_scratch *scratch, size_t *n, const char *bytes,
                      size_t n_bytes) {
    bool was_unknown = false;
    for (size_t i = 0; i < n_bytes; i++) {
        int32_t id = bpe->byte_ids[(unsigned char)bytes[i]];
        if (id >= 0) {
            add_symbol(scratch, n, id);
        } else {
            add_unknown(bpe, scratch, n, was_unknown);
        }
        was_unknown = id < 0;
    }
}

// Returns whether a character falls back to its bytes: all of them must have tokens.
static bool falls_back(const struct sl_bpe *bpe, const char *bytes, size_t n_bytes) {
    bool all = bpe->byte_fallback;
    for (size_t i = 0; i < n_bytes; i++) {
        all = all && bpe->byte_ids[(unsigned char)bytes[i]] >= 0;
    }
    return all;
}

static void add_characters(const struct sl_bpe *bpe, struct sl_bpe_scratch *scratch, size_t *n, const char *text,
                           size_t n_bytes) {
    bool unknown = false, was_unknown = false;
    size_t length = 0;
    for (size_t i = 0; i < n_bytes; i += length, was_unknown = unknown) {
        const unsigned char *character = (const unsigned char *)text + i;
        length = (size_t)sl_utf8_length(character, n_bytes - i);
        int32_t id = length == 1 ? bpe->ascii_ids[*character] : sl_vocab_find(bpe->vocab, text + i, length);
        unknown = id < 0 && !falls_back(bpe, text + i, length);
        if (id >= 0) {
            add_symbol(scratch, n, id);
        } else if (unknown) {
            add_unknown(bpe, scratch, n, was_unknown);
        } else {
            add_bytes(bpe, scratch, n, text + i, length);
        }
    }
}

// --- the whole -------------------------------------------------------------------------------------------------------
static enum sl_status encode_word(const struct sl_bpe *bpe, struct sl_bpe_scratch *scratch, const char *word,
                                  size_t n_bytes, struct sl_ids *ids) {
    SL_TRY(grow(scratch, n_bytes));
    size_t n = 0;
    if (bpe->vocab->byte_level) {
        add_bytes(bpe, scratch, &n, word, n_bytes);
    } else {
        add_characters(bpe, scratch, &n, word, n_bytes);
    }
    if (n == 0) { // no part of the word has a token
        return SL_OK;
    }
    scratch->symbols[n - 1].next = -1;
    SL_TRY(apply_merges(bpe, scratch, n));
    for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next) {
        SL_TRY(sl_ids_push(ids, scratch->symbols[i].id));
    }
    return SL_OK;
}

// Returns where the word that begins at `begin` ends: before the first mark that follows another character.
static size_t word_end(const char *piece, size_t n_bytes, size_t begin) {
    while (begins_with_mark(piece + begin, n_bytes - begin)) {
        begin += MARK_BYTES;
    }
    const char *mark = memmem(piece + begin, n_bytes - begin, SL_MARK, MARK_BYTES);
    return mark ? (size_t)(mark - piece) : n_bytes;
}

enum sl_status sl_bpe_encode(const struct sl_bpe *bpe, struct sl_bpe_scratch *scratch, const char *piece,
                             size_t n_bytes, struct sl_ids *ids) {
    if (n_bytes == 1 && bpe->vocab->byte_level && bpe->byte_ids[(unsigned char)piece[0]] >= 0) {
        return sl_ids_push(ids, bpe->byte_ids[(unsigned char)piece[0]]);
    }
    if (bpe->ignore_merges) {
        int32_t id = sl_vocab_find(bpe->vocab, piece, n_bytes);
        if (id >= 0) {
            return sl_ids_push(ids, id);
        }
    }
    for (size_t begin = 0, end; begin < n_bytes; begin = end) {
        end = bpe->cuts_at_marks ? word_end(piece, n_bytes, begin) : n_bytes;
        SL_TRY(encode_word(bpe, scratch, piece + begin, end - begin, ids));
    }
    return SL_OK;
}
