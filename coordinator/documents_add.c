// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: adds a document: checks the request, reads the text, and waits until stores have its capsule.
 *
 * In order: check the request as a job; enter the registry, which refuses what is too much; tell the stores
 * the capsule's key, so that it is safe from the moment that it arrives; run a job that reads the text and writes one
 * token; wait until its stores have the capsule, and until their disks have it or not; write the document to the disk. A
 * failure removes all of it. A call that adds what is there already returns it, so that a client can repeat a call whose
 * reply it did not get.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "coordinator/coordinator_internal.h"
#include "coordinator/documents/document_prompt.h"
#include "coordinator/lead.h"
#include "coordinator/workers/stores.h"
#include "proto/kept.h"
#include "proto/methods.h"
#include "proto/sluice/v1/documents.pb-c.h"

#define POLL_MS        100   // between checks of the client while nothing happens
#define STORED_MS      10000 // for the copy to a store, plus the time for the bytes
#define STORED_POLL_MS 50
#define TELLINGS       3 // of the stores, before a text is read; a second each at most
#define MAX_KEEP_MS    (INT64_C(3650) * 24 * 3600 * 1000)

// A document that is being added. The request's members point into the client's request.
struct adding {
    struct sl_coordinator *coordinator;
    struct sl_rpc_call *call;
    struct sl_call_memory *memory;
    const Sluice__V1__AddDocumentRequest *asked;
    struct sl_document *document;       // a reference
    struct sl_document_reading reading; // the job
    Sluice__V1__TokenIds tokens;        // owned: the prompt
    int64_t planned_bytes;              // of its capsule and offloaded layers
    Sluice__V1__Kept kept;              // as the job reported it
    bool is_there;                      // an earlier call has added the same document
    int64_t known_tokens;               // of the same document as it was read before; 0: not known
};

// ---- checking -------------------------------------------------------------------------------------------------------

enum sl_status sl_coordinator_check_kept(int64_t keep_ms, int32_t replicas, struct sl_error *err) {
    SL_FAIL_IF(keep_ms < 0 || keep_ms > MAX_KEEP_MS, err, SL_ERR_INVALID,
               "keep_ms: is %" PRId64 ", must be 0 (until it is deleted) to %" PRId64, keep_ms, MAX_KEEP_MS);
    SL_FAIL_IF(replicas < 0 || replicas > SL_MAX_REPLICAS, err, SL_ERR_INVALID,
               "replicas: is %" PRId32 ", must be 0 (not said) to %d", replicas, SL_MAX_REPLICAS);
    return SL_OK;
}

static enum sl_status check_fields(struct sl_coordinator *coordinator, const Sluice__V1__AddDocumentRequest *asked,
                                   struct sl_error *err) {
    SL_TRY(sl_coordinator_check_documents(coordinator, err));
    SL_TRY(sl_document_check_name(asked->name, err));
    SL_FAIL_IF(asked->text[0] == '\0', err, SL_ERR_INVALID, "text: the document is empty");
    return sl_coordinator_check_kept(asked->keep_ms, asked->replicas, err);
}

// Holds memory to tokenize the text: one id per byte in the worst case, and a copy of the text.
static enum sl_status hold_tokens(struct adding *adding, struct sl_error *err) {
    return sl_call_memory_hold(adding->memory, (sizeof(int32_t) + 1) * strlen(adding->asked->text), err);
}

/*
 * Cuts the prompt to what questions on the text begin with: so they begin with the whole capsule, which cannot be cut within
 * a packed page, or at all if the recipe evicts, and with the last segment of offloaded layers. Earlier versions left the
 * prompt whole under other recipes: a document that was read so stays so.
 */
static enum sl_status cut_prompt(struct adding *adding, struct sl_job_spec *spec, bool *is_cut_out,
                                 struct sl_error *err) {
    struct sl_coordinator *coordinator = adding->coordinator;
    const struct sl_recipe *recipe = &spec->parsed_recipe;
    if (!sl_recipe_keeps_documents(recipe)) {
        return sl_fail(
            err, SL_ERR_INVALID,
            "recipe: a document is kept for questions that come later, and %.200s %s; for example " SL_DOCUMENT_RECIPE
            " or kvzip,heads=pages,format=int4",
            adding->asked->recipe,
            sl_recipe_offloads(recipe) ? "evicts before it offloads, so that only the same prompt finds the slots again"
            : sl_recipe_serves_later(recipe) ? "evicts again for each, unless it has format=int8, int4 or int2"
                                             : "evicts for the first one");
    }
    *is_cut_out = sl_recipe_evicts(recipe) || sl_recipe_offloads(recipe) || adding->known_tokens != spec->n_tokens;
    if (!*is_cut_out) {
        return SL_OK;
    }
    bool chat = adding->reading.request.prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    struct sl_kv_geometry geometry = sl_model_geometry(&coordinator->model);
    enum sl_status status = hold_tokens(adding, err); // of the second prompt
    SL_THEN(status, sl_coordinator_encode_compacted(coordinator, adding->asked->text, chat, &spec->tokens,
                                                    &spec->n_tokens, err));
    return status == SL_OK ? sl_demand_make(recipe, &geometry, spec->n_tokens, 1, &spec->demand, err) : status;
}

// Refuses a recipe that has offloaded layers in several stores: a document says so by its own replicas.
static enum sl_status check_offloaded(const struct sl_job_spec *spec, struct sl_error *err) {
    return spec->demand.offloaded.replicas <= 1
               ? SL_OK
               : sl_fail(
                     err, SL_ERR_INVALID,
                     "recipe: stores keep a document as often as it says: leave replicas=%d out of %.200s, and give "
                     "the document replicas (--replicas)",
                     spec->demand.offloaded.replicas, spec->recipe);
}

// Fills in the document from the checked job, and takes its tokens as the job's prompt.
static enum sl_status make_document(struct adding *adding, struct sl_job_spec *spec, struct sl_error *err) {
    struct sl_coordinator *coordinator = adding->coordinator;
    const Sluice__V1__AddDocumentRequest *asked = adding->asked;
    bool is_cut;
    SL_TRY(cut_prompt(adding, spec, &is_cut, err));
    SL_TRY(check_offloaded(spec, err));
    // Prefill continues from whole blocks, and from no fewer tokens than a chunk (net/store/store.h).
    int64_t unit = spec->demand.offloaded.n > 0 ? spec->demand.offloaded_unit : SL_PREFIX_BLOCK,
            chunk = spec->parsed_recipe.chunk_tokens, least = chunk > unit ? chunk : unit;
    SL_FAIL_IF(spec->demand.n_prefill_tokens / unit * unit < least, err, SL_ERR_INVALID,
               "text: %" PRId64 " tokens are not a document, of which at least %" PRId64
               " are reused at once; put them into the question",
               spec->n_tokens, least);
    SL_TRY(sl_document_create(sl_rpc_call_identity(adding->call)->tenant, asked->name, asked->text, &adding->document,
                              err));
    struct sl_document *document = adding->document;
    int rope_set = sl_model_rope_set(&coordinator->model, spec->n_tokens + spec->max_new_tokens);
    strcpy(document->recipe, spec->recipe);
    document->chat = adding->reading.request.prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    document->model_fingerprint = coordinator->model_fingerprint;
    document->capsule.model_fingerprint = sl_model_set_fingerprint(coordinator->model_fingerprint, rope_set);
    document->capsule.recipe_fingerprint = sl_recipe_fingerprint(&spec->parsed_recipe);
    document->is_cut = is_cut;
    document->capsule_tokens = spec->demand.n_prefill_tokens;
    document->capsule.prefix_hash = sl_prefix_hash(&spec->salt, spec->tokens, document->capsule_tokens);
    document->salt_proof = sl_salted_hash(&spec->salt, document->name, strlen(document->name));
    document->first_key = spec->n_keys > 0 ? spec->keys[0] : 0;
    document->n_tokens = spec->n_tokens;
    document->capsule_bytes = spec->demand.capsule_bytes;
    document->n_offloaded_heads = spec->demand.offloaded.n;
    document->scan = spec->demand.scan;
    document->offloaded_bytes = spec->demand.offloaded.bytes * spec->demand.offloaded.n;
    adding->planned_bytes = sl_document_bytes(document);
    document->created_ms = sl_wall_ms();
    document->expires_ms = asked->keep_ms > 0 ? document->created_ms + asked->keep_ms : 0;
    document->replicas = asked->replicas > 0 ? asked->replicas : 1;
    sluice__v1__token_ids__init(&adding->tokens);
    adding->tokens.ids = spec->tokens;
    adding->tokens.n_ids = (size_t)spec->n_tokens;
    adding->reading.request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    adding->reading.request.tokens = &adding->tokens;
    spec->tokens = NULL;
    return SL_OK;
}

enum sl_status sl_coordinator_too_few_stores(int replicas, int n_stores, struct sl_error *err) {
    return sl_fail(err, SL_ERR_PRECONDITION, "replicas: %d stores should keep the document, and %d are ready", replicas,
                   n_stores);
}

// Plans the stores after the first, in their order; a store without room is passed over. Fails if too few are left.
static enum sl_status plan_others(struct sl_documents *documents, struct sl_document *document,
                                  const struct sl_ranked_store *stores, int n_stores, struct sl_error *err) {
    int n_planned = 1;
    enum sl_status status = SL_OK;
    for (int i = 1; i < n_stores && n_planned < document->replicas; i++) {
        enum sl_status one = sl_documents_plan_store(documents, document, &stores[i], err);
        n_planned += one == SL_OK;
        status = one != SL_OK ? one : status;
    }
    return n_planned >= document->replicas ? SL_OK : status;
}

// Enters the document, if its stores have room for it, and tells the stores.
static enum sl_status enter_at(struct adding *adding, const struct sl_ranked_store *stores, int n_stores,
                               struct sl_error *err) {
    struct sl_coordinator *coordinator = adding->coordinator;
    struct sl_document *document = adding->document;
    int n = document->replicas;
    SL_FAIL_IF(n_stores == 0, err, SL_ERR_PEER_LOST, "no KV store is ready to keep a document");
    if (n > n_stores) {
        return sl_coordinator_too_few_stores(n, n_stores, err);
    }
    SL_TRY(sl_documents_begin(coordinator->documents, document, &stores[0], err));
    enum sl_status status = plan_others(coordinator->documents, document, stores, n_stores, err);
    bool told = false;
    for (int i = 0; i < TELLINGS && status == SL_OK && !told; i++) {
        sl_document_keeper_tell(coordinator->keeper);
        told = sl_documents_are_told(coordinator->documents, document);
    }
    if (status == SL_OK && !told) { // it could evict the capsule as soon as that arrives
        status =
            sl_fail(err, SL_ERR_PEER_LOST, "the stores for this document, %s first, do not answer", stores[0].name);
    }
    if (status != SL_OK) {
        struct sl_error ignored; // the first error counts
        (void)sl_documents_remove(coordinator->documents, document, &ignored);
    }
    return status;
}

static enum sl_status enter(struct adding *adding, struct sl_error *err) {
    struct sl_ranked_store *stores = malloc(SL_MAX_WORKERS * sizeof *stores);
    SL_FAIL_IF(stores == NULL, err, SL_ERR_EXHAUSTED, "no memory for a list of stores");
    int n_stores = sl_stores_rank(adding->coordinator->registry, adding->document->first_key, stores);
    enum sl_status status = enter_at(adding, stores, n_stores, err);
    free(stores);
    return status;
}

// Checks the request as a job, and makes the document and its prompt.
static enum sl_status plan(struct adding *adding, struct sl_error *err) {
    struct sl_coordinator *coordinator = adding->coordinator;
    const struct sl_identity *caller = sl_rpc_call_identity(adding->call);
    struct sl_request_setting setting = {.call_deadline_ns = sl_rpc_call_deadline_ns(adding->call)};
    enum sl_status status = sl_tenant_salt(&coordinator->salt_secret, caller->tenant, &setting.salt, err);
    struct sl_job_spec *spec = status == SL_OK ? malloc(sizeof *spec) : NULL;
    if (status != SL_OK || spec == NULL) {
        return status != SL_OK ? status : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a document");
    }
    bool chat = !adding->asked->raw && coordinator->chat_template != NULL;
    const char *recipe = adding->asked->recipe[0] != '\0' ? adding->asked->recipe : SL_DOCUMENT_RECIPE;
    sl_document_reading_init(&adding->reading, adding->asked->name, adding->asked->text, recipe, chat);
    adding->reading.request.deadline_ms = adding->asked->deadline_ms;
    struct sl_tokenizing_turn turn;
    status = sl_coordinator_begin_tokenizing(coordinator, caller->tenant, adding->asked->deadline_ms,
                                             setting.call_deadline_ns, &turn, err);
    if (status == SL_OK) {
        status = sl_request_check(&coordinator->rules, &adding->reading.request, &setting, spec, err);
        if (status == SL_OK) {
            status = make_document(adding, spec, err);
            sl_job_spec_cleanup(spec);
        }
        sl_tokenizing_end(&turn);
    }
    free(spec);
    return status;
}

// Waits until a store has a document that was added before: all of them may have lost it, and then its text is read again.
static enum sl_status await_reading(const struct adding *adding, struct sl_error *err) {
    sl_document_keeper_tell(adding->coordinator->keeper); // asks the stores what they have
    while (sl_documents_read_now(adding->coordinator->documents, adding->document)) {
        SL_FAIL_IF(sl_rpc_call_cancelled(adding->call) || sl_now_ns() >= sl_rpc_call_deadline_ns(adding->call), err,
                   SL_ERR_PEER_LOST, "no store has %s, whose text is read again: ask later", adding->document->name);
        sl_wait_ms(STORED_POLL_MS);
    }
    return SL_OK;
}

// Finds out how many tokens a document of this name has that is there: it may be the same one.
static void find_known(struct adding *adding) {
    struct sl_document *there = NULL;
    struct sl_error none = {0};
    if (sl_documents_find(adding->coordinator->documents, sl_rpc_call_identity(adding->call)->tenant,
                          adding->asked->name, &there, &none) == SL_OK) {
        adding->known_tokens = there->n_tokens;
        sl_document_unref(&there);
    }
}

static enum sl_status check(struct adding *adding, struct sl_error *err) {
    find_known(adding);
    enum sl_status status = plan(adding, err);
    struct sl_document *same =
        status == SL_OK ? sl_documents_find_same(adding->coordinator->documents, adding->document) : NULL;
    if (same != NULL) {
        sl_document_unref(&adding->document);
        adding->document = same;
        adding->is_there = true;
        return await_reading(adding, err);
    }
    return status == SL_OK ? enter(adding, err) : status;
}

enum sl_status sl_coordinator_plan_document(struct sl_call_memory *memory, const Sluice__V1__AddDocumentRequest *asked,
                                            int64_t known_tokens, struct sl_document **document_out,
                                            int32_t **tokens_out, struct sl_error *err) {
    struct adding adding = {.coordinator = memory->coordinator,
                            .call = memory->call,
                            .memory = memory,
                            .asked = asked,
                            .known_tokens = known_tokens};
    enum sl_status status = check_fields(adding.coordinator, asked, err);
    SL_THEN(status, hold_tokens(&adding, err));
    SL_THEN(status, plan(&adding, err));
    SL_TRY_OR(status, sl_document_unref(&adding.document));
    *document_out = adding.document;
    *tokens_out = adding.tokens.ids;
    return SL_OK;
}

enum sl_status sl_coordinator_enter_document(struct sl_coordinator *coordinator, struct sl_document *document,
                                             struct sl_error *err) {
    struct adding adding = {.coordinator = coordinator, .document = document};
    return enter(&adding, err);
}

// ---- reading --------------------------------------------------------------------------------------------------------

// Sends an event of the job to the client, without its answer.
static enum sl_status pass_on(struct adding *adding, Sluice__V1__Event *event, struct sl_error *err) {
    if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED) {
        const Sluice__V1__Finished *finished = event->finished;
        const Sluice__V1__Statistics *s = finished->statistics;
        adding->kept = s != NULL ? s->kept : SLUICE__V1__KEPT__KEPT_NOT_SAID;
        if (s != NULL) {
            sl_documents_measured(adding->coordinator->documents, adding->document,
                                  s->n_prompt_tokens - s->n_reused_tokens, s->prefill_ms);
        }
        return finished->status_code == 0
                   ? SL_OK
                   : sl_fail(err, sl_rpc_status_of_code(finished->status_code), "%s", finished->status_text);
    }
    if (event->what_case == SLUICE__V1__EVENT__WHAT_TOKEN) {
        return SL_OK;
    }
    Sluice__V1__AddDocumentEvent wrapped = SLUICE__V1__ADD_DOCUMENT_EVENT__INIT;
    wrapped.what_case = SLUICE__V1__ADD_DOCUMENT_EVENT__WHAT_READING;
    wrapped.reading = event;
    SL_FAIL_IF(sl_rpc_call_send(adding->call, &wrapped.base) != SL_OK, err, SL_ERR_CANCELLED, "the client is gone");
    return SL_OK;
}

static enum sl_status follow(struct adding *adding, struct sl_job *job, struct sl_error *err) {
    for (int64_t sequence = 1;;) {
        Sluice__V1__Event *event = NULL;
        enum sl_status status = sl_event_log_get(&job->log, sequence, sl_deadline_in_ms(POLL_MS), &event);
        if (status == SL_ERR_NOT_FOUND) {
            return SL_OK;
        }
        if (status == SL_ERR_DEADLINE) {
            SL_FAIL_IF(sl_rpc_call_cancelled(adding->call), err, SL_ERR_CANCELLED, "the client is gone");
            continue;
        }
        SL_FAIL_IF(status != SL_OK, err, status, "no memory for an event");
        status = pass_on(adding, event, err);
        sluice__v1__event__free_unpacked(event, NULL);
        SL_TRY(status);
        sequence++;
    }
}

static enum sl_status read_text(struct adding *adding, struct sl_error *err) {
    struct sl_job *job = NULL;
    SL_TRY(sl_coordinator_submit(adding->coordinator, sl_rpc_call_identity(adding->call), &adding->reading.request,
                                 sl_rpc_call_deadline_ns(adding->call), SL_JOB_READS_DOCUMENT, &job, err));
    enum sl_status status = follow(adding, job, err);
    if (status != SL_OK) {
        sl_job_cancel(job);
    }
    sl_job_unref(&job);
    return status;
}

// Returns why the capsule is not in enough stores, and will not be.
static enum sl_status not_stored(const struct adding *adding, int n_stores, struct sl_error *err) {
    const char *reason = sl_kept_word(adding->kept);
    bool comes = adding->kept == SLUICE__V1__KEPT__KEPT_STORED || adding->kept == SLUICE__V1__KEPT__KEPT_PENDING;
    SL_FAIL_IF(n_stores > 0, err, SL_ERR_DEADLINE,
               "the text was read, but its %" PRId64 " bytes reached only %d of %d stores (replicas)",
               adding->planned_bytes, n_stores, adding->document->replicas);
    return comes ? sl_fail(err, SL_ERR_DEADLINE, "the text was read, but its %" PRId64 " bytes did not reach a store",
                           adding->planned_bytes)
                 : sl_fail(err, SL_ERR_EXHAUSTED,
                           "the text was read, but no store has its %" PRId64 " bytes: %s (docs/METRICS.md, "
                           "sluice_capsules_not_kept_total)",
                           adding->planned_bytes, reason != NULL ? reason : "the prefill worker does not say why");
}

// Waits until enough stores have the capsule: prefill sends it to the first in the background, copies.c to the others.
static enum sl_status wait_until_stored(struct adding *adding, struct sl_error *err) {
    struct sl_coordinator *coordinator = adding->coordinator;
    char stores[SL_MAX_HOLDERS][64];
    int64_t wait_ms = STORED_MS + adding->planned_bytes / SL_SLOW_BYTES_PER_MS;
    int64_t until_ns = sl_deadline_in_ms(adding->document->replicas * wait_ms);
    bool comes = adding->kept == SLUICE__V1__KEPT__KEPT_STORED || adding->kept == SLUICE__V1__KEPT__KEPT_PENDING;
    for (;;) {
        sl_document_keeper_tell(coordinator->keeper);
        int n = sl_documents_stores(coordinator->documents, adding->document, stores);
        if (n >= adding->document->replicas) {
            return SL_OK;
        }
        SL_TRY(sl_coordinator_check_leads(coordinator, err));
        SL_FAIL_IF(sl_rpc_call_cancelled(adding->call), err, SL_ERR_CANCELLED, "the client is gone");
        if ((n == 0 && !comes) || sl_now_ns() >= until_ns) {
            return not_stored(adding, n, err);
        }
        sl_wait_ms(STORED_POLL_MS);
    }
}

enum sl_status sl_coordinator_await_disks(struct sl_coordinator *coordinator, struct sl_rpc_call *call,
                                          const struct sl_document *document, struct sl_error *err) {
    int64_t bytes = sl_documents_unwritten_bytes(coordinator->documents, document);
    int64_t until_ns = sl_deadline_in_ms(STORED_MS + bytes / SL_SLOW_BYTES_PER_MS);
    while (bytes > 0 && sl_now_ns() < until_ns) {
        SL_FAIL_IF(sl_rpc_call_cancelled(call), err, SL_ERR_CANCELLED, "the client is gone");
        sl_wait_ms(STORED_POLL_MS);
        sl_document_keeper_tell(coordinator->keeper);
        bytes = sl_documents_unwritten_bytes(coordinator->documents, document);
    }
    return SL_OK;
}

enum sl_status sl_coordinator_send_document(struct sl_coordinator *coordinator, struct sl_rpc_call *call,
                                            const struct sl_document *document, unsigned reply) {
    struct sl_described_document described;
    sl_documents_describe(coordinator->documents, document, coordinator->model_fingerprint, &described);
    Sluice__V1__AddDocumentEvent event = SLUICE__V1__ADD_DOCUMENT_EVENT__INIT;
    event.what_case = SLUICE__V1__ADD_DOCUMENT_EVENT__WHAT_DOCUMENT;
    event.document = &described.message;
    described.message.was_there = (reply & SL_DOCUMENT_WAS_THERE) != 0;
    return sl_rpc_call_send(call, reply & SL_DOCUMENT_EVENT ? &event.base : &described.message.base);
}

static enum sl_status add(struct adding *adding, struct sl_error *err) {
    struct sl_coordinator *coordinator = adding->coordinator;
    SL_TRY(check(adding, err));
    if (adding->is_there) {
        return sl_coordinator_send_document(coordinator, adding->call, adding->document,
                                            SL_DOCUMENT_EVENT | SL_DOCUMENT_WAS_THERE);
    }
    enum sl_status status = read_text(adding, err);
    SL_THEN(status, wait_until_stored(adding, err));
    SL_THEN(status, sl_coordinator_await_disks(coordinator, adding->call, adding->document, err));
    SL_THEN(status, sl_documents_finish(coordinator->documents, adding->document, err));
    if (status != SL_OK) {
        struct sl_error ignored;
        (void)sl_document_keeper_delete(coordinator->keeper, adding->document, &ignored); // the first error counts
        return status;
    }
    return sl_coordinator_send_document(coordinator, adding->call, adding->document, SL_DOCUMENT_EVENT);
}

enum sl_status sl_coordinator_handle_add(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                         struct sl_error *err) {
    struct sl_coordinator *coordinator = service;
    struct sl_call_memory memory = {.coordinator = coordinator, .call = call};
    struct adding adding = {.coordinator = coordinator, .call = call, .memory = &memory};
    adding.asked = (const Sluice__V1__AddDocumentRequest *)request;
    SL_TRY(sl_coordinator_enter_watcher(coordinator, call, &memory.tenant, err));
    enum sl_status status = check_fields(coordinator, adding.asked, err);
    SL_THEN(status, hold_tokens(&adding, err));
    if (status == SL_OK) {
        status = add(&adding, err);
        sl_document_unref(&adding.document);
        free(adding.tokens.ids);
    }
    sl_call_memory_release(&memory);
    sl_coordinator_leave_watcher(coordinator, &memory.tenant);
    return status;
}
