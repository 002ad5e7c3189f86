// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: data sets. See dataset.h.
 *
 * Design: reads line by line: one line is parsed at a time; the rest of the file is samples or unread.
 */
#include "lab/eval/tasks/dataset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lab/eval/metrics/metric.h"
#include "lab/eval/tasks/benchmark.h"
#include "lab/eval/tasks/dataset_line.h"

#define MAX_LINE_BYTES (64u << 20) // a book of two million tokens, every character escaped, is 20 MiB

// --- what is to be done with a line ------------------------------------------------------------------------------

static enum sl_status unknown_format(const struct sl_dataset_config *config, struct sl_error *err) {
    char names[128] = "";
    for (const struct sl_dataset_format *format = sl_dataset_formats(); format->name; format++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", format->name);
    }
    return sl_fail(err, SL_ERR_INVALID, "data set %s: there is no format \"%s\"; there are %s", config->name,
                   config->format, names);
}

static enum sl_status find_metric(const struct sl_dataset_config *config, const char *name,
                                  struct sl_dataset_form *form, struct sl_error *err) {
    if (!name) {
        return sl_fail(err, SL_ERR_INVALID,
                       "data set %s: %s has no task of this name, so how to judge it must be said: give metric and "
                       "max_new_tokens",
                       config->name, config->format);
    }
    form->metric = sl_metric_find(name);
    return form->metric ? SL_OK
                        : sl_fail(err, SL_ERR_INVALID, "data set %s: there is no metric \"%s\"", config->name, name);
}

// Completes config from the benchmark's task of this name, and then from the format.
static enum sl_status make_form(const struct sl_dataset_config *config, const struct sl_benchmark_task *task,
                                struct sl_dataset_form *form, struct sl_error *err) {
    form->format = sl_dataset_format_find(config->format);
    if (!form->format) {
        return unknown_format(config, err);
    }
    if (task && !task->metric && !config->metric) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "data set %s is left out: %s", config->name, task->prompt);
    }
    bool known = task && task->metric;
    enum sl_status status = find_metric(config,
                                        config->metric ? config->metric
                                        : known        ? task->metric
                                                       : form->format->metric,
                                        form, err);
    if (status != SL_OK) {
        return status;
    }
    form->prompt = config->prompt ? config->prompt : known ? task->prompt : form->format->prompt;
    form->max_new_tokens = config->max_new_tokens == 0 && known ? task->max_new_tokens : config->max_new_tokens;
    if (form->max_new_tokens <= 0) {
        return sl_fail(err, SL_ERR_INVALID, "data set %s: max_new_tokens must be given, and be 1 or more",
                       config->name);
    }
    if (!strstr(form->prompt, "{input}") && !strstr(form->prompt, "{context}")) {
        return sl_fail(err, SL_ERR_INVALID,
                       "data set %s: the prompt has a place for neither {context} nor {input}, so every question would "
                       "be the same",
                       config->name);
    }
    return SL_OK;
}

enum sl_status sl_dataset_check(const struct sl_dataset_config *config, struct sl_error *err) {
    struct sl_dataset_form form;
    return make_form(config, sl_benchmark_find(config->format, config->name), &form, err);
}

// --- lines -------------------------------------------------------------------------------------------------------

struct line {
    char *text; // [allocated]
    size_t n_bytes, allocated;
    size_t number; // from 1
};

// Reads the next line, without its newline. *end_out: the file has ended.
static enum sl_status read_line(FILE *file, struct line *line, bool *end_out, struct sl_error *err) {
    line->n_bytes = 0;
    line->number++;
    int c;
    while ((c = getc_unlocked(file)) != EOF && c != '\n') {
        if (line->n_bytes == MAX_LINE_BYTES) {
            return sl_fail(err, SL_ERR_INVALID, "longer than %u MiB; JSON lines have one object a line",
                           MAX_LINE_BYTES >> 20);
        }
        if (line->n_bytes == line->allocated) {
            size_t allocated = line->allocated ? 2 * line->allocated : 1 << 16;
            char *text = realloc(line->text, allocated);
            if (!text) {
                return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a line of %zu bytes", line->n_bytes);
            }
            line->text = text;
            line->allocated = allocated;
        }
        line->text[line->n_bytes++] = (char)c;
    }
    if (ferror(file)) {
        return sl_fail(err, SL_ERR_IO, "%s", strerror(errno));
    }
    *end_out = c == EOF && line->n_bytes == 0;
    return SL_OK;
}

static bool is_blank(const char *text, size_t n_bytes) {
    for (size_t i = 0; i < n_bytes; i++) {
        if (!strchr(" \t\r", text[i]) || text[i] == '\0') {
            return false;
        }
    }
    return true;
}

static enum sl_status add_sample(struct sl_dataset *dataset, const struct sl_sample *sample, size_t *allocated,
                                 struct sl_error *err) {
    if (dataset->n == *allocated) {
        size_t more = *allocated ? 2 * *allocated : 64;
        struct sl_sample *samples = realloc(dataset->samples, more * sizeof *samples);
        if (!samples) {
            return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %zu samples", more);
        }
        dataset->samples = samples;
        *allocated = more;
    }
    dataset->samples[dataset->n++] = *sample;
    return SL_OK;
}

static enum sl_status read_lines(FILE *file, const struct sl_dataset_form *form, int64_t max_samples,
                                 struct sl_dataset *dataset, struct line *line, struct sl_error *err) {
    size_t allocated = 0;
    while (max_samples == 0 || dataset->n < (size_t)max_samples) {
        bool end = false;
        enum sl_status status = read_line(file, line, &end, err);
        if (status != SL_OK || end) {
            return status;
        }
        // Some editors begin a file with a byte order mark.
        size_t skip = line->number == 1 && line->n_bytes >= 3 && memcmp(line->text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
        if (is_blank(line->text + skip, line->n_bytes - skip)) {
            continue;
        }
        struct sl_sample sample;
        status = sl_dataset_read_line(form, line->text + skip, line->n_bytes - skip, &sample, err);
        if (status != SL_OK) {
            return status;
        }
        status = add_sample(dataset, &sample, &allocated, err);
        if (status != SL_OK) {
            sl_sample_cleanup(&sample);
            return status;
        }
    }
    return SL_OK;
}

// --- files -------------------------------------------------------------------------------------------------------

static enum sl_status open_file(const struct sl_dataset_config *config, FILE **file_out, struct sl_error *err) {
    FILE *file = fopen(config->path, "rb");
    if (!file) {
        return errno == ENOENT
                   ? sl_fail(err, SL_ERR_NOT_FOUND,
                             "data set %s: there is no file %s; get it from the benchmark's authors", config->name,
                             config->path)
                   : sl_fail(err, SL_ERR_IO, "data set %s: %s: %s", config->name, config->path, strerror(errno));
    }
    struct stat st;
    if (fstat(fileno(file), &st) != 0 || S_ISDIR(st.st_mode)) {
        fclose(file);
        return sl_fail(err, SL_ERR_IO, "data set %s: %s is not a file", config->name, config->path);
    }
    *file_out = file;
    return SL_OK;
}

enum sl_status sl_dataset_open(const struct sl_dataset_config *config, struct sl_dataset *dataset_out,
                               struct sl_error *err) {
    const struct sl_benchmark_task *task = sl_benchmark_find(config->format, config->name);
    struct sl_dataset_form form;
    FILE *file;
    enum sl_status status = make_form(config, task, &form, err);
    if (status == SL_OK) {
        status = open_file(config, &file, err);
    }
    if (status != SL_OK) {
        return status;
    }
    struct sl_dataset dataset = {.name = strdup(config->name),
                                 .first_line = config->first_line || (task && task->first_line)};
    struct line line = {0};
    if (!dataset.name) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for data set %s", config->name);
        goto done;
    }
    status = read_lines(file, &form, config->max_samples, &dataset, &line, err);
    if (status != SL_OK) {
        char where[256];
        snprintf(where, sizeof where, "%s:%zu", config->path, line.number);
        sl_error_prefix(err, where);
    } else if (dataset.n == 0) {
        status = sl_fail(err, SL_ERR_INVALID, "%s: there is no question in it", config->path);
    }
done:
    free(line.text);
    fclose(file);
    if (status == SL_OK) {
        *dataset_out = dataset;
    } else {
        sl_dataset_cleanup(&dataset);
    }
    return status;
}

void sl_dataset_cleanup(struct sl_dataset *dataset) {
    for (size_t i = 0; i < dataset->n; i++) {
        sl_sample_cleanup(&dataset->samples[i]);
    }
    free(dataset->samples);
    free(dataset->name);
    *dataset = (struct sl_dataset){0};
}
