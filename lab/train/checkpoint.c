// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a training run as a file.
 *
 * File: lines of text, "name value" each: a magic, the facts of the run, "step" last; an empty line; then f32 arrays
 *       in the machine's byte order: parameters, means, squares, each [n]; smooth_l1, smoothness, overlap, each
 *       [step]; and the hash of everything before it. A checkpoint is only valid on the machine and version that
 *       wrote it.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "base/whole_file.h"
#include "lab/train/trainer.h"

#define MAGIC      "sluice-heads-in-training 1"
#define LINE_BYTES 256
#define N_ARRAYS   6

struct array {
    float *data;
    size_t n;
};

// Lists the arrays after the text, for a run that has taken n_steps.
static void list_arrays(struct sl_trainer *trainer, int64_t n_steps, struct array arrays[N_ARRAYS]) {
    struct sl_heads_state *s = sl_heads_get_state(trainer->heads);
    const struct sl_trainer_curve *c = &trainer->curve;
    float *data[N_ARRAYS] = {s->parameters, s->means, s->squares, c->smooth_l1, c->smoothness, c->overlap};
    for (int i = 0; i < N_ARRAYS; i++) {
        arrays[i] = (struct array){data[i], i < 3 ? s->n : (size_t)n_steps};
    }
}

// --- writing ---------------------------------------------------------------------------------------------------------

static void put(FILE *file, const void *data, size_t bytes, uint64_t *hash) {
    *hash = sl_hash(data, bytes, *hash);
    fwrite(data, 1, bytes, file);
}

static void put_line(FILE *file, const char *name, const char *value, uint64_t *hash) {
    char line[LINE_BYTES];
    int n = snprintf(line, sizeof line, "%s%s%s\n", name, value[0] ? " " : "", value);
    put(file, line, n < LINE_BYTES ? (size_t)n : LINE_BYTES - 1, hash);
}

enum sl_status sl_trainer_save(struct sl_trainer *trainer, const char *path, const struct sl_trainer_fact *facts,
                               size_t n_facts, struct sl_error *err) {
    struct sl_whole_file whole;
    struct array arrays[N_ARRAYS];
    char step[32];
    uint64_t hash = 0;
    SL_TRY(sl_whole_file_open(&whole, path, err));
    put_line(whole.file, MAGIC, "", &hash);
    for (size_t i = 0; i < n_facts; i++) {
        put_line(whole.file, facts[i].name, facts[i].value, &hash);
    }
    snprintf(step, sizeof step, "%" PRId64, sl_trainer_step_number(trainer));
    put_line(whole.file, "step", step, &hash);
    put_line(whole.file, "", "", &hash);
    list_arrays(trainer, sl_trainer_step_number(trainer), arrays);
    for (int i = 0; i < N_ARRAYS; i++) {
        put(whole.file, arrays[i].data, arrays[i].n * sizeof(float), &hash);
    }
    fwrite(&hash, sizeof hash, 1, whole.file);
    return sl_whole_file_finish(&whole, err);
}

// --- reading ---------------------------------------------------------------------------------------------------------

static enum sl_status broken(const char *path, struct sl_error *err) {
    return sl_fail(err, SL_ERR_INVALID, "%s is no whole checkpoint of retaining heads; remove it to start anew", path);
}

// Reads the next line without its newline, "" at the end of the text.
static enum sl_status get_line(FILE *file, const char *path, char line[LINE_BYTES], uint64_t *hash,
                               struct sl_error *err) {
    if (fgets(line, LINE_BYTES, file) == NULL || strchr(line, '\n') == NULL) {
        return broken(path, err);
    }
    *hash = sl_hash(line, strlen(line), *hash);
    line[strcspn(line, "\n")] = '\0';
    return SL_OK;
}

// Checks that the line equals this fact.
static enum sl_status check_fact(const char *line, const char *path, const struct sl_trainer_fact *fact,
                                 struct sl_error *err) {
    size_t length = strlen(fact->name);
    SL_FAIL_IF(strncmp(line, fact->name, length) != 0 || line[length] != ' ', err, SL_ERR_PRECONDITION,
               "%s says nothing of %s: it is of another version; remove it to start anew", path, fact->name);
    SL_FAIL_IF(strcmp(line + length + 1, fact->value) != 0, err, SL_ERR_PRECONDITION,
               "%s was made with %s %s, now it is %s: go on with the same, give another --checkpoint, or remove "
               "it to start anew",
               path, fact->name, line + length + 1, fact->value);
    return SL_OK;
}

static enum sl_status get_text(FILE *file, const char *path, const struct sl_trainer_fact *facts, size_t n_facts,
                               int64_t *step_out, uint64_t *hash, struct sl_error *err) {
    char line[LINE_BYTES];
    enum sl_status status = get_line(file, path, line, hash, err);
    SL_THEN(status, strcmp(line, MAGIC) != 0 ? broken(path, err) : SL_OK);
    for (size_t i = 0; i < n_facts && status == SL_OK; i++) {
        status = get_line(file, path, line, hash, err);
        SL_THEN(status, check_fact(line, path, &facts[i], err));
    }
    SL_THEN(status, get_line(file, path, line, hash, err));
    SL_THEN(status, sscanf(line, "step %" SCNd64, step_out) != 1 ? broken(path, err) : SL_OK);
    SL_THEN(status, get_line(file, path, line, hash, err));
    return status == SL_OK && line[0] != '\0' ? broken(path, err) : status;
}

static enum sl_status get_arrays(FILE *file, const char *path, const struct array arrays[N_ARRAYS], uint64_t *hash,
                                 struct sl_error *err) {
    uint64_t expected;
    for (int i = 0; i < N_ARRAYS; i++) {
        if (fread(arrays[i].data, sizeof(float), arrays[i].n, file) != arrays[i].n) {
            return broken(path, err);
        }
        *hash = sl_hash(arrays[i].data, arrays[i].n * sizeof(float), *hash);
    }
    bool whole = fread(&expected, sizeof expected, 1, file) == 1 && expected == *hash && fgetc(file) == EOF;
    return whole ? SL_OK : broken(path, err);
}

enum sl_status sl_trainer_load(struct sl_trainer *trainer, const char *path, const struct sl_trainer_fact *facts,
                               size_t n_facts, struct sl_error *err) {
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return errno == ENOENT ? sl_fail(err, SL_ERR_NOT_FOUND, "%s: there is no such file", path)
                               : sl_fail(err, SL_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    }
    struct array arrays[N_ARRAYS];
    int64_t step = 0;
    uint64_t hash = 0;
    enum sl_status status = get_text(file, path, facts, n_facts, &step, &hash, err);
    SL_THEN(status, step < 0 || step > trainer->config.n_steps ? broken(path, err) : SL_OK);
    if (status == SL_OK) {
        list_arrays(trainer, step, arrays);
        status = get_arrays(file, path, arrays, &hash, err);
    }
    if (status == SL_OK) {
        sl_heads_get_state(trainer->heads)->n_steps = step;
    }
    fclose(file);
    return status;
}
