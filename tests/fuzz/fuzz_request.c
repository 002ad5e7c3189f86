// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for requests over gRPC: from bytes to a message under the account of net/rpc/rpc_budget.c, and, for clients'
 *          jobs (Submit, Generate, SubmitInParts), on to a job's specification. A message takes the memory that its length allows and no
 *          more; a specification is within its bounds.
 *
 * Design: the first byte chooses. 0: every other method's request, which the second byte names. Else the rest are the parts of a request, each
 *         after its length in two bytes; one part is Submit.
 */
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "coordinator/jobs/parts.h"
#include "coordinator/jobs/request.h"
#include "proto/sluice/v1/cluster.pb-c.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "net/rpc/rpc_internal.h"
#include "net/rpc/rpc_wire.h"

#define MODEL        "models/demo"
#define BUDGET_BYTES (8 << 20)
#define MAX_PROMPT   512                // bytes: soon reached
#define LESS         ((1 << 20) - 4096) // than every request may have beside its length, for the same reason
#define MAX_PARTS    16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct sl_request_rules rules;

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static void load_rules(void) {
    static struct sl_model_config model;
    static struct sl_tokenizer *tokenizer;
    static struct sl_chat_template *chat_template;
    struct sl_error err;
    require(sl_tokenizer_load(MODEL, &tokenizer, &err) == SL_OK && sl_model_config_load(MODEL, &model, &err) == SL_OK);
    (void)sl_chat_template_load(MODEL, &chat_template, &err); // may have none
    rules = (struct sl_request_rules){.tokenizer = tokenizer,
                                      .chat_template = chat_template,
                                      .no_chat_because = "there is no template",
                                      .model = &model,
                                      .default_recipe = "full",
                                      .default_deadline_ms = 5000,
                                      .max_deadline_ms = 100000};
}

// Requires that no string of a message was cut at a zero byte: each block is as long as its string. AddressSanitizer's allocator tells
// the exact size of a block.
static void check_strings(const ProtobufCMessage *message) {
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const void *member = (const char *)message + field->offset;
        const void *quantifier = (const char *)message + field->quantifier_offset;
        const bool is_repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
        if ((field->type != PROTOBUF_C_TYPE_STRING && field->type != PROTOBUF_C_TYPE_MESSAGE) ||
            ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) && *(const uint32_t *)quantifier != field->id)) {
            continue;
        }
        void *const *values = is_repeated ? *(void *const *const *)member : (void *const *)member;
        for (size_t k = 0, n = is_repeated ? *(const size_t *)quantifier : 1; k < n; k++) {
            if (field->type == PROTOBUF_C_TYPE_MESSAGE && values[k]) {
                check_strings(values[k]);
            } else if (values[k] && values[k] != field->default_value) {
                require(malloc_usable_size(values[k]) == strlen(values[k]) + 1);
            }
        }
    }
}

// The message, or NULL; what it took is in the account, and within what its length allows.
static ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, struct sl_rpc_account *account,
                                const uint8_t *bytes, size_t n) {
    sl_rpc_account_begin(account, n);
    account->left -= LESS;
    int64_t most = account->left;
    ProtobufCAllocator allocator = sl_rpc_account_allocator(account);
    struct sl_error err = {0};
    if (sl_rpc_strings_check(type, (struct sl_rpc_span){bytes, n}, &err) != SL_OK) {
        require(err.status == SL_ERR_INVALID && err.text[0] != '\0');
        return NULL;
    }
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, n, bytes);
    if (message) {
        check_strings(message);
    }
    require(account->taken >= 0 && account->taken <= most);
    require(!message || sl_rpc_account_complain(account, "a request", &err) == SL_OK);
    return message;
}

// ---- methods whose requests are only unpacked here ---------------------------------------------------------------------

static void check_other(const uint8_t *data, size_t size, struct sl_rpc_account *account) {
    static const ProtobufCMessageDescriptor *const types[] = {
        &sluice__v1__watch_request__descriptor,       &sluice__v1__job_request__descriptor,
        &sluice__v1__list_request__descriptor,        &sluice__v1__register_request__descriptor,
        &sluice__v1__heartbeat_request__descriptor,   &sluice__v1__prefill_request__descriptor,
        &sluice__v1__decode_request__descriptor,      &sluice__v1__reserve_request__descriptor,
        &sluice__v1__open_annex_request__descriptor,  &sluice__v1__grant_stretch_request__descriptor,
        &sluice__v1__await_annex_request__descriptor, &sluice__v1__store_reserve_request__descriptor,
        &sluice__v1__lookup_request__descriptor,      &sluice__v1__fetch_request__descriptor,
        &sluice__v1__renew_request__descriptor,       &sluice__v1__prefill_event__descriptor,
        &sluice__v1__decode_event__descriptor,        &sluice__v1__grant__descriptor,
    };
    if (size < 1) {
        return;
    }
    ProtobufCMessage *message = unpack(types[data[0] % (sizeof types / sizeof *types)], account, data + 1, size - 1);
    if (message) {
        // A forwarded message is packed again.
        size_t n = protobuf_c_message_get_packed_size(message);
        uint8_t *packed = malloc(n + 1);
        require(packed != NULL && protobuf_c_message_pack(message, packed) == n);
        free(packed);
        ProtobufCAllocator allocator = sl_rpc_account_allocator(account);
        protobuf_c_message_free_unpacked(message, &allocator);
    }
}

// ---- jobs --------------------------------------------------------------------------------------------------------------

static void check_spec(const struct sl_job_spec *spec) {
    require(spec->n_tokens >= 1 && spec->max_new_tokens >= 1 && spec->n_keys >= 0 && spec->n_keys <= spec->n_tokens);
    require(spec->n_tokens + spec->max_new_tokens <= rules.model->max_positions);
    for (int64_t i = 0; i < spec->n_tokens; i++) {
        require(spec->tokens[i] >= 0 && spec->tokens[i] < rules.model->n_vocab);
    }
    require(spec->demand.capsule_bytes >= 0 && spec->demand.decode_bytes >= spec->demand.capsule_bytes);
    require(spec->demand.n_prefill_tokens >= 0 && spec->demand.n_prefill_tokens < spec->n_tokens);
    require(isfinite(spec->sampling.temperature) && spec->sampling.temperature >= 0);
    require(spec->recipe[0] != '\0' && spec->n_stop >= 0 && spec->n_stop <= SL_MAX_STOPS);
    require(spec->deadline_ns <= sl_deadline_in_ms(rules.max_deadline_ms));
}

static void check_request(const Sluice__V1__GenerateRequest *request) {
    struct sl_job_spec spec;
    const struct sl_request_setting setting = {.call_deadline_ns = SL_NO_DEADLINE};
    struct sl_error err = {0};
    enum sl_status status = sl_request_check(&rules, request, &setting, &spec, &err);
    if (status == SL_OK) {
        check_spec(&spec);
        sl_job_spec_cleanup(&spec);
    } else {
        require(err.text[0] != '\0');
    }
}

// As the handler of SubmitInParts does it. The first message stays; its memory is the caller's, as with gRPC.
static void check_parts(const uint8_t *data, size_t size, struct sl_rpc_account *account) {
    struct sl_request_parts parts;
    struct sl_error err = {0};
    const Sluice__V1__GenerateRequest *whole;
    enum sl_status status = SL_OK;
    size_t kept = 0;
    sl_request_parts_init(&parts, MAX_PROMPT);
    for (int i = 0; i < MAX_PARTS && size >= 2 && status == SL_OK; i++) {
        size_t n = (size_t)data[0] | (size_t)data[1] << 8, added = 0;
        n = n < size - 2 ? n : size - 2;
        ProtobufCMessage *message = unpack(&sluice__v1__generate_request__descriptor, account, data + 2, n);
        Sluice__V1__GenerateRequest *part = (Sluice__V1__GenerateRequest *)message;
        if (!part) {
            break;
        }
        status = sl_request_parts_add(&parts, part, &added, &err);
        if (part != parts.request) {
            sluice__v1__generate_request__free_unpacked(part, NULL);
        }
        kept += added;
        require(kept <= MAX_PROMPT + sizeof *parts.ids);
        if (status == SL_OK && !sl_rpc_account_hold(account, (int64_t)added)) {
            break;
        }
        data += 2 + n;
        size -= 2 + n;
    }
    if (status == SL_OK && sl_request_parts_finish(&parts, &whole, &err) == SL_OK) {
        check_request(whole);
    }
    sl_request_parts_cleanup(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!rules.model) {
        load_rules();
    }
    struct sl_rpc_budget budget = {BUDGET_BYTES};
    struct sl_rpc_account account;
    sl_rpc_account_open(&account, &budget);
    if (size >= 1 && data[0] == 0) {
        check_other(data + 1, size - 1, &account);
    } else if (size >= 1) {
        check_parts(data + 1, size - 1, &account);
    }
    sl_rpc_account_close(&account);
    require(atomic_load(&budget.left) == BUDGET_BYTES);
    return 0;
}
