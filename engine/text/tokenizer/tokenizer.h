// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: text to token ids and back, from a Hugging Face tokenizer.json: byte-level BPE (Llama-3, Qwen2, GPT-2, Falcon)
 *          and SentencePiece's kind of BPE (Llama-2, Mistral, Yi, Phi-3).
 *
 * Design: the model's own pre-tokenizer expression runs in PCRE2; merges are applied by rank with a heap per word;
 *         added tokens are cut out first. What the file asks for and we do not implement is refused by name at load
 *         time.
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
 * Encode n_bytes of UTF-8. add_special puts the special tokens in front and behind that the tokenizer's configuration
 * asks for: for most models a begin token in front.
 * *ids_out is malloc'd, the caller's to free. SL_ERR_INVALID: not UTF-8; err gives the byte offset.
 */
enum sl_status sl_tokenizer_encode(const struct sl_tokenizer *tokenizer, const char *text, size_t n_bytes,
                                   bool add_special, int32_t **ids_out, size_t *n_ids_out, struct sl_error *err);

int32_t sl_tokenizer_vocab_size(const struct sl_tokenizer *tokenizer); // ids are below this
int32_t sl_tokenizer_begin_id(const struct sl_tokenizer *tokenizer);   // -1 when there is none
uint64_t sl_tokenizer_fingerprint(const struct sl_tokenizer *tokenizer);

// Raw bytes of one token, as it stands in the middle of a text (special tokens: their text). NULL for an id out of range. Owned by the tokenizer.
const char *sl_tokenizer_token_bytes(const struct sl_tokenizer *tokenizer, int32_t id, size_t *n_bytes_out);
bool sl_tokenizer_is_special(const struct sl_tokenizer *tokenizer, int32_t id);

/*
 * Streaming detokenizer: bytes go in token by token, whole UTF-8 characters come out. Bytes that can never become a
 * character come out as U+FFFD. Special tokens give no text. Where the model's decoder strips what encoding put in front
 * of a text (SentencePiece's dummy space), the first token after init loses it.
 */
struct sl_detokenizer {
    const struct sl_tokenizer *tokenizer;
    unsigned char pending[4];
    int n_pending;
    int n_stripped; // characters that may still be stripped
    bool started;   // some token gave text
};
void sl_detokenizer_init(struct sl_detokenizer *detokenizer, const struct sl_tokenizer *tokenizer);

// Append the text that `id` completes to buf (not NUL-terminated); returns the bytes written, at most buf_bytes.
// A buffer of sl_detokenizer_max_bytes() always suffices.
size_t sl_detokenizer_push(struct sl_detokenizer *detokenizer, int32_t id, char *buf, size_t buf_bytes);
size_t sl_detokenizer_finish(struct sl_detokenizer *detokenizer, char *buf, size_t buf_bytes); // what is still pending
size_t sl_detokenizer_max_bytes(const struct sl_tokenizer *tokenizer);

// True when text is well-formed UTF-8 (no surrogates, no overlong forms); *bad_offset_out, if given, says where not.
bool sl_utf8_valid(const char *text, size_t n_bytes, size_t *bad_offset_out);
