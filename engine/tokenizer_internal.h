// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the parts of a tokenizer, in the order in which text passes them:
 *
 *      text -> added (raw) -> normalize -> added (normalized) -> pattern -> bpe -> ids
 *
 * Design: tokenizer_load.c fills the parts from JSON with a function of each part's own file; tokenizer.c is the
 *         pipeline. Everything here is immutable after loading; what changes while encoding belongs to the call.
 * Words:  token bytes are what a token stands for, already translated from the byte-level alphabet of the file.
 *         A piece is what the pattern cuts text into; merges never cross its ends.
 */
#ifndef SL_ENGINE_TOKENIZER_INTERNAL_H
#define SL_ENGINE_TOKENIZER_INTERNAL_H

#include <jansson.h>

#include "engine/tokenizer.h"

// PCRE2 wants its code unit width before its header, which only tokenizer_pattern.c includes.
struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

#define SL_MAX_PATTERNS 8

// --- what grows while encoding ---------------------------------------------------------------------------------------
struct sl_ids {
    int32_t *ids;
    size_t n, capacity;
};

// Append one id: SL_OK or SL_ERR_EXHAUSTED.
enum sl_status sl_ids_push(struct sl_ids *ids, int32_t id);

// --- vocabulary (tokenizer_vocab.c) ----------------------------------------------------------------------------------
struct sl_vocab_entry {
    const char *bytes; // NULL while loading: no token has this id yet
    uint32_t n_bytes;
    bool special; // gives no text in the detokenizer
};

struct sl_vocab {
    struct sl_vocab_entry *entries; // [n], by id
    int32_t n;
    char *blob;           // where the entries' bytes lie
    int32_t *slots;       // open addressing by hash of the bytes; id + 1, or 0 for an empty slot
    size_t n_slots;       // a power of two, at least twice n
    size_t longest_bytes; // of any token
};

// model.vocab and added_tokens. Ids must be 0 .. n-1, each once.
enum sl_status sl_vocab_load(struct sl_vocab *vocab, const json_t *model_vocab, const json_t *added_tokens,
                             struct sl_error *err);
void sl_vocab_cleanup(struct sl_vocab *vocab);

// Id of the token of the model's vocabulary that spells exactly these bytes, or -1.
int32_t sl_vocab_find(const struct sl_vocab *vocab, const char *bytes, size_t n_bytes);

// Translate `text` from the byte-level alphabet, one character a byte. False if a character is not of the alphabet.
// bytes_out has room for strlen(text).
bool sl_vocab_translate(const char *text, char *bytes_out, size_t *n_bytes_out);

// --- byte pair encoding (bpe.c) --------------------------------------------------------------------------------------
struct sl_merge {
    uint64_t pair; // left id << 32 | right id; UINT64_MAX in an empty slot
    int32_t rank, result;
};

struct sl_bpe {
    const struct sl_vocab *vocab;
    int32_t byte_ids[256];  // the token of each single byte
    struct sl_merge *slots; // open addressing by hash of the pair
    size_t n_slots;         // a power of two, at least twice the number of merges
    bool ignore_merges;     // a piece that is itself a token is that token
    uint64_t digest;        // of the merges in the order of their ranks
};

enum sl_status sl_bpe_load(struct sl_bpe *bpe, const struct sl_vocab *vocab, const json_t *merges, bool ignore_merges,
                           struct sl_error *err);
void sl_bpe_cleanup(struct sl_bpe *bpe);

// Memory that pieces share, one after the other. Zeroed to begin with.
struct sl_bpe_scratch {
    struct sl_bpe_symbol *symbols;
    struct sl_bpe_candidate *heap;
    size_t capacity; // in bytes of a piece
};
void sl_bpe_scratch_cleanup(struct sl_bpe_scratch *scratch);

// Ids of one piece, appended to ids. SL_ERR_EXHAUSTED.
enum sl_status sl_bpe_encode(const struct sl_bpe *bpe, struct sl_bpe_scratch *scratch, const char *piece,
                             size_t n_bytes, struct sl_ids *ids);

// --- added tokens (tokenizer_added.c) --------------------------------------------------------------------------------
struct sl_added_token {
    char *text;
    size_t n_bytes;
    int32_t id;
    bool takes_left, takes_right; // swallows the white space on that side ("lstrip", "rstrip")
};

// Tokens that are cut out of text before anything else, sorted by their bytes.
struct sl_added_set {
    struct sl_added_token *tokens;
    size_t n;
    bool begins[256]; // whether a token begins with this byte
};

// Those of added_tokens whose "normalized" is as given; nfc tells whether the normalized ones are to be normalized.
enum sl_status sl_added_load(struct sl_added_set *set, const json_t *added_tokens, bool normalized, bool nfc,
                             struct sl_error *err);
void sl_added_cleanup(struct sl_added_set *set);

struct sl_added_cursor {
    const struct sl_added_set *set;
    const char *text;
    size_t n_bytes;
    size_t scanned, emitted; // bytes searched for tokens; bytes given out
    int32_t pending_id;      // a token that waits for the text in front of it to be given out; -1: none
    size_t pending_begin, pending_end;
};

// The next part of text: [*begin_out, *end_out) is the token *id_out, or text between tokens when that is -1. False at
// the end.
bool sl_added_next(struct sl_added_cursor *cursor, size_t *begin_out, size_t *end_out, int32_t *id_out);

// --- normalization (tokenizer_normalize.c) ---------------------------------------------------------------------------
// True when NFC leaves the text alone and that is quick to see.
bool sl_nfc_is_trivial(const char *text, size_t n_bytes);
// NFC of valid UTF-8, malloc'd. SL_ERR_EXHAUSTED.
enum sl_status sl_nfc(const char *text, size_t n_bytes, char **out, size_t *n_bytes_out);

// --- pre-tokenizer (tokenizer_pattern.c) -----------------------------------------------------------------------------
struct sl_pattern {
    struct pcre2_real_code_8 *codes[SL_MAX_PATTERNS]; // each cuts the pieces of the one before
    int n_codes;
    int prefix_at; // pieces get a space in front before codes[prefix_at] (or after the last); -1: never
    struct pcre2_real_match_context_8 *limits;
    uint64_t digest; // of the expressions and of prefix_at
};

enum sl_status sl_pattern_load(struct sl_pattern *pattern, const json_t *pre_tokenizer, struct sl_error *err);
void sl_pattern_cleanup(struct sl_pattern *pattern);

// One piece; a status other than SL_OK ends the cutting with it.
typedef enum sl_status (*sl_piece_fn)(void *arg, const char *piece, size_t n_bytes);

// Cut valid UTF-8 into pieces. `match` is made with sl_pattern_match_create() and reused from call to call.
enum sl_status sl_pattern_cut(const struct sl_pattern *pattern, struct pcre2_real_match_data_8 *match, const char *text,
                              size_t n_bytes, sl_piece_fn fn, void *arg, struct sl_error *err);
struct pcre2_real_match_data_8 *sl_pattern_match_create(void);
void sl_pattern_match_destroy(struct pcre2_real_match_data_8 *match);

// --- the whole -------------------------------------------------------------------------------------------------------
struct sl_tokenizer {
    struct sl_vocab vocab;
    struct sl_bpe bpe;
    struct sl_added_set added_raw, added_normalized;
    struct sl_pattern pattern;
    bool nfc;
    int32_t begin_id;
    uint64_t fingerprint;
};

// --- JSON (tokenizer_load.c) -----------------------------------------------------------------------------------------
// The three files as parsed; config and generation may be NULL. What sl_tokenizer_load() does after reading.
enum sl_status sl_tokenizer_build(const json_t *root, const json_t *config, const json_t *generation,
                                  struct sl_tokenizer **tokenizer_out, struct sl_error *err);

// SL_ERR_UNSUPPORTED names the first key of `object` that is not in the NULL-terminated list.
enum sl_status sl_json_only(const json_t *object, const char *what, const char *const *keys, struct sl_error *err);

// The member `key` as a truth value; absent and null are `fallback`. SL_ERR_INVALID when it is something else.
enum sl_status sl_json_bool(const json_t *object, const char *what, const char *key, bool fallback, bool *value_out,
                            struct sl_error *err);

// --- UTF-8 (detokenizer.c) -------------------------------------------------------------------------------------------
// Bytes of the character at p if it lies whole in [p, p + n), n >= 1; 0 if all n bytes could begin one; -1 if not.
int sl_utf8_length(const unsigned char *p, size_t n);

#endif
