// SPDX-License-Identifier: Apache-2.0
// Purpose: the request by which a prompt of test_family looks for its offloaded layers in a store.
#pragma once

#include "harness.h"
#include "proto/sluice/v1/worker.pb-c.h"

struct annex_request {
    Sluice__V1__OpenAnnexRequest message; // points into the rest and into the prompt
    Sluice__V1__StoreShare share;
};

static inline void make_annex_request(struct annex_request *request, struct prompt *prompt, int64_t n_tokens) {
    sluice__v1__store_share__init(&request->share);
    request->share.first_lane = test_family.first_offloaded_head;
    request->share.n_lanes = test_family.n_offloaded_heads;
    Sluice__V1__OpenAnnexRequest *message = &request->message;
    sluice__v1__open_annex_request__init(message);
    message->job_id = (char *)"job";
    message->model_fingerprint = test_family.model_fingerprint;
    message->share = &request->share;
    message->head_dim = test_family.head_dim;
    message->work_format = test_family.work;
    message->rows_format = test_family.rows;
    message->scan_format = test_family.scan;
    message->n_tokens = n_tokens;
    message->prefixes.len = (size_t)(n_tokens / SL_PREFIX_BLOCK) * sizeof *prompt->prefixes;
    message->prefixes.data = (uint8_t *)prompt->prefixes;
    message->prefix_hash = (ProtobufCBinaryData){sizeof prompt->hashes.whole, prompt->hashes.whole.bytes};
}
