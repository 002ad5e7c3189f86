// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts bytes of tokens to text, one token at a time; and defines well-formed UTF-8.
 *
 * Design: bytes wait until they make a character. Bytes that cannot are replaced by one U+FFFD for each maximal
 *         subpart, as Unicode recommends (chapter 3, "U+FFFD Substitution of Maximal Subparts"): the longest
 *         beginning of a character, or one byte. Python's and Rust's decoders do the same. Bytes that are tokens of
 *         their own (byte_fallback) are replaced one by one instead, as in the `tokenizers` library. But the library
 *         also takes back whole characters at the start of a broken run of such bytes, which this decoder has already
 *         returned.
 * Invariant: Invariant: pending[0 .. n_pending) is a proper prefix of a well-formed character, so n_pending <= 3.
 */
#include <assert.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

static const char replacement[] = "\xef\xbf\xbd"; // U+FFFD
#define REPLACEMENT_BYTES (sizeof(replacement) - 1)
#define MARK_BYTES        (sizeof(SL_MARK) - 1)

// --- UTF-8 -----------------------------------------------------------------------------------------------------------
// Returns the length of a character by its first byte, and the range of its second byte, which excludes overlong
// forms, surrogates and code points beyond U+10FFFF. 0: no character begins with this byte.
static int lead(unsigned char byte, unsigned char *low_out, unsigned char *high_out) {
    *low_out = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
    *high_out = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
    return byte < 0x80 ? 1 : byte < 0xc2 ? 0 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : byte < 0xf5 ? 4 : 0;
}

int sl_utf8_length(const unsigned char *p, size_t n) {
    unsigned char low, high;
    int length = lead(p[0], &low, &high);
    if (length <= 1) {
        return length == 1 ? 1 : -1;
    }
    for (size_t i = 1; i < (size_t)length; i++) {
        if (i == n) {
            return 0;
        }
        if (p[i] < low || p[i] > high) {
            return -1;
        }
        low = 0x80;
        high = 0xbf;
    }
    return length;
}

bool sl_utf8_valid(const char *text, size_t n_bytes, size_t *bad_offset_out) {
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0;
    while (i < n_bytes) {
        uint64_t eight;
        if (n_bytes - i >= sizeof(eight)) { // most text is mostly ASCII
            memcpy(&eight, p + i, sizeof(eight));
            if ((eight & 0x8080808080808080u) == 0) {
                i += sizeof(eight);
                continue;
            }
        }
        int length = sl_utf8_length(p + i, n_bytes - i);
        if (length <= 0) {
            if (bad_offset_out) {
                *bad_offset_out = i;
            }
            return false;
        }
        i += (size_t)length;
    }
    return true;
}

// --- streaming -------------------------------------------------------------------------------------------------------
struct sink {
    char *buf;
    size_t n, capacity;
};

// Emits whole characters. A buffer of sl_detokenizer_max_bytes() is never full; a smaller one loses characters that
// do not fit, by the caller's choice.
static void emit(struct sink *sink, const void *character, size_t n_bytes) {
    if (sink->capacity - sink->n >= n_bytes) {
        memcpy(sink->buf + sink->n, character, n_bytes);
        sink->n += n_bytes;
    } else {
        sink->capacity = sink->n; // nothing may be emitted after a gap
    }
}

static void emit_character(struct sl_detokenizer *detokenizer, const unsigned char *character, size_t n_bytes,
                           struct sink *sink) {
    const char *stripped = detokenizer->tokenizer->decoder.stripped;
    if (detokenizer->n_stripped > 0) {
        if (strlen(stripped) == n_bytes && memcmp(character, stripped, n_bytes) == 0) {
            detokenizer->n_stripped--;
            return;
        }
        detokenizer->n_stripped = 0;
    }
    emit(sink, character, n_bytes);
}

// Emits replacements for the bytes that waited.
static void give_up(struct sl_detokenizer *detokenizer, int n_bytes, struct sink *sink) {
    int n = detokenizer->tokenizer->decoder.byte_fallback ? n_bytes : 1;
    for (int i = 0; i < n; i++) {
        emit_character(detokenizer, (const unsigned char *)replacement, REPLACEMENT_BYTES, sink);
    }
    detokenizer->n_pending = 0;
}

static void feed(struct sl_detokenizer *detokenizer, unsigned char byte, struct sink *sink) {
    unsigned char *pending = detokenizer->pending;
    pending[detokenizer->n_pending++] = byte;
    int length = sl_utf8_length(pending, (size_t)detokenizer->n_pending);
    if (length < 0 && detokenizer->n_pending > 1) { // does not continue the pending bytes; may begin a character
        give_up(detokenizer, detokenizer->n_pending - 1, sink);
        pending[0] = byte;
        detokenizer->n_pending = 1;
        length = sl_utf8_length(pending, 1);
    }
    if (length < 0) {
        give_up(detokenizer, 1, sink);
    } else if (length > 0) {
        emit_character(detokenizer, pending, (size_t)length, sink);
        detokenizer->n_pending = 0;
    }
    assert(detokenizer->n_pending < (int)sizeof(detokenizer->pending));
}

void sl_detokenizer_init(struct sl_detokenizer *detokenizer, const struct sl_tokenizer *tokenizer) {
    *detokenizer = (struct sl_detokenizer){.tokenizer = tokenizer, .n_stripped = tokenizer->decoder.n_stripped};
}

size_t sl_detokenizer_push(struct sl_detokenizer *detokenizer, int32_t id, char *buf, size_t buf_bytes) {
    const struct sl_tokenizer *tokenizer = detokenizer->tokenizer;
    struct sink sink = {buf, 0, buf_bytes};
    if (id < 0 || id >= tokenizer->vocab.n || tokenizer->vocab.entries[id].special) {
        return 0;
    }
    const struct sl_vocab_entry *entry = &tokenizer->vocab.entries[id];
    bool loses_marks = tokenizer->decoder.first_loses_marks && !detokenizer->started &&
                       memmem(entry->spelling, entry->n_spelling, SL_MARK, MARK_BYTES);
    const char *bytes = loses_marks ? entry->spelling : entry->text;
    size_t n_bytes = loses_marks ? entry->n_spelling : entry->n_text;
    detokenizer->started = true;
    for (size_t i = 0; i < n_bytes;) {
        if (loses_marks && n_bytes - i >= MARK_BYTES && memcmp(bytes + i, SL_MARK, MARK_BYTES) == 0) {
            i += MARK_BYTES;
        } else {
            feed(detokenizer, (unsigned char)bytes[i++], &sink);
        }
    }
    return sink.n;
}

size_t sl_detokenizer_finish(struct sl_detokenizer *detokenizer, char *buf, size_t buf_bytes) {
    struct sink sink = {buf, 0, buf_bytes};
    if (detokenizer->n_pending > 0) {
        give_up(detokenizer, detokenizer->n_pending, &sink);
    }
    return sink.n;
}

size_t sl_detokenizer_max_bytes(const struct sl_tokenizer *tokenizer) {
    // At worst one replacement for each pending byte and for each byte of the token.
    return (tokenizer->vocab.max_text + sizeof(((struct sl_detokenizer *)NULL)->pending)) * REPLACEMENT_BYTES;
}
