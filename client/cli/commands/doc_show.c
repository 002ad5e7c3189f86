// SPDX-License-Identifier: Apache-2.0
// Purpose: what `sluice doc` prints about one document.
#include "client/cli/commands/doc_show.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/options/config.h"
#include "client/cli/message_json.h"
#include "client/cli/table.h"

#define KEEPING_DOCUMENTS "`sluice up --state DIR` keeps documents"

const char *sl_doc_time_text(int64_t ms, char buf[SL_UTC_BYTES]) {
    if (ms <= 0) {
        return "never";
    }
    sl_utc_text(ms, buf);
    return buf;
}

const char *sl_doc_stores_text(const Sluice__V1__Document *document, char *buf, size_t n_buf) {
    size_t n = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < document->n_stores && n < n_buf; i++) {
        n += (size_t)snprintf(buf + n, n_buf - n, "%s%s", i > 0 ? ", " : "", document->stores[i]);
    }
    if (document->n_stores < (size_t)document->replicas && n < n_buf) {
        snprintf(buf + n, n_buf - n, " (%zu of %d)", document->n_stores, document->replicas);
    }
    return buf;
}

static void show_balance(const Sluice__V1__Document *document) {
    printf("saved        %" PRId64 " tokens not read again for %" PRId64 " questions", document->saved_tokens,
           document->n_questions);
    if (document->saved_ms > 0) {
        printf(": about %.1f s", document->saved_ms / 1000);
    }
    printf(", since the coordinator started\n");
    if (strcmp(document->lost_points, "0") == 0) {
        printf("lost         nothing: the recipe keeps the full cache\n");
    } else if (document->lost_points[0]) {
        printf("lost         %s of 100 points with %s at %" PRId64
               " tokens (docs/quality.md); `sluice doc ask --check` compares\n",
               document->lost_points, document->lost_model, document->lost_tokens);
    } else {
        printf("lost         not measured for this recipe; `sluice doc ask --check` compares\n");
    }
    if (document->caution[0]) {
        printf("caution      %s\n", document->caution);
    }
}

void sl_doc_show(const Sluice__V1__Document *document, bool json) {
    char capsule[32], created[SL_UTC_BYTES], expires[SL_UTC_BYTES];
    if (json) {
        sl_message_print_json(&document->base, stdout);
        return;
    }
    printf("name         %s\n", document->name);
    if (document->tenant[0]) {
        printf("tenant       %s\n", document->tenant);
    }
    printf("text         %" PRId64 " bytes, %" PRId64 " tokens, read as %s\n", document->text_bytes, document->n_tokens,
           document->chat ? "a user's message" : "text");
    printf("sha256       %s\n", document->sha256);
    printf("recipe       %s\n", document->recipe);
    printf("model        %016" PRIx64 "%s\n", document->model_fingerprint,
           document->other_model ? ": NOT the cluster's: delete the document, and add it again" : "");
    printf("capsule      %s%s\n", sl_format_bytes((double)document->capsule_bytes, capsule, sizeof capsule),
           document->reading ? ", being read" : "");
    if (document->offloaded_bytes > 0) {
        printf("offloaded    %s\n", sl_format_bytes((double)document->offloaded_bytes, capsule, sizeof capsule));
    }
    char stores[256];
    printf("store        %s%s%s%s\n",
           document->store[0]      ? sl_doc_stores_text(document, stores, sizeof stores)
           : document->other_model ? "none"
                                   : "none now: the cluster reads the text again, unless --salt-file is another one",
           !document->store[0] ? ""
           : document->on_disk ? ", in memory and on disk"
                               : ", in memory only",
           document->not_on_disk[0] ? ": " : "", document->not_on_disk);
    printf("replicas     %d%s\n", document->replicas,
           document->store[0] && document->n_stores < (size_t)document->replicas ? ": the others get a copy soon" : "");
    show_balance(document);
    printf("added        %s\n", sl_doc_time_text(document->created_ms, created));
    printf("ends         %s%s\n", sl_doc_time_text(document->expires_ms, expires),
           document->ends_with_cluster ? ", and with the cluster; " KEEPING_DOCUMENTS : "");
}

void sl_doc_warn(const char *name, int64_t n_tokens, const char *caution) {
    if (caution[0]) {
        fprintf(stderr, "%s has %" PRId64 " tokens: %s\n", name, n_tokens, caution);
    }
}

enum sl_status sl_doc_done(Sluice__V1__Document *document, const char *word, bool json, bool is_warned) {
    char bytes[32], ends[SL_UTC_BYTES];
    bool is_kept = strcmp(word, "removed") != 0;
    sl_format_bytes((double)(document->capsule_bytes + document->offloaded_bytes), bytes, sizeof bytes);
    if (json) {
        sl_message_print_json(&document->base, stdout);
    } else if (document->was_there) { // --keep and --replicas have changed nothing
        printf("%s was there already, and stays as it was: %" PRId64 " tokens, %s, replicas %d, ends %s\n",
               document->name, document->n_tokens, bytes, document->replicas,
               sl_doc_time_text(document->expires_ms, ends));
    } else {
        printf("%s %s: %" PRId64 " tokens, %s\n", word, document->name, document->n_tokens, bytes);
    }
    if (!json && is_kept && document->not_on_disk[0]) {
        fprintf(stderr, "%s%s: %s\n", document->name, document->on_disk ? "" : " is in memory only",
                document->not_on_disk);
    }
    if (!json && !is_warned) {
        sl_doc_warn(document->name, document->n_tokens, document->caution);
    }
    if (!json && is_kept && document->ends_with_cluster) {
        fprintf(stderr, "%s ends with the cluster; " KEEPING_DOCUMENTS "\n", document->name);
    }
    sluice__v1__document__free_unpacked(document, NULL);
    return SL_OK;
}
