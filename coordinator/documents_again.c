// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads a document's text again after the store with its capsule was lost, by a job like the one that added it.
 * Threads: the keeper's (documents/keeper.h).
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/coordinator_internal.h"
#include "coordinator/documents/document_prompt.h"
#include "coordinator/workers/stores.h"

// Checks that the store that will get the capsule has room for it: it may have another's documents as well now.
static enum sl_status check_room(struct sl_coordinator *coordinator, const struct sl_document *document,
                                 struct sl_error *err) {
    struct sl_ranked_store *stores = malloc(SL_MAX_WORKERS * sizeof *stores);
    SL_FAIL_IF(stores == NULL, err, SL_ERR_EXHAUSTED, "no memory for a list of stores");
    enum sl_status status = sl_stores_rank(coordinator->registry, document->first_key, stores) > 0
                                ? sl_documents_check_room(coordinator->documents, document, &stores[0], err)
                                : sl_fail(err, SL_ERR_PEER_LOST, "no KV store is ready");
    free(stores);
    return status;
}

// Begins to read a document.
static enum sl_status begin(struct sl_coordinator *coordinator, struct sl_document *document, struct sl_job **job_out,
                            struct sl_error *err) {
    struct sl_identity owner = {.role = SL_ROLE_CLIENT};
    struct sl_document_reading reading;
    strcpy(owner.tenant, document->tenant);
    sl_document_reading_init(&reading, document->name, document->text, document->recipe, document->chat);
    enum sl_status status = check_room(coordinator, document, err);
    Sluice__V1__TokenIds ids = SLUICE__V1__TOKEN_IDS__INIT;
    if (status == SL_OK && document->is_cut) { // exactly the tokens of its capsule
        int64_t n = document->n_tokens;
        status = sl_coordinator_encode_compacted(coordinator, document->text, document->chat, &ids.ids, &n, err);
        ids.n_ids = (size_t)n;
        reading.request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
        reading.request.tokens = &ids;
    }
    SL_THEN(status, sl_coordinator_submit(coordinator, &owner, &reading.request, SL_NO_DEADLINE, SL_JOB_READS_DOCUMENT,
                                          job_out, err));
    free(ids.ids);
    return status;
}

void sl_coordinator_forget_reading(struct sl_coordinator *coordinator) {
    sl_job_unref(&coordinator->read_again_job);
    sl_document_unref(&coordinator->read_again);
}

void sl_coordinator_read_again(void *arg) {
    struct sl_coordinator *coordinator = arg;
    if (coordinator->read_again_job != NULL) {
        struct sl_job *job = coordinator->read_again_job;
        if (sl_event_log_wait_closed(&job->log, sl_now_ns()) != SL_OK) {
            return; // it runs
        }
        char text[SL_STATUS_TEXT_BYTES];
        if (sl_job_failure(job, text) != 0) {
            sl_log_warn("documents", "%s was not read again: %s", coordinator->read_again->name, text);
        }
        sl_coordinator_forget_reading(coordinator);
        return;
    }
    static const Sluice__V1__WorkerRole roles[] = {SLUICE__V1__WORKER_ROLE__KVSTORE, SLUICE__V1__WORKER_ROLE__PREFILL,
                                                   SLUICE__V1__WORKER_ROLE__DECODE};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (!sl_registry_is_served(coordinator->registry, roles[i])) {
            return; // it would only fail, and count
        }
    }
    struct sl_document *document =
        sl_documents_lost(coordinator->documents, coordinator->model_fingerprint, sl_now_ns());
    if (document == NULL) {
        return;
    }
    struct sl_error err = {0};
    if (begin(coordinator, document, &coordinator->read_again_job, &err) == SL_OK) {
        sl_log_info("documents", "no store has %s: job=%s reads it again", document->name,
                    coordinator->read_again_job->id);
        coordinator->read_again = document;
    } else {
        sl_log_warn("documents", "%s was not read again: %s", document->name, err.text);
        sl_document_unref(&document);
    }
}
