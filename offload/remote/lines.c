// SPDX-License-Identifier: Apache-2.0
// Lines that are kept while somebody uses them. See lines.h.
#include "offload/remote/lines.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct line_entry {
    struct line_entry *next;
    char *address;
    uint64_t epoch;
    struct sl_line *line;
    int n_users;
    bool is_cut; // nobody takes it any more
};

struct sl_lines {
    struct sl_fabric *fabric;
    pthread_mutex_t mutex;
    struct line_entry *first;
};

enum sl_status sl_lines_create(struct sl_fabric *fabric, struct sl_lines **lines_out, struct sl_error *err) {
    struct sl_lines *lines = calloc(1, sizeof *lines);
    if (!lines) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "lines: out of memory");
    }
    lines->fabric = fabric;
    pthread_mutex_init(&lines->mutex, NULL);
    *lines_out = lines;
    return SL_OK;
}

static void free_entry(struct line_entry *entry) {
    sl_line_close(&entry->line);
    free(entry->address);
    free(entry);
}

void sl_lines_destroy(struct sl_lines **lines_inout) {
    struct sl_lines *lines = *lines_inout;
    if (!lines) {
        return;
    }
    for (struct line_entry *entry = lines->first, *next; entry; entry = next) {
        next = entry->next;
        free_entry(entry);
    }
    pthread_mutex_destroy(&lines->mutex);
    free(lines);
    *lines_inout = NULL;
}

// Under the mutex.
static enum sl_status open_entry(struct sl_lines *lines, const char *address, uint64_t epoch,
                                 struct line_entry **entry_out, struct sl_error *err) {
    struct line_entry *entry = calloc(1, sizeof *entry);
    if (!entry || !(entry->address = strdup(address))) {
        free(entry);
        return sl_fail(err, SL_ERR_EXHAUSTED, "lines: out of memory");
    }
    entry->epoch = epoch;
    enum sl_status status = sl_line_open(lines->fabric, address, epoch, &entry->line, err);
    if (status != SL_OK) {
        free_entry(entry);
        return status;
    }
    entry->next = lines->first;
    lines->first = entry;
    *entry_out = entry;
    return SL_OK;
}

enum sl_status sl_lines_take(struct sl_lines *lines, const char *address, uint64_t epoch, struct sl_line **line_out,
                             struct sl_error *err) {
    pthread_mutex_lock(&lines->mutex);
    enum sl_status status = SL_OK;
    struct line_entry *entry = lines->first;
    while (entry && (entry->is_cut || entry->epoch != epoch || strcmp(entry->address, address) != 0)) {
        entry = entry->next;
    }
    if (!entry) {
        status = open_entry(lines, address, epoch, &entry, err);
    }
    if (status == SL_OK) {
        entry->n_users++;
        *line_out = entry->line;
    }
    pthread_mutex_unlock(&lines->mutex);
    return status;
}

static void give(struct sl_lines *lines, struct sl_line **line, bool is_cut) {
    if (!*line) {
        return;
    }
    pthread_mutex_lock(&lines->mutex);
    struct line_entry **at = &lines->first;
    while ((*at)->line != *line) {
        at = &(*at)->next;
    }
    struct line_entry *entry = *at, *unused = NULL;
    entry->is_cut |= is_cut;
    if (--entry->n_users == 0) {
        *at = entry->next;
        unused = entry;
    }
    pthread_mutex_unlock(&lines->mutex);
    if (unused) {
        free_entry(unused);
    }
    *line = NULL;
}

void sl_lines_give(struct sl_lines *lines, struct sl_line **line) {
    give(lines, line, false);
}

void sl_lines_give_cut(struct sl_lines *lines, struct sl_line **line) {
    give(lines, line, true);
}
