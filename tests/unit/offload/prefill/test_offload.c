// SPDX-License-Identifier: Apache-2.0
// Offloaded layers while prefill reads: what the stores get, what comes back, and what becomes of it when they fail. With
// the first layers of the demo model, for more positions than it was trained for, and stores in this process.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/job/job_recipe.h"
#include "fake_store.h"
#include "net/offload/prefill/offload.h"
#include "tests/unit/capsule_body.h"
#include "tests/unit/offload/prefill/read_chunk.h"
#include "tests/unit/shallow_model.h"

#define MAX_TOKENS  8500 // two splits and some: two tiles to read back at the end
#define ONE_SPLIT   5000 // and some: where it is not a matter of tiles
#define ARENA_BYTES ((size_t)96 << 20)
#define STORE_BYTES ((size_t)64 << 20)
#define RECIPE      "place=offload/2+3,topk=64,chunk=512" // the layer after 3 tells whether attention was right
// A split of slots and some; chunks end anywhere in it, and what is recent is longer than the last chunk.
#define THINNED RECIPE ",scope=sinks:8+recent:400,score=random,budget=0.6,when=chunk"
#define N_HEADS 4 // two KV heads a layer

struct share {
    int store, first_offloaded_head, n_offloaded_heads, replica;
};

struct job {
    struct sl_plan *plan;
    Sluice__V1__StoreShare shares[4], *pointers[4];
    struct sl_offload *offload;
    struct sl_reader *reader;
    size_t peak_bytes;
};

struct fixture {
    struct temp_folder model;
    struct sl_runtime runtime;
    int32_t tokens[MAX_TOKENS];
    struct sl_plan plan, local_plan;
    // The prompt, read with all layers held here, and the arena of that.
    void *memory;
    struct sl_arena *arena;
    struct sl_session *whole;
    struct sl_node node; // with a fabric and an arena of its own, of every test
    struct fake_store stores[2];
    struct job job; // of the test at hand
    int64_t restore_ms;
    int n_alive; // such calls, until it is not
};

static struct sl_plan make_plan_of(struct fixture *f, const char *text, bool local, int64_t n_prompt) {
    struct sl_recipe recipe;
    struct sl_plan plan;
    struct sl_error err = {0};
    const struct sl_model_config *config = f->runtime.config;
    struct sl_kv_geometry geometry = sl_model_geometry(config);
    if (sl_job_recipe(text, config, &recipe, &err) != SL_OK ||
        (local ? sl_plan_make_local : sl_plan_make)(&recipe, &geometry, n_prompt, 0, &plan, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return plan;
}

static struct sl_plan make_plan(struct fixture *f, bool local, int64_t n_prompt) {
    return make_plan_of(f, RECIPE, local, n_prompt);
}

// Chunk by chunk until at least `end` tokens have been read.
static enum sl_status read_until(struct fixture *f, struct job *job, int64_t end, struct sl_error *err) {
    enum sl_status status = SL_OK;
    struct sl_session *session = sl_reader_session(job->reader);
    while (status == SL_OK && !sl_reader_is_done(job->reader) && session->n_tokens < end) {
        status = read_chunk(&f->runtime, job->reader, job->offload, job->plan, &job->peak_bytes, err);
    }
    return status;
}

// The prompt, read with all layers held here.
static struct sl_session *read_here(struct fixture *f, const struct sl_plan *plan) {
    struct sl_reader_config config = {.plan = plan, .runtime = &f->runtime, .arena = f->arena, .tokens = f->tokens};
    struct job job = {.plan = (struct sl_plan *)plan};
    struct sl_error err = {0};
    assert_int_equal(sl_reader_create(&config, &job.reader, &err), SL_OK);
    assert_int_equal(read_until(f, &job, plan->n_prompt, &err), SL_OK);
    struct sl_session *session = sl_reader_take_session(job.reader);
    sl_reader_destroy(&job.reader);
    return session;
}

static int group_setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    f->model = shallow_model(5);
    struct sl_runtime_config config = {.model_dir = f->model.path, .threads = 2, .max_rows = 512};
    assert_int_equal(sl_runtime_open(&config, &f->runtime, NULL), SL_OK);
    for (int i = 0; i < MAX_TOKENS; i++) {
        f->tokens[i] = (int32_t)((unsigned)i * 2654435761u >> 8) % 1900 + 50;
    }
    f->memory = aligned_alloc(4096, ARENA_BYTES);
    assert_int_equal(sl_arena_create(f->memory, ARENA_BYTES, &f->arena, NULL), SL_OK);
    f->plan = make_plan(f, false, MAX_TOKENS);
    f->local_plan = make_plan(f, true, MAX_TOKENS);
    f->whole = read_here(f, &f->local_plan);
    sl_rpc_init();
    *state = f;
    return 0;
}

static int group_teardown(void **state) {
    struct fixture *f = *state;
    sl_rpc_shutdown();
    sl_session_destroy(&f->whole);
    sl_arena_destroy(&f->arena);
    free(f->memory);
    sl_runtime_close(&f->runtime);
    temp_folder_destroy(&f->model);
    free(f);
    return 0;
}

static void start(struct fixture *f, const char *transport) {
    struct sl_error err = {0};
    struct sl_fabric_config config = {.listen = "127.0.0.1:0", .transport = transport};
    void *region;
    f->node = (struct sl_node){.runtime = f->runtime};
    if (sl_fabric_create(&config, &f->node.fabric, &err) != SL_OK ||
        sl_fabric_region_create(f->node.fabric, ARENA_BYTES, 0, &region, &err) != SL_OK ||
        sl_arena_create(region, ARENA_BYTES, &f->node.arena, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    f->node.staging = f->node.arena;
    for (int i = 0; i < 2; i++) {
        fake_store_start(&f->stores[i], transport, &f->plan.work[2], STORE_BYTES);
    }
}

static int start_shm(void **state) {
    start(*state, "shm");
    return 0;
}

static int start_tcp(void **state) {
    start(*state, "tcp");
    return 0;
}

static void close_job(struct job *job) {
    sl_offload_close(&job->offload);
    if (job->reader) {
        sl_reader_destroy(&job->reader);
    }
}

// Everything ends before anything is checked: a test that has failed must not keep the others from ending.
static int stop(void **state) {
    struct fixture *f = *state;
    struct sl_arena_stats stats;
    struct sl_fabric_stats fabric_stats;
    close_job(&f->job);
    sl_arena_get_stats(f->node.arena, &stats);
    sl_fabric_get_stats(f->node.fabric, &fabric_stats);
    sl_fabric_destroy(&f->node.fabric);
    sl_arena_destroy(&f->node.arena);
    fake_store_stop(&f->stores[0]);
    fake_store_stop(&f->stores[1]);
    assert_int_equal(stats.n_blocks, 0);
    assert_int_equal(fabric_stats.ships_open, 0);
    return 0;
}

// ---- one job -------------------------------------------------------------------------------------------------------

static bool is_alive(void *arg) {
    struct fixture *f = arg;
    return f->n_alive-- > 0;
}

static enum sl_status open_job(struct fixture *f, struct job *job, struct sl_plan *plan, const struct share *shares,
                               size_t n_shares, struct sl_session *resumed, struct sl_error *err) {
    *job = (struct job){.plan = plan};
    for (size_t i = 0; i < n_shares; i++) {
        job->shares[i] = (Sluice__V1__StoreShare)SLUICE__V1__STORE_SHARE__INIT;
        job->shares[i].address = (char *)fake_store_address(&f->stores[shares[i].store]);
        job->shares[i].first_lane = shares[i].first_offloaded_head;
        job->shares[i].n_lanes = shares[i].n_offloaded_heads;
        job->shares[i].replica = shares[i].replica;
        job->pointers[i] = &job->shares[i];
    }
    struct sl_offload_config config = {.node = &f->node,
                                       .plan = plan,
                                       .job_id = "test",
                                       .capsule = &(struct sl_capsule_id){.model_fingerprint = 1},
                                       .tokens = f->tokens,
                                       .salt = &(struct sl_hash128){{1}},
                                       .stores = job->pointers,
                                       .n_stores = n_shares,
                                       .restore_ms = f->restore_ms,
                                       .alive = is_alive,
                                       .arg = f};
    enum sl_status status = sl_offload_open(&config, &job->offload, err);
    if (status == SL_OK) {
        struct sl_reader_config reader_config = {.plan = plan,
                                                 .runtime = &f->runtime,
                                                 .arena = f->node.arena,
                                                 .resumed = resumed,
                                                 .attends_elsewhere = true,
                                                 .tokens = f->tokens};
        assert_int_equal(sl_reader_create(&reader_config, &job->reader, err), SL_OK);
        status = sl_offload_begin(job->offload, sl_reader_session(job->reader), err);
    }
    return status;
}

static enum sl_status finish(struct job *job, struct sl_session *session, Sluice__V1__AnnexShare ***shares_out,
                             size_t *n_out, struct sl_error *err) {
    enum sl_status status;
    do {
        status = sl_offload_finish(job->offload, session, sl_deadline_in_ms(10), shares_out, n_out, err);
    } while (status == SL_AGAIN);
    return status;
}

static void finish_well(struct job *job, struct sl_session *session) {
    Sluice__V1__AnnexShare **remote_kv;
    size_t n_remote_kv;
    struct sl_error err = {0};
    assert_int_equal(finish(job, session, &remote_kv, &n_remote_kv, &err), SL_OK);
    sl_remote_kv_shares_free(&remote_kv, n_remote_kv);
}

// As it comes out of the store: without slots of offloaded layers, with room for the longer prompt.
static struct sl_session *through_capsule(struct fixture *f, struct sl_session **session) {
    size_t bytes = sl_capsule_body_bytes(*session), header_bytes;
    struct sl_capsule_id id = {1, 2, {{3}}};
    uint8_t *header;
    void *body = sl_arena_alloc(f->node.arena, bytes);
    assert_non_null(body);
    copy_body(*session, body);
    assert_int_equal(sl_capsule_write_header(*session, &id, &header, &header_bytes, NULL), SL_OK);
    struct sl_session *opened;
    struct sl_capsule_bytes capsule = {body, bytes, header, header_bytes};
    assert_int_equal(
        sl_capsule_adopt(&capsule, f->node.arena, &(*session)->geometry, &id, f->plan.max_slots, &opened, NULL), SL_OK);
    sl_session_destroy(session);
    return opened;
}

// Compares the rows of `slots` slots of two pages, without the padding after them.
static void assert_same_page(const struct sl_page_layout *layout, const void *a, const void *b, int64_t slots) {
    size_t bytes = (size_t)slots * (size_t)layout->head_dim * 2; // f16
    assert_memory_equal(a, b, bytes);
    assert_memory_equal((const char *)a + layout->v, (const char *)b + layout->v, bytes);
}

// Every page of the session, and of the remote KVs, has the bits of the session that has it all.
static void assert_same_bits_as(struct fixture *f, const struct sl_session *whole, const struct job *job,
                                const struct share *shares, size_t n_shares) {
    const struct sl_session *session = sl_reader_session(job->reader);
    int64_t n = job->plan->n_prompt, n_slots = sl_plan_offloaded_slots(job->plan, n);
    struct sl_offloaded_heads heads;
    sl_offloaded_heads_init(&heads, &job->plan->recipe.offload, &job->plan->geometry);
    for (int l = 0; l < session->geometry.n_layers; l++) {
        const struct sl_page_layout *work = &session->layers[l].work;
        for (int h = 0; !sl_plan_is_offloaded(job->plan, l) && h < session->geometry.n_kv_heads; h++) {
            assert_int_equal(session->layers[l].heads[h].n_slots, n);
            for (int64_t t = 0; t < n; t += SL_PAGE_SLOTS) {
                assert_same_page(work, whole->layers[l].heads[h].pages[t / SL_PAGE_SLOTS],
                                 session->layers[l].heads[h].pages[t / SL_PAGE_SLOTS],
                                 n - t < SL_PAGE_SLOTS ? n - t : SL_PAGE_SLOTS);
            }
        }
    }
    for (size_t i = 0; i < n_shares; i++) {
        const struct fake_remote_kv *remote_kv =
            fake_store_remote_kv(&f->stores[shares[i].store], shares[i].first_offloaded_head);
        assert_int_equal(remote_kv->n_tokens, n_slots);
        for (int offloaded_head = shares[i].first_offloaded_head;
             offloaded_head < shares[i].first_offloaded_head + shares[i].n_offloaded_heads; offloaded_head++) {
            int layer = heads.layers[offloaded_head / 2], h = offloaded_head % 2;
            for (int64_t t = 0; t < n_slots; t += SL_PAGE_SLOTS) {
                assert_same_page(&f->plan.work[layer], whole->layers[layer].heads[h].pages[t / SL_PAGE_SLOTS],
                                 fake_remote_kv_page(remote_kv, offloaded_head, t),
                                 n_slots - t < SL_PAGE_SLOTS ? n_slots - t : SL_PAGE_SLOTS);
            }
        }
    }
}

// ---- tests ---------------------------------------------------------------------------------------------------------

static void test_offload_reads_with_the_bits_of_layers_held_here(void **state) {
    struct fixture *f = *state;
    static const struct share shares[] = {{0, 0, N_HEADS, 0}};
    struct job *job = &f->job;
    struct sl_error err = {0};
    assert_int_equal(open_job(f, job, &f->plan, shares, 1, NULL, &err), SL_OK);
    assert_int_equal(sl_offload_n_stored(job->offload), 0);
    int64_t most_held = 0;
    for (int64_t end = 512; end < MAX_TOKENS + 512; end += 512) {
        assert_int_equal(read_until(f, job, end, &err), SL_OK);
        int64_t held = sl_reader_session(job->reader)->layers[2].heads[0].n_slots;
        most_held = held > most_held ? held : most_held;
    }
    assert_true(most_held <= sl_plan_held_slots(&f->plan));
    assert_int_equal(sl_reader_session(job->reader)->layers[3].heads[1].n_slots, MAX_TOKENS - 8192);
    assert_true(job->peak_bytes <= f->plan.prefill_peak_bytes);

    Sluice__V1__AnnexShare **remote_kv;
    size_t n_remote_kv;
    assert_int_equal(finish(job, sl_reader_session(job->reader), &remote_kv, &n_remote_kv, &err), SL_OK);
    assert_int_equal(n_remote_kv, 1);
    assert_string_equal(remote_kv[0]->share->address, job->shares[0].address);
    assert_string_equal(remote_kv[0]->fabric_address, sl_fabric_address(f->stores[0].fabric));
    assert_int_equal(remote_kv[0]->fabric_epoch, sl_fabric_epoch(f->stores[0].fabric));
    assert_int_equal(remote_kv[0]->window.len, f->stores[0].ticket_bytes);
    sl_remote_kv_shares_free(&remote_kv, n_remote_kv);
    assert_same_bits_as(f, f->whole, job, shares, 1);

    struct sl_offload_stats stats;
    sl_offload_get_stats(job->offload, &stats);
    assert_int_equal(stats.shipped_tokens, MAX_TOKENS);
    assert_int_equal(stats.stored_tokens, 0);
    assert_int_equal(stats.shipped_bytes, sl_pages_for(MAX_TOKENS) * N_HEADS * f->plan.work[2].bytes);
    assert_true(stats.read_back_bytes > 0);
    // Cut at multiples of the segment, and after the last full page.
    const struct fake_remote_kv *at_store = fake_store_remote_kv(&f->stores[0], 0);
    assert_int_equal(at_store->n_segments, MAX_TOKENS / SL_KV_SEGMENT_TOKENS + 2);
    assert_int_equal(at_store->segments[1].where.begin, SL_KV_SEGMENT_TOKENS);
    assert_int_equal(at_store->segments[at_store->n_segments - 1].where.n_slots, MAX_TOKENS % SL_PAGE_SLOTS);
    assert_true(f->stores[0].n_renewed > 0); // it has taken longer than the lease
    assert_int_equal(fake_store_n_leased(&f->stores[0]), 1);
    sl_offload_pass_leases(job->offload);
    close_job(job);
    assert_int_equal(fake_store_n_leased(&f->stores[0]), 1); // the receiver's
}

// A share may end in the middle of a layer. What stores have of the model's last layer is not read back.
static void test_offload_is_divided_between_stores(void **state) {
    struct fixture *f = *state;
    static const struct share shares[] = {{1, 3, 1, 0}, {0, 0, 3, 0}};
    struct sl_plan plan = make_plan_of(f, "place=offload/2+4,topk=64,chunk=512", false, ONE_SPLIT);
    struct job *job = &f->job;
    struct sl_error err = {0};
    assert_int_equal(open_job(f, job, &plan, shares, 2, NULL, &err), SL_OK);
    assert_int_equal(read_until(f, job, ONE_SPLIT, &err), SL_OK);
    struct sl_offload_stats stats;
    sl_offload_get_stats(job->offload, &stats);
    assert_int_equal(stats.read_back_bytes, sl_pages_for(SL_ATTEND_SPLIT) * N_HEADS / 2 * plan.work[2].bytes);
    Sluice__V1__AnnexShare **remote_kv;
    size_t n_remote_kv;
    assert_int_equal(finish(job, sl_reader_session(job->reader), &remote_kv, &n_remote_kv, &err), SL_OK);
    assert_int_equal(n_remote_kv, 2);
    sl_remote_kv_shares_free(&remote_kv, n_remote_kv);
    assert_same_bits_as(f, f->whole, job, shares, 2);
    close_job(job);
    assert_int_equal(fake_store_n_leased(&f->stores[0]) + fake_store_n_leased(&f->stores[1]), 0); // no lease is left
}

// The store's reads are refused: those of the other replica take their place.
static void test_offload_reads_from_the_replica_that_lives(void **state) {
    struct fixture *f = *state;
    static const struct share shares[] = {{0, 0, N_HEADS, 0}, {1, 0, N_HEADS, 1}};
    struct job *job = &f->job;
    struct sl_error err = {0};
    assert_int_equal(open_job(f, job, &f->plan, shares, 2, NULL, &err), SL_OK);
    assert_int_equal(read_until(f, job, 2048, &err), SL_OK);
    fake_store_close_window(&f->stores[0]); // before anything is read back
    assert_int_equal(read_until(f, job, MAX_TOKENS, &err), SL_OK);
    finish_well(job, sl_reader_session(job->reader));
    assert_same_bits_as(f, f->whole, job, shares, 2);
    struct sl_offload_stats stats;
    sl_offload_get_stats(job->offload, &stats);
    assert_true(stats.read_back_bytes > 0);
    close_job(job);
}

// A longer prompt begins with what the stores and a capsule have of a shorter one.
static void test_offload_goes_on_from_what_is_stored(void **state) {
    struct fixture *f = *state;
    static const struct share shares[] = {{0, 0, N_HEADS, 0}};
    enum { SHORTER = 5000, FULL = SHORTER / 64 * 64 };
    struct sl_plan shorter = make_plan(f, false, SHORTER);
    struct job *job = &f->job;
    struct sl_error err = {0};
    assert_int_equal(open_job(f, job, &shorter, shares, 1, NULL, &err), SL_OK);
    assert_int_equal(read_until(f, job, SHORTER, &err), SL_OK);
    finish_well(job, sl_reader_session(job->reader));
    struct sl_session *session = sl_reader_take_session(job->reader);
    close_job(job);

    // The same again: nothing is read, nothing shipped.
    int n_granted = f->stores[0].n_granted;
    assert_int_equal(open_job(f, job, &shorter, shares, 1, NULL, &err), SL_OK);
    assert_int_equal(sl_offload_n_stored(job->offload), SHORTER);
    finish_well(job, NULL);
    close_job(job);
    assert_int_equal(f->stores[0].n_granted, n_granted);

    struct sl_session *resumed = through_capsule(f, &session);
    assert_int_equal(resumed->layers[2].heads[0].n_slots, 0);
    assert_int_equal(sl_session_truncate(resumed, FULL, &err), SL_OK);
    assert_int_equal(open_job(f, job, &f->plan, shares, 1, resumed, &err), SL_OK);
    assert_int_equal(sl_offload_n_stored(job->offload), FULL);
    assert_int_equal(sl_offload_begins_at(job->offload, 4321), 4288);
    assert_int_equal(resumed->layers[3].heads[1].n_slots, FULL - SL_ATTEND_SPLIT);
    assert_int_equal(read_until(f, job, MAX_TOKENS, &err), SL_OK);
    finish_well(job, sl_reader_session(job->reader));
    assert_same_bits_as(f, f->whole, job, shares, 1);
    struct sl_offload_stats stats;
    sl_offload_get_stats(job->offload, &stats);
    assert_int_equal(stats.stored_tokens, FULL);
    assert_int_equal(stats.shipped_tokens, MAX_TOKENS - FULL);
    close_job(job);
}

// The capsule is gone: everything is read, but what the stores have is not shipped again.
static void test_offload_does_not_ship_what_is_stored(void **state) {
    struct fixture *f = *state;
    static const struct share shares[] = {{0, 0, N_HEADS, 0}};
    struct sl_plan shorter = make_plan(f, false, 1500);
    struct job *job = &f->job;
    struct sl_error err = {0};
    for (int round = 0; round < 2; round++) {
        struct sl_plan longer = make_plan(f, false, 2000);
        assert_int_equal(open_job(f, job, round == 0 ? &shorter : &longer, shares, 1, NULL, &err), SL_OK);
        assert_int_equal(read_until(f, job, 2000, &err), SL_OK);
        finish_well(job, sl_reader_session(job->reader));
        assert_same_bits_as(f, f->whole, job, shares, 1);
        struct sl_offload_stats stats;
        sl_offload_get_stats(job->offload, &stats);
        assert_int_equal(stats.stored_tokens, round == 0 ? 0 : 1472);
        assert_int_equal(stats.shipped_tokens, round == 0 ? 1500 : 2000 - 1472);
        close_job(job);
    }
}

// One store is slow to build, the other one has room for one segment at a time: leases live, and everything arrives.
static void test_offload_waits_for_what_stores_build(void **state) {
    struct fixture *f = *state;
    static const struct share shares[] = {{0, 0, 2, 0}, {1, 2, 2, 0}};
    struct sl_plan plan = make_plan(f, false, ONE_SPLIT);
    struct job *job = &f->job;
    struct sl_error err = {0};
    f->stores[1].one_at_a_time = true;
    assert_int_equal(open_job(f, job, &plan, shares, 2, NULL, &err), SL_OK);
    assert_int_equal(read_until(f, job, ONE_SPLIT, &err), SL_OK);
    pthread_mutex_lock(&f->stores[0].mutex);
    f->stores[0].n_unready = 6; // for three leases together
    pthread_mutex_unlock(&f->stores[0].mutex);
    int n_renewed = f->stores[1].n_renewed;
    finish_well(job, sl_reader_session(job->reader));
    assert_true(f->stores[1].n_renewed >= n_renewed + 3);
    assert_true(f->stores[1].n_refused > 0);
    assert_int_equal(f->stores[0].n_unready, 0);
    assert_same_bits_as(f, f->whole, job, shares, 2);
    close_job(job);
}

/*
 * With a budget the stores get what one process keeps of the layers, to the bit, whatever came back meanwhile; what is here and
 * what is there stays below the plan. The same prompt again finds all of it.
 */
static void test_offload_ships_what_a_budget_leaves(void **state) {
    struct fixture *f = *state;
    static const struct share shares[] = {{1, 3, 1, 0}, {0, 0, 3, 0}};
    struct sl_plan local = make_plan_of(f, THINNED, true, MAX_TOKENS),
                   plan = make_plan_of(f, THINNED, false, MAX_TOKENS);
    enum { N_SLOTS = MAX_TOKENS * 6 / 10 };
    struct sl_session *whole = read_here(f, &local);
    struct job *job = &f->job;
    struct sl_error err = {0};
    for (int l = 0; l < whole->geometry.n_layers; l++) {
        bool thinned = l == 2 || l == 3;
        assert_int_equal(whole->layers[l].heads[1].n_slots, thinned ? N_SLOTS : MAX_TOKENS);
    }
    assert_int_equal(open_job(f, job, &plan, shares, 2, NULL, &err), SL_OK);
    int64_t most_held = 0;
    for (int64_t end = 512; end < MAX_TOKENS + 512; end += 512) {
        assert_int_equal(read_until(f, job, end, &err), SL_OK);
        int64_t held = sl_reader_session(job->reader)->layers[3].heads[0].n_slots;
        most_held = held > most_held ? held : most_held;
    }
    assert_true(most_held < N_SLOTS && most_held <= sl_plan_held_slots(&plan));
    assert_true(job->peak_bytes <= plan.prefill_peak_bytes);
    finish_well(job, sl_reader_session(job->reader));
    assert_same_bits_as(f, whole, job, shares, 2);
    struct sl_offload_stats stats;
    sl_offload_get_stats(job->offload, &stats);
    assert_int_equal(stats.shipped_tokens, N_SLOTS);
    assert_int_equal(stats.shipped_bytes, sl_pages_for(N_SLOTS) * N_HEADS * plan.work[2].bytes);
    assert_int_equal(stats.shipped_bytes, sl_plan_offloaded_bytes(&plan));
    assert_true(stats.read_back_bytes > 0);
    close_job(job);

    assert_int_equal(open_job(f, job, &plan, shares, 2, NULL, &err), SL_OK);
    assert_true(sl_offload_is_stored(job->offload));
    assert_int_equal(sl_offload_begins_at(job->offload, 4096), 0);
    finish_well(job, NULL);
    sl_offload_get_stats(job->offload, &stats);
    assert_int_equal(stats.stored_tokens, MAX_TOKENS);
    assert_int_equal(stats.shipped_tokens, 0);
    close_job(job);

    // The capsule is gone: read again, which finds the same slots.
    assert_int_equal(open_job(f, job, &plan, shares, 2, NULL, &err), SL_OK);
    assert_int_equal(read_until(f, job, MAX_TOKENS, &err), SL_OK);
    finish_well(job, sl_reader_session(job->reader));
    assert_same_bits_as(f, whole, job, shares, 2);
    close_job(job);
    sl_session_destroy(&whole);
}

// A store that reads the document back is asked again, as long as the job may wait; then the job takes what there is.
static void test_offload_waits_for_what_is_read_back(void **state) {
    struct fixture *f = *state;
    static const struct share shares[] = {{0, 0, 4, 0}};
    struct job *job = &f->job;
    struct sl_error err = {0};
    f->stores[0].n_restoring = 3;
    f->restore_ms = 60000;
    f->n_alive = 3;
    assert_int_equal(open_job(f, job, &f->plan, shares, 1, NULL, &err), SL_OK);
    assert_int_equal(f->n_alive, 0);
    assert_in_range(f->stores[0].wait_ms, 1, 60000 - 3); // the time that is left
    close_job(job);
    f->stores[0].n_restoring = 1000000;
    f->n_alive = 1000000;
    f->restore_ms = 0; // not known: a moment
    assert_int_equal(open_job(f, job, &f->plan, shares, 1, NULL, &err), SL_OK);
    assert_true(f->n_alive < 1000000 && f->stores[0].wait_ms < 0); // no time is left
    close_job(job);
    f->n_alive = 1;
    f->restore_ms = 60000;
    assert_int_equal(open_job(f, job, &f->plan, shares, 1, NULL, &err), SL_ERR_CANCELLED);
}

static void test_offload_names_the_store_that_is_lost(void **state) {
    struct fixture *f = *state;
    static const struct share shares[] = {{0, 0, 2, 0}, {1, 2, 2, 0}};
    struct job *job = &f->job;
    struct sl_error err = {0};
    assert_int_equal(open_job(f, job, &f->plan, shares, 2, NULL, &err), SL_OK);
    char address[64];
    snprintf(address, sizeof address, "%s", job->shares[1].address);
    job->shares[1].address = address; // outlives the store
    assert_int_equal(read_until(f, job, 1024, &err), SL_OK);
    fake_store_stop(&f->stores[1]);
    enum sl_status status = read_until(f, job, MAX_TOKENS, &err);
    if ((status != SL_ERR_PEER_LOST && status != SL_ERR_PEER_STALE) || !sl_error_blames(&err, address)) {
        fail_msg("%s: %s", sl_status_text(status), err.text); // stale: it was closing its grants just then
    }
    close_job(job);
    assert_int_equal(fake_store_n_leased(&f->stores[0]), 0);
}

static void test_offload_refuses_stores_that_do_not_fit(void **state) {
    struct fixture *f = *state;
    struct job *job = &f->job;
    struct sl_error err = {0};
    static const struct share gap[] = {{0, 0, 2, 0}, {1, 3, 1, 0}}, twice[] = {{0, 0, 4, 0}, {1, 0, 2, 1}};
    assert_int_equal(open_job(f, job, &f->plan, gap, 2, NULL, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "replica 0 has no store for offloaded head 2 of 4"));
    assert_int_equal(open_job(f, job, &f->plan, twice, 2, NULL, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "replica 1 has no store for offloaded head 2 of 4"));
    assert_int_equal(open_job(f, job, &f->plan, gap, 0, NULL, &err), SL_ERR_INVALID);
    static const struct share both[] = {{0, 0, 2, 0}, {1, 2, 2, 0}};
    f->stores[1].lease_ms = 2;
    for (int i = 0; i < 3; i++) {
        f->stores[1].full = i == 0;
        f->stores[1].says_exists = i == 1;
        const enum sl_status refusal = i == 0 ? SL_ERR_EXHAUSTED : i == 1 ? SL_ERR_PEER_LOST : SL_ERR_PEER_CORRUPT;
        assert_int_equal(open_job(f, job, &f->plan, both, 2, NULL, &err), refusal);
        assert_string_equal(err.culprit, fake_store_address(&f->stores[1]));
        assert_int_equal(fake_store_n_leased(&f->stores[0]), 0); // given back
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_offload_reads_with_the_bits_of_layers_held_here, start_shm, stop),
        cmocka_unit_test_setup_teardown(test_offload_is_divided_between_stores, start_tcp, stop),
        cmocka_unit_test_setup_teardown(test_offload_reads_from_the_replica_that_lives, start_tcp, stop),
        cmocka_unit_test_setup_teardown(test_offload_goes_on_from_what_is_stored, start_shm, stop),
        cmocka_unit_test_setup_teardown(test_offload_does_not_ship_what_is_stored, start_shm, stop),
        cmocka_unit_test_setup_teardown(test_offload_waits_for_what_stores_build, start_shm, stop),
        cmocka_unit_test_setup_teardown(test_offload_ships_what_a_budget_leaves, start_tcp, stop),
        cmocka_unit_test_setup_teardown(test_offload_waits_for_what_is_read_back, start_tcp, stop),
        cmocka_unit_test_setup_teardown(test_offload_names_the_store_that_is_lost, start_shm, stop),
        cmocka_unit_test_setup_teardown(test_offload_refuses_stores_that_do_not_fit, start_shm, stop),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
