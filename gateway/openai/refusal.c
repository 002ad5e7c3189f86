// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai/refusal.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/json_file.h"

static const char *type_of(int http_status) {
    switch (http_status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    default:
        return http_status < 500 ? "invalid_request_error" : "server_error";
    }
}

static void tell(struct sl_refusal *refusal, int http_status, const char *param, const char *format, va_list args) {
    refusal->http_status = http_status;
    refusal->type = type_of(http_status);
    refusal->retry_after_s = 0;
    refusal->allow = NULL;
    refusal->code = http_status == 401 ? "invalid_api_key" : NULL;
    snprintf(refusal->param, sizeof refusal->param, "%s", param);
    vsnprintf(refusal->text, sizeof refusal->text, format, args);
}

enum sl_status sl_refuse_field(struct sl_refusal *refusal, const char *param, const char *format, ...) {
    va_list args;
    va_start(args, format);
    tell(refusal, 400, param, format, args);
    va_end(args);
    return SL_ERR_INVALID;
}

void sl_refuse(struct sl_refusal *refusal, int http_status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    tell(refusal, http_status, "", format, args);
    va_end(args);
}

void sl_refuse_unknown(struct sl_refusal *refusal, const char *field, const char *format, ...) {
    va_list args;
    va_start(args, format);
    tell(refusal, 404, field, format, args);
    va_end(args);
    refusal->code = strcmp(field, "model") == 0 ? "model_not_found" : "document_not_found";
}

void sl_refuse_for(struct sl_refusal *refusal, int64_t retry_ms, const char *what, int64_t per_minute) {
    int64_t seconds = (retry_ms + 999) / 1000;
    if (per_minute == INT64_MAX) {
        sl_refuse(refusal, 429, "too many keys with limits are in use");
    } else {
        sl_refuse(refusal, 429, "%" PRId64 " %s a minute are yours, and they are used up: ask again in %" PRId64 " s",
                  per_minute, what, seconds);
    }
    refusal->retry_after_s = seconds;
}

static int http_status_of(enum sl_status status) {
    switch (status) {
    case SL_ERR_INVALID:
    case SL_ERR_RANGE:
    case SL_ERR_PRECONDITION:
    case SL_ERR_UNSUPPORTED:
        return 400;
    case SL_ERR_DENIED:
        return 403;
    case SL_ERR_EXISTS:
        return 409;
    case SL_ERR_EXHAUSTED:
        return 429;
    case SL_ERR_CANCELLED: // cancelled by an operator, or because this gateway stops
    case SL_ERR_NOT_FOUND: // a job that a coordinator has lost
    case SL_ERR_PEER_LOST:
    case SL_ERR_PEER_STALE:
    case SL_ERR_PEER_CORRUPT:
        return 503;
    case SL_ERR_DEADLINE:
        return 504;
    default:
        return 500;
    }
}

// Returns the length of the field name at the beginning of "recipe: there is no ..." or "top_p is 3; ..."; 0: there is
// none.
static size_t field_bytes(const char *text) {
    size_t n = 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_' || text[n] == '.') {
        n++;
    }
    bool is_field = text[n] == ':' || strncmp(text + n, " is ", 4) == 0;
    return is_field && n < sizeof((struct sl_refusal *)0)->param ? n : 0;
}

// Fields of a GenerateRequest that have another name in OpenAI's interface.
static const struct {
    const char *ours, *openais;
} renamed[] = {
    {"chat", "messages"},
    {"text", "prompt"},
    {"tokens", "prompt"},
    {"max_new_tokens", "max_tokens"},
};

void sl_refuse_error_of_ours(struct sl_refusal *refusal, const struct sl_error *err) {
    const enum sl_status status = err->status;
    const char *text = err->text;
    // The coordinator has these fields in a message, OpenAI at the top level
    static const char sampling[] = "sampling: ";
    if (strncmp(text, sampling, sizeof sampling - 1) == 0) {
        text += sizeof sampling - 1;
    }
    size_t n = field_bytes(text);
    if (status == SL_ERR_NOT_FOUND && n > 0 && text[n] == ':') { // a field names a missing document
        char field[sizeof refusal->param];
        snprintf(field, sizeof field, "%.*s", (int)n, text);
        sl_refuse_unknown(refusal, field, "%s", text);
        return;
    }
    sl_refuse(refusal, http_status_of(status), "%s", text[0] ? text : sl_status_text(status));
    n = refusal->http_status == 400 ? n : 0;
    snprintf(refusal->param, sizeof refusal->param, "%.*s", (int)n, text);
    if (err->reason == SL_REASON_PROMPT_TOO_LONG && refusal->http_status == 400) {
        refusal->code = "context_length_exceeded"; // clients shorten their prompt and ask again
    }
}

void sl_refuse_error(struct sl_refusal *refusal, const struct sl_error *err) {
    sl_refuse_error_of_ours(refusal, err);
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        if (strcmp(refusal->param, renamed[i].ours) == 0) {
            char rest[sizeof refusal->text];
            strcpy(rest, refusal->text + strlen(refusal->param));
            snprintf(refusal->param, sizeof refusal->param, "%s", renamed[i].openais);
            snprintf(refusal->text, sizeof refusal->text, "%s%s", renamed[i].openais, rest);
            break;
        }
    }
}

char *sl_refusal_json(const struct sl_refusal *refusal) {
    json_t *param = refusal->param[0] ? json_string(refusal->param) : json_null();
    json_t *text = sl_text_json(refusal->text); // may be cut in the middle of a character, or have a client's bytes
    char code[16]; // a string or null, as in OpenAI's interface: typed clients fail at a number
    snprintf(code, sizeof code, "%d", refusal->http_status);
    json_t *root = json_pack("{s:{s:o, s:s, s:o, s:s}}", "error", "message", text, "type", refusal->type, "param",
                             param, "code", refusal->code ? refusal->code : code);
    char *line = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return line;
}
