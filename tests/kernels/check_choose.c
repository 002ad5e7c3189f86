// SPDX-License-Identifier: Apache-2.0
// Purpose: holds protect, spare and budgets to what engine/tensor/ops.h says of them, in every tier.
#include "tests/kernels/kv_fixture.h"

enum { MAX_HEADS = 8, STRIDE = 1024, FEW = 64 };

static void test_protect_and_spare_set_infinity_and_nothing_else(void **state) {
    (void)state;
    enum { HEADS = 4 };
    static const uint32_t n_slots[HEADS] = {1000, 65, 0, 5};
    static const struct sl_protection protections[HEADS] = {{3, 4}, {INT64_MAX, 0}, {2, 2}, {0, 99}};
    static const uint32_t listed[HEADS][STRIDE] = {{7, 8, 20, 900}, {0}, {0}, {4}}, n_listed[HEADS] = {4, 0, 0, 1};
    for (int round = 0; round < 3 * n_tested(); round++) { // a device takes another order of threads each time
        const char *const *name = tested() + round / 3;
        float x[HEADS][STRIDE];
        struct sl_kv kv[HEADS];
        for (int h = 0; h < HEADS; h++) {
            kv[h] = (struct sl_kv){.n_slots = n_slots[h]};
            for (int j = 0; j < STRIDE; j++) {
                x[h][j] = (float)(100 * h + j);
            }
        }
        const struct sl_kv_heads heads = {.kv = kv, .n = HEADS};
        tier(*name)->protect(NULL, &heads, protections, (struct sl_vectors){x[0], STRIDE});
        for (int h = 0; h < HEADS; h++) {
            for (int64_t j = 0; j < STRIDE; j++) {
                bool inside = j < n_slots[h] &&
                              (j < protections[h].n_first || j >= (int64_t)n_slots[h] - protections[h].n_newest);
                assert_true(x[h][j] == (inside ? INFINITY : (float)(100 * h + j)));
                x[h][j] = (float)j;
            }
        }
        tier(*name)->spare(NULL, &heads, (struct sl_lists){(uint32_t *)listed[0], STRIDE},
                           (struct sl_counts){.host = n_listed}, (struct sl_vectors){x[0], STRIDE});
        for (int h = 0; h < HEADS; h++) {
            for (uint32_t j = 0; j < STRIDE; j++) {
                bool inside = false;
                for (uint32_t i = 0; i < n_listed[h]; i++) {
                    inside |= listed[h][i] == j;
                }
                assert_true(x[h][j] == (inside ? INFINITY : (float)j));
            }
        }
    }
}

// --- budgets ---------------------------------------------------------------------------------------------------------

static void adaptive(const struct sl_ops *ops, float scores[][STRIDE], const uint32_t *n, int n_heads, uint32_t budget,
                     uint32_t *kept) {
    float work[MAX_HEADS][STRIDE];
    struct sl_kv kv[MAX_HEADS];
    for (int h = 0; h < n_heads; h++) {
        kv[h] = (struct sl_kv){.n_slots = n[h]};
    }
    const struct sl_kv_heads heads = {.kv = kv, .n = n_heads};
    ops->budgets(NULL, &heads, (struct sl_vectors){scores[0], STRIDE}, budget, (struct sl_vectors){work[0], STRIDE},
                 (struct sl_counts){.device = kept});
}

static void test_budgets_by_hand(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        float few[2][STRIDE] = {{9, 8, 7, 6, 5}, {1, 2, 3, 4, 0}}, ten[2][STRIDE];
        uint32_t kept[2];
        // 2 * 3 slots compete; floor(.2 * 3) = 0 guaranteed: the five of a, and 4 of b
        adaptive(ops, few, (uint32_t[]){5, 5}, 2, 3, kept);
        assert_true(kept[0] == 5 && kept[1] == 1);
        for (int i = 0; i < 10; i++) {
            ten[0][i] = 100, ten[1][i] = 1;
        }
        adaptive(ops, ten, (uint32_t[]){10, 10}, 2, 5, kept); // all 10 of the first but for floor(.2 * 5) = 1
        assert_true(kept[0] == 9 && kept[1] == 1);
        ten[1][3] = ten[1][4] = ten[1][5] = INFINITY; // protected ones count for their head
        adaptive(ops, ten, (uint32_t[]){10, 10}, 2, 5, kept);
        assert_true(kept[0] == 7 && kept[1] == 3);
        memset(ten, 0, sizeof ten);
        ten[1][0] = -0.0f; // both zeros are equal: the first head first
        adaptive(ops, ten, (uint32_t[]){10, 10}, 2, 5, kept);
        assert_true(kept[0] == 9 && kept[1] == 1);
        for (int i = 0; i < 10; i++) {
            ten[0][i] = NAN, ten[1][i] = -INFINITY;
        }
        adaptive(ops, ten, (uint32_t[]){10, 10}, 2, 5, kept); // NaN last
        assert_true(kept[0] == 1 && kept[1] == 9);
        adaptive(ops, ten, (uint32_t[]){4, 10}, 2, 8, kept); // no more than there is
        assert_true(kept[0] == 4 && kept[1] == 10);
    }
}

struct entry {
    float score;
    int head;
    uint32_t index;
};

// The total order: score descending, then head, then index; NaN last.
static int compare_entries(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (isnan(x->score) != isnan(y->score)) {
        return isnan(x->score) ? 1 : -1;
    }
    if (!isnan(x->score) && x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->head != y->head ? x->head - y->head : (int)x->index - (int)y->index;
}

// The definition itself: what is guaranteed first, then the best of all that is left.
static void adaptive_by_definition(float scores[][STRIDE], const uint32_t *n, int n_heads, uint32_t budget,
                                   uint32_t *kept) {
    static struct entry all[MAX_HEADS * STRIDE], head[STRIDE];
    size_t n_all = 0;
    uint64_t total = 0, sum = 0;
    for (int h = 0; h < n_heads; h++) {
        uint32_t least = budget / 5, n_protected = 0;
        for (uint32_t j = 0; j < n[h]; j++) {
            head[j] = (struct entry){scores[h][j], h, j};
            n_protected += scores[h][j] == INFINITY;
        }
        least = n_protected > least ? n_protected : least;
        kept[h] = least < n[h] ? least : n[h];
        qsort(head, n[h], sizeof head[0], compare_entries);
        for (uint32_t j = kept[h]; j < n[h]; j++) {
            all[n_all++] = head[j];
        }
        total += n[h];
        sum += kept[h];
    }
    uint64_t most = (uint64_t)n_heads * budget;
    qsort(all, n_all, sizeof all[0], compare_entries);
    for (size_t i = 0; i < n_all && sum < (total < most ? total : most); i++, sum++) {
        kept[all[i].head]++;
    }
}

static void test_budgets_are_their_definition(void **state) {
    (void)state;
    srand(4);
    for (int round = 0; round < (is_emulated(tested()[0]) ? 60 : 20000); round++) {
        int n_heads = 1 + rand() % MAX_HEADS, kind = rand() % 3;
        uint32_t most_slots = round % 50 == 0 ? STRIDE : FEW;
        float values[MAX_HEADS][STRIDE];
        uint32_t n[MAX_HEADS], kept[MAX_HEADS], expected[MAX_HEADS], budget = 1 + (uint32_t)rand() % most_slots;
        uint64_t all = 0;
        for (int h = 0; h < n_heads; h++) {
            n[h] = (uint32_t)rand() % (most_slots + 1);
            all += n[h];
            for (uint32_t j = 0, n_protected = 0; j < n[h]; j++) {
                values[h][j] = kind == 0 ? (float)(rand() % 5 - 2) : (float)rand() / 1e6f - 1000;
                if (rand() % 16 == 0 && n_protected < budget) {
                    values[h][j] = INFINITY;
                    n_protected++;
                } else if (kind == 2 && rand() % 4 == 0) {
                    values[h][j] = rand() % 2 ? NAN : -INFINITY;
                }
            }
        }
        adaptive_by_definition(values, n, n_heads, budget, expected);
        for (const char *const *name = tested(); *name != NULL; name++) {
            uint64_t sum = 0, most = (uint64_t)n_heads * budget;
            adaptive(tier(*name), values, n, n_heads, budget, kept);
            for (int h = 0; h < n_heads; h++) {
                assert_int_equal(kept[h], expected[h]);
                assert_true(kept[h] <= n[h]);
                assert_true(kept[h] >= (budget / 5 < n[h] ? budget / 5 : n[h]));
                sum += kept[h];
            }
            assert_true(sum == (all < most ? all : most));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_protect_and_spare_set_infinity_and_nothing_else),
        cmocka_unit_test(test_budgets_by_hand),
        cmocka_unit_test(test_budgets_are_their_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
