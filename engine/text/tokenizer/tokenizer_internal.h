// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the parts of a tokenizer, in the order of processing:
 *
 *      text -> added (raw) -> normalizer -> added (normalized) -> pre-tokenizer -> bpe -> template -> ids
 *      ids -> vocabulary's texts -> decoder -> text
 *
 * Design: tokenizer_load.c fills the parts from JSON with a function of each part's file; tokenizer.c is the
 *         pipeline. Everything here is immutable after loading; state that changes while encoding belongs to the
 *         call. Normalizer, pre-tokenizer, decoder and template are lists of steps in the file. Each part has a table
 *         of the supported kinds of step (struct sl_json_step); other kinds are rejected by name.
 * Words:  a token's spelling is what merges process: its bytes in a byte-level vocabulary, translated from the
 *         alphabet of the file; its characters in a SentencePiece vocabulary. Its text is the decoder's output for
 *         it. A piece is a part of text from the pre-tokenizer; merges never cross its ends. The mark is U+2581,
 *         which stands for a space in SentencePiece vocabularies.
 */
#pragma once

#include <jansson.h>

#include "engine/text/tokenizer/tokenizer.h"

// PCRE2 needs its code unit width before its header, which only the files that match expressions include.
struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

#define SL_MAX_STEPS     8 // of a normalizer, a pre-tokenizer or a decoder
#define SL_MAX_TEMPLATE  4 // special tokens on one side of a text
#define SL_MAX_CHARACTER 4 // bytes of a character in UTF-8
#define SL_MARK          "\xe2\x96\x81"

// --- what grows while encoding ---------------------------------------------------------------------------------------
struct sl_ids {
    int32_t *ids;
    size_t n, capacity;
};

// Appends one id: SL_OK or SL_ERR_EXHAUSTED.
enum sl_status sl_ids_push(struct sl_ids *ids, int32_t id);

// --- JSON (tokenizer_json.c) -----------------------------------------------------------------------------------------
// Rejects keys of `object` that are not in the NULL-terminated list: SL_ERR_UNSUPPORTED names the first one.
enum sl_status sl_json_only(const json_t *object, const char *what, const char *const *keys, struct sl_error *err);

// Reads the member `key` as a truth value; absent and null are `fallback`. SL_ERR_INVALID: another type.
enum sl_status sl_json_bool(const json_t *object, const char *what, const char *key, bool fallback, bool *value_out,
                            struct sl_error *err);

// Reads the member `key` as a text that is not empty, borrowed from `object`. SL_ERR_INVALID otherwise.
enum sl_status sl_json_text(const json_t *object, const char *what, const char *key, const char **text_out,
                            struct sl_error *err);

// Reads a step {"type": "Replace", "pattern": {"String": from}, "content": to}; both are borrowed from it.
enum sl_status sl_json_replace(const json_t *step, const char *what, const char **from_out, const char **to_out,
                               struct sl_error *err);

bool sl_json_is_type(const json_t *object, const char *type);

// A kind of step and the function that adds one to a part. `what` names the step in errors: "normalizer Prepend".
struct sl_json_step {
    const char *type;
    enum sl_status (*add)(void *part, const json_t *step, const char *what, struct sl_error *err);
};

// Calls the kind's function for each step of tokenizer.json's member `part_name`: none when that is absent or null, the
// members of list_key when it is of type Sequence, itself otherwise. `kinds` ends with a NULL type.
enum sl_status sl_json_steps(const json_t *root, const char *part_name, const char *list_key,
                             const struct sl_json_step *kinds, void *part, struct sl_error *err);

// --- text that steps rewrite (tokenizer_normalize.c) -----------------------------------------------------------------
struct sl_text {
    const char *bytes;
    size_t n_bytes;
    char *owned; // to be freed; NULL while bytes are borrowed
};
void sl_text_cleanup(struct sl_text *text);

// Both return SL_OK or SL_ERR_EXHAUSTED, and keep the text as it is if there is nothing to do.
enum sl_status sl_text_prepend(struct sl_text *text, const char *prefix);
enum sl_status sl_text_replace(struct sl_text *text, const char *from, const char *to); // all, from left to right
bool sl_text_begins(const struct sl_text *text, const char *prefix);

// --- vocabulary (tokenizer_vocab.c) ----------------------------------------------------------------------------------
struct sl_vocab_entry {
    const char *spelling; // NULL while loading: no token has this id yet
    const char *text;     // the spelling itself if the decoder does not change it
    uint32_t n_spelling, n_text;
    bool special; // gives no text in the detokenizer
};

struct sl_vocab {
    struct sl_vocab_entry *entries; // [n], by id
    int32_t n;
    bool byte_level; // spelled in the alphabet of bytes
    char *blob;      // memory of the spellings
    int32_t *slots;  // open addressing by hash of the spelling; id + 1, or 0 for an empty slot
    size_t n_slots;  // a power of two, at least twice n
    size_t max_text; // bytes of the longest text, which is no longer than its spelling
};

// Loads model.vocab and added_tokens. Ids must be 0 .. n-1, each once. Texts equal the spellings until a decoder
// changes them.
enum sl_status sl_vocab_load(struct sl_vocab *vocab, const json_t *model_vocab, const json_t *added_tokens,
                             bool byte_level, struct sl_error *err);
void sl_vocab_cleanup(struct sl_vocab *vocab);

// Returns the id of the token of the model's vocabulary with exactly this spelling, or -1.
int32_t sl_vocab_find(const struct sl_vocab *vocab, const char *spelling, size_t n_bytes);

// Writes the spelling of a token of the file to spelling_out, which has room for strlen(token). Returns false if the
// vocabulary is byte-level and a character is not of its alphabet.
bool sl_vocab_spell(const struct sl_vocab *vocab, const char *token, char *spelling_out, size_t *n_bytes_out);

// Convert between bytes and the byte-level alphabet, which has at most two bytes per character.
size_t sl_alphabet_from_bytes(const char *bytes, size_t n_bytes, char *out);
bool sl_alphabet_to_bytes(const char *text, size_t n_bytes, char *out, size_t *n_bytes_out); // false: not valid

// --- byte pair encoding (bpe.c) --------------------------------------------------------------------------------------
struct sl_merge {
    uint64_t pair; // left id << 32 | right id; UINT64_MAX in an empty slot
    int32_t rank, result;
};

struct sl_bpe {
    const struct sl_vocab *vocab;
    int32_t byte_ids[256];  // the token of each single byte, -1: none; "<0x0A>" unless the vocabulary is byte-level
    int32_t ascii_ids[128]; // the token of each character, -1: none; unused in a byte-level vocabulary
    int32_t unknown_id;     // for a character without a token, unless its bytes have tokens; -1: it is dropped
    bool byte_fallback, fuse_unknown;
    bool cuts_at_marks;     // no merge crosses from another character to a mark
    struct sl_merge *slots; // open addressing by hash of the pair
    size_t n_slots;         // a power of two, at least twice the number of merges
    bool ignore_merges;     // a piece that is itself a token is that token
    uint64_t digest;        // of the merges in the order of their ranks, and of the other members
};

// Loads the merges; `model` is tokenizer.json's member of that name.
enum sl_status sl_bpe_load(struct sl_bpe *bpe, const struct sl_vocab *vocab, const json_t *model, struct sl_error *err);
void sl_bpe_cleanup(struct sl_bpe *bpe);

// Memory that pieces use one after the other. Must be zeroed first.
struct sl_bpe_scratch {
    struct sl_bpe_symbol *symbols;
    struct sl_bpe_candidate *heap;
    size_t capacity; // in bytes of a piece
    size_t n_work;   // bytes and merges since the last pause
};
void sl_bpe_scratch_cleanup(struct sl_bpe_scratch *scratch);

// Counts work, and calls this thread's pause function in time. Returns its status.
enum sl_status sl_bpe_pause(struct sl_bpe_scratch *scratch, size_t n_work);

// Appends the ids of one piece to ids. SL_ERR_EXHAUSTED: no memory. Another failure: the pause function's.
enum sl_status sl_bpe_encode(const struct sl_bpe *bpe, struct sl_bpe_scratch *scratch, const char *piece,
                             size_t n_bytes, struct sl_ids *ids);

// --- normalizer (tokenizer_normalize.c, tokenizer_nfc.c) -------------------------------------------------------------
struct sl_rewrite {
    enum sl_status (*run)(const struct sl_rewrite *rewrite, struct sl_text *text); // SL_OK or SL_ERR_EXHAUSTED
    char *from, *to;                                                               // NULL if the kind has none
};

struct sl_normalizer {
    struct sl_rewrite steps[SL_MAX_STEPS];
    int n_steps;
    uint64_t digest;
};

enum sl_status sl_normalizer_load(struct sl_normalizer *normalizer, const json_t *root, struct sl_error *err);
void sl_normalizer_cleanup(struct sl_normalizer *normalizer);
// Runs all steps, in place. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_normalizer_run(const struct sl_normalizer *normalizer, struct sl_text *text);

// Converts valid UTF-8 to NFC. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_text_nfc(struct sl_text *text);

// --- added tokens (tokenizer_added.c) --------------------------------------------------------------------------------
struct sl_added_token {
    char *text;
    size_t n_bytes;
    int32_t id;
    bool takes_left, takes_right; // takes the white space on that side ("lstrip", "rstrip")
    bool single_word;             // only if no letter or digit is next to it
};

// Tokens that are cut out of text first, sorted by their bytes.
struct sl_added_set {
    struct sl_added_token *tokens;
    size_t n;
    bool begins[256]; // whether a token begins with this byte
};

// Loads the added_tokens whose "normalized" is as given; normalized tokens go through the normalizer first.
enum sl_status sl_added_load(struct sl_added_set *set, const json_t *added_tokens, bool normalized,
                             const struct sl_normalizer *normalizer, struct sl_error *err);
void sl_added_cleanup(struct sl_added_set *set);

struct sl_added_cursor {
    const struct sl_added_set *set;
    const char *text;
    size_t n_bytes;
    size_t scanned, emitted; // bytes searched for tokens; bytes returned
    int32_t pending_id;      // a token that waits until the text before it is returned; -1: none
    size_t pending_begin, pending_end;
};

// Finds the next part of text: [*begin_out, *end_out) is the token *id_out, or text between tokens if that is -1.
// Returns false at the end.
bool sl_added_next(struct sl_added_cursor *cursor, size_t *begin_out, size_t *end_out, int32_t *id_out);

// --- expressions (tokenizer_regex.c) ---------------------------------------------------------------------------------
// Compiles an expression that was written for Oniguruma; the caller frees the code with sl_regex_destroy().
enum sl_status sl_regex_compile(const char *regex, struct pcre2_real_code_8 **code_out, struct sl_error *err);
void sl_regex_destroy(struct pcre2_real_code_8 *code);

// State of a search besides the code. One for each call of sl_tokenizer_encode(); false: no memory.
struct sl_regex_search {
    struct pcre2_real_match_data_8 *match;
    struct pcre2_real_match_context_8 *limits;
    size_t n_steps; // left for matches that look far
};
bool sl_regex_search_init(struct sl_regex_search *search, size_t n_bytes); // of the text
void sl_regex_search_cleanup(struct sl_regex_search *search);

// The bytes of a match; both are the end of the text where there is none.
struct sl_regex_match {
    bool found;
    size_t begin, end;
};

// Finds the first match at or after `from` in valid UTF-8. SL_ERR_INVALID: the search exceeded its limits.
enum sl_status sl_regex_find(const struct pcre2_real_code_8 *code, struct sl_regex_search *search, const char *text,
                             size_t n_bytes, size_t from, struct sl_regex_match *match_out, struct sl_error *err);

// --- pre-tokenizer (tokenizer_pretokenize.c) -------------------------------------------------------------------------
enum sl_prepend { SL_PREPEND_NEVER, SL_PREPEND_FIRST, SL_PREPEND_ALWAYS };

// Processing of a piece, from top to bottom; the results are the pieces of the next step.
struct sl_cut {
    bool marks_spaces;              // spaces become `prefix`
    enum sl_prepend prepend;        // `prefix` is put in front, unless it is there already
    const char *prefix;             // a space or the mark; static
    struct pcre2_real_code_8 *code; // each match is a piece, and so is the text between matches; NULL: no cutting
    bool to_alphabet;               // bytes become characters of the byte-level alphabet
};

// Reads the members of a step of type Metaspace.
enum sl_status sl_metaspace_read(const json_t *step, const char *what, enum sl_prepend *prepend_out, bool *split_out,
                                 struct sl_error *err);

struct sl_pretokenizer {
    struct sl_cut cuts[SL_MAX_STEPS];
    int n_cuts;
    bool byte_level; // one of the steps is ByteLevel
    uint64_t digest;
};

enum sl_status sl_pretokenizer_load(struct sl_pretokenizer *pretokenizer, const json_t *root, struct sl_error *err);
void sl_pretokenizer_cleanup(struct sl_pretokenizer *pretokenizer);

// Receives one piece; a status other than SL_OK ends the cutting with that status.
typedef enum sl_status (*sl_piece_fn)(void *arg, const char *piece, size_t n_bytes);

struct sl_cutting {
    const struct sl_pretokenizer *pretokenizer;
    struct sl_regex_search *search;
    sl_piece_fn fn;
    void *arg; // of fn
    struct sl_error *err;
};

// Cuts valid UTF-8 into pieces. `first`: the text to be encoded starts here.
enum sl_status sl_pretokenizer_cut(const struct sl_cutting *cutting, const char *text, size_t n_bytes, bool first);

// --- decoder (tokenizer_decoder.c) -----------------------------------------------------------------------------------
struct sl_decoder {
    bool byte_fallback;     // bytes that make no character become one U+FFFD each
    char *blob;             // the texts of tokens that are not their spellings
    bool first_loses_marks; // in the first token of a text; in others marks become spaces
    // Up to n_stripped leading characters of a text are removed while they equal this one.
    char stripped[SL_MAX_CHARACTER + 1];
    int n_stripped;
    uint64_t digest;
};

// Loads the decoder, and sets the texts of the vocabulary.
enum sl_status sl_decoder_load(struct sl_decoder *decoder, struct sl_vocab *vocab, const json_t *root,
                               struct sl_error *err);
void sl_decoder_cleanup(struct sl_decoder *decoder);

// --- special tokens around a text (tokenizer_template.c) -------------------------------------------------------------
struct sl_template {
    int32_t before[SL_MAX_TEMPLATE], after[SL_MAX_TEMPLATE];
    int n_before, n_after;
};

// Loads the template from the post_processor of tokenizer.json, and the settings of tokenizer_config.json and
// generation_config.json, which may be NULL. Ids are below n_vocab.
enum sl_status sl_template_load(struct sl_template *template, const json_t *root, const json_t *config,
                                const json_t *generation, int32_t n_vocab, struct sl_error *err);

// --- the whole -------------------------------------------------------------------------------------------------------
struct sl_tokenizer {
    struct sl_vocab vocab;
    struct sl_bpe bpe;
    struct sl_normalizer normalizer;
    struct sl_added_set added_raw, added_normalized;
    struct sl_pretokenizer pretokenizer;
    struct sl_decoder decoder;
    struct sl_template template;
    double share[256]; // of a token that each byte of a text takes at least; 0: not known
    uint64_t fingerprint;
};

// Computes `share` of a tokenizer whose other parts are loaded (tokenizer_least.c).
void sl_least_load(struct sl_tokenizer *tokenizer);

// Builds a tokenizer from the three parsed files; config and generation may be NULL. sl_tokenizer_load() calls it
// after reading.
enum sl_status sl_tokenizer_build(const json_t *root, const json_t *config, const json_t *generation,
                                  struct sl_tokenizer **tokenizer_out, struct sl_error *err);

// --- UTF-8 (detokenizer.c) -------------------------------------------------------------------------------------------
// Returns the bytes of the character at p if it lies whole in [p, p + n), n >= 1; 0 if all n bytes could begin one;
// else -1.
int sl_utf8_length(const unsigned char *p, size_t n);
