// SPDX-License-Identifier: Apache-2.0
/*
 * Design: the filter is immutable once published: a pointer swapped atomically, so that the level test takes no lock.
 *         Old filters are kept in a list and never freed: a thread may still be reading one, and they are few and
 *         small.
 *         For JSON, the text is formatted as usual and then escaped. Bytes that are not UTF-8 become question marks.
 *         Writing a line takes no lock, not even the C library's lock for time zones. So a thread that is stuck never
 *         keeps other threads from logging that it is stuck.
 * Threads: see log.h. A line is formatted in a buffer on the stack and written with one write().
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/locals.h"

#define MAX_RULES      24
#define MAX_NAME_BYTES 24
#define MAX_LINE_BYTES 2048
#define MAX_JSON_BYTES 4000 // the same text, escaped; longer text is cut. Less than `sluice up` forwards in one piece

struct rule {
    char component[MAX_NAME_BYTES];
    enum sl_log_level level;
};

struct filter {
    struct filter *previous;
    enum sl_log_level level; // for components without a rule
    size_t n_rules;
    struct rule rules[MAX_RULES];
};

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

static struct filter initial_filter = {.level = SL_LOG_INFO};
static _Atomic(struct filter *) current_filter = &initial_filter;
static char process_name[MAX_NAME_BYTES] = "sluice";
static bool is_json;

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

static enum sl_status parse_word(struct filter *filter, const char *word, size_t n, struct sl_error *err) {
    const char *equals = memchr(word, '=', n);
    if (!equals) {
        return parse_level(word, n, &filter->level, err);
    }
    size_t name_bytes = (size_t)(equals - word);
    SL_FAIL_IF(name_bytes == 0 || name_bytes >= MAX_NAME_BYTES, err, SL_ERR_INVALID,
               "log filter: '%.*s' does not name a component", (int)n, word);
    SL_FAIL_IF(filter->n_rules == MAX_RULES, err, SL_ERR_RANGE, "log filter: more than %d components", MAX_RULES);
    struct rule *rule = &filter->rules[filter->n_rules];
    SL_TRY(parse_level(equals + 1, n - name_bytes - 1, &rule->level, err));
    memcpy(rule->component, word, name_bytes);
    rule->component[name_bytes] = '\0';
    filter->n_rules++;
    return SL_OK;
}

enum sl_status sl_log_configure(const char *text, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct filter, filter, err, "log filter: out of memory");
    filter->level = SL_LOG_INFO;
    for (const char *word = text; *word;) {
        size_t n = strcspn(word, ",");
        SL_TRY_OR(n == 0 ? SL_OK : parse_word(filter, word, n, err), free(filter));
        word += n + (word[n] == ',');
    }
    filter->previous = atomic_load(&current_filter);
    while (!atomic_compare_exchange_weak(&current_filter, &filter->previous, filter)) {
    }
    return SL_OK;
}

enum sl_status sl_log_set_format(const char *text, struct sl_error *err) {
    is_json = strcmp(text, "json") == 0;
    return is_json || strcmp(text, "text") == 0
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "--log-format %.40s: expected text or json", text);
}

bool sl_log_is_json(void) {
    return is_json;
}

void sl_log_set_job(const char *id) {
    struct sl_locals *own = sl_locals();
    snprintf(own->job_id, sizeof own->job_id, "%s", id ? id : "");
    if (own->job_id[0] == '\0') {
        own->trace_id[0] = '\0';
    }
}

void sl_log_set_trace(const char *id) {
    struct sl_locals *own = sl_locals();
    snprintf(own->trace_id, sizeof own->trace_id, "%s", id ? id : "");
}

void sl_log_set_process(const char *name) {
    snprintf(process_name, sizeof process_name, "%s", name);
}

bool sl_log_enabled(const char *component, enum sl_log_level level) {
    const struct filter *filter = atomic_load_explicit(&current_filter, memory_order_acquire);
    for (size_t i = filter->n_rules; i-- > 0;) { // the last rule for a component wins
        if (strcmp(filter->rules[i].component, component) == 0) {
            return level <= filter->rules[i].level;
        }
    }
    return level <= filter->level;
}

// ---- text -----------------------------------------------------------------------------------------------------------------

void sl_log_disarm(char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i], next = (unsigned char)(i + 1 < bytes ? text[i + 1] : 0);
        if (c == '\n' || c == '\r' || c == '\t') {
            text[i] = ' ';
        } else if (c < 0x20 || c == 0x7f || (c == 0xc2 && next >= 0x80 && next < 0xa0)) {
            text[i] = '?';
            if (c == 0xc2) {
                text[++i] = '?';
            }
        }
    }
}

static size_t write_text(char line[MAX_LINE_BYTES], const char *component, enum sl_log_level level, const char *format,
                         va_list args) {
    sl_utc_text(sl_wall_ms(), line);
    size_t used = strlen(line);
    used += (size_t)snprintf(line + used, MAX_LINE_BYTES - used, " %-5s %s %s: ", level_names[level], process_name,
                             component);
    if (used < MAX_LINE_BYTES - 1) { // component names are short, but other processes choose some of them
        int n = vsnprintf(line + used, MAX_LINE_BYTES - used, format, args);
        used += n < 0 ? 0 : (size_t)n;
    }
    if (used > MAX_LINE_BYTES - 2) { // cut, and mark the cut
        used = MAX_LINE_BYTES - 2;
        memcpy(line + used - 3, "...", 3);
    }
    sl_log_disarm(line, used); // one event is one line, whatever a peer put into a name or an error text
    return used;
}

// ---- JSON -----------------------------------------------------------------------------------------------------------------

// Returns the number of bytes of the UTF-8 character at `text`; 0: it is not a UTF-8 character.
static size_t character_bytes(const unsigned char *text) {
    static const struct {
        unsigned char mask, lead;
        unsigned least; // the smallest code point that needs this many bytes: longer encodings are invalid
    } shapes[] = {{0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (size_t n = 2; n <= 4; n++) {
        if ((text[0] & shapes[n - 2].mask) != shapes[n - 2].lead) {
            continue;
        }
        unsigned value = text[0] & (unsigned char)~shapes[n - 2].mask;
        for (size_t i = 1; i < n; i++) {
            if ((text[i] & 0xc0) != 0x80) { // also false for a NUL: the loop never reads past it
                return 0;
            }
            value = value << 6 | (text[i] & 0x3f);
        }
        bool is_one = value >= shapes[n - 2].least && value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
        return is_one ? n : 0;
    }
    return text[0] < 0x80 ? 1 : 0;
}

struct json_line {
    char text[MAX_JSON_BYTES];
    size_t used;
};

// Adds a string, escaped and between quotes; ends it with "..." if it does not fit.
static void add_string(struct json_line *line, const char *value) {
    const unsigned char *next = (const unsigned char *)value;
    const size_t most = MAX_JSON_BYTES - sizeof "...\"}\n";
    line->text[line->used++] = '"';
    while (*next) {
        char escaped[8];
        size_t n = character_bytes(next), n_escaped = n;
        if (n == 1 && (*next < 0x20 || *next == 0x7f)) {
            n_escaped = (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned)*next);
        } else if (n == 1 && (*next == '"' || *next == '\\')) {
            escaped[0] = '\\';
            escaped[1] = (char)*next;
            n_escaped = 2;
        } else if (n == 0) {
            n = n_escaped = 1;
            escaped[0] = '?';
        } else {
            memcpy(escaped, next, n);
        }
        if (line->used + n_escaped > most) {
            memcpy(line->text + line->used, "...", 3);
            line->used += 3;
            break;
        }
        memcpy(line->text + line->used, escaped, n_escaped);
        line->used += n_escaped;
        next += n;
    }
    line->text[line->used++] = '"';
}

// Adds a field. name: includes the punctuation before it. The text comes last, so that only the text can be cut.
static void add_field(struct json_line *line, const char *name, const char *value) {
    line->used += (size_t)snprintf(line->text + line->used, MAX_JSON_BYTES - line->used, "%s:", name);
    add_string(line, value);
}

static void write_json(struct json_line *line, const char *component, enum sl_log_level level, const char *format,
                       va_list args) {
    char text[MAX_LINE_BYTES], when[SL_UTC_BYTES];
    sl_utc_text(sl_wall_ms(), when);
    int n = vsnprintf(text, sizeof text, format, args);
    if (n < 0) {
        text[0] = '\0';
    } else if (n > (int)sizeof text - 1) {
        memcpy(text + sizeof text - 4, "...", 4);
    }
    line->used = 0;
    add_field(line, "{\"time\"", when);
    add_field(line, ",\"level\"", level_names[level]);
    add_field(line, ",\"process\"", process_name);
    add_field(line, ",\"component\"", component);
    const struct sl_locals *own = sl_locals();
    if (own->job_id[0]) {
        add_field(line, ",\"job\"", own->job_id);
    }
    if (own->trace_id[0]) {
        add_field(line, ",\"trace\"", own->trace_id);
    }
    add_field(line, ",\"message\"", text);
    line->text[line->used++] = '}';
}

// ---- both -----------------------------------------------------------------------------------------------------------------

static void write_whole(const char *line, size_t used) {
    for (size_t done = 0; done < used;) {
        ssize_t n = write(STDERR_FILENO, line + done, used - done);
        if (n > 0) {
            done += (size_t)n;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else {
            break; // there is no other place to report this
        }
    }
}

static _Atomic uint64_t n_lines[SL_LOG_TRACE + 1];

uint64_t sl_log_lines(enum sl_log_level level) {
    return atomic_load_explicit(&n_lines[level], memory_order_relaxed);
}

void sl_log_write(const char *component, enum sl_log_level level, const char *format, ...) {
    atomic_fetch_add_explicit(&n_lines[level], 1, memory_order_relaxed);
    int saved_errno = errno; // logging must not change the errno that the caller is about to read
    va_list args;
    va_start(args, format);
    if (is_json) {
        struct json_line line;
        write_json(&line, component, level, format, args);
        line.text[line.used++] = '\n';
        write_whole(line.text, line.used);
    } else {
        char line[MAX_LINE_BYTES];
        size_t used = write_text(line, component, level, format, args);
        line[used++] = '\n';
        write_whole(line, used);
    }
    va_end(args);
    errno = saved_errno;
}
