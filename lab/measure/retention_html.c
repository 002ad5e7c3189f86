// SPDX-License-Identifier: Apache-2.0
/*
 * Design: the text is made into tokens again, and the page is refused unless they are those of the capsule: a document has
 *         their digest, a capsule that was saved from one process their hash without a salt. A sentence begins at the first
 *         token after '.', '!' or '?' and white space, or after an empty line.
 */
#include "lab/measure/retention_html.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/whole_file.h"
#include "client/cli/request.h"
#include "engine/job/job_chat.h"
#include "engine/tensor/cpu/tiers.h"
#include "engine/tensor/ops.h"
#include "engine/text/tokenizer/tokenizer.h"

struct page {
    const struct sl_inspected *inspected;
    struct sl_tokenizer *tokenizer;
    int32_t *tokens; // [n_tokens]
    size_t n_tokens;
    double *shares; // [n_tokens]; -1: the capsule does not have the token
    char *text;     // of all tokens
    size_t *ends;   // [n_tokens]: where each one's text ends
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
        return sl_sha256(page->tokens, page->n_tokens * sizeof *page->tokens, sha256, err) == SL_OK &&
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

// Writes the text of each token; special tokens show their spelling.
static enum sl_status spell(struct page *page, struct sl_error *err) {
    size_t most = sl_detokenizer_max_bytes(page->tokenizer), n = 0;
    struct sl_detokenizer detokenizer;
    page->text = malloc((page->n_tokens + 1) * most);
    page->ends = malloc(page->n_tokens * sizeof *page->ends);
    SL_FAIL_IF(page->text == NULL || page->ends == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    sl_detokenizer_init(&detokenizer, page->tokenizer);
    for (size_t i = 0; i < page->n_tokens; i++) {
        size_t n_bytes = 0;
        const char *bytes = sl_tokenizer_is_special(page->tokenizer, page->tokens[i])
                                ? sl_tokenizer_token_bytes(page->tokenizer, page->tokens[i], &n_bytes)
                                : NULL;
        if (bytes != NULL && n_bytes <= most) {
            memcpy(page->text + n, bytes, n_bytes);
            n += n_bytes;
        } else {
            n += sl_detokenizer_push(&detokenizer, page->tokens[i], page->text + n, most);
        }
        page->ends[i] = n;
    }
    n += sl_detokenizer_finish(&detokenizer, page->text + n, most);
    page->ends[page->n_tokens - 1] = n;
    return SL_OK;
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
    if (status == SL_OK && n_heads == 0) {
        status = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: stores have all its layers", inspected->path);
    }
    for (size_t i = 0; i < page->n_tokens && status == SL_OK; i++) {
        page->shares[i] = i < n_kept ? page->shares[i] / n_heads : -1;
    }
    return status;
}

// ---- the page -------------------------------------------------------------------------------------------------------

static void write_escaped(const char *text, size_t n, FILE *file) {
    for (size_t i = 0; i < n; i++) {
        switch (text[i]) {
        case '<':
            fputs("&lt;", file);
            break;
        case '>':
            fputs("&gt;", file);
            break;
        case '&':
            fputs("&amp;", file);
            break;
        case '"':
            fputs("&quot;", file);
            break;
        default:
            fputc(text[i], file);
        }
    }
}

static size_t begin_of(const struct page *page, size_t token) {
    return token > 0 ? page->ends[token - 1] : 0;
}

// Returns the token at which the next sentence begins, or the number of tokens.
static size_t sentence_end(const struct page *page, size_t token) {
    for (size_t i = token + 1; i < page->n_tokens; i++) {
        size_t at = begin_of(page, i), before = at;
        while (before > 0 && isspace((unsigned char)page->text[before - 1])) {
            before--;
        }
        bool spaced = before < at || isspace((unsigned char)page->text[at]);
        bool is_empty_line = at - before >= 2 && memchr(page->text + before, '\n', at - before - 1) != NULL;
        bool is_end = before > 0 && strchr(".!?", page->text[before - 1]) != NULL;
        // A run of white space belongs to the sentence before it.
        if (((spaced && is_end) || is_empty_line) && !isspace((unsigned char)page->text[page->ends[i] - 1])) {
            return i;
        }
    }
    return page->n_tokens;
}

static int percent(double share) {
    return share < 0 ? -1 : (int)(share * 100 + 0.5);
}

// Writes a sentence: tokens with the same share, in percent, are one element.
static void write_sentence(const struct page *page, size_t first, size_t end, int number, FILE *file) {
    double sum = 0;
    size_t n = 0;
    for (size_t i = first; i < end; i++) {
        sum += page->shares[i] >= 0 ? page->shares[i] : 0;
        n += page->shares[i] >= 0;
    }
    if (n > 0) {
        fprintf(file, "<span title=\"sentence %d: %.1f%% of its slots are kept\">", number, 100 * sum / (double)n);
    } else {
        fprintf(file, "<span title=\"not in the capsule: decode reads the last token\">");
    }
    for (size_t i = first, next; i < end; i = next) {
        int share = percent(page->shares[i]);
        for (next = i + 1; next < end && percent(page->shares[next]) == share;) {
            next++;
        }
        fprintf(file, share < 0 ? "<i>" : "<i class=k%d>", share);
        write_escaped(page->text + begin_of(page, i), page->ends[next - 1] - begin_of(page, i), file);
        fputs("</i>", file);
    }
    fputs("</span>", file);
}

static void write_style(FILE *file) {
    fputs("<style>\nbody { font: 15px/1.6 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }\n"
          "pre { white-space: pre-wrap; font: inherit }\ni { font-style: normal }\n"
          "span:hover { outline: 1px solid #888 }\n.legend i { padding: 0 0.6em }\n",
          file);
    for (int k = 0; k <= 100; k++) { // white to dark blue, as in --png
        fprintf(file, ".k%d { background: #%02x%02x%02x%s }\n", k, 255 - 247 * k / 100, 255 - 207 * k / 100,
                255 - 148 * k / 100, k > 55 ? "; color: #fff" : "");
    }
    fputs("</style>\n", file);
}

static void write_page(const struct page *page, FILE *file) {
    const struct sl_inspected *inspected = page->inspected;
    const struct sl_capsule_info *info = &inspected->file.info;
    double sum = 0;
    for (int64_t i = 0; i < info->n_tokens; i++) {
        sum += page->shares[i];
    }
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>What is kept</title>\n", file);
    write_style(file);
    fputs("<h1>What is kept of the text</h1>\n<p>", file);
    write_escaped(inspected->file.label, strlen(inspected->file.label), file);
    fprintf(file,
            "<br>model %016" PRIx64 ", %d layers of %d KV heads<br>%" PRId64
            " tokens, %.1f%% of their slots are kept. Layers that stores have are not counted.</p>\n<p class=legend>",
            info->id.model_fingerprint, info->geometry.n_layers, info->geometry.n_kv_heads, info->n_tokens,
            100 * sum / (double)info->n_tokens);
    for (int k = 0; k <= 100; k += 20) {
        fprintf(file, "<i class=k%d>%d%%</i>", k, k);
    }
    fputs(" of the slots of a token. Point at a sentence to see its share.</p>\n<pre>\n", file);
    int number = 1;
    for (size_t i = 0, end; i < page->n_tokens; i = end) {
        end = sentence_end(page, i);
        write_sentence(page, i, end, number++, file);
    }
    fputs("\n</pre>\n</html>\n", file);
}

static enum sl_status write_file(const struct page *page, const char *path, struct sl_error *err) {
    struct sl_whole_file *whole = malloc(sizeof *whole); // larger than a stack frame should be
    enum sl_status status =
        whole != NULL ? sl_whole_file_open(whole, path, err) : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    if (status == SL_OK) {
        write_page(page, whole->file);
        status = sl_whole_file_finish(whole, err);
    }
    free(whole);
    return status;
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
    status = status == SL_OK ? find_tokens(&page, model_dir, text != NULL ? text : inspected->text, err) : status;
    SL_THEN(status, spell(&page, err));
    SL_THEN(status, count_slots(&page, err));
    SL_THEN(status, write_file(&page, path, err));
    sl_tokenizer_destroy(&page.tokenizer);
    free(page.tokens);
    free(page.shares);
    free(page.text);
    free(page.ends);
    free(text);
    return status;
}
