// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: workers that say what is not so: sizes, leases, progress, tokens. Nothing that a worker says is handed to a
 *          client or to another worker before it is checked: the job ends with an honest status, or goes on elsewhere,
 *          and nothing is held.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "fake_lies.h"

#define PREFILL  SLUICE__V1__WORKER_ROLE__PREFILL
#define DECODE   SLUICE__V1__WORKER_ROLE__DECODE
#define N_TOKENS 10

enum { FINE = 0, INTERNAL = 13 };

static const struct row {
    enum fake_lie lie;
    const char *what;
    Sluice__V1__WorkerRole role; // of the lying worker
    int code, retries;
    const char *words; // of the status, or of the retry; NULL: none
} rows[] = {
    {FAKE_GRANT_TOO_SMALL, "a grant smaller than the capsule", DECODE, INTERNAL, 0, "its grant makes no sense"},
    {FAKE_GRANT_OF_NEGATIVE_SIZE, "a grant of negative size", DECODE, INTERNAL, 0, "its grant makes no sense"},
    {FAKE_GRANT_WITHOUT_LEASE, "a grant without a lease", DECODE, INTERNAL, 0, "its grant makes no sense"},
    {FAKE_GRANT_OF_A_LONG_LEASE_ID, "a lease of a long name", DECODE, INTERNAL, 0, "its grant makes no sense"},
    {FAKE_GRANT_FOR_NO_TIME, "a lease of no time", DECODE, INTERNAL, 0, "its grant makes no sense"},
    {FAKE_GRANT_FOR_EVER, "a lease of 300 million years", DECODE, FINE, 0, NULL},
    {FAKE_RENEWED_FOR_EVER, "renewed for 300 million years", DECODE, FINE, 0, NULL},
    {FAKE_RENEWED_FOR_LESS_THAN_NO_TIME, "renewed until long ago", DECODE, FINE, 0, NULL},
    {FAKE_PROGRESS_BACKWARDS, "progress that goes backwards", PREFILL, FINE, 0, NULL},
    {FAKE_PROGRESS_OUT_OF_RANGE, "more progress than there is", PREFILL, FINE, 0, NULL},
    {FAKE_PREFILL_EVENT_OF_NO_KIND, "an event of no kind", PREFILL, INTERNAL, 0, "an event of an unknown kind"},
    {FAKE_PREFILL_DONE_TWICE, "prefill is done twice", PREFILL, FINE, 0, NULL},
    {FAKE_REMOTE_KV_NOBODY_ASKED_FOR, "stores that nobody asked for", PREFILL, INTERNAL, 0,
     "reports that stores hold 1"},
    {FAKE_TOKEN_TOO_MANY, "one token more than asked for", DECODE, INTERNAL, 0, "of at most 10"},
    {FAKE_TOKEN_LEFT_OUT, "a token is left out", DECODE, INTERNAL, 0, "sent token 3, expected 2"},
    {FAKE_TOKEN_BEFORE_THE_FIRST, "a token before the first", DECODE, INTERNAL, 0, "expected 2"},
    {FAKE_TOKEN_OUT_OF_VOCABULARY, "a token that no vocabulary has", DECODE, FINE, 1, "the vocabulary has"},
    {FAKE_TOKEN_NEGATIVE, "a negative token", DECODE, FINE, 1, "the vocabulary has"},
    {FAKE_ALTERNATIVE_OUT_OF_VOCABULARY, "an alternative that no vocabulary has", DECODE, FINE, 1,
     "the vocabulary has"},
    {FAKE_ALTERNATIVES_TOO_MANY, "more alternatives than there may be", DECODE, INTERNAL, 0, "100 alternatives"},
    {FAKE_DECODE_EVENT_OF_NO_KIND, "an event of no kind", DECODE, INTERNAL, 0, "an event of an unknown kind"},
    {FAKE_DONE_TWICE, "decode is done twice", DECODE, FINE, 0, NULL},
    {FAKE_DONE_FOR_NO_REASON, "done for a reason that is none of its own", DECODE, INTERNAL, 0,
     "ended with the reason"},
};

static struct fake_cluster cluster;
static struct fake_worker prefill[2], decode[2];
static struct fake_events events;

static void start_worker(struct fake_worker *worker, const char *name, Sluice__V1__WorkerRole role) {
    struct sl_error err = {0};
    fake_worker_init(worker, name, role);
    assert_int_equal(fake_worker_start(worker, sl_coordinator_address(cluster.coordinator), &err), SL_OK);
}

// On an idle cluster the first job goes to number 0 of each role.
static void start(void) {
    struct sl_coordinator_config config;
    fake_cluster_config(&config);
    config.heartbeat_ms = 10 * FAKE_HEARTBEAT_MS; // no worker is to be lost here
    config.silence_ms = 10 * FAKE_SILENCE_MS;
    fake_cluster_start(&cluster, &config);
    start_worker(&prefill[0], "prefill-0", PREFILL);
    start_worker(&prefill[1], "prefill-1", PREFILL);
    start_worker(&decode[0], "decode-0", DECODE);
    start_worker(&decode[1], "decode-1", DECODE);
}

static void stop(void) {
    fake_cluster_stop(&cluster); // nothing is held
    for (int i = 0; i < 2; i++) {
        fake_worker_stop(&prefill[i]);
        fake_worker_stop(&decode[i]);
    }
    assert_int_equal(sl_rpc_live_calls(), 0);
}

static void try_row(const struct row *row) {
    Sluice__V1__GenerateRequest request;
    fake_request(&request, N_TOKENS);
    // Long enough for a lease to be renewed.
    bool renews = row->lie == FAKE_RENEWED_FOR_EVER || row->lie == FAKE_RENEWED_FOR_LESS_THAN_NO_TIME;
    bool lasts = row->lie == FAKE_GRANT_FOR_EVER || row->lie == FAKE_RENEWED_FOR_EVER;
    atomic_store(&decode[0].token_ms, renews || lasts ? 40 : 1);
    atomic_store(&(row->role == PREFILL ? prefill : decode)[0].lie, row->lie);
    fake_generate(&cluster, &request, &events);
    // Whatever the worker says: every token that the client gets is the right one, at the right index.
    const Sluice__V1__Finished *finished = fake_events_check(&events, row->code == FINE ? N_TOKENS : -1);
    if (finished->status_code != row->code || finished->statistics->retries != row->retries) {
        fail_msg("%s: status %d after %d retries: %s", row->what, (int)finished->status_code,
                 (int)finished->statistics->retries, finished->status_text);
    }
    if (row->words && !strstr(finished->status_text, row->words) && !fake_events_tell(&events, row->words)) {
        fail_msg("%s: \"%s\" says nothing of \"%s\"", row->what, finished->status_text, row->words);
    }
    assert_true(!renews || atomic_load(&decode[0].n_renewed) > 0);
    assert_true(!lasts || atomic_load(&decode[0].n_renewed) == (row->lie == FAKE_RENEWED_FOR_EVER)); // for a long time
    fake_events_free(&events);
}

static void test_lies_of_workers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        start();
        try_row(&rows[i]);
        stop();
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_lies_of_workers)};
    sl_rpc_init();
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return n_failed;
}
