// SPDX-License-Identifier: Apache-2.0
// Purpose: the stages that prefill reports of a job's time, which together are all of it: none is lost while stores are asked. The
// clock is this file's, and what takes time: stores, the engine and the ship.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "prefill/internal.h"

// Times of the steps, in ms.
#define OPEN    436 // opening the remote KVs, of which
#define RESTORE 120 // a store's disk
#define REUSE   50
#define QUEUE   9
#define READ    100
#define FINISH  5

static int64_t now_ms;
static bool ships_from_store;
static struct sl_arena *arena;
static Sluice__V1__Statistics told;
static int n_told;

int64_t __wrap_sl_now_ns(void);
int64_t __wrap_sl_now_ns(void) {
    return now_ms * SL_NS_PER_MS;
}

enum sl_status __wrap_sl_offload_open(const struct sl_offload_config *config, struct sl_offload **offload_out,
                                      struct sl_error *err);
enum sl_status __wrap_sl_offload_open(const struct sl_offload_config *config, struct sl_offload **offload_out,
                                      struct sl_error *err) {
    (void)config, (void)err;
    static char offload;
    now_ms += OPEN;
    *offload_out = (struct sl_offload *)&offload;
    return SL_OK;
}

size_t __wrap_sl_offload_staging_bytes(const struct sl_offload *offload);
size_t __wrap_sl_offload_staging_bytes(const struct sl_offload *offload) {
    (void)offload;
    return 0;
}

enum sl_status __wrap_sl_offload_finish(struct sl_offload *offload, struct sl_session *session, int64_t until_ns,
                                        Sluice__V1__AnnexShare ***shares_out, size_t *n_shares_out,
                                        struct sl_error *err);
enum sl_status __wrap_sl_offload_finish(struct sl_offload *offload, struct sl_session *session, int64_t until_ns,
                                        Sluice__V1__AnnexShare ***shares_out, size_t *n_shares_out,
                                        struct sl_error *err) {
    (void)offload, (void)session, (void)until_ns, (void)shares_out, (void)n_shares_out, (void)err;
    now_ms += FINISH;
    return SL_OK;
}

void __wrap_sl_offload_get_stats(const struct sl_offload *offload, struct sl_offload_stats *stats_out);
void __wrap_sl_offload_get_stats(const struct sl_offload *offload, struct sl_offload_stats *stats_out) {
    (void)offload;
    *stats_out = (struct sl_offload_stats){.restore_ns = RESTORE * SL_NS_PER_MS};
}

void __wrap_sl_offload_pass_leases(struct sl_offload *offload);
void __wrap_sl_offload_pass_leases(struct sl_offload *offload) {
    (void)offload;
}

void __wrap_sl_offload_close(struct sl_offload **offload);
void __wrap_sl_offload_close(struct sl_offload **offload) {
    *offload = NULL;
}

enum sl_status __wrap_sl_prefill_reuse(struct sl_prefill_job *job, const Sluice__V1__PrefillRequest *request,
                                       struct sl_rpc_call *call, struct sl_error *err);
enum sl_status __wrap_sl_prefill_reuse(struct sl_prefill_job *job, const Sluice__V1__PrefillRequest *request,
                                       struct sl_rpc_call *call, struct sl_error *err) {
    (void)request, (void)call, (void)err;
    now_ms += REUSE;
    job->shipped_by_store = ships_from_store;
    return SL_OK;
}

// Stands for the engine's thread: reads at once.
void __wrap_sl_prefill_join(struct sl_prefill *prefill, struct sl_prefill_job *job);
void __wrap_sl_prefill_join(struct sl_prefill *prefill, struct sl_prefill_job *job) {
    (void)prefill;
    now_ms += QUEUE;
    job->started_ns = sl_now_ns();
    now_ms += READ;
    job->ended_ns = sl_now_ns();
    assert_int_equal(
        sl_session_create_plain(&job->plan.geometry, SL_KV_F16, SL_POSITION_ORIGINAL, 100, arena, &job->session, NULL),
        SL_OK);
    job->phase = SL_PREFILL_READ;
    sl_prefill_job_unref(job);
}

void __wrap_sl_prefill_wake(struct sl_prefill *prefill);
void __wrap_sl_prefill_wake(struct sl_prefill *prefill) {
    (void)prefill;
}

void __wrap_sl_archive_prepare(struct sl_archive *archive, struct sl_prefill_job *job);
void __wrap_sl_archive_prepare(struct sl_archive *archive, struct sl_prefill_job *job) {
    (void)archive, (void)job;
}

bool __wrap_sl_archive_release(struct sl_archive *archive, struct sl_prefill_job *job);
bool __wrap_sl_archive_release(struct sl_archive *archive, struct sl_prefill_job *job) {
    (void)archive, (void)job;
    return true;
}

void __wrap_sl_archive_end_job(struct sl_archive *archive, struct sl_prefill_job *job, bool keep);
void __wrap_sl_archive_end_job(struct sl_archive *archive, struct sl_prefill_job *job, bool keep) {
    (void)archive, (void)job;
    assert_true(keep);
}

int64_t __wrap_sl_rpc_call_deadline_ns(const struct sl_rpc_call *call);
int64_t __wrap_sl_rpc_call_deadline_ns(const struct sl_rpc_call *call) {
    (void)call;
    return SL_NO_DEADLINE;
}

void __wrap_sl_rpc_call_on_cancel(struct sl_rpc_call *call, void (*fn)(void *), void *arg);
void __wrap_sl_rpc_call_on_cancel(struct sl_rpc_call *call, void (*fn)(void *), void *arg) {
    (void)call, (void)fn, (void)arg;
}

enum sl_status __wrap_sl_rpc_call_send(struct sl_rpc_call *call, const ProtobufCMessage *message);
enum sl_status __wrap_sl_rpc_call_send(struct sl_rpc_call *call, const ProtobufCMessage *message) {
    (void)call;
    const Sluice__V1__PrefillEvent *event = (const Sluice__V1__PrefillEvent *)message;
    if (event->what_case == SLUICE__V1__PREFILL_EVENT__WHAT_DONE) {
        told = *event->done->statistics;
        n_told++;
    }
    return SL_OK;
}

static enum sl_status take(void *arg, const struct sl_capsule_id *id, struct sl_session **session_inout,
                           size_t promised_bytes, char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err) {
    (void)arg, (void)id, (void)promised_bytes, (void)err;
    sl_session_destroy(session_inout);
    strcpy(lease_id_out, "kept");
    return SL_OK;
}

// Runs a job, and checks that the stages are the expected ones, and all of its time.
static void expect(double queue_ms, double prefill_ms, double ship_ms) {
    static const struct sl_model_config model = {
        .n_layers = 4, .n_heads = 2, .n_kv_heads = 2, .head_dim = 64, .n_vocab = 100, .max_positions = 1000};
    static int32_t ids[80];
    struct sl_error err = {0};
    struct sl_node *node = calloc(1, sizeof *node);
    struct sl_prefill *prefill = calloc(1, sizeof *prefill);
    assert_non_null(node);
    assert_non_null(prefill);
    assert_int_equal(sl_arena_create_mapped((size_t)1 << 20, &arena, &err), SL_OK);
    assert_int_equal(sl_ledger_create(arena, &node->ledger, &err), SL_OK);
    node->arena = node->staging = arena;
    node->config.arena_bytes = INT64_C(1) << 40;
    node->runtime.config = &model;
    prefill->node = node;
    prefill->max_chunk_tokens = 512;
    prefill->host.take_fn = take;
    Sluice__V1__PrefillRequest request = SLUICE__V1__PREFILL_REQUEST__INIT;
    Sluice__V1__TokenIds tokens = SLUICE__V1__TOKEN_IDS__INIT;
    Sluice__V1__StoreShare share = SLUICE__V1__STORE_SHARE__INIT, *shares[] = {&share};
    tokens.ids = ids;
    tokens.n_ids = sizeof ids / sizeof *ids;
    request.job_id = (char *)"job-1";
    request.tokens = &tokens;
    request.recipe = (char *)"place=offload/1-,retrieve=near,topk=64,chunk=64";
    request.stores = shares;
    request.n_stores = 1;
    int64_t began_ms = now_ms = 1000;
    n_told = 0;
    if (sl_prefill_handle_run(prefill, NULL, &request.base, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(n_told, 1);
    assert_float_equal(told.queue_ms, queue_ms, 1e-9);
    assert_float_equal(told.prefill_ms, prefill_ms, 1e-9);
    assert_float_equal(told.ship_ms, ship_ms, 1e-9);
    assert_float_equal(told.restore_ms, RESTORE, 1e-9);
    assert_float_equal(told.queue_ms + told.restore_ms + told.prefill_ms + told.ship_ms, (double)(now_ms - began_ms),
                       1e-9);
    sl_ledger_destroy(&node->ledger);
    sl_arena_destroy(&arena);
    free(prefill);
    free(node);
}

static void test_a_prompt_that_is_read_tells_all_of_its_time(void **state) {
    (void)state;
    ships_from_store = false;
    expect(OPEN - RESTORE + REUSE + QUEUE, READ, FINISH);
}

static void test_a_prompt_that_its_store_ships_tells_all_of_its_time(void **state) {
    (void)state;
    ships_from_store = true;
    expect(OPEN - RESTORE, 0, REUSE + FINISH);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_prompt_that_is_read_tells_all_of_its_time),
        cmocka_unit_test(test_a_prompt_that_its_store_ships_tells_all_of_its_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
