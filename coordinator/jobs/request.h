// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: checks a GenerateRequest, and makes a job's specification of it or names the wrong field.
 * Threads: any number at once.
 */
#pragma once

#include "coordinator/jobs/job.h"
#include "engine/model/model.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"

// A recipe with what is made of it for each job: parsing and formatting it take a twelfth of the coordinator's time.
struct sl_known_recipe {
    struct sl_recipe recipe;
    char text[SL_RECIPE_TEXT_BYTES]; // canonical
    uint64_t fingerprint;
};

struct sl_request_rules {
    const struct sl_tokenizer *tokenizer;
    const struct sl_chat_template *chat_template; // NULL: chats are refused,
    const char *no_chat_because;                  // with this text
    const struct sl_model_config *model;
    const char *default_recipe;
    const struct sl_known_recipe *known; // the default one; NULL: each job parses it
    int64_t default_deadline_ms;
    int64_t max_deadline_ms;
};

// Values that the coordinator adds to the request.
struct sl_request_setting {
    struct sl_hash128 salt;   // the tenant's (net/trust/tenant_salt.h)
    int64_t call_deadline_ns; // of a Generate call, or SL_NO_DEADLINE
    bool is_chat;             // the client sent messages, whatever the prompt is here
    const uint64_t *seed;     // of the turn that this one goes on from; NULL: there is none
    int64_t arena_bytes;      // of the largest decode worker; 0: none is known
};

// Returns SL_ERR_INVALID if a text cannot fit: before it is tokenized, which takes a hundred times as long and many times
// its memory.
enum sl_status sl_request_check_bytes(const struct sl_request_rules *rules, const char *text, size_t n_bytes,
                                      struct sl_error *err);

/*
 * Checks the request and writes the job's specification. sl_job_spec_cleanup() frees *spec_out, or sl_job_create() takes it over.
 * SL_ERR_INVALID: err begins with the name of the field. SL_ERR_IO: no seed could be drawn. SL_ERR_EXHAUSTED.
 */
enum sl_status sl_request_check(const struct sl_request_rules *rules, const Sluice__V1__GenerateRequest *request,
                                const struct sl_request_setting *setting, struct sl_job_spec *spec_out,
                                struct sl_error *err);
