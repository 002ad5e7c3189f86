// SPDX-License-Identifier: Apache-2.0
// Real ops, session and compressor against what tools/golden_compress.py computed from the papers' text.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drive.h"
#include "tests/one_head.h"

#define FOLDER "tests/golden/compress/"

struct trace {
    struct drive drive;
    int n_chunks; // read so far
    bool open;
};

static void trace_stop(struct trace *trace) {
    if (trace->open) {
        assert_int_equal(trace->drive.n_read, trace->drive.plan.n_prompt);
        drive_stop(&trace->drive);
        trace->open = false;
    }
}

// "case SEED HEADS GROUP HEAD_DIM N SCALE RECIPE"
static void trace_start(struct trace *trace, const char *line) {
    uint64_t seed;
    struct sl_kv_geometry geometry = {.n_layers = 1};
    int group;
    int64_t n_prompt;
    float scale;
    char recipe[256];
    trace_stop(trace);
    assert_int_equal(sscanf(line, "case %" SCNu64 " %d %d %d %" SCNd64 " %f %255s", &seed, &geometry.n_kv_heads, &group,
                            &geometry.head_dim, &n_prompt, &scale, recipe),
                     7);
    drive_start(&trace->drive, recipe, &geometry, group, n_prompt, seed, scale, 1);
    trace->n_chunks = 0;
    trace->open = true;
}

static void trace_advance(struct trace *trace, int chunk) {
    struct drive *drive = &trace->drive;
    while (trace->n_chunks <= chunk) {
        int64_t left = drive->plan.n_prompt - drive->n_read, m = drive->plan.recipe.chunk_tokens;
        assert_true(left > 0);
        drive_chunk(drive, (int)(left < m ? left : m), left <= m);
        trace->n_chunks++;
    }
}

// "kept CHUNK HEAD position..." and "sums CHUNK HEAD score..."
static void check_line(struct trace *trace, const char *path, int n_line, char *line) {
    char *rest = line, *kind = strsep(&rest, " ");
    int chunk = atoi(strsep(&rest, " ")), head = atoi(strsep(&rest, " "));
    trace_advance(trace, chunk);
    struct sl_kv kv = drive_kv(&trace->drive, 0, head);
    int64_t *positions = calloc(kv.n_slots, sizeof *positions);
    float *scores = calloc(kv.n_slots, sizeof *scores);
    assert_true(positions != NULL && scores != NULL);
    bool sums = strcmp(kind, "sums") == 0;
    if (sums) {
        read_plane(trace->drive.ops, &kv, 0, scores);
    } else {
        assert_string_equal(kind, "kept");
        trace->drive.ops->read_positions(&kv, positions);
    }
    uint32_t n = 0;
    for (char *word; (word = strsep(&rest, " ")) != NULL; n++) {
        if (n >= kv.n_slots) {
            fail_msg("%s:%d: more than the %u slots of head %d", path, n_line, kv.n_slots, head);
        }
        double expected = strtod(word, NULL), found = sums ? (double)scores[n] : (double)positions[n];
        if (!(fabs(found - expected) <= (sums ? 1e-4 * fmax(1, fabs(expected)) : 0))) {
            fail_msg("%s:%d: %s of head %d, slot %u: %.9g, expected %.9g", path, n_line, kind, head, n, found,
                     expected);
        }
    }
    assert_int_equal(n, kv.n_slots);
    free(positions), free(scores);
}

static int replay(const char *path) {
    struct trace trace = {0};
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t bytes = 0;
    int n_cases = 0;
    if (file == NULL) {
        fail_msg("cannot open %s (tests run in the source folder)", path);
    }
    for (int n_line = 1; getline(&line, &bytes, file) > 0; n_line++) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "case ", 5) == 0) {
            trace_start(&trace, line);
            n_cases++;
        } else {
            check_line(&trace, path, n_line, line);
        }
    }
    trace_stop(&trace);
    free(line);
    fclose(file);
    return n_cases;
}

static void test_h2o_keeps_what_the_paper_keeps(void **state) {
    (void)state;
    assert_int_equal(replay(FOLDER "h2o.txt"), 4);
}

static void test_streamingllm_keeps_sinks_and_the_newest(void **state) {
    (void)state;
    assert_int_equal(replay(FOLDER "streamingllm.txt"), 3);
}

static void check_bytes(const char *path, const char *line, const struct drive *drive) {
    static const char digits[] = "0123456789abcdef";
    const struct sl_layer *l = &drive->session->layers[0];
    const unsigned char *page = l->heads[0].pages[0];
    char part[16];
    int skip = 0;
    assert_int_equal(sscanf(line, "%15s %n", part, &skip), 1);
    uint32_t offset = strcmp(part, "k") == 0         ? l->packed.k
                      : strcmp(part, "k_scale") == 0 ? l->packed.k_scale
                      : strcmp(part, "v") == 0       ? l->packed.v
                                                     : l->packed.v_scale;
    const char *hex = line + skip;
    size_t n = strlen(hex) / 2;
    assert_true(n > 0 && offset + n <= l->packed.bytes);
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = page[offset + i];
        if (hex[2 * i] != digits[byte >> 4] || hex[2 * i + 1] != digits[byte & 15]) {
            fail_msg("%s: %s, head_dim %d: byte %zu of %s is %02x, expected %.2s", path,
                     sl_kv_format_name(l->packed.format), l->packed.head_dim, i, part, byte, hex + 2 * i);
        }
    }
}

// The one test that looks into a page: the layout of engine/kvcache/page.h is what goes over the wire.
static void test_quantized_pages_have_the_layout_of_kivi(void **state) {
    (void)state;
    const char *path = FOLDER "kivi.txt";
    struct trace trace = {0};
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t bytes = 0;
    int n_pages = 0, n_parts = 0;
    assert_non_null(file);
    while (getline(&line, &bytes, file) > 0) {
        uint64_t seed;
        int d, bits;
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "page %" SCNu64 " %d %d", &seed, &d, &bits) == 3) {
            char text[128];
            snprintf(text, sizeof text, "case %" PRIu64 " 1 1 %d 64 1.0 full,format=int%d,chunk=64", seed, d, bits);
            trace_start(&trace, text);
            trace_advance(&trace, 0);
            assert_int_equal(drive_kv(&trace.drive, 0, 0).n_packed, 1);
            n_pages++;
        } else {
            check_bytes(path, line, &trace.drive);
            n_parts++;
        }
    }
    assert_int_equal(n_pages, 12);
    assert_int_equal(n_parts, 48);
    trace_stop(&trace);
    free(line);
    fclose(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_h2o_keeps_what_the_paper_keeps),
        cmocka_unit_test(test_streamingllm_keeps_sinks_and_the_newest),
        cmocka_unit_test(test_quantized_pages_have_the_layout_of_kivi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
