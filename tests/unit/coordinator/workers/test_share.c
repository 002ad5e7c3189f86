// SPDX-License-Identifier: Apache-2.0
// Purpose: a tenant has every place of the workers while it asks alone, and leaves half of them to others while they
// ask.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "base/clock.h"
#include "base/version.h"
#include "coordinator/workers/admit.h"

static const struct sl_avoid none;

// The tests' clock: it moves when a test moves it, however slow the machine is.
static const int64_t begin_ns = 5 * SL_NS_PER_S;
static int64_t now_ns;

int64_t __wrap_sl_now_ns(void);
int64_t __wrap_sl_now_ns(void) {
    return now_ns;
}

// The jobs of one tenant, all alike. Their demands have no size unless a test gives them one.
struct crowd {
    struct sl_admission *admission;
    struct sl_tenant *tenant;
    struct sl_demand demand;
    int64_t document_bytes; // of the demand: of a document that the jobs share
    int n;
    struct sl_queue_place places[16];
    struct sl_claim claims[16];
};

static struct sl_claim_spec spec_of(const struct crowd *crowd) {
    return (struct sl_claim_spec){.demand = &crowd->demand,
                                  .held_key = crowd->document_bytes != 0,
                                  .held_bytes = crowd->document_bytes,
                                  .avoid = &none};
}

// Lets the tenant ask for one more job. Returns whether it starts at once. Its prompt is then being read.
static bool starts_to_read(struct crowd *crowd) {
    const struct sl_claim_spec spec = spec_of(crowd);
    struct sl_queue_place *place = &crowd->places[crowd->n];
    struct sl_error err;
    place->tenant = crowd->tenant;
    assert_int_equal(sl_admission_enter(crowd->admission, &crowd->demand, place, &err), SL_OK);
    enum sl_status status = sl_admission_claim(crowd->admission, place, &spec, 0, &crowd->claims[crowd->n], &err);
    assert_true(status == SL_OK || status == SL_AGAIN);
    crowd->n++;
    return status == SL_OK;
}

// The same, and its prompt has been read.
static bool starts(struct crowd *crowd) {
    bool has_started = starts_to_read(crowd);
    if (has_started) {
        sl_admission_release_prefill(crowd->admission, &crowd->claims[crowd->n - 1]);
    }
    return has_started;
}

// Lets jobs that wait start, and have their prompts read. Returns how many did.
static int start_waiting(struct crowd *crowd) {
    const struct sl_claim_spec spec = spec_of(crowd);
    struct sl_error err;
    int n = 0;
    for (int i = 0; i < crowd->n; i++) {
        if (crowd->places[i].in_line &&
            sl_admission_claim(crowd->admission, &crowd->places[i], &spec, 0, &crowd->claims[i], &err) == SL_OK) {
            sl_admission_release_prefill(crowd->admission, &crowd->claims[i]);
            n++;
        }
    }
    return n;
}

static void end(struct crowd *crowd) {
    for (int i = 0; i < crowd->n; i++) {
        sl_admission_release(crowd->admission, &crowd->claims[i]);
        sl_admission_leave(crowd->admission, &crowd->places[i]);
    }
    crowd->n = 0;
}

struct two_tenants {
    struct sl_registry *registry;
    struct sl_affinity *affinity;
    struct sl_admission *admission;
    struct sl_tenants *tenants;
    struct crowd greedy, other;
};

static void join(struct two_tenants *two, char *name, Sluice__V1__WorkerRole role, int max_jobs, bool reads) {
    Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
    info.name = name;
    info.role = role;
    info.rpc_address = "127.0.0.1:1";
    info.version = SL_VERSION;
    info.model_fingerprint = 1;
    info.arena_bytes = 1000;
    info.max_jobs = max_jobs;
    info.reads = reads;
    info.epoch = 1;
    assert_int_equal(sl_registry_register(two->registry, &info, sl_now_ns(), NULL), SL_OK);
}

// Makes a cluster with so many places for jobs that are read, and for all. n_reading < 0: the one worker reads and
// writes.
static void set_up(struct two_tenants *two, int max_running, int n_reading, int n_writing) {
    const struct sl_registry_config config = {.model_fingerprint = 1, .heartbeat_ms = 1000};
    *two = (struct two_tenants){0};
    now_ns = begin_ns;
    assert_int_equal(sl_registry_create(&config, &two->registry, NULL), SL_OK);
    assert_int_equal(sl_affinity_create(100, &two->affinity, NULL), SL_OK);
    assert_int_equal(sl_admission_create(two->registry, two->affinity, max_running, 100, &two->admission, NULL), SL_OK);
    assert_int_equal(sl_tenants_create(50, &two->tenants, NULL), SL_OK);
    assert_int_equal(sl_tenants_take(two->tenants, "greedy", &two->greedy.tenant, NULL), SL_OK);
    assert_int_equal(sl_tenants_take(two->tenants, "other", &two->other.tenant, NULL), SL_OK);
    two->greedy.admission = two->other.admission = two->admission;
    two->greedy.demand = two->other.demand = (struct sl_demand){.n_prefill_tokens = 5};
    if (n_reading > 0) {
        join(two, "prefill-0", SLUICE__V1__WORKER_ROLE__PREFILL, n_reading, false);
    }
    join(two, "decode-0", SLUICE__V1__WORKER_ROLE__DECODE, n_writing, n_reading < 0);
    (void)sl_admission_rebalance(two->admission, sl_now_ns()); // as the coordinator does from time to time
}

static void tear_down(struct two_tenants *two) {
    end(&two->greedy);
    end(&two->other);
    assert_int_equal(two->greedy.tenant->n_running, 0);
    assert_int_equal(two->greedy.tenant->n_reading + two->greedy.tenant->n_restoring, 0);
    assert_int_equal(two->greedy.tenant->running_bytes, 0);
    sl_tenant_give(&two->greedy.tenant);
    sl_tenant_give(&two->other.tenant);
    sl_tenants_destroy(&two->tenants);
    sl_admission_destroy(&two->admission);
    sl_affinity_destroy(&two->affinity);
    sl_registry_destroy(&two->registry);
}

static void test_a_tenant_alone_has_every_place(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 8);
    for (int i = 0; i < 8; i++) {
        assert_true(starts(&two.greedy));
    }
    assert_false(starts(&two.greedy));
    tear_down(&two);
}

// The time after which nothing is left to a tenant that asked is its own, whatever others do meanwhile.
static void test_askers_are_told_apart(void **state) {
    (void)state;
    struct two_tenants two;
    struct sl_tenant *third;
    struct sl_askers askers = {0};
    set_up(&two, 100, 8, 8);
    assert_int_equal(sl_tenants_take(two.tenants, "third", &third, NULL), SL_OK);
    assert_false(sl_askers_has_other(&askers, third, 1));
    sl_askers_note(&askers, two.greedy.tenant, 1);
    sl_askers_note(&askers, two.greedy.tenant, 2);
    assert_false(sl_askers_has_other(&askers, two.greedy.tenant, 2));
    assert_true(sl_askers_has_other(&askers, third, 2));
    sl_askers_note(&askers, two.other.tenant, 3);
    sl_askers_note(&askers, two.greedy.tenant, SL_NS_PER_S);
    assert_true(sl_askers_has_other(&askers, two.greedy.tenant, 2 + SL_NS_PER_S));
    assert_false(sl_askers_has_other(&askers, two.greedy.tenant, 3 + SL_NS_PER_S));
    assert_true(sl_askers_has_other(&askers, two.other.tenant, 3 + SL_NS_PER_S));
    assert_true(sl_askers_has_other(&askers, third, 3 + SL_NS_PER_S));
    sl_tenant_give(&third);
    tear_down(&two);
}

// While another tenant asks, half of the places are left to others; a second after it asked, none.
static void test_a_tenant_leaves_places_to_another_that_asks(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 8);
    assert_true(starts(&two.other));
    end(&two.other);
    for (int i = 0; i < 4; i++) {
        assert_true(starts(&two.greedy));
    }
    for (int i = 0; i < 4; i++) {
        assert_false(starts(&two.greedy));
    }
    assert_ptr_equal(sl_admission_first(two.admission),
                     &two.greedy.places[4]); // so that rebalancing sees what it lacks
    for (int i = 0; i < 4; i++) {
        assert_true(starts(&two.other)); // at once, though others wait
    }
    assert_false(starts(&two.other)); // there are none left
    end(&two.other);
    now_ns += SL_NS_PER_S - 1;
    (void)sl_admission_rebalance(two.admission, now_ns);
    assert_int_equal(start_waiting(&two.greedy), 0);
    now_ns += 1;
    (void)sl_admission_rebalance(two.admission, now_ns);
    assert_int_equal(start_waiting(&two.greedy), 4);
    tear_down(&two);
}

// The line at a worker that reads stays short for the prompt of another tenant.
static void test_a_tenant_leaves_readers_to_another(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 100);
    assert_true(starts_to_read(&two.greedy)); // alone
    assert_true(starts_to_read(&two.greedy));
    assert_true(starts_to_read(&two.greedy));
    assert_true(starts(&two.other));
    assert_false(starts_to_read(&two.greedy));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(start_waiting(&two.greedy), 0);
        sl_admission_release_prefill(two.admission, &two.greedy.claims[i]);
    }
    assert_int_equal(start_waiting(&two.greedy), 1);
    join(&two, "prefill-1", SLUICE__V1__WORKER_ROLE__PREFILL, 8, false);
    (void)sl_admission_rebalance(two.admission, sl_now_ns());
    assert_true(starts_to_read(&two.greedy));
    assert_true(starts_to_read(&two.greedy));
    assert_false(starts_to_read(&two.greedy));
    tear_down(&two);
}

// Ends the reading of the tenant's last prompt after so many milliseconds.
static void read_for(struct crowd *crowd, int64_t ms) {
    now_ns += ms * SL_NS_PER_MS;
    sl_admission_release_prefill(crowd->admission, &crowd->claims[crowd->n - 1]);
}

// A prompt does not wait for those of a tenant that has had more of the reader, and these wait for it until that tenant
// has had less.
static void test_a_tenant_that_had_less_of_the_readers_is_first(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 100);
    assert_true(starts_to_read(&two.greedy));
    read_for(&two.greedy, 30);
    assert_true(starts_to_read(&two.greedy));
    assert_true(starts_to_read(&two.other)); // beside it
    read_for(&two.greedy, 10);
    assert_false(starts_to_read(&two.greedy)); // has had 40 ms, the other 10
    now_ns += 29 * SL_NS_PER_MS;
    assert_int_equal(start_waiting(&two.greedy), 0);
    now_ns += 2 * SL_NS_PER_MS;
    assert_int_equal(start_waiting(&two.greedy), 1);
    read_for(&two.other, 100);
    assert_true(starts_to_read(&two.greedy));
    now_ns += 50 * SL_NS_PER_MS;
    assert_false(starts_to_read(&two.other)); // has had 141 ms and waits, though it runs fewer jobs
    assert_ptr_equal(sl_admission_first(two.admission), &two.other.places[1]);
    join(&two, "prefill-1", SLUICE__V1__WORKER_ROLE__PREFILL, 8, false);
    (void)sl_admission_rebalance(two.admission, now_ns);
    assert_int_equal(start_waiting(&two.other), 1); // has a reader of its own
    tear_down(&two);
}

// A prompt that waits for its document to come back from a disk takes no time of the readers.
static void test_a_tenant_whose_document_comes_back_reads_nothing(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 100);
    assert_true(starts_to_read(&two.greedy));
    sl_admission_note_prompt(two.admission, &two.greedy.claims[0], SL_PROMPT_RESTORING);
    assert_int_equal(two.greedy.tenant->n_reading, 0);
    now_ns += 10 * SL_NS_PER_S;
    sl_admission_note_prompt(two.admission, &two.greedy.claims[0], SL_PROMPT_RESTORING); // with every report
    sl_admission_note_prompt(two.admission, &two.greedy.claims[0], SL_PROMPT_READING);
    assert_int_equal(two.greedy.tenant->n_reading, 1);
    read_for(&two.greedy, 10);
    assert_true(starts_to_read(&two.other));
    read_for(&two.other, 30);
    assert_true(starts_to_read(&two.greedy));
    assert_false(starts_to_read(&two.other)); // has had 30 ms, the first one 10
    sl_admission_note_prompt(two.admission, &two.greedy.claims[1], SL_PROMPT_RESTORING);
    assert_int_equal(start_waiting(&two.other), 1);
    tear_down(&two); // it ends while it waits
}

// Prompts that wait for a disk come to the readers by themselves: beside another tenant, one for each reader waits.
static void test_a_tenant_whose_documents_come_back_leaves_readers(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 20, 100);
    assert_true(starts(&two.other));
    for (int i = 0; i < 2; i++) {
        assert_true(starts_to_read(&two.greedy));
        sl_admission_note_prompt(two.admission, &two.greedy.claims[i], SL_PROMPT_RESTORING);
    }
    assert_false(starts_to_read(&two.greedy));
    sl_admission_note_prompt(two.admission, &two.greedy.claims[0], SL_PROMPT_READING);
    assert_int_equal(start_waiting(&two.greedy), 0);
    sl_admission_note_prompt(two.admission, &two.greedy.claims[0], SL_PROMPT_READ);
    assert_int_equal(start_waiting(&two.greedy), 1);
    tear_down(&two); // the other ends while it waits
}

// While a tenant did not ask, others had the readers. It gets a fifth of a second of that back, not all.
static void test_a_tenant_that_asks_has_a_limited_credit(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 100);
    assert_true(starts(&two.other)); // its answer is written meanwhile
    assert_true(starts_to_read(&two.greedy));
    read_for(&two.greedy, 10000);
    assert_true(starts_to_read(&two.other));
    now_ns += 199 * SL_NS_PER_MS;
    assert_false(starts_to_read(&two.greedy));
    now_ns += 2 * SL_NS_PER_MS;
    assert_int_equal(start_waiting(&two.greedy), 1);
    tear_down(&two);
}

// So does one that asks while a long prompt of another is still read.
static void test_a_long_prompt_gives_no_credit(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 100);
    assert_true(starts_to_read(&two.greedy));
    now_ns += 10 * SL_NS_PER_S;
    assert_true(starts_to_read(&two.other));
    sl_admission_release_prefill(two.admission, &two.greedy.claims[0]);
    now_ns += 199 * SL_NS_PER_MS;
    assert_false(starts_to_read(&two.greedy));
    now_ns += 2 * SL_NS_PER_MS;
    assert_int_equal(start_waiting(&two.greedy), 1);
    tear_down(&two);
}

// A prompt that was read is not in the way of others while it is shipped, and is counted once.
static void test_a_prompt_that_is_shipped_is_not_read(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 100);
    assert_true(starts_to_read(&two.greedy));
    now_ns += 30 * SL_NS_PER_MS;
    assert_true(starts_to_read(&two.other));
    assert_false(starts_to_read(&two.greedy));
    now_ns += SL_NS_PER_MS;
    for (int i = 0; i < 2; i++) {
        sl_admission_note_prompt(two.admission, &two.greedy.claims[0], SL_PROMPT_READ);
        sl_admission_note_prompt(two.admission, &two.other.claims[0], SL_PROMPT_READ);
        assert_int_equal(two.greedy.tenant->n_reading + two.other.tenant->n_reading, 0);
    }
    assert_int_equal(start_waiting(&two.greedy), 1); // the reader would be idle
    now_ns += 500 * SL_NS_PER_MS;                    // of shipping
    sl_admission_release_prefill(two.admission, &two.greedy.claims[0]);
    sl_admission_release_prefill(two.admission, &two.other.claims[0]);
    assert_int_equal(two.greedy.tenant->n_reading + two.other.tenant->n_reading, 0);
    assert_int_equal(two.greedy.tenant->read_ns, 31 * SL_NS_PER_MS);
    assert_int_equal(two.other.tenant->read_ns, 1 * SL_NS_PER_MS);
    tear_down(&two);
}

static void test_a_tenant_that_did_not_ask_has_not_waited(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 100);
    assert_true(starts_to_read(&two.greedy));
    read_for(&two.greedy, 20000);
    now_ns += 11 * SL_NS_PER_S; // longer than a tenant waits for others
    assert_true(starts_to_read(&two.other));
    assert_false(starts_to_read(&two.greedy));
    tear_down(&two);
}

// Each new tenant has a credit. One that had more of the readers than all of them gets a prompt read every ten seconds
// nevertheless.
static void test_new_tenants_do_not_starve_one_that_had_more(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 100);
    assert_true(starts_to_read(&two.greedy));
    read_for(&two.greedy, 20000);
    static struct crowd crowds[2];
    for (int i = 0; i <= 100; i++) { // one after the other, each for less than its credit
        struct crowd *next = &crowds[i % 2], *before = &crowds[1 - i % 2];
        char name[32];
        *next = two.other;
        snprintf(name, sizeof name, "new-%d", i);
        assert_int_equal(sl_tenants_take(two.tenants, name, &next->tenant, NULL), SL_OK);
        assert_true(starts_to_read(next));
        if (i == 0) {
            assert_false(starts_to_read(&two.greedy));
        } else {
            end(before);
            sl_tenant_give(&before->tenant);
        }
        assert_int_equal(start_waiting(&two.greedy), i == 100);
        now_ns += 100 * SL_NS_PER_MS;
    }
    assert_false(starts_to_read(&two.greedy)); // one
    end(&crowds[0]);
    sl_tenant_give(&crowds[0].tenant);
    tear_down(&two);
}

// The time that readers have had prompts does not depend on how long the machine has run.
static void test_reading_is_counted_from_its_begin(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 16, 100);
    now_ns = INT64_MAX / 10;
    for (int i = 0; i < 16; i++) {
        assert_true(starts_to_read(&two.greedy));
        now_ns += SL_NS_PER_MS;
        assert_int_equal(two.greedy.tenant->read_ns, i * (i + 1) / 2 * SL_NS_PER_MS);
    }
    tear_down(&two);
}

// A job that needs no reader, such as a conversation's turn, waits for none: neither where the tenant has half of them,
// nor where there are none.
static void test_writing_needs_no_reader(void **state) {
    (void)state;
    for (int n_reading = 0; n_reading < 2; n_reading++) {
        struct two_tenants two;
        set_up(&two, 100, n_reading, 8);
        two.other.demand.n_prefill_tokens = 0;
        assert_true(starts(&two.other));
        if (n_reading > 0) {
            assert_true(starts(&two.greedy));
        }
        two.greedy.demand.n_prefill_tokens = 0;
        assert_true(starts(&two.greedy));
        assert_true(starts(&two.other));
        tear_down(&two);
    }
}

// The whole that the share is a part of does not depend on who has room now: a full decode worker leaves it as it is.
static void test_a_tenants_share_is_of_full_workers_too(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 8);
    two.other.demand.decode_bytes = 1000;
    two.greedy.demand.decode_bytes = 1;
    assert_true(starts(&two.other));
    assert_false(starts(&two.greedy)); // for want of memory, though nothing is read and little is written
    (void)sl_admission_rebalance(two.admission, sl_now_ns());
    end(&two.other);
    assert_int_equal(start_waiting(&two.greedy), 1);
    for (int i = 0; i < 3; i++) {
        assert_true(starts(&two.greedy));
    }
    assert_false(starts(&two.greedy));
    tear_down(&two);
}

// While another tenant asks, half of the memory is left to others; a second after it asked, none.
static void test_a_tenant_leaves_memory_to_another_that_asks(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 16);
    two.greedy.demand.decode_bytes = two.other.demand.decode_bytes = 250;
    assert_true(starts(&two.other));
    end(&two.other);
    assert_true(starts(&two.greedy));
    assert_true(starts(&two.greedy));
    assert_false(starts(&two.greedy));
    assert_true(starts(&two.other)); // at once, though one waits
    end(&two.other);
    now_ns += SL_NS_PER_S - 1;
    (void)sl_admission_rebalance(two.admission, now_ns);
    assert_int_equal(start_waiting(&two.greedy), 0);
    now_ns += 1;
    (void)sl_admission_rebalance(two.admission, now_ns);
    assert_int_equal(start_waiting(&two.greedy), 1);
    end(&two.greedy);
    (void)sl_admission_rebalance(two.admission, now_ns);
    assert_true(starts(&two.other));
    end(&two.other);
    two.greedy.demand.decode_bytes = 501; // one job may need more
    assert_true(starts(&two.greedy));
    two.greedy.demand.decode_bytes = 1;
    assert_false(starts(&two.greedy));
    tear_down(&two);
}

// The jobs on a document count what they share once.
static void test_a_tenants_memory_is_what_its_jobs_do_not_share(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, 8, 16);
    assert_true(starts(&two.other));
    two.greedy.demand.decode_bytes = 350;
    two.greedy.document_bytes = 300;
    for (int i = 0; i < 4; i++) {
        assert_true(starts(&two.greedy));
    }
    assert_int_equal(two.greedy.tenant->running_bytes, 500);
    assert_false(starts(&two.greedy));
    tear_down(&two);
}

// A worker that also reads holds the prompt uncompressed meanwhile: what the job needs there counts.
static void test_a_tenants_memory_is_that_of_reading_too(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 100, -1, 16);
    two.greedy.demand.prefill_bytes = 450;
    two.greedy.demand.decode_bytes = 50;
    assert_true(starts(&two.other));
    assert_true(starts(&two.greedy));
    assert_int_equal(two.greedy.tenant->running_bytes, 450);
    assert_false(starts(&two.greedy));
    tear_down(&two);
}

// --max-jobs may be less than the workers have.
static void test_a_tenants_share_is_of_the_jobs_that_may_run(void **state) {
    (void)state;
    struct two_tenants two;
    set_up(&two, 3, 8, 8);
    assert_true(starts(&two.other));
    end(&two.other);
    assert_true(starts(&two.greedy));
    assert_true(starts(&two.greedy));
    assert_false(starts(&two.greedy));
    assert_true(starts(&two.other));
    tear_down(&two);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_tenant_alone_has_every_place),
        cmocka_unit_test(test_askers_are_told_apart),
        cmocka_unit_test(test_a_tenant_leaves_places_to_another_that_asks),
        cmocka_unit_test(test_a_tenant_leaves_readers_to_another),
        cmocka_unit_test(test_a_tenant_that_had_less_of_the_readers_is_first),
        cmocka_unit_test(test_a_tenant_whose_document_comes_back_reads_nothing),
        cmocka_unit_test(test_a_tenant_whose_documents_come_back_leaves_readers),
        cmocka_unit_test(test_a_tenant_that_asks_has_a_limited_credit),
        cmocka_unit_test(test_a_long_prompt_gives_no_credit),
        cmocka_unit_test(test_a_prompt_that_is_shipped_is_not_read),
        cmocka_unit_test(test_a_tenant_that_did_not_ask_has_not_waited),
        cmocka_unit_test(test_new_tenants_do_not_starve_one_that_had_more),
        cmocka_unit_test(test_reading_is_counted_from_its_begin),
        cmocka_unit_test(test_writing_needs_no_reader),
        cmocka_unit_test(test_a_tenants_share_is_of_full_workers_too),
        cmocka_unit_test(test_a_tenants_share_is_of_the_jobs_that_may_run),
        cmocka_unit_test(test_a_tenant_leaves_memory_to_another_that_asks),
        cmocka_unit_test(test_a_tenants_memory_is_what_its_jobs_do_not_share),
        cmocka_unit_test(test_a_tenants_memory_is_that_of_reading_too),
    };
    sl_rpc_init();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return failed;
}
