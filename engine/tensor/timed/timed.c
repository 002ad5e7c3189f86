// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/timed/timed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "engine/tensor/weights.h"

#define OF_PEAK      0.6    // of the dense bf16 peak that products reach
#define OF_BANDWIDTH 0.8    // of the memory's bandwidth
#define AHEAD_NS     200000 // the host queues this much work before it waits
#define IDLE_NS      1000000 // after such a gap, in which the thread waited for something, the accelerator had nothing to do
#define TOKEN        'A' // of every answer: an id of a printable token in every tokenizer of ours

// Dense bf16 operations and bytes a nanosecond, by the vendors' data sheets.
static const struct accelerator {
    const char *name;
    double peak, bandwidth;
} accelerators[] = {
    {"a100", 312e3, 2039},
    {"h100", 989e3, 3350},
    {"h200", 989e3, 4800},
    {"l40s", 362e3, 864},
};
#define N_ACCELERATORS (sizeof accelerators / sizeof accelerators[0])

static struct accelerator chosen; // what operations reach
static double slower = 1;
static int64_t vocabulary; // rows of the embedding: a product of this many columns makes logits

// When the work that this thread has queued is done.
static _Thread_local int64_t done_ns;
static _Thread_local long n_waits; // of this thread, when it last slept here
static _Thread_local bool counts;
static _Thread_local double counted_ns;

void sl_timed_count(void) {
    counts = true;
    counted_ns = 0;
}

int64_t sl_timed_now_ns(void) {
    return counts ? (int64_t)counted_ns : sl_now_ns();
}

// Returns how often this thread has given up its processor by itself.
static long waits(void) {
    struct rusage usage = {0};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static void spend(double operations, double bytes) {
    double ns = fmax(operations / chosen.peak, bytes / chosen.bandwidth) * slower;
    if (counts) {
        counted_ns += ns;
        return;
    }
    int64_t now = sl_now_ns();
    // A thread that only had no processor makes up for it: its accelerator would have had one
    bool idle = (double)(now - done_ns) > IDLE_NS * slower && (done_ns == 0 || waits() != n_waits);
    done_ns = (idle ? now : done_ns) + (int64_t)ns;
    if (done_ns - now > AHEAD_NS) {
        int64_t left = done_ns - now;
        nanosleep(&(struct timespec){left / 1000000000, left % 1000000000}, NULL); // a signal may end it early
        n_waits = waits();
    }
}

// --- products --------------------------------------------------------------------------------------------------------

static enum sl_status pack(struct sl_stream *, struct sl_matrix *, struct sl_error *) {
    return SL_OK; // the file's pages are never touched
}

static void unpack(struct sl_matrix *) {}

static size_t no_scratch(const struct sl_matrix *, int64_t) {
    return 0;
}

static double weight_bytes(const struct sl_matrix *w) {
    double n = (double)w->n * (double)w->k, scales = n / SL_WEIGHT_GROUP * 2;
    switch (w->format) {
    case SL_WEIGHT_INT8:
        return n + scales;
    case SL_WEIGHT_INT4:
        return n / 2 + scales;
    default:
        return (double)w->n * (double)sl_dtype_row_bytes(w->dtype, w->k);
    }
}

static void matmul(struct sl_stream *, const struct sl_matrix *w, const struct sl_matmul *args) {
    double columns = args->n_columns > 0 ? (double)args->n_columns / (double)w->n : 1;
    spend(2 * columns * (double)args->m * (double)w->n * (double)w->k, columns * weight_bytes(w));
    for (int64_t r = 0; w->n == vocabulary && r < args->m; r++) {
        float *logits = args->y + r * args->y_stride;
        for (int64_t i = 0; i < w->n; i++) { // one possible token: an accelerator leaves the host no sums either
            logits[i] = i == TOKEN ? 0 : -INFINITY;
        }
    }
}

static void embed(struct sl_stream *, const struct sl_matrix *table, const int32_t *, int64_t, float *) {
    vocabulary = table->n;
}

// --- without a cost of their own: far below that of products --------------------------------------------------------

static void norm(struct sl_stream *stream, const struct sl_norm *norm, struct sl_row_vectors x, float *out,
                 int64_t out_stride) {
    (void)stream, (void)norm, (void)x, (void)out, (void)out_stride;
}

static void angles(struct sl_stream *, const struct sl_rope *, const int64_t *, int64_t, float *, float *) {}

static void rotate(struct sl_stream *, const struct sl_rope *, const float *, const float *, struct sl_row_vectors) {}

static void append(struct sl_stream *, const struct sl_attend *, int) {}

static void put_rows(struct sl_stream *, const struct sl_kv_heads *, struct sl_lists, struct sl_counts,
                     const void *const *) {}

static void nearest(struct sl_stream *, const struct sl_kv_heads *, struct sl_lists, struct sl_counts,
                    struct sl_nearest) {}

static void merge(struct sl_stream *, const struct sl_kv_heads *, struct sl_counts, struct sl_nearest,
                  struct sl_merge_threshold threshold) {
    *threshold.n_merged = 0;
}

// --- pages -----------------------------------------------------------------------------------------------------------

static double page_bytes(const struct sl_kv *kv) {
    double n = (double)sl_pages_for(kv->n_slots), packed = (double)kv->n_packed;
    return packed * kv->packed->bytes + (n - packed) * kv->work->bytes;
}

// Attends, or measures attention as fold() does, `products` times over keys and values.
static void spend_attention(const struct sl_attend *a, int m, double products) {
    double bytes = 0, pairs = 0; // pairs of a row and a slot that it sees
    for (int h = 0; h < a->heads.n; h++) {
        const struct sl_kv *kv = &a->heads.kv[h];
        double seen = a->window > 0 ? fmin((double)a->window, kv->n_slots) : kv->n_slots;
        bytes += kv->n_slots > 0 ? page_bytes(kv) * seen / kv->n_slots : 0;
        pairs += m * fmax(seen - m / 2.0, m / 2.0);
    }
    double group = (double)a->n_heads / a->heads.n;
    spend(2 * products * group * a->head_dim * pairs, products / 2 * bytes);
}

static void attend(struct sl_stream *, const struct sl_attend *calls, int n_calls) {
    for (int i = 0; i < n_calls; i++) {
        spend_attention(&calls[i], calls[i].m, 2);
    }
}

static void attend_before(struct sl_stream *, const struct sl_attend *args, const struct sl_softmax *) {
    spend_attention(args, args->m, 2);
}

static void attend_slots(struct sl_stream *, const struct sl_attend *args, struct sl_lists, struct sl_counts) {
    spend_attention(args, args->m, 2);
}

static void fold(struct sl_stream *, const struct sl_attend *args, int first_row, const struct sl_fold *) {
    spend_attention(args, args->m - first_row, 1);
}

static void window_sums(struct sl_stream *, const struct sl_attend *args, int first_row, struct sl_vectors sums_out) {
    spend_attention(args, args->m - first_row, 1);
    int group = args->n_heads / args->heads.n;
    for (int h = 0; h < args->n_heads; h++) {
        memset(sums_out.at + (size_t)h * sums_out.stride, 0, args->heads.kv[h / group].n_slots * sizeof *sums_out.at);
    }
}

static void quantize(struct sl_stream *, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *) {
    const struct sl_kv *kv = heads->kv;
    spend(0, (double)heads->n * n_pages * ((double)kv->work->bytes + kv->packed->bytes));
}

static void gather(struct sl_stream *, const struct sl_kv_heads *heads, struct sl_lists, struct sl_counts) {
    double bytes = 0;
    for (int h = 0; h < heads->n; h++) {
        bytes += page_bytes(&heads->kv[h]);
    }
    spend(0, bytes);
}

static void value_change(struct sl_stream *, const struct sl_kv_heads *heads, int, struct sl_vectors, bool,
                         struct sl_vectors out) {
    double bytes = 0;
    for (int h = 0; h < heads->n; h++) {
        bytes += page_bytes(&heads->kv[h]) / 2;
        memset(out.at + (size_t)h * out.stride, 0, heads->kv[h].n_slots * sizeof *out.at);
    }
    spend(0, bytes);
}

// --- the table -------------------------------------------------------------------------------------------------------

static void fill(struct sl_ops *ops) {
    ops->pack = ops->pack_rows = pack;
    ops->unpack = unpack;
    ops->draw = NULL;
    ops->prepare = NULL;
    ops->matmul_scratch = no_scratch;
    ops->arranges = NULL;
    ops->arrange = NULL;
    ops->matmul = matmul;
    ops->embed = embed;
    ops->norm = norm;
    ops->angles = angles;
    ops->rotate = rotate;
    ops->append = append;
    ops->attend = attend;
    ops->attend_before = attend_before;
    ops->attend_slots = attend_slots;
    ops->attend_fold = NULL;
    ops->fold = fold;
    ops->window_sums = window_sums;
    ops->quantize = quantize;
    ops->gather = gather;
    ops->value_change = value_change;
    ops->nearest = nearest;
    ops->merge = merge;
    ops->put_rows = put_rows;
}

bool sl_timed_is_named(const char *tier) {
    return tier != NULL && strncmp(tier, SL_TIMED_PREFIX, strlen(SL_TIMED_PREFIX)) == 0;
}

const char *sl_timed_names(void) {
    return "a100, h100, h200, l40s";
}

// Reads `mark` and a number from 1 to 1000, where *at begins with the mark. Returns false if there is another number.
static bool take_factor(const char **at, char mark, double *factor_out) {
    char *end;
    if (**at != mark) {
        return true;
    }
    *factor_out = strtod(*at + 1, &end);
    bool good = end != *at + 1 && *factor_out >= 1 && *factor_out <= 1000;
    *at = end;
    return good;
}

// Reads "TFLOPS:GBPS", what operations reach in truth. Returns false if the name is not of that form.
static bool take_measured(const char *name, struct accelerator *found_out) {
    char *end;
    double peak = strtod(name, &end), bandwidth = 0;
    if (end == name || *end != ':') {
        return false;
    }
    const char *second = end + 1;
    bandwidth = strtod(second, &end);
    *found_out = (struct accelerator){"measured", peak * 1e3, bandwidth};
    return end != second && strchr("x/", *end) && peak > 0 && peak < 1e6 && bandwidth > 0 && bandwidth < 1e6;
}

static bool find(const char *name, size_t length, struct accelerator *found_out) {
    for (size_t i = 0; i < N_ACCELERATORS; i++) {
        const struct accelerator *one = &accelerators[i];
        if (strlen(one->name) == length && memcmp(one->name, name, length) == 0) {
            *found_out = (struct accelerator){one->name, one->peak * OF_PEAK, one->bandwidth * OF_BANDWIDTH};
            return true;
        }
    }
    return take_measured(name, found_out);
}

enum sl_status sl_timed_ops(const char *tier, const struct sl_ops *base, const struct sl_ops **ops_out,
                            struct sl_error *err) {
    static struct sl_ops table;
    static char table_name[32];
    const char *name = tier + strlen(SL_TIMED_PREFIX), *rest = name + strcspn(name, "x/");
    size_t length = (size_t)(rest - name);
    double n = 1, factor = 1;
    SL_FAIL_IF(!take_factor(&rest, 'x', &n) || !take_factor(&rest, '/', &factor) || *rest != '\0', err, SL_ERR_INVALID,
               "--tier %.40s: after an x comes how many accelerators, after the slash how much slower, from 1 to 1000",
               tier);
    struct accelerator found;
    SL_FAIL_IF(!find(name, length, &found), err, SL_ERR_INVALID,
               "--tier %.40s: no times of that accelerator are known; there are: %s, and TFLOPS:GBPS", tier,
               sl_timed_names());
    found.peak *= n;
    found.bandwidth *= n;
    chosen = found;
    slower = factor;
    table = *base;
    snprintf(table_name, sizeof table_name, "%s", tier);
    table.name = table_name;
    fill(&table);
    *ops_out = &table;
    return SL_OK;
}
