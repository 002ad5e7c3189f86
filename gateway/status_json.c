// SPDX-License-Identifier: Apache-2.0
#include "gateway/status_json.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/json_file.h"

// Returns a number of a worker; one that JSON cannot express becomes 0.
static double number_of(double value) {
    return isfinite(value) ? value : 0;
}

// Returns "DECODING" as "decoding".
static json_t *name_of(const ProtobufCEnumDescriptor *type, int value) {
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(type, value);
    char name[32] = "unknown";
    if (found) {
        size_t n = strlen(found->name);
        n = n < sizeof name - 1 ? n : sizeof name - 1;
        for (size_t i = 0; i < n; i++) {
            name[i] = (char)tolower((unsigned char)found->name[i]);
        }
        name[n] = '\0';
    }
    return json_string(name);
}

static json_t *job_of(const Sluice__V1__Job *job) {
    static const Sluice__V1__Statistics none = SLUICE__V1__STATISTICS__INIT;
    const Sluice__V1__Statistics *s = job->statistics ? job->statistics : &none;
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:o, s:o, s:o}", "id",
        sl_text_json(job->job_id), "tenant", sl_text_json(job->tenant), "label", sl_text_json(job->label), "recipe",
        sl_text_json(job->recipe), "state", name_of(&sluice__v1__job_state__descriptor, (int)job->state),
        "submitted_ms", (json_int_t)job->submitted_ms, "prompt_tokens", (json_int_t)job->n_prompt_tokens, "read_tokens",
        (json_int_t)job->n_read_tokens, "reused_tokens", (json_int_t)s->n_reused_tokens, "output_tokens",
        (json_int_t)job->n_output_tokens, "max_tokens", (json_int_t)job->max_new_tokens, "capsule_bytes",
        (json_int_t)s->capsule_bytes, "full_bytes", (json_int_t)s->full_bytes, "queue_ms", number_of(s->queue_ms),
        "ttft_ms", s->ttft_ms, "tpot_ms", s->tpot_ms, "total_ms", s->total_ms, "prefill_worker",
        sl_text_json(job->prefill_worker), "decode_worker", sl_text_json(job->decode_worker), "error",
        sl_text_json(job->status_text));
}

static bool has_job(const Sluice__V1__ListReply *list, const char *id) {
    for (size_t i = 0; list && i < list->n_jobs; i++) {
        if (strcmp(list->jobs[i]->job_id, id) == 0) {
            return true;
        }
    }
    return false;
}

// Returns the jobs of all lists. If a job is in several, because its state changed meanwhile, the latest list counts.
// NULL: no memory.
static json_t *jobs_of(const Sluice__V1__ListReply *const lists[], size_t n_lists) {
    json_t *jobs = json_array();
    bool whole = jobs != NULL;
    for (size_t k = 0; k < n_lists && lists[k]; k++) {
        for (size_t i = 0; i < lists[k]->n_jobs; i++) {
            bool is_later = false;
            for (size_t later = k + 1; later < n_lists; later++) {
                is_later |= has_job(lists[later], lists[k]->jobs[i]->job_id);
            }
            whole &= is_later || json_array_append_new(jobs, job_of(lists[k]->jobs[i])) == 0;
        }
    }
    if (!whole) {
        json_decref(jobs);
        jobs = NULL;
    }
    return jobs;
}

static json_t *totals_of(const Sluice__V1__ListReply *list) {
    if (!list || !list->totals) {
        return json_null();
    }
    const Sluice__V1__Totals *t = list->totals;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "queued",
                     (json_int_t)t->n_queued, "prefilling", (json_int_t)t->n_prefilling, "shipping",
                     (json_int_t)t->n_shipping, "decoding", (json_int_t)t->n_decoding, "done", (json_int_t)t->n_done,
                     "failed", (json_int_t)t->n_failed, "cancelled", (json_int_t)t->n_cancelled, "read_tokens",
                     (json_int_t)t->read_tokens, "output_tokens", (json_int_t)t->output_tokens, "capsule_bytes",
                     (json_int_t)t->capsule_bytes, "full_bytes", (json_int_t)t->full_bytes, "first_tokens",
                     (json_int_t)t->first_tokens, "first_tokens_ms", t->first_tokens_ms);
}

static json_t *worker_of(const Sluice__V1__WorkerStatus *worker) {
    static const Sluice__V1__WorkerInfo no_info = SLUICE__V1__WORKER_INFO__INIT;
    static const Sluice__V1__WorkerLoad no_load = SLUICE__V1__WORKER_LOAD__INIT;
    const Sluice__V1__WorkerInfo *info = worker->info ? worker->info : &no_info;
    const Sluice__V1__WorkerLoad *load = worker->load ? worker->load : &no_load;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I}", "name",
                     sl_text_json(info->name), "role",
                     info->reads ? json_string("both") : name_of(&sluice__v1__worker_role__descriptor, (int)info->role),
                     "state", name_of(&sluice__v1__worker_state__descriptor, (int)worker->state), "address",
                     sl_text_json(info->rpc_address), "fabric_address", sl_text_json(info->fabric_address), "device",
                     sl_text_json(info->device), "jobs", (json_int_t)load->jobs, "max_jobs", (json_int_t)info->max_jobs,
                     "arena_used_bytes", (json_int_t)load->arena_used_bytes, "arena_bytes",
                     (json_int_t)info->arena_bytes, "tokens_per_s", number_of(load->tokens_per_s), "leases",
                     (json_int_t)load->leases, "stored_bytes", (json_int_t)(load->stored_bytes + load->offloaded_bytes),
                     "heartbeat_age_ms", (json_int_t)worker->heartbeat_age_ms);
}

static json_t *workers_of(const Sluice__V1__WorkersReply *reply) {
    if (!reply) {
        return json_null();
    }
    json_t *workers = json_array();
    bool whole = workers != NULL;
    for (size_t i = 0; i < reply->n_workers; i++) {
        whole &= json_array_append_new(workers, worker_of(reply->workers[i])) == 0;
    }
    if (!whole) {
        json_decref(workers);
        workers = NULL;
    }
    return workers;
}

char *sl_status_json(const struct sl_status_input *input) {
    const struct sl_served_model *model = input->model;
    const Sluice__V1__ListReply *const lists[] = {input->queued, input->running, input->ended};
    json_t *coordinator = json_pack("{s:b, s:b, s:o, s:o, s:o}", "answers", input->running != NULL, "ready",
                                    (int)model->ready, "why", sl_text_json(input->why), "model",
                                    sl_text_json(model->name), "default_recipe", sl_text_json(model->default_recipe));
    json_t *object =
        json_pack("{s:I, s:o, s:b, s:o, s:o, s:o}", "time_ms", (json_int_t)input->now_ms, "coordinator", coordinator,
                  "everybody", input->running && input->running->everybody, "totals", totals_of(input->ended), "jobs",
                  jobs_of(lists, sizeof lists / sizeof *lists), "workers", workers_of(input->workers));
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(7)) : NULL;
    json_decref(object);
    return text;
}
