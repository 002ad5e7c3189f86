// SPDX-License-Identifier: Apache-2.0
// Purpose: checks which candidate leads, for how long, and under which term. The leader key is a struct here; the test moves the clock.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "coordinator/election/candidate.h"

#define MS SL_NS_PER_MS

static int64_t clock_ns;

static int64_t now(void) {
    return clock_ns;
}

// As etcd is: leases end by the clock, and revisions rise with every change.
struct fake_key {
    bool away;          // answers nothing
    bool loses_answers; // does what it is told, and the answer is lost
    int64_t revision, last_lease;
    struct {
        int64_t id, ttl_ms, ends_ns;
    } leases[16];
    struct sl_leader_key taken; // term 0: free
    int n_taken;
};

static void expire(struct fake_key *key) {
    for (int i = 0; i < 16; i++) {
        if (key->leases[i].id != 0 && clock_ns >= key->leases[i].ends_ns) {
            if (key->taken.lease == key->leases[i].id) {
                key->taken = (struct sl_leader_key){0};
                key->revision++;
            }
            key->leases[i].id = 0;
        }
    }
}

static enum sl_status answer(struct fake_key *key, struct sl_error *err) {
    return key->loses_answers ? sl_fail(err, SL_ERR_DEADLINE, "the answer was lost") : SL_OK;
}

static enum sl_status grant(void *arg, int64_t ttl_ms, int64_t *lease_out, struct sl_error *err) {
    struct fake_key *key = arg;
    if (key->away) {
        return sl_fail(err, SL_ERR_PEER_LOST, "away");
    }
    expire(key);
    for (int i = 0; i < 16; i++) {
        if (key->leases[i].id == 0) {
            key->leases[i].id = *lease_out = ++key->last_lease;
            key->leases[i].ttl_ms = ttl_ms;
            key->leases[i].ends_ns = clock_ns + ttl_ms * MS;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_EXHAUSTED, "too many leases");
}

static enum sl_status renew(void *arg, int64_t lease, struct sl_error *err) {
    struct fake_key *key = arg;
    if (key->away) {
        return sl_fail(err, SL_ERR_PEER_LOST, "away");
    }
    expire(key);
    for (int i = 0; i < 16; i++) {
        if (key->leases[i].id == lease) {
            key->leases[i].ends_ns = clock_ns + key->leases[i].ttl_ms * MS;
            return answer(key, err);
        }
    }
    return sl_fail(err, SL_ERR_NOT_FOUND, "ended");
}

static enum sl_status revoke(void *arg, int64_t lease, struct sl_error *err) {
    struct fake_key *key = arg;
    if (key->away) {
        return sl_fail(err, SL_ERR_PEER_LOST, "away");
    }
    for (int i = 0; i < 16; i++) {
        if (key->leases[i].id == lease) {
            key->leases[i].ends_ns = clock_ns;
        }
    }
    expire(key);
    return SL_OK;
}

static enum sl_status look(void *arg, struct sl_leader_key *key_out, struct sl_error *err) {
    struct fake_key *key = arg;
    if (key->away) {
        return sl_fail(err, SL_ERR_PEER_LOST, "away");
    }
    expire(key);
    if (key->taken.term == 0) {
        return SL_ERR_NOT_FOUND;
    }
    *key_out = key->taken;
    return SL_OK;
}

static enum sl_status take(void *arg, int64_t lease, const char *holder, struct sl_leader_key *key_out,
                           struct sl_error *err) {
    struct fake_key *key = arg;
    if (key->away) {
        return sl_fail(err, SL_ERR_PEER_LOST, "away");
    }
    expire(key);
    if (key->taken.term == 0) {
        key->taken = (struct sl_leader_key){.term = ++key->revision, .lease = lease};
        snprintf(key->taken.holder, sizeof key->taken.holder, "%s", holder);
        key->n_taken++;
    }
    *key_out = key->taken;
    return answer(key, err);
}

static const struct sl_leader_key_ops ops = {grant, renew, revoke, look, take};
static struct fake_key key;
static struct sl_candidate a, b;

static void begin(void) {
    const struct sl_candidate_config config = {
        .ops = &ops, .arg = &key, .now_fn = now, .ttl_ms = 5000, .renew_ms = 1500, .fence_ms = 3500};
    struct sl_candidate_config one = config, other = config;
    one.address = "a:1";
    other.address = "b:1";
    clock_ns = 1000 * MS;
    key = (struct fake_key){.revision = 6};
    sl_candidate_init(&a, &one);
    sl_candidate_init(&b, &other);
}

static void end(void) {
    sl_candidate_cleanup(&a);
    sl_candidate_cleanup(&b);
}

static const char *leader_of(struct sl_candidate *candidate) {
    static char text[SL_LEADER_BYTES];
    sl_candidate_leader(candidate, text);
    return text;
}

static void test_candidate_takes_a_free_seat_and_the_other_follows(void **state) {
    (void)state;
    begin();
    assert_int_equal(sl_candidate_term(&a), 0); // a candidate does not lead before its first step
    int64_t next_ns = sl_candidate_step(&a);
    assert_int_equal(sl_candidate_term(&a), 7);
    assert_string_equal(leader_of(&a), "a:1");
    assert_int_equal(next_ns, clock_ns + 1500 * MS);
    sl_candidate_step(&b);
    assert_int_equal(sl_candidate_term(&b), 0);
    assert_string_equal(leader_of(&b), "a:1");
    for (int i = 0; i < 20; i++) { // and so it stays
        clock_ns += 1500 * MS;
        sl_candidate_step(&a);
        sl_candidate_step(&b);
        assert_int_equal(sl_candidate_term(&a), 7);
        assert_int_equal(sl_candidate_term(&b), 0);
    }
    end();
}

// Its thread may stand still: no thread has to notice that the time is over.
static void test_candidate_is_fenced_by_the_clock_alone(void **state) {
    (void)state;
    begin();
    sl_candidate_step(&a);
    clock_ns += 3499 * MS;
    assert_int_equal(sl_candidate_term(&a), 7);
    clock_ns += 1 * MS;
    assert_int_equal(sl_candidate_term(&a), 0);
    assert_int_equal(sl_candidate_last_term(&a), 7); // of what it has begun
    sl_candidate_step(&b);
    assert_int_equal(sl_candidate_term(&b), 0); // ahead of the lease's end
    clock_ns += 1500 * MS;
    sl_candidate_step(&b);
    assert_int_equal(sl_candidate_term(&b), 9); // the key went with the lease, and came anew
    assert_int_equal(sl_candidate_term(&a), 0);
    sl_candidate_step(&a); // it wakes up: the lease has ended
    assert_int_equal(sl_candidate_term(&a), 0);
    sl_candidate_step(&a);
    assert_int_equal(sl_candidate_term(&a), 0);
    assert_string_equal(leader_of(&a), "b:1");
    end();
}

static void test_candidate_leads_again_under_its_term_when_the_seat_stayed_its_own(void **state) {
    (void)state;
    begin();
    sl_candidate_step(&a);
    key.away = true;
    for (int i = 0; i < 8; i++) {
        clock_ns += 500 * MS;
        sl_candidate_step(&a);
        assert_true(sl_candidate_term(&a) == (i < 6 ? 7 : 0)); // 3.5 s after the last renewal of which it knows
    }
    key.away = false;
    sl_candidate_step(&a);
    assert_int_equal(sl_candidate_term(&a), 7);
    assert_int_equal(key.n_taken, 1);
    end();
}

static void test_candidate_whose_lease_has_ended_stands_anew(void **state) {
    (void)state;
    begin();
    sl_candidate_step(&a);
    key.away = true;
    clock_ns += 6000 * MS;
    sl_candidate_step(&a);
    sl_candidate_step(&b);
    assert_int_equal(sl_candidate_term(&a), 0);
    assert_int_equal(sl_candidate_term(&b), 0); // no candidate leads without etcd, and none exits
    assert_string_equal(leader_of(&b), "");
    key.away = false;
    assert_true(sl_candidate_step(&a) <= clock_ns); // hears that the lease has ended
    assert_int_equal(sl_candidate_term(&a), 0);
    sl_candidate_step(&a);
    assert_true(sl_candidate_term(&a) > 7);
    end();
}

// Renewals that arrive, and whose answers do not: the lease lives, and we do not know.
static void test_candidate_counts_only_what_it_knows(void **state) {
    (void)state;
    begin();
    sl_candidate_step(&a);
    key.loses_answers = true;
    for (int i = 0; i < 10; i++) {
        clock_ns += 400 * MS;
        sl_candidate_step(&a);
    }
    assert_int_equal(sl_candidate_term(&a), 0);
    sl_candidate_step(&b);
    assert_int_equal(sl_candidate_term(&b), 0);
    key.loses_answers = false;
    sl_candidate_step(&a);
    assert_int_equal(sl_candidate_term(&a), 7);
    end();
}

static void test_candidate_finds_out_what_became_of_a_take(void **state) {
    (void)state;
    begin();
    key.loses_answers = true;
    sl_candidate_step(&a);
    assert_int_equal(sl_candidate_term(&a), 0); // it sits, and does not know
    sl_candidate_step(&b);
    assert_int_equal(sl_candidate_term(&b), 0);
    assert_string_equal(leader_of(&b), "a:1");
    key.loses_answers = false;
    clock_ns += 150 * MS;
    sl_candidate_step(&a);
    assert_int_equal(sl_candidate_term(&a), 7);
    assert_int_equal(key.n_taken, 1);
    end();
}

static void test_candidate_that_withdraws_never_leads_again(void **state) {
    (void)state;
    begin();
    sl_candidate_step(&a);
    sl_candidate_withdraw(&a);
    assert_int_equal(sl_candidate_term(&a), 0);
    sl_candidate_step(&a);
    assert_int_equal(key.taken.term, 0); // free at once
    clock_ns += 60000 * MS;
    sl_candidate_step(&a);
    assert_int_equal(sl_candidate_term(&a), 0);
    sl_candidate_step(&b);
    assert_true(sl_candidate_term(&b) > 7);
    sl_candidate_step(&a);
    assert_string_equal(leader_of(&a), "b:1"); // b is known as the leader
    sl_candidate_leave(&b);
    assert_int_equal(key.taken.term, 0);
    end();
}

// An operator removes the key by hand: our lease lives, and another candidate may be faster.
static void test_candidate_whose_key_was_removed_takes_it_anew_or_follows(void **state) {
    (void)state;
    begin();
    sl_candidate_step(&a);
    key.taken = (struct sl_leader_key){0};
    key.revision++;
    clock_ns += 1500 * MS;
    sl_candidate_step(&a);
    assert_int_equal(sl_candidate_term(&a), 9);
    key.taken = (struct sl_leader_key){0};
    key.revision++;
    sl_candidate_step(&b);
    int64_t term = sl_candidate_term(&b);
    assert_true(term > 9);
    clock_ns += 1500 * MS;
    sl_candidate_step(&a);
    assert_int_equal(sl_candidate_term(&a), 0);
    assert_string_equal(leader_of(&a), "b:1");
    end();
}

// Random events in any order: two candidates never lead at once, and terms only rise.
static void test_candidates_never_lead_at_once(void **state) {
    (void)state;
    uint64_t random = 12345;
    int n_led = 0;
    begin();
    int64_t highest = 0, next_ns[2] = {0, 0};
    struct sl_candidate *both[] = {&a, &b};
    for (int step = 0; step < 200000; step++) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        unsigned dice = (unsigned)(random >> 33);
        clock_ns += (int64_t)(dice % 4999 == 0 ? 8000 : dice % 97) * MS; // once in a while both are suspended
        key.away = dice / 97 % 50 < 10 ? (dice / 97 % 50 < 2) : key.away;
        key.loses_answers = dice / 4850 % 50 < 10 ? (dice / 4850 % 50 < 2) : key.loses_answers;
        for (int i = 0; i < 2; i++) {
            bool stopped = dice / 242500 % 40 == (unsigned)i; // its thread is late
            if (!stopped && clock_ns >= next_ns[i]) {
                next_ns[i] = sl_candidate_step(both[i]);
            }
        }
        int64_t terms[] = {sl_candidate_term(&a), sl_candidate_term(&b)};
        assert_true(terms[0] == 0 || terms[1] == 0);
        int64_t term = terms[0] > terms[1] ? terms[0] : terms[1];
        assert_true(term == 0 || term >= highest);
        highest = term > highest ? term : highest;
        n_led += term != 0;
    }
    assert_true(n_led > 100000 && highest > 20); // and most of the time a candidate leads
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_candidate_takes_a_free_seat_and_the_other_follows),
        cmocka_unit_test(test_candidate_is_fenced_by_the_clock_alone),
        cmocka_unit_test(test_candidate_leads_again_under_its_term_when_the_seat_stayed_its_own),
        cmocka_unit_test(test_candidate_whose_lease_has_ended_stands_anew),
        cmocka_unit_test(test_candidate_counts_only_what_it_knows),
        cmocka_unit_test(test_candidate_finds_out_what_became_of_a_take),
        cmocka_unit_test(test_candidate_that_withdraws_never_leads_again),
        cmocka_unit_test(test_candidate_whose_key_was_removed_takes_it_anew_or_follows),
        cmocka_unit_test(test_candidates_never_lead_at_once),
    };
    sl_log_configure("error", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
