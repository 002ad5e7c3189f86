// SPDX-License-Identifier: Apache-2.0
// Purpose: every reason why nothing of a prompt is reused: what the store answers, and what the job then says and counts.
// The functions of the store's client, of offloading and of the archive are this file's; tests/cluster/test_reuse.py has
// stores.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "prefill/internal.h"

#define WHY(word) SLUICE__V1__NOT_CACHED__NOT_CACHED_##word

// Says how the store and the others answer one job, and counts what they were asked.
static struct {
    enum sl_status lookup, fetch, resume;
    int64_t match, capsule; // tokens; match 0: the whole prompt
    int n_exhausted;        // so many times resume has no memory first
    bool arrived;           // the store has ended the lease by then
    bool press;             // copies of earlier jobs can free memory
    int64_t n_offloaded;    // tokens whose offloaded layers the stores have
    int n_lookups, n_resumes, n_releases;
} fake;

enum sl_status sl_store_lookup(const struct sl_store_job *job, struct sl_store_match *match_out, struct sl_error *err) {
    fake.n_lookups++;
    if (fake.lookup != SL_OK) {
        return sl_fail(err, fake.lookup, "lookup");
    }
    int64_t n = fake.match > 0 ? fake.match : job->plan->n_prompt;
    *match_out = (struct sl_store_match){
        .n_tokens = n, .capsule_tokens = fake.capsule > 0 ? fake.capsule : n, .capsule_bytes = 1, .lease_id = "lease"};
    return SL_OK;
}

bool sl_store_match_pays(const struct sl_store_job *job, const struct sl_store_match *match) {
    return match->n_tokens >= job->plan->recipe.chunk_tokens && match->n_tokens >= match->capsule_tokens / 4;
}

enum sl_status sl_store_fetch(const struct sl_store_job *job, struct sl_store_match *match,
                              const Sluice__V1__Grant *destination, int64_t *bytes_out, struct sl_error *err) {
    (void)job, (void)match, (void)destination;
    *bytes_out = 7;
    return fake.fetch == SL_OK ? SL_OK : sl_fail(err, fake.fetch, "fetch");
}

enum sl_status sl_store_resume(const struct sl_store_job *job, struct sl_store_match *match,
                               struct sl_session **session_out, struct sl_error *err) {
    (void)job, (void)session_out;
    match->lease_id[0] = fake.arrived ? '\0' : match->lease_id[0];
    enum sl_status status = fake.n_resumes++ < fake.n_exhausted ? SL_ERR_EXHAUSTED : fake.resume;
    return status == SL_OK ? SL_OK : sl_fail(err, status, "resume");
}

void sl_store_release(struct sl_store_client *client, const char *address, const char *lease_id) {
    (void)client, (void)address;
    assert_string_equal(lease_id, fake.arrived ? "" : "lease");
    fake.n_releases++;
}

int64_t sl_offload_n_stored(const struct sl_offload *offload) {
    (void)offload;
    return fake.n_offloaded;
}

bool sl_offload_is_stored(const struct sl_offload *offload) {
    (void)offload;
    return false;
}

int64_t sl_offload_begins_at(const struct sl_offload *offload, int64_t n_tokens) {
    (void)offload;
    return n_tokens < fake.n_offloaded ? n_tokens : fake.n_offloaded;
}

bool sl_archive_press(struct sl_archive *archive) {
    (void)archive;
    return fake.press;
}

enum sl_status sl_prefill_send_progress(struct sl_rpc_call *call, const struct sl_prefill_job *job, int64_t n_done,
                                        int64_t n_reused, size_t resident_bytes) {
    (void)call, (void)job, (void)n_done, (void)n_reused, (void)resident_bytes;
    return SL_OK;
}

static const struct sl_kv_geometry geometry = {.n_layers = 4, .n_kv_heads = 2, .head_dim = 64};

// Runs a job of n_prompt tokens. Returns the reason that it says, after checking the counters.
static Sluice__V1__NotCached reason(const char *recipe_text, int64_t n_prompt, struct sl_prefill_job *job) {
    struct sl_prefill *prefill = calloc(1, sizeof *prefill);
    struct sl_recipe recipe;
    struct sl_error err = {0};
    Sluice__V1__PrefillRequest request = SLUICE__V1__PREFILL_REQUEST__INIT;
    assert_non_null(prefill);
    assert_int_equal(sl_recipe_parse(recipe_text, &recipe, &err), SL_OK);
    assert_int_equal(sl_recipe_resolve(&recipe, NULL, geometry.n_layers, &err), SL_OK);
    if (sl_plan_make(&recipe, &geometry, n_prompt, 0, &job->plan, &err) != SL_OK) {
        fail_msg("%s: %s", recipe_text, err.text);
    }
    job->prefill = prefill;
    job->id = "job-1";
    fake.n_lookups = fake.n_resumes = fake.n_releases = 0;
    job->status = sl_prefill_reuse(job, &request, NULL, &job->err);
    for (int i = 0; i < SL_N_NOT_CACHED; i++) {
        assert_int_equal(atomic_load(&prefill->n_not_cached[i]), i > 0 && i == (int)job->not_cached);
    }
    assert_int_equal(fake.n_releases, fake.n_lookups > 0 && fake.lookup == SL_OK); // the lease, once
    if (job->not_cached != WHY(NOT_SAID)) {
        assert_int_equal(job->status, SL_OK); // the prompt is read
        assert_int_equal(job->n_reused, 0);
    }
    free(prefill);
    return job->not_cached;
}

static struct sl_prefill_job *new_job(void) {
    struct sl_prefill_job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    job->store_address = "127.0.0.1:1";
    return job;
}

static void expect(Sluice__V1__NotCached expected, const char *recipe, int64_t n_prompt) {
    struct sl_prefill_job *job = new_job();
    Sluice__V1__NotCached why = reason(recipe, n_prompt, job);
    if (why != expected) {
        fail_msg("%s of %lld tokens: reason %d, not %d", recipe, (long long)n_prompt, (int)why, (int)expected);
    }
    free(job);
}

static int begin(void **state) {
    (void)state;
    memset(&fake, 0, sizeof fake);
    return 0;
}

static void test_reuse_without_asking(void **state) {
    (void)state;
    struct sl_prefill_job *job = new_job();
    job->no_reuse = true;
    assert_int_equal(reason("full", 1000, job), WHY(OFF));
    assert_int_equal(fake.n_lookups, 0);
    free(job);
    job = new_job();
    job->store_address = "";
    assert_int_equal(reason("full", 1000, job), WHY(NO_STORE));
    assert_int_equal(fake.n_lookups, 0);
    free(job);
}

static void test_reuse_when_the_store_has_nothing(void **state) {
    (void)state;
    fake.lookup = SL_ERR_NOT_FOUND;
    expect(WHY(NOT_STORED), "full", 1000);
    expect(WHY(NOT_STORED), "h2o,budget=200,chunk=256", 4000);
    expect(WHY(NOT_STORED), "h2o,budget=0.5,when=end", 4000);
    expect(WHY(OTHER_LENGTH), "h2o,budget=0.25,chunk=256", 4000);
    expect(WHY(NOT_STORED), "h2o,budget=0.25,chunk=256", 200); // no chunk ends within what prompts could share
    expect(WHY(ONLY_WHOLE), "tailorkv,score=random,budget=0.5,when=chunk", 4000);
}

static void test_reuse_when_the_store_does_not_answer(void **state) {
    (void)state;
    static const struct {
        enum sl_status status;
        Sluice__V1__NotCached lookup, resume;
    } rows[] = {
        {SL_ERR_PEER_LOST, WHY(UNREACHABLE), WHY(UNREACHABLE)},
        {SL_ERR_PEER_STALE, WHY(UNREACHABLE), WHY(UNREACHABLE)},
        {SL_ERR_DEADLINE, WHY(UNREACHABLE), WHY(UNREACHABLE)},
        {SL_ERR_PEER_CORRUPT, WHY(FAILED), WHY(FAILED)},
        {SL_ERR_INTERNAL, WHY(FAILED), WHY(FAILED)},
        {SL_ERR_INVALID, WHY(FAILED), WHY(FAILED)},
        {SL_ERR_EXHAUSTED, WHY(NO_MEMORY), WHY(NO_MEMORY)},
        {SL_ERR_NOT_FOUND, WHY(NOT_STORED), WHY(DROPPED)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fake.lookup = rows[i].status;
        expect(rows[i].lookup, "full", 4000);
        fake.lookup = SL_OK;
        fake.match = 3200;
        fake.resume = rows[i].status;
        expect(rows[i].resume, "full", 4000);
    }
    // A job that was cancelled read nothing in vain.
    fake.resume = SL_ERR_CANCELLED;
    expect(WHY(NOT_SAID), "full", 4000);
    fake.lookup = SL_ERR_CANCELLED;
    expect(WHY(NOT_SAID), "full", 4000);
}

static void test_reuse_of_a_beginning(void **state) {
    (void)state;
    struct sl_prefill_job *job = new_job();
    fake.match = 3200;
    assert_int_equal(reason("full", 4000, job), WHY(NOT_SAID));
    assert_int_equal(job->n_reused, 3200);
    assert_false(job->shipped_by_store);
    free(job);
    fake.match = 64; // less than a chunk
    expect(WHY(TOO_LITTLE), "full", 4000);
    fake.match = 800;
    fake.capsule = 9000; // most of which would be fetched in vain
    expect(WHY(TOO_LITTLE), "full", 4000);
    assert_int_equal(fake.n_resumes, 0);
}

static void test_reuse_waits_for_memory_that_copies_free(void **state) {
    (void)state;
    fake.match = 3200;
    fake.n_exhausted = 3;
    expect(WHY(NO_MEMORY), "full", 4000); // no copy has any
    assert_int_equal(fake.n_resumes, 1);
    fake.press = true;
    expect(WHY(NOT_SAID), "full", 4000);
    assert_int_equal(fake.n_resumes, 4);
    fake.n_exhausted = INT32_MAX;
    int64_t began_ns = sl_now_ns();
    expect(WHY(NO_MEMORY), "full", 4000);
    assert_in_range(sl_now_ns() - began_ns, SL_NS_PER_S * 9 / 10, 20 * SL_NS_PER_S);
    fake.n_exhausted = 1;
    fake.arrived = true; // a second fetch would find no lease, and call the capsule dropped
    expect(WHY(NO_MEMORY), "full", 4000);
    assert_int_equal(fake.n_resumes, 1);
}

static void test_reuse_of_the_whole_prompt(void **state) {
    (void)state;
    struct sl_prefill_job *job = new_job();
    assert_int_equal(reason("full", 4000, job), WHY(NOT_SAID));
    assert_true(job->shipped_by_store && job->n_reused == job->plan.n_prompt && job->capsule_bytes == 7);
    assert_int_equal(job->kept, SLUICE__V1__KEPT__KEPT_STORED);
    free(job);
    fake.fetch = SL_ERR_NOT_FOUND;
    expect(WHY(DROPPED), "full", 4000);
    // Any other failure has used up the grant: the coordinator repeats the job, which then says why it reads.
    fake.fetch = SL_ERR_PEER_LOST;
    job = new_job();
    assert_int_equal(reason("full", 4000, job), WHY(NOT_SAID));
    assert_int_equal(job->status, SL_ERR_PEER_STALE);
    assert_non_null(strstr(job->err.text, "could not ship"));
    free(job);
}

static void test_reuse_needs_the_offloaded_layers(void **state) {
    (void)state;
    struct sl_prefill_job *job = new_job();
    job->offload = (struct sl_offload *)&fake; // never looked into here
    fake.match = 3200;
    fake.n_offloaded = 3200;
    assert_int_equal(reason("tailorkv", 4000, job), WHY(NOT_SAID));
    assert_int_equal(job->n_reused, 3200);
    free(job);
    fake.n_offloaded = 0; // the store dropped them, and kept the capsule
    job = new_job();
    job->offload = (struct sl_offload *)&fake;
    assert_int_equal(reason("tailorkv", 4000, job), WHY(DROPPED));
    free(job);
    job = new_job();
    job->offload = (struct sl_offload *)&fake;
    assert_int_equal(reason("tailorkv,score=random,budget=0.5,when=chunk", 4000, job), WHY(ONLY_WHOLE));
    free(job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_reuse_without_asking, begin),
        cmocka_unit_test_setup(test_reuse_when_the_store_has_nothing, begin),
        cmocka_unit_test_setup(test_reuse_when_the_store_does_not_answer, begin),
        cmocka_unit_test_setup(test_reuse_of_a_beginning, begin),
        cmocka_unit_test_setup(test_reuse_waits_for_memory_that_copies_free, begin),
        cmocka_unit_test_setup(test_reuse_of_the_whole_prompt, begin),
        cmocka_unit_test_setup(test_reuse_needs_the_offloaded_layers, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
