// SPDX-License-Identifier: Apache-2.0
// Purpose: the state of a job in fuzz_jobs.c, of a call for it, and of the session that an answer leaves for the next turn.
#pragma once

#include <pthread.h>
#include <string.h>

#include "base/lease_id.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "tests/fuzz/fuzz_peers.h"
#include "tests/fuzz/fuzz_turns.h"

#define POSITIONS 512

// A job, as it is when no message lies.
struct job {
    uint8_t tokens;  // which
    size_t n_tokens; // that prefill reads
    int recipe;
    char lease[SL_LEASE_ID_BYTES];
    uint8_t ticket[FUZZ_TICKET_BYTES];
    Sluice__V1__PrefillEvent *done; // of its prefill
    char kept[SL_LEASE_ID_BYTES];   // the session after its last answer, which holds said[n_said]
    int32_t said[POSITIONS];
    size_t n_said;
};

struct run {
    struct sl_rpc_call call; // first: calls are cast to it
    bool there, prefills, archives;
    pthread_t thread;
    ProtobufCMessage *request;
    struct job *job;
    bool done, ended;
    int64_t n_sent, n_tokens, most_tokens, next_index;
    int32_t written[POSITIONS];
    size_t taken;
};

// The session that stays for the next turn of this job, and the tokens that it holds.
static inline void note_kept(struct run *run, const Sluice__V1__DecodeDone *done) {
    const Sluice__V1__DecodeRequest *request = (const Sluice__V1__DecodeRequest *)run->request;
    struct job *job = run->job;
    if (done->kept[0] == '\0') {
        return;
    }
    size_t n_prompt = request->prompt->n_ids;
    fuzz_require(request->keep_ms > 0 && strlen(done->kept) < SL_LEASE_ID_BYTES);
    fuzz_require(done->kept_bytes > 0 && done->kept_tokens >= (int64_t)n_prompt && done->kept_tokens <= POSITIONS);
    memcpy(job->kept, done->kept, strlen(done->kept) + 1);
    job->n_said = (size_t)done->kept_tokens;
    for (size_t i = 0; i < job->n_said; i++) {
        size_t at = i - n_prompt, n_resumed = request->resumed ? request->resumed->n_ids : 0;
        job->said[i] = i < n_prompt     ? request->prompt->ids[i]
                       : at < n_resumed ? request->resumed->ids[at]
                                        : run->written[at];
    }
}
