// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: makes a job from a client's request: in the line, in the table, with a fiber of its own.
 * Invariants: n_fibers counts the fibers that may still touch the coordinator.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/bell.h"
#include "base/fiber/fiber.h"
#include "base/hash.h"
#include "base/locked.h"
#include "coordinator/coordinator_internal.h"
#include "coordinator/documents/document_prompt.h"
#include "coordinator/lead.h"
#include "coordinator/run/attempt.h"

#define RESUMED_WAIT_MS  30000 // a restored job waits for workers at least this long: they must find this process first
#define DOCUMENT_POLL_MS 100
#define WRITTEN_WAIT_MS  5000 // for the disk; a job is accepted without it when it does not answer (state/state.h)

struct job_fiber {
    struct sl_coordinator *coordinator;
    struct sl_job *job; // a reference
    bool resumed;
    struct sl_run run;
    struct sl_sessions_left left[]; // of a turn
};

static void end_fiber(struct sl_coordinator *coordinator) {
    SL_LOCKED(&coordinator->mutex);
    if (--coordinator->n_fibers == 0 && coordinator->stopping) {
        pthread_cond_broadcast(&coordinator->changed);
    }
}

// Counts an answer for the document that it is about, unless the text was read again on purpose.
static void count_question(struct sl_coordinator *coordinator, struct sl_job *job) {
    int64_t n_reused = sl_job_statistics_lock(job)->n_reused_tokens;
    bool answered = job->state == SLUICE__V1__JOB_STATE__DONE && !job->spec.no_reuse;
    sl_job_statistics_unlock(job);
    if (!answered) {
        return;
    }
    n_reused = sl_documents_count(coordinator->documents, job->spec.tenant, job->spec.document, n_reused);
    for (int i = 0; i < SL_MAX_JOINS_OF_JOB && job->spec.later[i][0] != '\0'; i++) {
        n_reused = sl_documents_count(coordinator->documents, job->spec.tenant, job->spec.later[i], n_reused);
    }
}

// Names the stores that have document i of the job. Without memory for the names, the prompt's beginning chooses the store.
static void name_stores(struct sl_coordinator *coordinator, struct sl_job_spec *spec, int i, const char *name) {
    struct sl_job_join *join = NULL;
    struct sl_document *document = NULL;
    for (int j = 0; j < spec->n_joins; j++) {
        join = spec->joins[j].document == i ? &spec->joins[j] : join;
    }
    if ((i > 0 && join == NULL) ||
        sl_documents_find(coordinator->documents, spec->tenant, name, &document, NULL) != SL_OK) {
        return; // no part of it is joined, or it is not there any more
    }
    char(*stores)[64] = malloc(SL_MAX_HOLDERS * sizeof *stores);
    *(i == 0 ? &spec->stores : &join->stores) = stores;
    *(i == 0 ? &spec->n_stores : &join->n_stores) =
        stores != NULL ? sl_documents_stores(coordinator->documents, document, stores) : 0;
    sl_document_unref(&document);
}

// Waits while another call adds a document of the job, so that its text is read once. Other jobs pass this one meanwhile.
SL_APART static void await_document(struct sl_coordinator *coordinator, struct sl_job *job, const char *name) {
    char detail[SL_JOB_DOCUMENT_BYTES + 64];
    struct sl_error ignored; // the run finds it again
    bool waited = false;
    while (sl_documents_is_reading(coordinator->documents, job->spec.tenant, name) &&
           sl_job_interrupted(job, &ignored) == SL_OK) {
        if (!waited) {
            sl_admission_let_pass(coordinator->admission, &job->place);
            snprintf(detail, sizeof detail, "waits for document %s, which another call is adding", name);
            (void)sl_job_move(job, SLUICE__V1__JOB_STATE__QUEUED,
                              detail); // fails for an ended job, which ends the loop
        }
        waited = true;
        sl_wait_ms(DOCUMENT_POLL_MS);
    }
}

// Waits for the documents of the job, and notes where they are then.
static void find_documents(struct sl_coordinator *coordinator, struct sl_job *job) {
    for (int i = 0; i <= SL_MAX_JOINS_OF_JOB && !job->spec.no_reuse; i++) {
        const char *name = i == 0 ? job->spec.document : job->spec.later[i - 1];
        if (name[0] == '\0') {
            return;
        }
        await_document(coordinator, job, name);
        name_stores(coordinator, &job->spec, i, name);
    }
}

static void run_job(void *arg) {
    struct job_fiber *fiber = arg;
    struct sl_coordinator *coordinator = fiber->coordinator;
    sl_trace_set(&fiber->job->trace);
    struct sl_run_context context = {
        .registry = coordinator->registry,
        .admission = coordinator->admission,
        .affinity = coordinator->affinity,
        .election = coordinator->election,
        .figures = &coordinator->figures,
        .conversations = coordinator->conversations,
        .model = &coordinator->model,
        .model_fingerprint = coordinator->model_fingerprint,
        .tokenizer = coordinator->tokenizer,
        .silence_ms = coordinator->config.silence_ms,
        .worker_wait_ms = fiber->resumed && coordinator->config.worker_wait_ms < RESUMED_WAIT_MS
                              ? RESUMED_WAIT_MS
                              : coordinator->config.worker_wait_ms,
        .max_retries = coordinator->config.max_retries,
        .stopping = &coordinator->stopping,
    };
    find_documents(coordinator, fiber->job);
    sl_run_job(&context, fiber->job, &fiber->run);
    if (fiber->job->spec.document[0] != '\0') {
        count_question(coordinator, fiber->job);
    }
    sl_job_unref(&fiber->job);
    free(fiber);
    end_fiber(coordinator);
}

// Starts the job's fiber. The number of fibers is bounded by the places in the line and of admitted jobs, in addition to fibers that wait
// a few seconds after the job's end for a copy of its session.
static enum sl_status start_fiber(struct sl_coordinator *coordinator, struct sl_job *job, bool resumed,
                                  struct sl_error *err) {
    bool is_turn = job->spec.turn.id[0] != '\0'; // few jobs are, and need the kilobytes
    struct job_fiber *arg = calloc(1, sizeof *arg + (is_turn ? sizeof *arg->left : 0));
    SL_FAIL_IF(arg == NULL, err, SL_ERR_EXHAUSTED, "no memory for a job's fiber");
    arg->run.left = is_turn ? arg->left : NULL;
    arg->coordinator = coordinator;
    arg->job = sl_job_ref(job);
    arg->resumed = resumed;
    pthread_mutex_lock(&coordinator->mutex);
    bool stopping = coordinator->stopping;
    coordinator->n_fibers += !stopping;
    pthread_mutex_unlock(&coordinator->mutex);

    enum sl_status status = SL_OK;
    if (stopping) {
        status = sl_fail(err, SL_ERR_PEER_LOST, "the coordinator is shutting down");
    } else {
        status = sl_fiber_start("job", run_job, arg, err);
        if (status == SL_OK) {
            return SL_OK;
        }
        end_fiber(coordinator);
    }
    sl_job_unref(&arg->job);
    free(arg);
    return status;
}

// Hashes the request without its resumption: how far an answer has come is not part of the request.
static enum sl_status hash_request(const Sluice__V1__GenerateRequest *request, uint64_t *hash_out,
                                   struct sl_error *err) {
    Sluice__V1__GenerateRequest asked = *request;
    asked.resumption = NULL;
    size_t n = sluice__v1__generate_request__get_packed_size(&asked);
    uint8_t *packed = malloc(n + 1);
    SL_FAIL_IF(packed == NULL, err, SL_ERR_EXHAUSTED, "no memory for a request of %zu bytes", n);
    *hash_out = sl_hash(packed, sluice__v1__generate_request__pack(&asked, packed), 0);
    free(packed);
    return SL_OK;
}

// Returns the job that the same key made before, if the request is the same; else releases the reference.
static enum sl_status same_job(struct sl_job *first, uint64_t request_hash, struct sl_job **job_out,
                               struct sl_error *err) {
    if (first->spec.request_hash == request_hash) {
        *job_out = first;
        return SL_OK;
    }
    enum sl_status status =
        sl_fail(err, SL_ERR_EXISTS, "idempotency_key: %s was submitted with it, by another request", first->id);
    sl_job_unref(&first);
    return status;
}

static void drop(struct sl_coordinator *coordinator, struct sl_job *job) {
    if (coordinator->state != NULL) {
        sl_state_drop(coordinator->state, job);
    }
}

// Starts a job that is in the line. *job_out: that job, or the one of a faster call with the same key.
static enum sl_status start(struct sl_coordinator *coordinator, struct sl_job *job, enum sl_job_kind kind,
                            struct sl_job **job_out, struct sl_error *err) {
    if (coordinator->state != NULL) {
        sl_state_keep(coordinator->state, job, kind != SL_JOB_DETACHED);
    }
    // The job enters the table before its fiber starts, so that it can be found as soon as it has events.
    struct sl_job *first = sl_jobs_add(coordinator->jobs, job);
    enum sl_status status;
    if (first != NULL) {
        sl_admission_leave(coordinator->admission, &job->place);
        drop(coordinator, job);
        status = same_job(first, job->spec.request_hash, job_out, err);
        sl_job_unref(&job);
        return status;
    }
    status = start_fiber(coordinator, job, false, err);
    if (status != SL_OK) {
        drop(coordinator, job);
        sl_admission_leave(coordinator->admission, &job->place);
        sl_jobs_remove(coordinator->jobs, job);
        sl_job_unref(&job);
        return status;
    }
    *job_out = job;
    return SL_OK;
}

enum sl_status sl_coordinator_begin_tokenizing(struct sl_coordinator *coordinator, const char *tenant,
                                               int64_t deadline_ms, int64_t call_deadline_ns,
                                               struct sl_tokenizing_turn *turn_out, struct sl_error *err) {
    const int64_t own_ns = sl_deadline_in_ms(deadline_ms > 0 ? deadline_ms : coordinator->config.deadline_ms);
    return sl_tokenizing_begin(coordinator->tokenizing, coordinator->tenants, tenant,
                               call_deadline_ns < own_ns ? call_deadline_ns : own_ns, turn_out, err);
}

// Makes a job's specification from the request. A turn that continues a conversation gets its prompt as tokens, and so does a
// request whose prompt was joined (NULL: it was not).
static enum sl_status specify_whole(struct sl_coordinator *coordinator, const struct sl_identity *caller,
                                    const Sluice__V1__GenerateRequest *request, Sluice__V1__TokenIds *joined,
                                    int64_t call_deadline_ns, struct sl_job_spec *spec_out, struct sl_error *err) {
    Sluice__V1__GenerateRequest asked = *request;
    Sluice__V1__TokenIds ids = SLUICE__V1__TOKEN_IDS__INIT;
    struct sl_job_turn turn = {0};
    struct sl_turn_prompt prompt = {0};
    struct sl_hash128 salt;
    enum sl_status status = sl_tenant_salt(&coordinator->salt_secret, caller->tenant, &salt, err);
    SL_THEN_IF(status, request->conversation != NULL,
               sl_conversations_begin_turn(coordinator->conversations, &coordinator->rules, caller->tenant, request,
                                           &turn, &prompt, err));
    if (prompt.tokens != NULL) {
        ids.ids = prompt.tokens;
        ids.n_ids = (size_t)prompt.n_tokens;
        asked.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
        asked.tokens = &ids;
    }
    if (joined != NULL) {
        asked.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS;
        asked.tokens = joined;
    }
    if (status == SL_OK) {
        const struct sl_request_setting setting = {.salt = salt,
                                                   .call_deadline_ns = call_deadline_ns,
                                                   .is_chat = request->prompt_case ==
                                                              SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT,
                                                   .seed = turn.has_seed ? &turn.seed : NULL,
                                                   .arena_bytes = sl_admission_largest_decode(coordinator->admission)};
        status = sl_request_check(&coordinator->rules, &asked, &setting, spec_out, err);
    }
    free(prompt.tokens);
    if (status == SL_OK && turn.id[0] != '\0') {
        turn.has_seed = true;
        turn.seed = spec_out->sampling.seed;
        spec_out->turn = turn;
        status = sl_conversations_plan_turn(&coordinator->rules, spec_out, err);
        if (status != SL_OK) {
            sl_job_spec_cleanup(spec_out);
        }
    }
    return status;
}

// Notes the document that a job's prompt begins with. Frees the specification on failure.
static enum sl_status begin_with(const struct sl_document *document, int64_t stored_tokens, struct sl_job_spec *spec,
                                 struct sl_error *err) {
    _Static_assert(sizeof spec->document == sizeof document->name, "a name fits");
    strcpy(spec->document, document->name);
    spec->stored_tokens = stored_tokens;
    if (!spec->no_reuse && strcmp(spec->recipe, document->recipe) != 0) {
        sl_job_spec_cleanup(spec);
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: document %s was read under %s: leave the recipe out, or have the text read again "
                       "(`sluice run --no-reuse`, by HTTP \"reuse\": false)",
                       document->name, document->recipe);
    }
    return SL_OK;
}

// Has the job go on from the document's whole capsule, if that is what this prompt begins with.
SL_APART static void begin_whole(struct sl_coordinator *coordinator, const struct sl_document *document,
                                 struct sl_job_spec *spec) {
    const struct sl_capsule_id *id = &document->capsule;
    int64_t n = document->capsule_tokens;
    int rope_set = sl_model_rope_set(&coordinator->model, spec->n_tokens + spec->max_new_tokens);
    struct sl_hash128 hash =
        n < spec->n_tokens ? sl_prefix_hash(&spec->salt, spec->tokens, n) : (struct sl_hash128){{0}};
    if (spec->no_reuse || document->n_offloaded_heads > 0 || !sl_hash128_equals(&hash, &id->prefix_hash) ||
        sl_model_set_fingerprint(coordinator->model_fingerprint, rope_set) != id->model_fingerprint) {
        return;
    }
    struct sl_described_document described; // its bytes, as the stores have told
    sl_documents_describe(coordinator->documents, document, coordinator->model_fingerprint, &described);
    spec->whole = (struct sl_session_copy){.model_fingerprint = id->model_fingerprint,
                                           .recipe_fingerprint = id->recipe_fingerprint,
                                           .history = id->prefix_hash,
                                           .n_tokens = n,
                                           .bytes = described.message.capsule_bytes};
}

// Notes how much of the prompt's offloaded layers the store of its first document has, and how long reading that took.
SL_APART static void share_offloaded(struct sl_coordinator *coordinator, const struct sl_document *document,
                                     struct sl_job_spec *spec) {
    struct sl_demand *demand = &spec->demand;
    if (!spec->no_reuse && document->n_offloaded_heads > 0 && demand->offloaded_unit > 0) {
        struct sl_described_document described;
        sl_documents_describe(coordinator->documents, document, coordinator->model_fingerprint, &described);
        demand->read_ms = described.message.read_ms;
        int64_t n = spec->stored_tokens / demand->offloaded_unit * demand->offloaded_unit;
        n = n < demand->n_prefill_tokens ? n : demand->n_prefill_tokens;
        demand->stored_bytes = demand->offloaded.bytes / demand->n_prefill_tokens * n;
    }
}

// Makes a job's specification from a request whose prompt begins with a document.
static enum sl_status specify_with(struct sl_coordinator *coordinator, const struct sl_identity *caller,
                                   const struct sl_document *document, const Sluice__V1__GenerateRequest *request,
                                   int64_t call_deadline_ns, struct sl_job_spec *spec_out, struct sl_error *err) {
    struct sl_document_prompt prompt;
    SL_TRY(sl_document_prompt_init(&prompt, document, coordinator->model_fingerprint, request, err));
    enum sl_status status = specify_whole(coordinator, caller, &prompt.request, NULL, call_deadline_ns, spec_out, err);
    sl_document_prompt_cleanup(&prompt);
    SL_THEN(status, begin_with(document, document->capsule_tokens, spec_out, err));
    if (status == SL_OK) {
        begin_whole(coordinator, document, spec_out);
        share_offloaded(coordinator, document, spec_out);
    }
    return status;
}

// Makes a job's specification from a request whose prompt begins with several documents.
static enum sl_status specify_joined(struct sl_coordinator *coordinator, const struct sl_identity *caller,
                                     const Sluice__V1__GenerateRequest *request, int64_t call_deadline_ns,
                                     struct sl_job_spec *spec_out, struct sl_error *err) {
    struct sl_joined_prompt prompt;
    SL_TRY(sl_joined_prompt_init(&prompt, coordinator, caller, request, err));
    const struct sl_document *first = prompt.documents[0];
    Sluice__V1__GenerateRequest asked = *request;
    asked.recipe = request->recipe[0] != '\0' ? request->recipe : (char *)first->recipe;
    enum sl_status status = specify_whole(coordinator, caller, &asked, &prompt.ids, call_deadline_ns, spec_out, err);
    SL_THEN(status, begin_with(first, prompt.first_tokens, spec_out, err));
    if (status == SL_OK) {
        for (int i = 1; i < prompt.n_documents; i++) {
            strcpy(spec_out->later[i - 1], prompt.documents[i]->name);
        }
        spec_out->joins = prompt.joins;
        spec_out->n_joins = prompt.n_joins;
        spec_out->joined_tokens = prompt.joined_tokens;
        spec_out->not_joined = prompt.not_joined;
        begin_whole(coordinator, first, spec_out);
        share_offloaded(coordinator, first, spec_out);
        prompt.joins = NULL;
        prompt.n_joins = 0;
    }
    sl_joined_prompt_cleanup(&prompt);
    return status;
}

static enum sl_status specify(struct sl_coordinator *coordinator, const struct sl_identity *caller,
                              const Sluice__V1__GenerateRequest *request, int64_t call_deadline_ns,
                              struct sl_job_spec *spec_out, struct sl_error *err) {
    bool is_one = request->n_documents == 1 && request->document[0] == '\0'; // which is not joined
    if (request->n_documents > 0 && !is_one) {
        return specify_joined(coordinator, caller, request, call_deadline_ns, spec_out, err);
    }
    const char *name = is_one ? request->documents[0] : request->document;
    if (name[0] == '\0' && !is_one) {
        return specify_whole(coordinator, caller, request, NULL, call_deadline_ns, spec_out, err);
    }
    struct sl_document *document = NULL;
    SL_TRY_OR(sl_coordinator_find_document(coordinator, caller->tenant, name, &document, err),
              sl_error_prefix(err, is_one ? "documents" : "document"));
    enum sl_status status = specify_with(coordinator, caller, document, request, call_deadline_ns, spec_out, err);
    sl_document_unref(&document);
    return status;
}

// Makes the job of a request that has no other.
static enum sl_status make_job(struct sl_coordinator *coordinator, const struct sl_identity *caller,
                               const Sluice__V1__GenerateRequest *request, uint64_t request_hash,
                               int64_t call_deadline_ns, struct sl_job **job_out, struct sl_error *err) {
    struct sl_job_spec *spec = malloc(sizeof *spec);
    SL_FAIL_IF(spec == NULL, err, SL_ERR_EXHAUSTED, "no memory for a job");
    enum sl_status status = specify(coordinator, caller, request, call_deadline_ns, spec, err);
    if (status == SL_OK) {
        strcpy(spec->tenant, caller->tenant);
        spec->request_hash = request_hash;
        char id[SL_JOB_ID_BYTES];
        status = sl_jobs_new_id(id, err);
        SL_THEN(status, sl_job_create(id, spec, job_out, err));
        if (status != SL_OK) {
            sl_job_spec_cleanup(spec);
        }
    }
    free(spec);
    return status;
}

static enum sl_status submit(struct sl_coordinator *coordinator, const struct sl_identity *caller,
                             const Sluice__V1__GenerateRequest *request, int64_t call_deadline_ns,
                             enum sl_job_kind kind, struct sl_job **job_out, struct sl_error *err) {
    uint64_t request_hash = 0;
    SL_TRY(sl_coordinator_check_leads(coordinator, err));
    if (request->idempotency_key[0] != '\0') {
        SL_TRY(hash_request(request, &request_hash, err));
        struct sl_job *first = sl_jobs_find_key(coordinator->jobs, caller->tenant, request->idempotency_key);
        if (first != NULL) {
            return same_job(first, request_hash, job_out, err);
        }
    }
    struct sl_job *job = NULL;
    SL_TRY(make_job(coordinator, caller, request, request_hash, call_deadline_ns, &job, err));
    job->trace = sl_trace_current();
    job->spec.demand.in_one_store = kind == SL_JOB_READS_DOCUMENT;
    enum sl_status status = sl_tenants_take(coordinator->tenants, caller->tenant, &job->place.tenant, err);
    SL_THEN(status, sl_admission_enter(coordinator->admission, &job->spec.demand, &job->place, err));
    SL_TRY_OR(status, sl_job_unref(&job));
    return start(coordinator, job, kind, job_out, err);
}

enum sl_status sl_coordinator_submit(struct sl_coordinator *coordinator, const struct sl_identity *caller,
                                     const Sluice__V1__GenerateRequest *request, int64_t call_deadline_ns,
                                     enum sl_job_kind kind, struct sl_job **job_out, struct sl_error *err) {
    // of the whole, so that a tenant that sends hundreds at once does not take every processor
    struct sl_tokenizing_turn turn;
    enum sl_status status = sl_coordinator_begin_tokenizing(coordinator, caller->tenant, request->deadline_ms,
                                                            call_deadline_ns, &turn, err);
    if (status == SL_OK) {
        status = submit(coordinator, caller, request, call_deadline_ns, kind, job_out, err);
        sl_tokenizing_end(&turn);
    }
    if (status != SL_OK) {
        atomic_fetch_add(&coordinator->figures.n_jobs[SL_OUTCOME_REFUSED], 1);
    } else { // a client that knows a job finds it after a restart, unless the disk does not answer
        (void)sl_event_log_wait_told(&(*job_out)->log, sl_deadline_in_ms(WRITTEN_WAIT_MS));
    }
    return status;
}

enum sl_status sl_coordinator_resume(struct sl_coordinator *coordinator, struct sl_job *job, struct sl_error *err) {
    sl_admission_enter_again(coordinator->admission, &job->place);
    SL_TRY_OR(start_fiber(coordinator, job, true, err), sl_admission_leave(coordinator->admission, &job->place));
    return SL_OK;
}
