// SPDX-License-Identifier: Apache-2.0
// Purpose: a job that goes on from what another recipe has read of its prompt writes what it would have written anyway.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/runner/local_internal.h"

#define N_PROMPT 700
#define N_ANSWER 12
#define SHARED   640 // whole chunks of 128 before the prompt's last token

struct fixture {
    struct sl_local *with, *without;
    int32_t prompt[N_PROMPT];
};

static struct sl_local *open_local(size_t shared_prefix_bytes) {
    struct sl_local_config config = {.model_dir = "models/demo",
                                     .threads = 2,
                                     .arena_bytes = (size_t)64 << 20,
                                     .shared_prefix_bytes = shared_prefix_bytes};
    struct sl_local *local;
    struct sl_error err = {0};
    if (sl_local_open(&config, &local, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    return local;
}

static void close_local(struct sl_local **local) {
    struct sl_arena_stats stats;
    sl_arena_get_stats((*local)->runtime.arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_local_close(local);
}

// Ids that repeat themselves now and then, so that attention has something to find.
static void fill(int32_t *ids, int32_t seed) {
    for (int64_t i = 0; i < N_PROMPT; i++) {
        ids[i] = (int32_t)((i * 37 + i / 50 * 11 + seed * 101) % 1900) + 50;
    }
}

static int setup(void **state) {
    static struct fixture f;
    f.without = open_local(0);
    f.with = open_local((size_t)256 << 20);
    fill(f.prompt, 1);
    *state = &f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    close_local(&f->with);
    close_local(&f->without);
    return 0;
}

struct job {
    int32_t ids[N_ANSWER];
    float logprobs[N_ANSWER];
    int64_t n;
    uint64_t pages; // a hash of the capsule's
    struct sl_local_result result;
};

static enum sl_status keep(void *arg, const struct sl_output_token *written) {
    struct job *job = arg;
    assert_true(job->n < N_ANSWER);
    job->logprobs[job->n] = written->token.logprob;
    job->ids[job->n++] = written->token.id;
    return SL_OK;
}

static enum sl_status hash_pages(void *arg, const struct sl_session *session, const struct sl_recipe *recipe,
                                 const int32_t *tokens, struct sl_error *err) {
    (void)recipe, (void)tokens, (void)err;
    struct job *job = arg;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        const struct sl_layer *layer = &session->layers[l];
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            const struct sl_head *head = &layer->heads[h];
            for (uint32_t p = 0; p < head->n_slots / SL_PAGE_SLOTS; p++) { // whole pages: all of their bytes are set
                size_t bytes = p < head->n_packed ? layer->packed.bytes : layer->work.bytes;
                job->pages = sl_hash(head->pages[p], bytes, job->pages);
            }
        }
    }
    return SL_OK;
}

static struct job ask(struct sl_local *local, const char *recipe, const int32_t *prompt, bool no_reuse) {
    struct job job = {0};
    struct sl_error err = {0};
    struct sl_local_request request = {.recipe = recipe,
                                       .prompt = prompt,
                                       .n_prompt = N_PROMPT,
                                       .sampling = {.top_p = 1, .repetition_penalty = 1},
                                       .max_new_tokens = N_ANSWER,
                                       .ignore_eos = true,
                                       .no_reuse = no_reuse,
                                       .token_fn = keep,
                                       .prefilled_fn = hash_pages,
                                       .arg = &job};
    if (sl_local_generate(local, &request, &job.result, &err) != SL_OK) {
        fail_msg("%s: %s", recipe, err.text);
    }
    free(job.result.text);
    return job;
}

static struct job run(struct sl_local *local, const char *recipe, const int32_t *prompt) {
    return ask(local, recipe, prompt, false);
}

// The same with and without; returns how many tokens were not read.
static int64_t reused(const struct fixture *f, const char *recipe) {
    struct job a = run(f->with, recipe, f->prompt), b = run(f->without, recipe, f->prompt);
    if (memcmp(a.ids, b.ids, sizeof a.ids) != 0 || memcmp(a.logprobs, b.logprobs, sizeof a.logprobs) != 0) {
        fail_msg("%s: another answer", recipe);
    }
    assert_true(a.pages == b.pages && a.result.capsule_bytes == b.result.capsule_bytes &&
                a.result.slots_evicted == b.result.slots_evicted);
    assert_true(a.result.slots_merged == b.result.slots_merged && a.result.n_tokens == N_PROMPT);
    assert_true(a.result.decode_resident_bytes == b.result.decode_resident_bytes);
    assert_int_equal(b.result.n_read, N_PROMPT);
    return a.result.n_tokens - a.result.n_read;
}

static void test_shared_prefix_is_shared_by_recipes_that_read_whole(void **state) {
    const struct fixture *f = *state;
    const struct {
        const char *recipe;
        int64_t reused; // after the ones before it
    } cases[] = {
        {"full,chunk=128", 0},
        {"full,chunk=128", SHARED},
        {"full,format=int4,chunk=128", SHARED},
        {"tailorkv,chunk=128", SHARED},
        {"full,chunk=64", SHARED}, // its chunks end there, too
        {"full,chunk=512", 512},   // one of them ends there, the next one goes on
        {"full,chunk=512", 512},
        {"h2o,budget=0.2,chunk=128", 0}, // evicts on the way
        {"h2o,budget=0.2,chunk=128", 0},
        {"snapkv,budget=128,chunk=128", SHARED}, // its slots have positions
        {"snapkv,budget=256,chunk=128", SHARED},
        {"snapkv+caote,budget=128,chunk=128", SHARED},
        {"adakv,budget=128,chunk=128", SHARED},
        {"pyramidkv,budget=128,chunk=128,format=int8", SHARED},
        {"kvzip,budget=0.3,chunk=128", SHARED}, // and scores, which are zero until it repeats the prompt
        {"kvzip,budget=0.3,chunk=64,format=int8", SHARED},
        {"streamingllm,budget=128,when=end,chunk=128", 0}, // keys are not rotated
        {"d2o,budget=0.2,chunk=128", 0},                   // its slots have scores
        {"d2o,budget=0.5,chunk=128", SHARED},
        {"h2o,budget=0.2,when=end,chunk=128", SHARED},
        {"d2o,budget=0.5,chunk=64", 0},            // which are summed up by chunks
        {"roco,budget=0.2,when=end,chunk=128", 0}, // others
        {"locret,budget=128,scope=tail:40,when=end,chunk=128", 0},
        {"locret,budget=256,scope=tail:20,when=end,chunk=128", SHARED},
        {"full,chunk=128", SHARED}, // of slots with scores and positions, which it has not
        {"kvzip,budget=0.3,chunk=128", SHARED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t n = reused(f, cases[i].recipe);
        if (n != cases[i].reused) {
            fail_msg("%zu: %s: %lld tokens were not read, not %lld", i, cases[i].recipe, (long long)n,
                     (long long)cases[i].reused);
        }
    }
}

static void test_shared_prefix_is_of_its_own_tokens(void **state) {
    struct fixture *f = *state;
    int32_t other[N_PROMPT];
    fill(other, 2);
    run(f->with, "full,chunk=128", f->prompt);
    struct job job = run(f->with, "full,chunk=128", other);
    assert_int_equal(job.result.n_read, N_PROMPT);
    fill(other, 1);
    other[SHARED + 3]++; // after what is kept
    run(f->with, "full,chunk=128", f->prompt);
    job = ask(f->with, "full,chunk=128", other, true);
    assert_int_equal(job.result.n_read, N_PROMPT);
    run(f->with, "full,chunk=128", f->prompt);
    job = run(f->with, "full,chunk=128", other);
    assert_int_equal(job.result.n_read, N_PROMPT - SHARED);
    struct job again = run(f->without, "full,chunk=128", other);
    assert_memory_equal(job.logprobs, again.logprobs, sizeof job.logprobs);
    other[SHARED - 1]++; // in its last chunk
    job = run(f->with, "full,chunk=128", other);
    assert_int_equal(job.result.n_read, N_PROMPT - (SHARED - 128));
    again = run(f->without, "full,chunk=128", other);
    assert_memory_equal(job.logprobs, again.logprobs, sizeof job.logprobs);
    assert_true(job.pages == again.pages);
}

// Sums over more tokens than the prompts have in common are no sums of the common ones.
static void test_shared_prefix_with_scores_is_taken_whole(void **state) {
    const struct fixture *f = *state;
    int32_t other[N_PROMPT];
    fill(other, 1);
    other[SHARED - 1]++;
    run(f->with, "h2o,budget=0.2,when=end,chunk=128", f->prompt);
    struct job job = run(f->with, "h2o,budget=0.2,when=end,chunk=128", other);
    assert_int_equal(job.result.n_read, N_PROMPT);
    run(f->with, "h2o,budget=0.2,when=end,chunk=128", f->prompt);
    job = run(f->with, "snapkv,budget=128,chunk=128", other); // its planes are not filled by reading
    struct job again = run(f->without, "snapkv,budget=128,chunk=128", other);
    assert_int_equal(job.result.n_read, N_PROMPT - (SHARED - 128));
    assert_memory_equal(job.logprobs, again.logprobs, sizeof job.logprobs);
    assert_true(job.pages == again.pages);
}

static void test_shared_prefix_larger_than_its_memory_is_not_kept(void **state) {
    const struct fixture *f = *state;
    struct sl_local *local = open_local(100000);
    for (int i = 0; i < 2; i++) {
        struct job job = run(local, "full,chunk=128", f->prompt);
        assert_int_equal(job.result.n_read, N_PROMPT);
    }
    close_local(&local);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_prefix_is_shared_by_recipes_that_read_whole),
        cmocka_unit_test(test_shared_prefix_is_of_its_own_tokens),
        cmocka_unit_test(test_shared_prefix_with_scores_is_taken_whole),
        cmocka_unit_test(test_shared_prefix_larger_than_its_memory_is_not_kept),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
