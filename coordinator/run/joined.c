// SPDX-License-Identifier: Apache-2.0
#include "coordinator/run/joined.h"

#include "coordinator/workers/stores.h"

static enum sl_status fill_one(const struct sl_run *run, const struct sl_job_join *join,
                               Sluice__V1__JoinedPart *part_out, Sluice__V1__TokenIds *tokens_out,
                               char store_out[SL_ADDRESS_BYTES], struct sl_error *err) {
    (void)sl_stores_choose(run->context->registry, join->first_key, (const char(*)[64])join->stores, join->n_stores,
                           store_out);
    SL_FAIL_IF(store_out[0] == '\0', err, SL_ERR_PRECONDITION, "no joined document: no kvstore is ready any more");
    sluice__v1__token_ids__init(tokens_out);
    tokens_out->ids = join->tokens;
    tokens_out->n_ids = (size_t)join->n_all;
    sluice__v1__joined_part__init(part_out);
    part_out->tokens = tokens_out;
    part_out->from = join->from;
    part_out->n_tokens = join->n_tokens;
    part_out->at = join->at;
    part_out->kvstore_address = store_out;
    return SL_OK;
}

enum sl_status sl_joined_parts_fill(const struct sl_run *run, struct sl_joined_parts *joined,
                                    Sluice__V1__DecodeRequest *request, struct sl_error *err) {
    const struct sl_job_spec *spec = &run->job->spec;
    enum sl_status status = SL_OK;
    request->joined = joined->pointers;
    request->n_joined = 0;
    for (int i = 0; status == SL_OK && run->mode == SL_TURN_PREFIX && i < spec->n_joins; i++) {
        status = fill_one(run, &spec->joins[i], &joined->parts[i], &joined->tokens[i], joined->stores[i], err);
        joined->pointers[i] = &joined->parts[i];
        request->n_joined = (size_t)i + 1;
    }
    return status;
}
