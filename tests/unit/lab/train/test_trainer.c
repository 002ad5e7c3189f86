// SPDX-License-Identifier: Apache-2.0
// Purpose: a run of training: it learns, it goes on where it was stopped, and what it writes is whole.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/clock.h"
#include "lab/train/trainer.h"
#include "tests/unit/lab/train/teacher.h"

#define DEMO       "models/demo"
#define N_EXAMPLES 6
#define N_STEPS    30

// --- prompts ---------------------------------------------------------------------------------------------------------

// The demo model's, of tokens that mean nothing: attention has its habits there too.
struct pool {
    struct test_teacher teacher;
    struct sl_example examples[N_EXAMPLES];
};

static enum sl_status get_example(void *arg, uint64_t index, const struct sl_example **example_out,
                                  struct sl_error *err) {
    struct pool *pool = arg;
    (void)err;
    *example_out = &pool->examples[(index * 5 + index / N_EXAMPLES) % N_EXAMPLES];
    return SL_OK;
}

static int set_up(void **state) {
    struct pool *pool = calloc(1, sizeof *pool);
    assert_non_null(pool);
    pool->teacher = test_teacher_start(DEMO, "auto");
    for (int i = 0; i < N_EXAMPLES; i++) {
        int32_t tokens[300];
        struct sl_error err = {0};
        int n_prompt = 120 + 20 * i;
        for (int t = 0; t < n_prompt + 5; t++) {
            tokens[t] = (int32_t)(((uint64_t)(1000 * i + t) * 0x9e3779b97f4a7c15u >> 32) % 2000);
        }
        assert_int_equal(
            sl_example_read(&pool->teacher.teacher, tokens, n_prompt + 5, n_prompt, &pool->examples[i], &err), SL_OK);
    }
    *state = pool;
    return 0;
}

static int tear_down(void **state) {
    struct pool *pool = *state;
    for (int i = 0; i < N_EXAMPLES; i++) {
        sl_example_cleanup(&pool->examples[i]);
    }
    test_teacher_stop(&pool->teacher);
    free(pool);
    return 0;
}

struct run {
    struct sl_heads *heads;
    struct sl_trainer trainer;
};

static struct run start(struct pool *pool) {
    struct run run;
    struct sl_error err = {0};
    struct sl_heads_shape shape = sl_heads_shape_of(pool->teacher.config, 32);
    struct sl_trainer_config config = {
        .n_steps = N_STEPS,
        .warm_up = 10,
        .batch = 2,
        .smooth = 0.0025,
        .adamw = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.01, .clip = 0.5}};
    assert_int_equal(sl_heads_create(&shape, pool->teacher.ops, NULL, 0.02, 1, &run.heads, &err), SL_OK);
    assert_int_equal(sl_trainer_init(&run.trainer, &config, run.heads, &err), SL_OK);
    return run;
}

static void stop(struct run *run) {
    sl_trainer_cleanup(&run->trainer);
    sl_heads_destroy(&run->heads);
}

static void walk(struct run *run, struct pool *pool, int n_steps) {
    struct sl_example_source source = {get_example, pool};
    struct sl_error err = {0};
    for (int i = 0; i < n_steps; i++) {
        if (sl_trainer_step(&run->trainer, &source, &err) != SL_OK) {
            fail_msg("%s", err.text);
        }
    }
}

static void assert_same(struct run *a, struct run *b) {
    const struct sl_heads_state *s = sl_heads_get_state(a->heads), *t = sl_heads_get_state(b->heads);
    assert_int_equal(s->n_steps, t->n_steps);
    assert_memory_equal(s->parameters, t->parameters, s->n * sizeof(float));
    assert_memory_equal(s->means, t->means, s->n * sizeof(float));
    assert_memory_equal(s->squares, t->squares, s->n * sizeof(float));
    assert_memory_equal(a->trainer.curve_memory, b->trainer.curve_memory, 3 * N_STEPS * sizeof(float));
}

// --- learning --------------------------------------------------------------------------------------------------------

static void test_loss_falls_and_overlap_grows_on_the_demo_model(void **state) {
    struct pool *pool = *state;
    struct run run = start(pool);
    walk(&run, pool, 3);
    struct sl_heads_loss first = sl_trainer_recent(&run.trainer, 3);
    assert_false(sl_trainer_done(&run.trainer));
    walk(&run, pool, N_STEPS - 3);
    struct sl_heads_loss last = sl_trainer_recent(&run.trainer, 3);
    assert_true(sl_trainer_done(&run.trainer));
    assert_true(last.smooth_l1 < 0.7 * first.smooth_l1); // it is two fifths
    assert_true(last.overlap > first.overlap + 0.1);
    stop(&run);
}

// --- checkpoints -----------------------------------------------------------------------------------------------------

static const struct sl_trainer_fact facts[] = {{"--model", "1234"}, {"--hidden", "32"}};
#define N_FACTS (sizeof facts / sizeof facts[0])

static void test_a_run_that_was_stopped_goes_on_to_the_same_bits(void **state) {
    struct pool *pool = *state;
    struct temp_folder folder = temp_folder_create();
    struct sl_error err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/run", folder.path);
    struct run whole = start(pool), first = start(pool), second = start(pool);
    assert_int_equal(sl_trainer_load(&second.trainer, path, facts, N_FACTS, &err), SL_ERR_NOT_FOUND);
    walk(&whole, pool, N_STEPS);
    walk(&first, pool, 11); // in the middle of a round of examples
    assert_int_equal(sl_trainer_save(&first.trainer, path, facts, N_FACTS, &err), SL_OK);
    walk(&second, pool, 4); // what it has done is forgotten
    memset(second.trainer.curve_memory, 0, 3 * N_STEPS * sizeof(float));
    assert_int_equal(sl_trainer_load(&second.trainer, path, facts, N_FACTS, &err), SL_OK);
    assert_same(&first, &second);
    walk(&second, pool, N_STEPS - 11);
    assert_same(&whole, &second);
    stop(&whole);
    stop(&first);
    stop(&second);
    temp_folder_destroy(&folder);
}

static void test_a_checkpoint_of_another_run_is_refused_by_name(void **state) {
    struct pool *pool = *state;
    struct temp_folder folder = temp_folder_create();
    struct sl_error err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/run", folder.path);
    struct run run = start(pool);
    assert_int_equal(sl_trainer_save(&run.trainer, path, facts, N_FACTS, &err), SL_OK);
    const struct sl_trainer_fact other[] = {{"--model", "1234"}, {"--hidden", "64"}};
    assert_int_equal(sl_trainer_load(&run.trainer, path, other, N_FACTS, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "was made with --hidden 32, now it is 64"));
    const struct sl_trainer_fact more[] = {{"--model", "1234"}, {"--hidden", "32"}, {"--seed", "0"}};
    assert_int_equal(sl_trainer_load(&run.trainer, path, more, 3, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "--seed"));
    stop(&run);
    temp_folder_destroy(&folder);
}

static void test_a_broken_checkpoint_is_refused(void **state) {
    struct pool *pool = *state;
    struct temp_folder folder = temp_folder_create();
    struct sl_error err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/run", folder.path);
    struct run run = start(pool);
    walk(&run, pool, 2);
    assert_int_equal(sl_trainer_save(&run.trainer, path, facts, N_FACTS, &err), SL_OK);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t room = 4 * sl_heads_get_state(run.heads)->n * sizeof(float);
    unsigned char *bytes = malloc(room);
    assert_non_null(bytes);
    size_t n = fread(bytes, 1, room, file);
    fclose(file);
    assert_true(n > 1000 && n < room);
    const struct {
        size_t n, changed;
    } cases[] = {{0, 0},     {10, 0},    {50, 0},  {n - 1, 0}, {n - 9, 0},
                 {n, n - 1}, {n, n / 2}, {n, 200}, {n, 2},     {n + 1, n}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bytes[cases[i].changed] ^= 1;
        temp_folder_write(&folder, "run", bytes, cases[i].n);
        bytes[cases[i].changed] ^= 1;
        assert_int_equal(sl_trainer_load(&run.trainer, path, facts, N_FACTS, &err), SL_ERR_INVALID);
        assert_non_null(strstr(err.text, "/run"));
    }
    temp_folder_write(&folder, "run", bytes, n);
    assert_int_equal(sl_trainer_load(&run.trainer, path, facts, N_FACTS, &err), SL_OK);
    free(bytes);
    stop(&run);
    temp_folder_destroy(&folder);
}

// --- files -----------------------------------------------------------------------------------------------------------

// A process that does nothing but write is killed now and then: what is under the name is always whole.
static void test_a_kill_while_writing_leaves_a_whole_file(void **state) {
    struct pool *pool = *state;
    struct temp_folder folder = temp_folder_create();
    struct sl_error err = {0};
    char checkpoint[128], heads[128];
    snprintf(checkpoint, sizeof checkpoint, "%s/run", folder.path);
    snprintf(heads, sizeof heads, "%s/%s", folder.path, SL_HEADS_FILE);
    temp_folder_copy(&folder, DEMO, "config.json");
    struct run run = start(pool), found = start(pool);
    walk(&run, pool, 1);
    assert_int_equal(sl_trainer_save(&run.trainer, checkpoint, facts, N_FACTS, &err), SL_OK);
    assert_int_equal(sl_heads_write(run.heads, heads, SL_BF16, &err), SL_OK);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        while (child == 0) {
            if (sl_trainer_save(&run.trainer, checkpoint, facts, N_FACTS, &err) != SL_OK ||
                sl_heads_write(run.heads, heads, SL_BF16, &err) != SL_OK) {
                _exit(1);
            }
        }
        sl_sleep_ms(3 + 7 * i % 40);
        int how;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how)); // it had not given up
        assert_int_equal(sl_trainer_load(&found.trainer, checkpoint, facts, N_FACTS, &err), SL_OK);
        assert_same(&run, &found);
        struct sl_model_config config;
        assert_int_equal(sl_model_config_load(folder.path, &config, &err), SL_OK); // looks at the heads, too
        assert_int_equal(config.retaining_hidden, 32);
    }
    stop(&run);
    stop(&found);
    temp_folder_destroy(&folder);
}

static void test_a_folder_that_is_not_there_is_named(void **state) {
    struct pool *pool = *state;
    struct run run = start(pool);
    struct sl_error err = {0};
    assert_int_equal(sl_trainer_save(&run.trainer, "/nonexistent/run", facts, N_FACTS, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "/nonexistent/run"));
    assert_int_equal(sl_heads_write(run.heads, "/nonexistent/heads", SL_BF16, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "/nonexistent/heads"));
    stop(&run);
}

static void test_heads_that_are_not_finite_are_not_written(void **state) {
    struct pool *pool = *state;
    struct temp_folder folder = temp_folder_create();
    struct run run = start(pool);
    struct sl_error err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/heads", folder.path);
    sl_heads_get_state(run.heads)->parameters[17] = NAN;
    assert_int_equal(sl_heads_write(run.heads, path, SL_BF16, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "diverged"));
    assert_int_not_equal(access(path, F_OK), 0);
    struct sl_example_source source = {get_example, pool};
    assert_int_equal(sl_trainer_step(&run.trainer, &source, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "step 1"));
    stop(&run);
    temp_folder_destroy(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_falls_and_overlap_grows_on_the_demo_model),
        cmocka_unit_test(test_a_run_that_was_stopped_goes_on_to_the_same_bits),
        cmocka_unit_test(test_a_checkpoint_of_another_run_is_refused_by_name),
        cmocka_unit_test(test_a_broken_checkpoint_is_refused),
        cmocka_unit_test(test_a_kill_while_writing_leaves_a_whole_file),
        cmocka_unit_test(test_a_folder_that_is_not_there_is_named),
        cmocka_unit_test(test_heads_that_are_not_finite_are_not_written),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
