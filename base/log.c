// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one line per event on standard error.
 *
 * Design: the filter is immutable once published: a pointer swapped atomically, so that the level test takes no lock.
 *         Old filters are kept in a list and never freed: a thread may still be reading one, and they are few and
 *         small.
 * Threads: see log.h. A line is formatted in a buffer on the stack and written with one write().
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_RULES      24
#define MAX_NAME_BYTES 24
#define MAX_LINE_BYTES 2048

struct rule {
    char component[MAX_NAME_BYTES];
    enum sl_log_level level;
};

struct filter {
    struct filter *previous;
    enum sl_log_level level; // of components without a rule
    size_t n_rules;
    struct rule rules[MAX_RULES];
};

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

static struct filter initial_filter = {.level = SL_LOG_INFO};
static _Atomic(struct filter *) current_filter = &initial_filter;
static char process_name[MAX_NAME_BYTES] = "sluice";

static enum sl_status parse_level(const char *text, size_t n, enum sl_log_level *level_out, struct sl_error *err) {
    for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++) {
        if (strlen(level_names[i]) == n && memcmp(level_names[i], text, n) == 0) {
            *level_out = (enum sl_log_level)i;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "log filter: '%.*s' is not a level (error, warn, info, debug, trace)", (int)n,
                   text);
}

// One word of the filter: "info" or "fabric=trace".
static enum sl_status parse_word(struct filter *filter, const char *word, size_t n, struct sl_error *err) {
    const char *equals = memchr(word, '=', n);
    if (!equals) {
        return parse_level(word, n, &filter->level, err);
    }
    size_t name_bytes = (size_t)(equals - word);
    if (name_bytes == 0 || name_bytes >= MAX_NAME_BYTES) {
        return sl_fail(err, SL_ERR_INVALID, "log filter: '%.*s' does not name a component", (int)n, word);
    }
    if (filter->n_rules == MAX_RULES) {
        return sl_fail(err, SL_ERR_RANGE, "log filter: more than %d components", MAX_RULES);
    }
    struct rule *rule = &filter->rules[filter->n_rules];
    enum sl_status status = parse_level(equals + 1, n - name_bytes - 1, &rule->level, err);
    if (status == SL_OK) {
        memcpy(rule->component, word, name_bytes);
        rule->component[name_bytes] = '\0';
        filter->n_rules++;
    }
    return status;
}

enum sl_status sl_log_configure(const char *text, struct sl_error *err) {
    struct filter *filter = calloc(1, sizeof *filter);
    if (!filter) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "log filter: out of memory");
    }
    filter->level = SL_LOG_INFO;
    for (const char *word = text; *word;) {
        size_t n = strcspn(word, ",");
        enum sl_status status = n == 0 ? SL_OK : parse_word(filter, word, n, err);
        if (status != SL_OK) {
            free(filter);
            return status;
        }
        word += n + (word[n] == ',');
    }
    filter->previous = atomic_load(&current_filter);
    while (!atomic_compare_exchange_weak(&current_filter, &filter->previous, filter)) {
    }
    return SL_OK;
}

void sl_log_set_process(const char *name) {
    snprintf(process_name, sizeof process_name, "%s", name);
}

bool sl_log_enabled(const char *component, enum sl_log_level level) {
    const struct filter *filter = atomic_load_explicit(&current_filter, memory_order_acquire);
    for (size_t i = filter->n_rules; i-- > 0;) { // the last word about a component wins
        if (strcmp(filter->rules[i].component, component) == 0) {
            return level <= filter->rules[i].level;
        }
    }
    return level <= filter->level;
}

void sl_log_write(const char *component, enum sl_log_level level, const char *format, ...) {
    int saved_errno = errno; // logging must not change what the caller is about to look at
    char line[MAX_LINE_BYTES];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t used = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    used += (size_t)snprintf(line + used, sizeof line - used, ".%03ldZ %-5s %s %s: ", now.tv_nsec / 1000000,
                             level_names[level], process_name, component);
    if (used < sizeof line - 1) { // component names are short, but they are not ours to trust
        va_list args;
        va_start(args, format);
        int n = vsnprintf(line + used, sizeof line - used, format, args);
        va_end(args);
        used += n < 0 ? 0 : (size_t)n;
    }
    if (used > sizeof line - 2) { // cut, and say so
        used = sizeof line - 2;
        memcpy(line + used - 3, "...", 3);
    }
    // One event is one line, and a terminal is not told to do anything, whatever a peer put into a name or its error text.
    // Beyond ASCII, UTF-8 stays but its control characters (C2 80 to C2 9F), which some terminals obey too.
    for (size_t i = 0; i < used; i++) {
        unsigned char c = (unsigned char)line[i], next = (unsigned char)(i + 1 < used ? line[i + 1] : 0);
        if (c == '\n' || c == '\r' || c == '\t') {
            line[i] = ' ';
        } else if (c < 0x20 || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0)) {
            line[i] = '?';
            if (c == 0xc2) {
                line[++i] = '?';
            }
        }
    }
    line[used++] = '\n';
    for (size_t done = 0; done < used;) {
        ssize_t n = write(STDERR_FILENO, line + done, used - done);
        if (n > 0) {
            done += (size_t)n;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else {
            break; // nowhere left to report it
        }
    }
    errno = saved_errno;
}
