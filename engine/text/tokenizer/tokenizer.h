// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts text to token ids and back, from a Hugging Face tokenizer.json: byte-level BPE (Llama-3, Qwen2,
 *          GPT-2, Falcon) and SentencePiece BPE (Llama-2, Mistral, Yi, Phi-3).
 *
 * Design: the model's own pre-tokenizer expression runs in PCRE2; merges are applied by rank with a heap per word;
 *         added tokens are cut out first. Unsupported features of the file are rejected by name at load time.
 * Threads: a tokenizer is immutable after loading; any number of threads may use it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct sl_tokenizer;

// Reads tokenizer.json and, if present, tokenizer_config.json and generation_config.json of a model folder.
enum sl_status sl_tokenizer_load(const char *model_dir, struct sl_tokenizer **tokenizer_out, struct sl_error *err);
void sl_tokenizer_destroy(struct sl_tokenizer **tokenizer);

/*
 * Encodes n_bytes of UTF-8. add_special adds the special tokens at the start and end that the tokenizer's
 * configuration requests: for most models a begin token at the start. *ids_out is malloc'd, the caller's to free.
 * SL_ERR_INVALID: not UTF-8; err gives the byte offset. Another status: the pause function's.
 */
enum sl_status sl_tokenizer_encode(const struct sl_tokenizer *tokenizer, const char *text, size_t n_bytes,
                                   bool add_special, int32_t **ids_out, size_t *n_ids_out, struct sl_error *err);

// Sets a function that this thread calls while it encodes, after each few kilobytes of work. The encoding ends with its
// failure. NULL: none.
typedef enum sl_status (*sl_tokenizer_pause_fn)(void *arg);
void sl_tokenizer_set_pause(sl_tokenizer_pause_fn fn, void *arg);

// Returns a number of tokens that encoding this text gives at least; in a hundredth of encoding's time. 0: not known.
size_t sl_tokenizer_least_tokens(const struct sl_tokenizer *tokenizer, const char *text, size_t n_bytes);

int32_t sl_tokenizer_vocab_size(const struct sl_tokenizer *tokenizer); // ids are below this
int32_t sl_tokenizer_begin_id(const struct sl_tokenizer *tokenizer);   // -1 if there is none
uint64_t sl_tokenizer_fingerprint(const struct sl_tokenizer *tokenizer);

// Returns the raw bytes of one token, as in the middle of a text (special tokens: their spelling). NULL for an id out
// of range. Owned by the tokenizer.
const char *sl_tokenizer_token_bytes(const struct sl_tokenizer *tokenizer, int32_t id, size_t *n_bytes_out);
bool sl_tokenizer_is_special(const struct sl_tokenizer *tokenizer, int32_t id);

/*
 * Streaming detokenizer: takes bytes token by token, returns whole UTF-8 characters. Bytes that can never become a
 * character become U+FFFD. Special tokens give no text. If the model's decoder strips what encoding put before a text
 * (SentencePiece's dummy space), the first token after init loses it.
 */
struct sl_detokenizer {
    const struct sl_tokenizer *tokenizer;
    unsigned char pending[4];
    int n_pending;
    int n_stripped; // characters that may still be stripped
    bool started;   // a token has given text
};
void sl_detokenizer_init(struct sl_detokenizer *detokenizer, const struct sl_tokenizer *tokenizer);

// Appends the text that `id` completes to buf (not NUL-terminated); returns the bytes written, at most buf_bytes. A
// buffer of sl_detokenizer_max_bytes() always suffices.
size_t sl_detokenizer_push(struct sl_detokenizer *detokenizer, int32_t id, char *buf, size_t buf_bytes);
size_t sl_detokenizer_finish(struct sl_detokenizer *detokenizer, char *buf, size_t buf_bytes); // writes pending bytes
size_t sl_detokenizer_max_bytes(const struct sl_tokenizer *tokenizer);

// Returns true if text is well-formed UTF-8 (no surrogates, no overlong forms); *bad_offset_out, if given, is the
// first bad byte.
bool sl_utf8_valid(const char *text, size_t n_bytes, size_t *bad_offset_out);
