// SPDX-License-Identifier: Apache-2.0
// Purpose: see request.h. One function a field.
#include "coordinator/jobs/request.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "engine/job/job_budget.h"
#include "engine/job/job_chat.h"
#include "engine/job/job_recipe.h"
#include "engine/job/job_request.h"
#include "engine/kvcache/capsule.h"

// A chat without a budget takes at most a quarter of the arena that its prompt leaves free: so four can run at once.
#define BUDGET_SHARE 4
// An answer about a document without a budget gets at most this: a small model may never end it.
#define DOCUMENT_BUDGET 1024
// More keys would find longer prefixes of very long prompts, at a cost for every prompt.
#define MAX_PREFIX_KEYS 512

static enum sl_status check_tokens(const struct sl_request_rules *rules, const Sluice__V1__TokenIds *ids,
                                   struct sl_job_spec *spec, struct sl_error *err) {
    SL_FAIL_IF(ids == NULL || ids->n_ids == 0, err, SL_ERR_INVALID, "tokens: the prompt is empty");
    SL_TRY(sl_job_check_ids(rules->model, "tokens", ids, err));
    spec->tokens = malloc(ids->n_ids * sizeof(*spec->tokens));
    SL_FAIL_IF(spec->tokens == NULL, err, SL_ERR_EXHAUSTED, "no memory for a prompt of %zu tokens", ids->n_ids);
    memcpy(spec->tokens, ids->ids, ids->n_ids * sizeof(*spec->tokens));
    spec->n_tokens = (int64_t)ids->n_ids;
    return SL_OK;
}

enum sl_status sl_request_check_bytes(const struct sl_request_rules *rules, const char *text, size_t n_bytes,
                                      struct sl_error *err) {
    const size_t n_least = sl_tokenizer_least_tokens(rules->tokenizer, text, n_bytes);
    if (n_least <= (size_t)rules->model->max_positions) {
        return SL_OK;
    }
    sl_fail(err, SL_ERR_INVALID, "%zu bytes are at least %zu tokens, and the model has %" PRId64 " positions", n_bytes,
            n_least, rules->model->max_positions);
    sl_error_blame(err, SL_REASON_PROMPT_TOO_LONG, "");
    return SL_ERR_INVALID;
}

static enum sl_status check_text(const struct sl_request_rules *rules, const char *text, struct sl_job_spec *spec,
                                 struct sl_error *err) {
    SL_FAIL_IF(text == NULL || text[0] == '\0', err, SL_ERR_INVALID, "text: the prompt is empty");
    size_t n_tokens = 0, n_bytes = strlen(text);
    enum sl_status status = sl_request_check_bytes(rules, text, n_bytes, err);
    SL_THEN(status, sl_tokenizer_encode(rules->tokenizer, text, n_bytes, true, &spec->tokens, &n_tokens, err));
    SL_TRY_OR(status, sl_error_prefix(err, "text"));
    spec->n_tokens = (int64_t)n_tokens;
    return n_tokens > 0 ? SL_OK : sl_fail(err, SL_ERR_INVALID, "text: the prompt has no tokens");
}

static enum sl_status check_chat(const struct sl_request_rules *rules, const Sluice__V1__Chat *chat,
                                 struct sl_job_spec *spec, struct sl_error *err) {
    size_t n_tokens = 0;
    enum sl_status status = rules->chat_template == NULL ? sl_fail(err, SL_ERR_INVALID, "%s", rules->no_chat_because)
                                                         : sl_job_chat(rules->chat_template, rules->tokenizer, chat,
                                                                       &spec->tokens, &n_tokens, err);
    SL_TRY_OR(status, sl_error_prefix(err, "chat"));
    spec->n_tokens = (int64_t)n_tokens;
    return SL_OK;
}

static enum sl_status check_prompt(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                                   struct sl_job_spec *spec, struct sl_error *err) {
    switch (request->prompt_case) {
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT:
        return check_text(rules, request->text, spec, err);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS:
        return check_tokens(rules, request->tokens, spec, err);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT:
        return check_chat(rules, request->chat, spec, err);
    default:
        return sl_fail(err, SL_ERR_INVALID, "prompt: neither text nor tokens nor chat given");
    }
}

// Returns the name of the prompt's field, as clients know it.
static const char *prompt_field(const Sluice__V1__GenerateRequest *request, bool is_chat) {
    return is_chat ? "chat" : request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS ? "tokens" : "text";
}

// Sets a budget that the client left out to what fits.
static enum sl_status choose_budget(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                                    const struct sl_request_setting *setting, struct sl_job_spec *spec,
                                    struct sl_error *err) {
    const Sluice__V1__Resumption *resumption = request->resumption;
    const struct sl_job_budget asked = {.model = rules->model,
                                        .recipe = &spec->parsed_recipe,
                                        .n_tokens = spec->n_tokens,
                                        .is_chat = setting->is_chat,
                                        .arena_bytes = setting->arena_bytes,
                                        .share = BUDGET_SHARE,
                                        .known = resumption != NULL ? resumption->max_new_tokens : 0};
    int64_t n = 0;
    SL_TRY_OR(sl_job_budget(&asked, &n, err), sl_error_prefix(err, prompt_field(request, setting->is_chat)));
    if ((request->document[0] != '\0' || request->n_documents > 0) && n > DOCUMENT_BUDGET) {
        n = DOCUMENT_BUDGET;
    }
    // The other coordinator's workers were larger: the client keeps what it has.
    int64_t n_delivered =
        resumption != NULL && resumption->delivered != NULL ? (int64_t)resumption->delivered->n_ids : 0;
    spec->max_new_tokens = (int32_t)(n > n_delivered ? n : n_delivered);
    return SL_OK;
}

static enum sl_status check_length(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                                   const struct sl_request_setting *setting, struct sl_job_spec *spec,
                                   struct sl_error *err) {
    if (request->max_new_tokens_present_case == SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS) {
        spec->max_new_tokens = request->max_new_tokens;
    } else {
        SL_TRY(choose_budget(rules, request, setting, spec, err));
    }
    SL_FAIL_IF(spec->max_new_tokens < 1, err, SL_ERR_INVALID, "max_new_tokens: is %d, must be at least 1",
               spec->max_new_tokens);
    if (spec->n_tokens + spec->max_new_tokens > rules->model->max_positions) {
        // The prompt is the field that a client shortens: OpenAI's clients look for it
        sl_fail(err, SL_ERR_INVALID,
                "%s: %" PRId64 " prompt tokens and %d new ones exceed the model's %" PRId64 " positions",
                prompt_field(request, setting->is_chat), spec->n_tokens, spec->max_new_tokens,
                rules->model->max_positions);
        sl_error_blame(err, SL_REASON_PROMPT_TOO_LONG, "");
        return SL_ERR_INVALID;
    }
    const struct sl_recipe *recipe = &spec->parsed_recipe;
    SL_FAIL_IF(
        sl_recipe_repeats(recipe) && spec->n_tokens + recipe->chunk_tokens > rules->model->max_positions, err,
        SL_ERR_INVALID,
        "recipe: score=%s repeats the prompt behind itself: %" PRId64 " tokens and chunk=%d exceed the model's %" PRId64
        " positions; shorten the prompt, or take another score",
        sl_score_get_traits(recipe->score)->name, spec->n_tokens, recipe->chunk_tokens, rules->model->max_positions);
    return SL_OK;
}

static enum sl_status check_sampling(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                                     const struct sl_request_setting *setting, struct sl_job_spec *spec,
                                     struct sl_error *err) {
    const Sluice__V1__Resumption *resumption = request->resumption;
    bool was_told = resumption != NULL && resumption->seed_present_case == SLUICE__V1__RESUMPTION__SEED_PRESENT_SEED;
    spec->sampling = sl_job_sampling(request->sampling, rules->model);
    SL_TRY_OR(sl_sampling_check(&spec->sampling, err), sl_error_prefix(err, "sampling"));
    return sl_job_choose_seed(request->sampling, was_told ? &resumption->seed : setting->seed, &spec->sampling.seed,
                              err);
}

static enum sl_status check_stops(const Sluice__V1__GenerateRequest *request, struct sl_job_spec *spec,
                                  struct sl_error *err) {
    SL_FAIL_IF(request->n_stop > SL_MAX_STOPS, err, SL_ERR_INVALID, "stop: %zu strings, at most %d", request->n_stop,
               SL_MAX_STOPS);
    for (size_t i = 0; i < request->n_stop; i++) {
        size_t n_bytes = strlen(request->stop[i]);
        SL_FAIL_IF(n_bytes < 1 || n_bytes > SL_MAX_STOP_BYTES, err, SL_ERR_INVALID,
                   "stop: string %zu has %zu bytes, must be 1 to %d", i, n_bytes, SL_MAX_STOP_BYTES);
        SL_FAIL_IF(!sl_utf8_valid(request->stop[i], n_bytes, NULL), err, SL_ERR_INVALID,
                   "stop: string %zu is not UTF-8", i);
        spec->stop[spec->n_stop] = strdup(request->stop[i]);
        SL_FAIL_IF(spec->stop[spec->n_stop] == NULL, err, SL_ERR_EXHAUSTED, "no memory for stop strings");
        spec->n_stop++;
    }
    return SL_OK;
}

static enum sl_status check_label(const char *label, struct sl_job_spec *spec, struct sl_error *err) {
    size_t n_bytes = strlen(label);
    SL_FAIL_IF(n_bytes > SL_MAX_LABEL, err, SL_ERR_INVALID, "label: %zu bytes, at most %d", n_bytes, SL_MAX_LABEL);
    SL_FAIL_IF(!sl_utf8_valid(label, n_bytes, NULL), err, SL_ERR_INVALID, "label: is not UTF-8");
    strcpy(spec->label, label);
    return SL_OK;
}

static enum sl_status check_key(const char *key, struct sl_job_spec *spec, struct sl_error *err) {
    SL_FAIL_IF(strlen(key) > SL_MAX_KEY, err, SL_ERR_INVALID, "idempotency_key: has %zu bytes, at most %d are allowed",
               strlen(key), SL_MAX_KEY);
    strcpy(spec->key, key);
    return SL_OK;
}

// Checks and copies the part of the answer that the client already has.
static enum sl_status check_resumption(const struct sl_request_rules *rules, const Sluice__V1__Resumption *resumption,
                                       struct sl_job_spec *spec, struct sl_error *err) {
    size_t n = resumption->delivered != NULL ? resumption->delivered->n_ids : 0;
    SL_FAIL_IF(resumption->max_new_tokens < 0, err, SL_ERR_INVALID,
               "resumption.max_new_tokens: is %d, must be 0 or more", resumption->max_new_tokens);
    SL_FAIL_IF(n > (size_t)spec->max_new_tokens, err, SL_ERR_INVALID,
               "resumption.delivered: %zu tokens, at most %d are asked for", n, spec->max_new_tokens);
    if (n == 0) {
        return SL_OK;
    }
    SL_TRY(sl_job_check_ids(rules->model, "resumption.delivered", resumption->delivered, err));
    spec->delivered = malloc(n * sizeof(*spec->delivered));
    SL_FAIL_IF(spec->delivered == NULL, err, SL_ERR_EXHAUSTED, "no memory for an answer of %zu tokens", n);
    memcpy(spec->delivered, resumption->delivered->ids, n * sizeof(*spec->delivered));
    spec->n_delivered = (int64_t)n;
    return SL_OK;
}

// Sets the deadline and the time of submission; both count from the first submission of the request.
static enum sl_status check_deadline(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                                     int64_t call_deadline_ns, struct sl_job_spec *spec, struct sl_error *err) {
    int64_t deadline_ms = request->deadline_ms, elapsed_ms = request->resumption ? request->resumption->elapsed_ms : 0;
    SL_FAIL_IF(elapsed_ms < 0 || elapsed_ms > rules->max_deadline_ms, err, SL_ERR_INVALID,
               "resumption.elapsed_ms: is %" PRId64 ", must be 0 to %" PRId64, elapsed_ms, rules->max_deadline_ms);
    SL_FAIL_IF(deadline_ms < 0 || deadline_ms > rules->max_deadline_ms, err, SL_ERR_INVALID,
               "deadline_ms: is %" PRId64 ", must be 0 (the default) to %" PRId64, deadline_ms, rules->max_deadline_ms);
    int64_t allowed_ms = deadline_ms > 0 ? deadline_ms : rules->default_deadline_ms;
    // Clients and gateways that were given no deadline send their own default, which is not sooner than the cluster's.
    spec->own_deadline =
        allowed_ms < rules->default_deadline_ms || call_deadline_ns < sl_deadline_in_ms(rules->default_deadline_ms);
    spec->submitted_ns -= elapsed_ms * SL_NS_PER_MS;
    spec->deadline_ns = sl_deadline_in_ms(allowed_ms > elapsed_ms ? allowed_ms - elapsed_ms : 0);
    if (call_deadline_ns < spec->deadline_ns) {
        spec->deadline_ns = call_deadline_ns;
    }
    return SL_OK;
}

static enum sl_status check_recipe(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                                   struct sl_job_spec *spec, struct sl_error *err) {
    bool was_told = request->resumption != NULL && request->resumption->recipe[0] != '\0';
    const char *text = was_told ? request->resumption->recipe : request->recipe;
    if (rules->known && (text[0] == '\0' || strcmp(text, rules->default_recipe) == 0)) {
        spec->parsed_recipe = rules->known->recipe;
        strcpy(spec->recipe, rules->known->text);
        return SL_OK;
    }
    return sl_job_recipe(text[0] != '\0' ? text : rules->default_recipe, rules->model, &spec->parsed_recipe, err);
}

// Fills in what the job needs under its recipe, and the keys by which a part of its capsule may be found.
static enum sl_status plan(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                           struct sl_job_spec *spec, struct sl_error *err) {
    (void)request;
    const struct sl_recipe *recipe = &spec->parsed_recipe;
    struct sl_kv_geometry geometry = sl_model_geometry(rules->model);
    SL_TRY(sl_demand_make(recipe, &geometry, spec->n_tokens, spec->max_new_tokens, &spec->demand, err));
    const struct sl_known_recipe *known = spec->recipe[0] != '\0' ? rules->known : NULL;
    if (!known) {
        sl_recipe_format(recipe, spec->recipe, sizeof(spec->recipe)); // with layers, as every worker gets it
    }
    // K and V, two bytes an element.
    spec->full_bytes = spec->n_tokens * geometry.n_layers * geometry.n_kv_heads * geometry.head_dim * 2 * 2;

    int64_t max_keys = spec->n_tokens / SL_PREFIX_BLOCK;
    max_keys = max_keys < MAX_PREFIX_KEYS ? max_keys : MAX_PREFIX_KEYS;
    spec->keys = malloc((size_t)(max_keys + 1) * sizeof(*spec->keys));
    struct sl_hash128 *hashes = malloc((size_t)(max_keys + 1) * sizeof(*hashes));
    if (spec->keys == NULL || hashes == NULL) {
        free(hashes);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for prefix keys");
    }
    spec->n_keys = sl_prefix_keys(&spec->salt, spec->tokens, spec->n_tokens, hashes, max_keys);
    // A cache made by one recipe, or for another length of context, is of no use to others.
    int rope_set = sl_model_rope_set(rules->model, spec->n_tokens + spec->max_new_tokens);
    uint64_t fingerprint =
        sl_model_set_fingerprint(known ? known->fingerprint : sl_recipe_fingerprint(recipe), rope_set);
    for (int64_t i = 0; i < spec->n_keys; i++) {
        spec->keys[i] = sl_hash128_short(&hashes[i]) ^ fingerprint;
    }
    free(hashes);
    return SL_OK;
}

struct stacked {
    enum sl_status (*check)(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                            struct sl_job_spec *spec, struct sl_error *err);
    const struct sl_request_rules *rules;
    const Sluice__V1__GenerateRequest *request;
    struct sl_job_spec *spec;
    struct sl_error *err;
    enum sl_status status;
};

static void run_check(void *arg) {
    struct stacked *it = arg;
    it->status = it->check(it->rules, it->request, it->spec, it->err);
}

// Runs a check that takes kilobytes of stack, as of numbers as text.
static enum sl_status check_on_stack(struct stacked it) {
    sl_fiber_call(run_check, &it);
    return it.status;
}

enum sl_status sl_request_check(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                                const struct sl_request_setting *setting, struct sl_job_spec *spec_out,
                                struct sl_error *err) {
    struct sl_job_spec *spec = calloc(1, sizeof *spec); // too large for the stack
    SL_FAIL_IF(spec == NULL, err, SL_ERR_EXHAUSTED, "no memory for a job");
    spec->submitted_ns = sl_now_ns();
    spec->ignore_eos = request->ignore_eos;
    spec->estimate_errors = request->estimate_errors;
    spec->no_reuse = request->no_reuse;
    spec->salt = setting->salt;
    enum sl_status status = check_label(request->label, spec, err);
    SL_THEN(status, check_key(request->idempotency_key, spec, err));
    SL_THEN(status, check_deadline(rules, request, setting->call_deadline_ns, spec, err));
    SL_THEN(status, check_sampling(rules, request, setting, spec, err));
    SL_THEN(status, check_stops(request, spec, err));
    SL_THEN(status, check_prompt(rules, request, spec, err));
    SL_THEN(status, check_on_stack((struct stacked){check_recipe, rules, request, spec, err, SL_OK}));
    SL_THEN(status, check_length(rules, request, setting, spec, err));
    SL_THEN_IF(status, request->resumption != NULL, check_resumption(rules, request->resumption, spec, err));
    SL_THEN(status, check_on_stack((struct stacked){plan, rules, request, spec, err, SL_OK}));
    if (status == SL_OK) {
        *spec_out = *spec;
    } else {
        sl_job_spec_cleanup(spec);
    }
    free(spec);
    return status;
}
