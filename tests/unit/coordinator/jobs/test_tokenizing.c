// SPDX-License-Identifier: Apache-2.0
// Purpose: tenants share the time of tokenizing, deadlines hold meanwhile, and the tokens are the same.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/thread.h"
#include "coordinator/jobs/tokenizing.h"
#include "engine/text/tokenizer/tokenizer.h"

#define MODEL "models/demo"

enum { N_LOUD = 6, TEXT_BYTES = 2 << 20, N_TURNS = 1 };

static struct sl_tokenizer *tokenizer;
static struct sl_tenants *tenants;
static struct sl_tokenizing *tokenizing;
static atomic_int n_loud_ended;
static char *text;

static int set_up(void **state) {
    (void)state;
    static const char words[] = "Once upon a time, 17 tokens were counted twice. ";
    struct sl_error err;
    text = malloc(TEXT_BYTES + 1);
    for (size_t i = 0; i < TEXT_BYTES; i++) {
        text[i] = words[i % (sizeof words - 1)];
    }
    text[TEXT_BYTES] = '\0';
    assert_int_equal(sl_tokenizer_load(MODEL, &tokenizer, &err), SL_OK);
    assert_int_equal(sl_tenants_create(50, &tenants, &err), SL_OK);
    return sl_tokenizing_create(N_TURNS, &tokenizing, &err) == SL_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    sl_tokenizing_destroy(&tokenizing);
    sl_tenants_destroy(&tenants); // no reference is left
    sl_tokenizer_destroy(&tokenizer);
    free(text);
    return 0;
}

static enum sl_status tokenize(const char *tenant, const char *what, int64_t deadline_ns, struct sl_error *err) {
    struct sl_tokenizing_turn turn;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    enum sl_status status = sl_tokenizing_begin(tokenizing, tenants, tenant, deadline_ns, &turn, err);
    if (status == SL_OK) {
        status = sl_tokenizer_encode(tokenizer, what, strlen(what), true, &ids, &n_ids, err);
        sl_tokenizing_end(&turn);
    }
    free(ids);
    return status;
}

static void *loud_main(void *arg) {
    struct sl_error err;
    (void)arg;
    assert_int_equal(tokenize("loud", text, SL_NO_DEADLINE, &err), SL_OK);
    atomic_fetch_add(&n_loud_ended, 1);
    return NULL;
}

static struct sl_tokenizing_stats stats(void) {
    struct sl_tokenizing_stats now;
    sl_tokenizing_get_stats(tokenizing, &now);
    return now;
}

static void *quiet_main(void *n_before_out) {
    struct sl_error err;
    assert_int_equal(tokenize("quiet", text, SL_NO_DEADLINE, &err), SL_OK);
    *(int *)n_before_out = atomic_load(&n_loud_ended);
    return NULL;
}

static void wait_for_waits(uint64_t n) {
    while (stats().n_waits < n) {
        sl_sleep_ms(1);
    }
}

// Six texts of one tenant are before it. A text of another tenant ends first, as each of the two gets half of the time.
static void test_a_tenant_does_not_wait_for_anothers_texts(void **state) {
    (void)state;
    pthread_t threads[N_LOUD + 1];
    struct sl_tokenizing_turn turn; // nothing is tokenized until all wait
    struct sl_error err;
    int n_before = -1;
    assert_int_equal(sl_tokenizing_begin(tokenizing, tenants, "first", SL_NO_DEADLINE, &turn, &err), SL_OK);
    for (int i = 0; i < N_LOUD; i++) {
        assert_int_equal(sl_thread_start("loud", loud_main, NULL, &threads[i], &err), SL_OK);
    }
    wait_for_waits(N_LOUD);
    assert_int_equal(sl_thread_start("quiet", quiet_main, &n_before, &threads[N_LOUD], &err), SL_OK);
    wait_for_waits(N_LOUD + 1);
    sl_tokenizing_end(&turn);
    for (int i = 0; i <= N_LOUD; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(n_before, 0);
    assert_int_equal(atomic_load(&n_loud_ended), N_LOUD);
    assert_int_equal(stats().n_expired, 0);
}

static void test_a_deadline_ends_tokenizing(void **state) {
    (void)state;
    static char word[TEXT_BYTES + 1]; // one piece: its merges alone take as long
    memset(word, 'a', TEXT_BYTES);
    const char *const texts[] = {text, word};
    for (int i = 0; i < 2; i++) {
        const struct sl_tokenizing_stats before = stats();
        struct sl_error err;
        assert_int_equal(tokenize("acme", texts[i], sl_deadline_in_ms(10), &err), SL_ERR_DEADLINE);
        assert_non_null(strstr(err.text, "while the text was tokenized"));
        assert_int_equal(stats().n_expired, before.n_expired + 1);
    }
}

static void test_a_deadline_ends_waiting(void **state) {
    (void)state;
    struct sl_tokenizing_turn turn;
    struct sl_error err;
    const struct sl_tokenizing_stats before = stats();
    assert_int_equal(sl_tokenizing_begin(tokenizing, tenants, "acme", SL_NO_DEADLINE, &turn, &err), SL_OK);
    assert_int_equal(tokenize("other", "a", sl_deadline_in_ms(30), &err), SL_ERR_DEADLINE);
    assert_int_equal(stats().n_expired, before.n_expired + 1);
    sl_tokenizing_end(&turn);
    assert_int_equal(tokenize("other", "a", SL_NO_DEADLINE, &err), SL_OK);
}

static void test_a_tenant_leaves_a_turn_to_others(void **state) {
    (void)state;
    struct sl_tokenizing *two;
    struct sl_tokenizing_turn loud, more, quiet;
    struct sl_error err;
    assert_int_equal(sl_tokenizing_create(2, &two, &err), SL_OK);
    assert_int_equal(sl_tokenizing_begin(two, tenants, "loud", SL_NO_DEADLINE, &loud, &err), SL_OK);
    assert_int_equal(sl_tokenizing_begin(two, tenants, "loud", sl_deadline_in_ms(30), &more, &err), SL_ERR_DEADLINE);
    assert_int_equal(sl_tokenizing_begin(two, tenants, "quiet", 0, &quiet, &err), SL_OK);
    sl_tokenizing_end(&loud);
    sl_tokenizing_end(&quiet);
    sl_tokenizing_destroy(&two);
}

// Time that a tenant did not use while it asked nothing is not saved: it would have every turn for as long.
static void test_a_tenant_saves_no_time(void **state) {
    (void)state;
    const int64_t used_ns = 20 * SL_NS_PER_MS;
    struct sl_tenant *loud, *late;
    struct sl_tokenizing_turn turn, refused;
    struct sl_error err;
    assert_int_equal(sl_tenants_take(tenants, "loud", &loud, &err), SL_OK);
    assert_int_equal(sl_tenants_take(tenants, "late", &late, &err), SL_OK);
    assert_int_equal(sl_tokenizing_begin(tokenizing, tenants, "loud", SL_NO_DEADLINE, &turn, &err), SL_OK);
    sl_sleep_ms(used_ns / SL_NS_PER_MS);
    sl_tokenizing_end(&turn);
    assert_true(loud->tokenizing_ns >= used_ns);
    assert_int_equal(sl_tokenizing_begin(tokenizing, tenants, "loud", SL_NO_DEADLINE, &turn, &err), SL_OK);
    assert_int_equal(sl_tokenizing_begin(tokenizing, tenants, "late", 0, &refused, &err), SL_ERR_DEADLINE);
    assert_true(late->tokenizing_ns >= used_ns);
    sl_tokenizing_end(&turn);
    sl_tenant_give(&loud);
    sl_tenant_give(&late);
}

static void test_pauses_change_no_token(void **state) {
    (void)state;
    struct sl_tokenizing_turn turn;
    struct sl_error err;
    int32_t *ids[2];
    size_t n_ids[2];
    assert_int_equal(sl_tokenizer_encode(tokenizer, text, TEXT_BYTES, true, &ids[0], &n_ids[0], &err), SL_OK);
    assert_int_equal(sl_tokenizing_begin(tokenizing, tenants, "acme", SL_NO_DEADLINE, &turn, &err), SL_OK);
    assert_int_equal(sl_tokenizer_encode(tokenizer, text, TEXT_BYTES, true, &ids[1], &n_ids[1], &err), SL_OK);
    sl_tokenizing_end(&turn);
    assert_int_equal(n_ids[0], n_ids[1]);
    assert_memory_equal(ids[0], ids[1], n_ids[0] * sizeof *ids[0]);
    free(ids[0]);
    free(ids[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_tenant_does_not_wait_for_anothers_texts),
        cmocka_unit_test(test_a_deadline_ends_tokenizing),
        cmocka_unit_test(test_a_deadline_ends_waiting),
        cmocka_unit_test(test_a_tenant_leaves_a_turn_to_others),
        cmocka_unit_test(test_a_tenant_saves_no_time),
        cmocka_unit_test(test_pauses_change_no_token),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
