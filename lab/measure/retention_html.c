// SPDX-License-Identifier: Apache-2.0
/*
 * Design: the text is made into tokens again, and the page is refused unless they are those of the capsule: a document has
 *         their digest, a capsule that was saved from one process their hash without a salt.
 */
#include "lab/measure/retention_html.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/message_json.h"
#include "client/cli/request.h"
#include "engine/job/job_chat.h"
#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/ops.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "lab/picture.h"

struct page {
    const struct sl_inspected *inspected;
    struct sl_tokenizer *tokenizer;
    int32_t *tokens; // [n_tokens]
    size_t n_tokens;
    double *shares; // [n_tokens]; NAN: the capsule does not have the token
};

// ---- the tokens -----------------------------------------------------------------------------------------------------

static bool are_the_capsules(const struct page *page, struct sl_error *err) {
    static const struct sl_hash128 no_salt = {{0}};
    const struct sl_inspected *inspected = page->inspected;
    const struct sl_capsule_info *info = &inspected->file.info;
    if (page->n_tokens < (size_t)info->n_tokens) {
        return false;
    }
    if (inspected->is_document) {
        uint8_t sha256[SL_SHA256_BYTES];
        // A document that evicts ends before what follows its text in a chat
        size_t n = (size_t)inspected->head.n_tokens;
        return n <= page->n_tokens && sl_sha256(page->tokens, n * sizeof *page->tokens, sha256, err) == SL_OK &&
               memcmp(sha256, inspected->head.tokens_sha256, sizeof sha256) == 0;
    }
    struct sl_hash128 hash = sl_prefix_hash(&no_salt, page->tokens, info->n_tokens);
    return sl_hash128_equals(&hash, &info->id.prefix_hash);
}

// Makes the text into tokens, as a user's message or as a text.
static enum sl_status tokenize(struct page *page, const char *model_dir, const char *text, bool chat,
                               struct sl_error *err) {
    struct sl_chat_template *chat_template = NULL;
    free(page->tokens);
    page->tokens = NULL;
    if (!chat) {
        return sl_tokenizer_encode(page->tokenizer, text, strlen(text), true, &page->tokens, &page->n_tokens, err);
    }
    Sluice__V1__ChatMessage message = SLUICE__V1__CHAT_MESSAGE__INIT, *messages[] = {&message};
    Sluice__V1__Chat said = SLUICE__V1__CHAT__INIT;
    message.role = (char *)"user";
    message.content = (char *)text;
    said.messages = messages;
    said.n_messages = 1;
    enum sl_status status = sl_chat_template_load(model_dir, &chat_template, err);
    SL_THEN(status, sl_job_chat(chat_template, page->tokenizer, &said, &page->tokens, &page->n_tokens, err));
    sl_chat_template_destroy(&chat_template);
    return status;
}

static enum sl_status find_tokens(struct page *page, const char *model_dir, const char *text, struct sl_error *err) {
    bool is_document = page->inspected->is_document, found = false;
    enum sl_status status = sl_tokenizer_load(model_dir, &page->tokenizer, err);
    for (int chat = 0; chat < 2 && status == SL_OK && !found; chat++) {
        if (!is_document || page->inspected->head.chat == (chat == 1)) {
            status = tokenize(page, model_dir, text, chat == 1, err);
            found = status == SL_OK && are_the_capsules(page, err);
            // A model without a template reads texts only.
            status = chat == 1 && status == SL_ERR_NOT_FOUND && !is_document ? SL_OK : status;
        }
    }
    return status != SL_OK || found
               ? status
               : sl_fail(err, SL_ERR_INVALID, "%s: is not of this text, or %s has another tokenizer or chat template",
                         page->inspected->path, model_dir);
}

// ---- the shares -----------------------------------------------------------------------------------------------------

// Adds the slots of one head to the tokens that they are of.
static enum sl_status count_head(const struct page *page, const struct sl_ops *ops, int layer, int head,
                                 int64_t *positions, struct sl_error *err) {
    const struct sl_inspected *inspected = page->inspected;
    const struct sl_layer *l = &inspected->session->layers[layer];
    int64_t n_tokens = inspected->file.info.n_tokens;
    struct sl_kv kv = sl_session_kv(inspected->session, layer, head);
    SL_FAIL_IF(kv.n_slots < n_tokens && !l->work.has_positions, err, SL_ERR_UNSUPPORTED,
               "%s: its recipe evicts and keeps no positions", inspected->path);
    ops->read_positions(&kv, positions);
    for (uint32_t j = 0; j < kv.n_slots; j++) {
        if (positions[j] >= 0 && positions[j] < n_tokens) { // a file may contain any value
            page->shares[positions[j]]++;
        }
    }
    return SL_OK;
}

static enum sl_status count_slots(struct page *page, struct sl_error *err) {
    const struct sl_inspected *inspected = page->inspected;
    const struct sl_kv_geometry *g = &inspected->file.info.geometry;
    size_t n_kept = (size_t)inspected->file.info.n_tokens;
    const struct sl_ops *ops;
    int64_t *positions = malloc((n_kept + 1) * sizeof *positions);
    page->shares = calloc(page->n_tokens + 1, sizeof *page->shares);
    enum sl_status status = positions != NULL && page->shares != NULL ? sl_ops_select(NULL, &ops, err)
                                                                      : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    int n_heads = 0;
    for (int l = 0; l < g->n_layers && status == SL_OK; l++) {
        for (int h = 0; h < g->n_kv_heads && status == SL_OK && !inspected->session->layers[l].offloaded; h++) {
            status = count_head(page, ops, l, h, positions, err);
            n_heads++;
        }
    }
    free(positions);
    SL_THEN_FAIL_IF(status, n_heads == 0, err, SL_ERR_UNSUPPORTED, "%s: stores have all its layers", inspected->path);
    for (size_t i = 0; i < page->n_tokens && status == SL_OK; i++) {
        page->shares[i] = i < n_kept ? page->shares[i] / n_heads : NAN;
    }
    return status;
}

// ---- the page -------------------------------------------------------------------------------------------------------

// Returns [text, share] of each token; special tokens show their spelling.
static json_t *tokens_json(const struct page *page, char *text) {
    size_t most = sl_detokenizer_max_bytes(page->tokenizer);
    struct sl_detokenizer detokenizer;
    json_t *tokens = json_array(), *shares = sl_picture_numbers(page->shares, page->n_tokens);
    sl_detokenizer_init(&detokenizer, page->tokenizer);
    for (size_t i = 0; i < page->n_tokens; i++) {
        size_t n = 0;
        const char *special = sl_tokenizer_is_special(page->tokenizer, page->tokens[i])
                                  ? sl_tokenizer_token_bytes(page->tokenizer, page->tokens[i], &n)
                                  : NULL;
        if (special != NULL && n <= most) {
            memcpy(text, special, n);
        } else {
            n = sl_detokenizer_push(&detokenizer, page->tokens[i], text, most);
        }
        if (i + 1 == page->n_tokens) {
            n += sl_detokenizer_finish(&detokenizer, text + n, most);
        }
        text[n] = '\0';
        json_array_append_new(tokens, json_pack("[o, O]", sl_text_json(text), json_array_get(shares, i)));
    }
    json_decref(shares);
    return tokens;
}

static enum sl_status write_page(const struct page *page, const char *path, struct sl_error *err) {
    const struct sl_capsule_info *info = &page->inspected->file.info;
    char model[20], *text = malloc(2 * sl_detokenizer_max_bytes(page->tokenizer) + 1);
    SL_FAIL_IF(text == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    snprintf(model, sizeof model, "%016" PRIx64, info->id.model_fingerprint);
    json_t *data = json_pack("{s:o, s:s, s:i, s:i, s:o}", "label", sl_text_json(page->inspected->file.label), "model",
                             model, "layers", info->geometry.n_layers, "kv_heads", info->geometry.n_kv_heads, "tokens",
                             tokens_json(page, text));
    free(text);
    return sl_page_write("sluice_eval.retention", path, data, err);
}

enum sl_status sl_retention_html_write(const struct sl_inspected *inspected, const char *model_dir,
                                       const char *text_path, const char *path, struct sl_error *err) {
    struct page page = {.inspected = inspected};
    char *text = NULL;
    enum sl_status status = SL_OK;
    SL_FAIL_IF(inspected->file.info.n_tokens < 1, err, SL_ERR_INVALID,
               "%s: a capsule of no tokens; there is nothing to show", inspected->path);
    SL_FAIL_IF(inspected->text == NULL && text_path == NULL, err, SL_ERR_INVALID,
               "%s: does not have the text: give it with --text FILE", inspected->path);
    if (inspected->text == NULL) {
        status = sl_request_read_text(text_path, &text, err);
    }
    SL_THEN(status, find_tokens(&page, model_dir, text != NULL ? text : inspected->text, err));
    SL_THEN(status, count_slots(&page, err));
    SL_THEN(status, write_page(&page, path, err));
    sl_tokenizer_destroy(&page.tokenizer);
    free(page.tokens);
    free(page.shares);
    free(text);
    return status;
}
