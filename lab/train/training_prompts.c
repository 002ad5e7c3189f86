// SPDX-License-Identifier: Apache-2.0
#include "lab/train/training_prompts.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/random.h"
#include "lab/tasks/rows.h"
#include "lab/train/training_forms.h"

#define DEFAULT_TOKENS 1024
#define MAX_SOURCES    64
#define NAME_BYTES     64

// A task, or a form of one; without either: the rows.
struct source {
    const struct sl_task *task;
    const struct sl_training_form *form; // NULL: the task's own wording
    int64_t min_tokens, max_tokens;      // tokens of the prompt
};

struct sl_training_prompts {
    struct sl_training_prompts_config config;
    struct sl_haystack *haystack;
    struct sl_training_rows rows;
    struct source sources[MAX_SOURCES];
    size_t n_sources;
};

// --- tasks -----------------------------------------------------------------------------------------------------------

static enum sl_status bad_task(const char *text, struct sl_error *err) {
    char list[512] = "";
    size_t used = 0;
    for (const struct sl_task *task = sl_tasks(); task->name && used < sizeof list; task++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%s, ", task->name);
    }
    for (const struct sl_training_form *form = sl_training_forms(); form->name && used < sizeof list; form++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%s, ", form->name);
    }
    return sl_fail(err, SL_ERR_INVALID, "--task %s: expected NAME, NAME:TOKENS or NAME:MIN-MAX, with NAME %sor all",
                   text, list);
}

static enum sl_status add_source(struct sl_training_prompts *p, struct source source, struct sl_error *err) {
    SL_FAIL_IF(p->n_sources == MAX_SOURCES, err, SL_ERR_INVALID, "more than %d tasks", MAX_SOURCES);
    p->sources[p->n_sources++] = source;
    return SL_OK;
}

// Adds the task if its shortest prompts are well below the requested length: the number of tokens per fact varies.
static enum sl_status add_if_it_fits(struct sl_training_prompts *p, struct source source, struct sl_error *err) {
    struct sl_task_config config = {.tokenizer = p->config.tokenizer,
                                    .haystack = p->haystack,
                                    .n_tokens = source.min_tokens - source.min_tokens / 8,
                                    .depth = -1};
    struct sl_sample sample = {0};
    enum sl_status status = sl_task_make(source.task, &config, 0, &sample, err);
    sl_sample_cleanup(&sample);
    return status == SL_ERR_RANGE ? SL_OK : status == SL_OK ? add_source(p, source, err) : status;
}

static enum sl_status add_all(struct sl_training_prompts *p, struct source source, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (source.task = sl_tasks(); source.task->name && status == SL_OK; source.task++) {
        status = add_if_it_fits(p, source, err);
    }
    for (source.form = sl_training_forms(); source.form->name && status == SL_OK; source.form++) {
        source.task = sl_task_find(source.form->task);
        status = add_if_it_fits(p, source, err);
    }
    return status == SL_OK && p->n_sources == 0
               ? sl_fail(err, SL_ERR_INVALID, "--task all: no task fits into %lld tokens", (long long)source.min_tokens)
               : status;
}

static enum sl_status add_task(struct sl_training_prompts *p, const char *text, struct sl_error *err) {
    struct source source = {.min_tokens = DEFAULT_TOKENS};
    char name[NAME_BYTES];
    size_t n = strcspn(text, ":");
    if (n >= sizeof name) {
        return bad_task(text, err);
    }
    memcpy(name, text, n);
    name[n] = '\0';
    if (text[n] == ':') {
        char *end;
        source.min_tokens = strtoll(text + n + 1, &end, 10);
        source.max_tokens = *end == '-' ? strtoll(end + 1, &end, 10) : source.min_tokens;
        if (*end != '\0' || source.min_tokens < 1 || source.max_tokens < source.min_tokens) {
            return bad_task(text, err);
        }
    } else {
        source.max_tokens = source.min_tokens;
    }
    if (strcmp(name, "all") == 0) {
        return add_all(p, source, err);
    }
    source.form = sl_training_form_find(name);
    source.task = sl_task_find(source.form ? source.form->task : name);
    return source.task ? add_source(p, source, err) : bad_task(text, err);
}

// --- opening ---------------------------------------------------------------------------------------------------------

static enum sl_status open_sources(struct sl_training_prompts *p, struct sl_error *err) {
    const struct sl_training_prompts_config *c = &p->config;
    SL_FAIL_IF(!c->data && c->tasks.n == 0, err, SL_ERR_INVALID,
               "--data FILE or --task NAME is needed: prompts whose answers are known");
    enum sl_status status = SL_OK;
    if (c->data) {
        status = sl_training_rows_open(c->data, &p->rows, err);
        status = status == SL_OK ? add_source(p, (struct source){0}, err) : status;
    }
    if (status == SL_OK && c->tasks.n > 0) {
        status = sl_haystack_open(c->texts.items, (size_t)c->texts.n, &p->haystack, err);
    }
    for (int i = 0; i < c->tasks.n && status == SL_OK; i++) {
        status = add_task(p, c->tasks.items[i], err);
    }
    return status;
}

enum sl_status sl_training_prompts_open(const struct sl_training_prompts_config *config,
                                        struct sl_training_prompts **prompts_out, struct sl_error *err) {
    struct sl_training_prompts *p = calloc(1, sizeof *p);
    SL_FAIL_IF(!p, err, SL_ERR_EXHAUSTED, "out of memory");
    p->config = *config;
    enum sl_status status = open_sources(p, err);
    if (status != SL_OK) {
        sl_training_prompts_close(&p);
        return status;
    }
    *prompts_out = p;
    return SL_OK;
}

void sl_training_prompts_close(struct sl_training_prompts **prompts) {
    struct sl_training_prompts *p = *prompts;
    if (p) {
        sl_training_rows_cleanup(&p->rows);
        sl_haystack_close(&p->haystack);
        free(p);
        *prompts = NULL;
    }
}

// --- one prompt ------------------------------------------------------------------------------------------------------

static enum sl_status join(const struct sl_training_prompts *p, const char *prompt, const char *answer,
                           struct sl_training_prompt *prompt_out, struct sl_error *err) {
    int32_t *before = NULL, *after = NULL;
    size_t n_before = 0, n_after = 0;
    const struct sl_tokenizer *tokenizer = p->config.tokenizer;
    enum sl_status status = sl_tokenizer_encode(tokenizer, prompt, strlen(prompt), true, &before, &n_before, err);
    if (status == SL_OK) {
        status = sl_tokenizer_encode(tokenizer, answer, strlen(answer), false, &after, &n_after, err);
    }
    if (status == SL_OK && n_before < 2) {
        status = sl_fail(err, SL_ERR_INVALID, "a prompt of %zu tokens: there is nothing to learn from it", n_before);
    }
    int32_t *all = status == SL_OK ? realloc(before, (n_before + n_after) * sizeof *all) : NULL;
    if (status == SL_OK && !all) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for a prompt of %zu tokens", n_before);
    }
    if (status == SL_OK) {
        before = NULL;
        memcpy(all + n_before, after, n_after * sizeof *all);
        size_t n = n_before + n_after, most = (size_t)p->config.max_tokens, cut = n > most ? n - most : 0;
        cut = cut + 2 > n_before ? n_before - 2 : cut; // an answer that is too long loses its end
        memmove(all, all + cut, (n - cut) * sizeof *all);
        n = n - cut < most ? n - cut : most;
        *prompt_out = (struct sl_training_prompt){all, (int64_t)n, (int64_t)(n_before - cut)};
    }
    free(before);
    free(after);
    return status;
}

// Uses every row once, then again in another order.
static enum sl_status join_row(const struct sl_training_prompts *p, uint64_t index,
                               struct sl_training_prompt *prompt_out, struct sl_error *err) {
    uint64_t n = p->rows.n, key = sl_random_start("rows", p->config.seed, index / n).state;
    uint64_t at = sl_random_permute(index % n, n, key);
    const struct sl_sample *row = &p->rows.samples[at];
    enum sl_status status = join(p, row->prompt, row->answers[0], prompt_out, err);
    if (status != SL_OK) {
        char where[PATH_MAX];
        snprintf(where, sizeof where, "%s: row %" PRIu64, p->config.data, at + 1);
        sl_error_prefix(err, where);
    }
    return status;
}

static enum sl_status make_sample(const struct sl_training_prompts *p, const struct source *source, uint64_t index,
                                  struct sl_sample *sample_out, struct sl_error *err) {
    // Draws other numbers than an evaluation with this seed, and than another form of the task.
    const char *name = source->form ? source->form->name : source->task->name;
    struct sl_random random = sl_random_start(name, p->config.seed ^ 0x6c6561726eu, index);
    double share = (double)(sl_random_next(&random) >> 11) * 0x1p-53;
    double ratio = (double)source->max_tokens / (double)source->min_tokens;
    struct sl_task_config config = {.tokenizer = p->config.tokenizer,
                                    .haystack = p->haystack,
                                    .n_tokens = (int64_t)((double)source->min_tokens * pow(ratio, share)),
                                    .seed = sl_random_next(&random),
                                    .depth = -1};
    enum sl_status status = sl_task_make(source->task, &config, 0, sample_out, err);
    if (status == SL_OK && source->form) {
        status = sl_training_form_apply(source->form, sample_out, err);
        if (status != SL_OK) {
            sl_sample_cleanup(sample_out);
        }
    }
    return status;
}

enum sl_status sl_training_prompts_get(const struct sl_training_prompts *prompts, uint64_t index,
                                       struct sl_training_prompt *prompt_out, struct sl_error *err) {
    const struct source *source = &prompts->sources[index % prompts->n_sources];
    uint64_t within = index / prompts->n_sources;
    if (!source->task) {
        return join_row(prompts, within, prompt_out, err);
    }
    struct sl_sample sample = {0};
    SL_TRY(make_sample(prompts, source, within, &sample, err));
    enum sl_status status = join(prompts, sample.prompt, sample.completion, prompt_out, err);
    sl_sample_cleanup(&sample);
    return status;
}
