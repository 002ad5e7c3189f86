// SPDX-License-Identifier: Apache-2.0
#include "gateway/status_page.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

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
