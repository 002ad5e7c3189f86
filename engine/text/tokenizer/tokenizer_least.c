// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a number of tokens that a text has at least, from its bytes alone.
 *
 * Design: L(b) is the length of the longest token with byte b. A token of n bytes has n bytes b, each with L(b) >= n, so the
 *         sum of 1 / L(b) over the bytes of a text is at most its number of tokens. What encoding can drop or shrink counts
 *         less: white space beside added tokens that take it, and characters that normalization composes (three bytes become
 *         one at worst; ASCII alone stays).
 * Threads: any; loading computes the table.
 */
#include <math.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

enum { CHARACTER_BYTES = 4, NFC_SHRINKS = 3 };

// Returns true if every byte of a text, after the normalizer, is in some token.
static bool keeps_all_bytes(const struct sl_tokenizer *t) {
    bool has_bytes = t->vocab.byte_level || t->bpe.byte_fallback;
    for (int b = 0; b < 256; b++) {
        has_bytes = has_bytes && t->bpe.byte_ids[b] >= 0;
    }
    return has_bytes || (t->bpe.unknown_id >= 0 && !t->bpe.fuse_unknown);
}

static bool never_shrinks(const struct sl_rewrite *step) {
    return !step->from || strlen(step->to) >= strlen(step->from);
}

static void see(uint32_t longest[256], const char *bytes, size_t n_bytes, uint32_t n) {
    for (size_t i = 0; i < n_bytes; i++) {
        uint32_t *one = &longest[(unsigned char)bytes[i]];
        *one = *one < n ? n : *one;
    }
}

static bool takes_spaces(const struct sl_added_set *set) {
    bool takes = false;
    for (size_t i = 0; i < set->n; i++) {
        takes = takes || set->tokens[i].takes_left || set->tokens[i].takes_right;
    }
    return takes;
}

void sl_least_load(struct sl_tokenizer *t) {
    uint32_t longest[256];
    bool is_known = keeps_all_bytes(t);
    for (int i = 0; i < t->normalizer.n_steps; i++) {
        is_known = is_known && never_shrinks(&t->normalizer.steps[i]);
    }
    for (int b = 0; b < 256; b++) {
        longest[b] = CHARACTER_BYTES; // of an unknown token
    }
    for (int32_t id = 0; id < t->vocab.n; id++) {
        const struct sl_vocab_entry *entry = &t->vocab.entries[id];
        // A byte-level spelling is longer than the bytes that it stands for; another one is what the text may have.
        const uint32_t n = t->vocab.byte_level ? entry->n_text : entry->n_spelling;
        see(longest, entry->text, entry->n_text, n);
        if (!t->vocab.byte_level) {
            see(longest, entry->spelling, entry->n_spelling, n);
        }
    }
    const bool spaces_vanish = takes_spaces(&t->added_raw) || takes_spaces(&t->added_normalized);
    for (int b = 0; b < 256; b++) {
        const bool is_space = b <= ' ' || b >= 0x80; // or may be part of one
        t->share[b] = !is_known || (spaces_vanish && is_space) ? 0 : 1.0 / longest[b];
    }
}

size_t sl_tokenizer_least_tokens(const struct sl_tokenizer *t, const char *text, size_t n_bytes) {
    size_t counts[256] = {0}, n_other = 0;
    double least = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        counts[(unsigned char)text[i]]++;
    }
    for (int b = 0; b < 256; b++) {
        least += (double)counts[b] * t->share[b];
        n_other += b >= 0x80 ? counts[b] : 0;
    }
    least *= n_other > 0 && t->normalizer.n_steps > 0 ? 1.0 / NFC_SHRINKS : 1;
    return (size_t)floor(least * (1 - 1e-9)); // rounding must not count one too many
}
