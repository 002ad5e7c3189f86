// SPDX-License-Identifier: Apache-2.0
#include "gateway/status.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/exchange.h"
#include "net/trust/sha256.h"

extern const uint8_t sl_status_html[]; // embedded by cmake/embed.cmake
extern const size_t sl_status_html_bytes;

// Hashes the text between two tags.
static enum sl_status hash_between(const char *begin, const char *end, char hash_out[SL_SHA256_TEXT_BYTES],
                                   struct sl_error *err) {
    const char *page = (const char *)sl_status_html;
    const char *from = memmem(page, sl_status_html_bytes, begin, strlen(begin));
    from = from ? from + strlen(begin) : NULL;
    const char *to = from ? memmem(from, sl_status_html_bytes - (size_t)(from - page), end, strlen(end)) : NULL;
    return to ? sl_sha256_base64(from, (size_t)(to - from), hash_out, err)
              : sl_fail(err, SL_ERR_INTERNAL, "the status page has no %s", begin);
}

enum sl_status sl_status_page_make(struct sl_status_page *page_out, struct sl_error *err) {
    char style[SL_SHA256_TEXT_BYTES], script[SL_SHA256_TEXT_BYTES];
    SL_TRY(hash_between("<style>", "</style>", style, err));
    SL_TRY(hash_between("<script>", "</script>", script, err));
    page_out->text = (const char *)sl_status_html;
    page_out->n_bytes = sl_status_html_bytes;
    snprintf(page_out->policy, sizeof page_out->policy,
             "default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; connect-src 'self'; img-src data:; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
             "trusted-types 'none'",
             style, script);
    return SL_OK;
}

enum MHD_Result sl_status_send_page(const struct sl_http_request *request) {
    const struct sl_http_reply *reply = request->reply;
    const struct sl_status_page *page = &reply->gateway->page;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(page->n_bytes, (void *)page->text, MHD_RESPMEM_PERSISTENT);
    if (response) {
        MHD_add_response_header(response, "Content-Security-Policy", page->policy);
        MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    }
    return sl_http_reply_send(reply, MHD_HTTP_OK, "text/html; charset=utf-8", response);
}

// Returns true if the client may see workers: only operators, or without authentication only clients on this host.
static bool shows_workers(const struct sl_gateway *gateway, enum sl_tenants_kind kind) {
    bool is_loopback = strncmp(gateway->address, "127.", 4) == 0 || strncmp(gateway->address, "[::1]", 5) == 0;
    return is_loopback || kind == SL_TENANTS_APART;
}

enum MHD_Result sl_status_begin(const struct sl_http_reply *reply, struct sl_client *client,
                                struct sl_snapshot **snapshot_out) {
    struct sl_gateway *gateway = reply->gateway;
    enum sl_tenants_kind kind = sl_tenants_kind(gateway->tenants);
    struct sl_refusal refusal;
    *snapshot_out = NULL;
    if (kind == SL_TENANTS_ALIKE) {
        sl_refuse(&refusal, 403,
                  "the cluster has no certificates, so it cannot tell tenants apart: callers with a key cannot see its "
                  "state");
    } else if (sl_board_ask(gateway->board, client, shows_workers(gateway, kind), reply->connection, snapshot_out,
                            &refusal) == SL_OK) {
        return MHD_YES;
    }
    return sl_http_reply_refusal(reply, &refusal);
}

enum MHD_Result sl_status_send(const struct sl_http_reply *reply, struct sl_snapshot *snapshot) {
    struct sl_refusal refusal;
    char *text = sl_snapshot_take(snapshot, &refusal);
    if (!text) {
        return sl_http_reply_refusal(reply, &refusal);
    }
    struct MHD_Response *response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (response) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
        MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    } else {
        free(text);
    }
    return sl_http_reply_send(reply, MHD_HTTP_OK, "application/json", response);
}
