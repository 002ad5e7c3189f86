// SPDX-License-Identifier: Apache-2.0
// Reports of loading: they come while bytes or tasks get done, and only then.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/processors.h"
#include "engine/model/model_internal.h"
#include "engine/runtime/loading.h"
#include "engine/runtime/runtime.h"
#include "tests/unit/needs_sharing.h"
#include "tests/unit/temp_folder.h"

struct heard {
    _Atomic int n;
    _Atomic size_t done, total;
    bool stops;
};

static bool hear(void *arg, size_t done_bytes, size_t total_bytes) {
    struct heard *heard = arg;
    atomic_store(&heard->done, done_bytes);
    atomic_store(&heard->total, total_bytes);
    atomic_fetch_add(&heard->n, 1);
    return !heard->stops;
}

static bool hears(const struct heard *heard, int n) {
    for (int64_t until = sl_deadline_in_ms(20000); atomic_load(&heard->n) < n && sl_deadline_left_ms(until) > 0;) {
        sl_sleep_ms(5);
    }
    return atomic_load(&heard->n) >= n;
}

static void do_nothing(void *arg, int64_t begin, int64_t end, int member) {
    (void)arg;
    (void)begin;
    (void)end;
    (void)member;
}

static void test_loading_reports_what_moves(void **state) {
    (void)state;
    struct heard heard = {0};
    struct sl_team *team;
    struct sl_loading loading;
    assert_int_equal(sl_team_create(2, &team, NULL), SL_OK);
    struct sl_team *const teams[] = {NULL, team};
    const struct sl_loading_config config = {"a model", teams, 2, hear, &heard};
    assert_int_equal(sl_loading_begin(&loading, &config, NULL), SL_OK);
    sl_sleep_ms(700);
    assert_int_equal(atomic_load(&heard.n), 0); // the file is not open, nothing was done

    atomic_store(&loading.progress.total_bytes, 1000);
    atomic_store(&loading.progress.done_bytes, 10);
    assert_true(hears(&heard, 1));
    assert_int_equal(atomic_load(&heard.done), 10);
    assert_int_equal(atomic_load(&heard.total), 1000);
    sl_sleep_ms(700);
    assert_int_equal(atomic_load(&heard.n), 1); // silent while nothing moves

    sl_team_run(team, 8, 1, do_nothing, NULL); // within a matrix
    assert_true(hears(&heard, 2));
    assert_int_equal(atomic_load(&heard.done), 10);
    sl_loading_end(&loading);
    int n = atomic_load(&heard.n);
    atomic_store(&loading.progress.done_bytes, 1000);
    sl_sleep_ms(400);
    assert_int_equal(atomic_load(&heard.n), n); // none after the end
    sl_team_destroy(&team);
}

static void test_report_stops_the_loading(void **state) {
    (void)state;
    struct heard heard = {.stops = true};
    struct sl_loading loading;
    const struct sl_loading_config config = {.model = "models/demo", .report_fn = hear, .arg = &heard};
    assert_int_equal(sl_loading_begin(&loading, &config, NULL), SL_OK);
    assert_false(atomic_load(&loading.progress.stops));
    atomic_store(&loading.progress.total_bytes, 1000);
    for (int64_t until = sl_deadline_in_ms(20000); !atomic_load(&heard.n) && sl_deadline_left_ms(until) > 0;) {
        atomic_fetch_add(&loading.progress.done_bytes, 1); // the other thread may begin to look only now
        sl_sleep_ms(5);
    }
    sl_loading_end(&loading);
    assert_true(atomic_load(&loading.progress.stops));

    struct sl_runtime runtime;
    const struct sl_runtime_config means = {.tier = "auto", .threads = 1};
    struct sl_model *model = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_runtime_open(&means, &runtime, NULL), SL_OK);
    assert_int_equal(
        sl_model_load("models/demo", runtime.ops, SL_WEIGHT_INT8, runtime.stream, &loading.progress, &model, &err),
        SL_ERR_CANCELLED);
    assert_null(model);
    assert_int_equal(sl_model_load_shared("models/demo", runtime.ops, SL_WEIGHT_INT8, runtime.stream, &loading.progress,
                                          &model, &err),
                     SL_ERR_CANCELLED);
    atomic_store(&loading.progress.stops, false); // and nothing stays that hinders the next loading
    assert_int_equal(sl_model_load_shared("models/demo", runtime.ops, SL_WEIGHT_INT8, runtime.stream, &loading.progress,
                                          &model, &err),
                     SL_OK);
    sl_model_destroy(&model);
    sl_runtime_close(&runtime);
}

// The counter ends at all that the file has: in one of tied embeddings every tensor is needed.
static void test_model_counts_all_of_its_bytes(void **state) {
    (void)state;
    struct sl_runtime runtime;
    struct sl_model_progress progress = {0};
    struct sl_model *model;
    const struct sl_runtime_config config = {.tier = "auto", .threads = 1};
    assert_int_equal(sl_runtime_open(&config, &runtime, NULL), SL_OK);
    assert_int_equal(sl_model_load("models/demo", runtime.ops, SL_WEIGHT_INT8, runtime.stream, &progress, &model, NULL),
                     SL_OK);
    assert_true(atomic_load(&progress.total_bytes) > 1000000);
    assert_int_equal(atomic_load(&progress.done_bytes), atomic_load(&progress.total_bytes));
    sl_model_destroy(&model);
    sl_runtime_close(&runtime);
}

// The tokenizer is loaded in a thread of its own: its error arrives, and that of the weights comes first.
static void test_errors_of_the_tokenizer_and_of_the_weights(void **state) {
    (void)state;
    struct temp_folder folder = temp_folder_create();
    struct sl_runtime runtime;
    struct sl_error err = {0};
    struct sl_runtime_config config = {.tier = "auto", .threads = 1, .model_dir = folder.path, .tokenizer = true};
    temp_folder_copy(&folder, "models/demo", "config.json");
    temp_folder_copy(&folder, "models/demo", "model.safetensors");
    assert_int_equal(sl_runtime_open(&config, &runtime, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "tokenizer.json"));
    temp_folder_write_text(&folder, "tokenizer.json", "{\"model\": 7}");
    assert_int_equal(sl_runtime_open(&config, &runtime, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, folder.path));
    assert_non_null(strstr(err.text, "model"));
    config.tokenizer = false;
    assert_int_equal(sl_runtime_open(&config, &runtime, &err), SL_OK);
    assert_null(runtime.tokenizer);
    sl_runtime_close(&runtime);
    config.tokenizer = true;
    temp_folder_destroy(&folder);
    folder = temp_folder_create();
    temp_folder_copy(&folder, "models/demo", "config.json");
    assert_int_equal(sl_runtime_open(&config, &runtime, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "safetensors"));
    temp_folder_copy(&folder, "models/demo", "model.safetensors");
    temp_folder_copy(&folder, "models/demo", "tokenizer.json");
    assert_int_equal(sl_runtime_open(&config, &runtime, &err), SL_OK);
    assert_non_null(runtime.tokenizer);
    assert_int_equal(sl_tokenizer_vocab_size(runtime.tokenizer), sl_model_get_config(runtime.model)->n_vocab);
    sl_runtime_close(&runtime);
    temp_folder_destroy(&folder);
}

static const struct sl_ops *keep_ops(const struct sl_ops *ops) {
    return ops;
}

static bool shares(struct sl_runtime_config config) {
    struct sl_runtime runtime;
    config.model_dir = "models/demo";
    config.threads = 2;
    assert_int_equal(sl_runtime_open(&config, &runtime, NULL), SL_OK);
    bool shares = runtime.model->shared != NULL;
    sl_runtime_close(&runtime);
    return shares;
}

// Ranks have shares of the weights, and a replaced table may pack in its own way.
static void test_weights_are_shared_only_where_they_are_the_tiers(void **state) {
    (void)state;
    assert_false(shares((struct sl_runtime_config){.share_weights = false}));
    assert_false(shares((struct sl_runtime_config){.share_weights = true, .ranks = 2}));
    assert_false(shares((struct sl_runtime_config){.share_weights = true, .device = "emulated"}));
    assert_false(shares((struct sl_runtime_config){.share_weights = true, .instead = keep_ops}));
    skip_without_sharing();
    assert_int_equal(shares((struct sl_runtime_config){.share_weights = true}), sl_processors_node("") >= 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loading_reports_what_moves),
                                       cmocka_unit_test(test_report_stops_the_loading),
                                       cmocka_unit_test(test_weights_are_shared_only_where_they_are_the_tiers),
                                       cmocka_unit_test(test_model_counts_all_of_its_bytes),
                                       cmocka_unit_test(test_errors_of_the_tokenizer_and_of_the_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
