// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one line per event on standard error: time, level, process, component, text with key=value pairs; or the
 *          same as a JSON object, with the job and the trace that the thread works for.
 * Design: the level test comes before any formatting. The filter is a string such as "info" or
 *         "warn,fabric=trace,job=debug", from --log or SLUICE_LOG. The logger is the only global of the project.
 * Threads: every function may be called from any thread; each line is written with one write().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum sl_log_level { SL_LOG_ERROR, SL_LOG_WARN, SL_LOG_INFO, SL_LOG_DEBUG, SL_LOG_TRACE };

// Replaces the filter. SL_ERR_INVALID names the word that is not a level; the old filter then stays.
enum sl_status sl_log_configure(const char *text, struct sl_error *err);

// Sets the name of this process in every line, e.g. "decode-0". Copied. Call before threads start.
void sl_log_set_process(const char *name);

// Sets the format: "text" or "json"; SL_ERR_INVALID for other text. Call before threads start.
enum sl_status sl_log_set_format(const char *text, struct sl_error *err);
bool sl_log_is_json(void);

/*
 * Sets the job that this thread or fiber works for from now on, for its JSON lines. Called where a job's fiber or a handler
 * begins. "" or NULL: no job. Copied, and cut to 63 characters. A pool thread calls sl_log_set_job("") when the handler
 * has returned; this clears the trace too.
 */
void sl_log_set_job(const char *job_id);
void sl_log_set_trace(const char *trace_id);

// Replaces in place what would control a terminal: line ends and tabs by spaces, other control characters by '?', also those
// of UTF-8 (C2 80 to C2 9F), which some terminals obey too. Other UTF-8 stays.
void sl_log_disarm(char *text, size_t bytes);

bool sl_log_enabled(const char *component, enum sl_log_level level);
void sl_log_write(const char *component, enum sl_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
uint64_t sl_log_lines(enum sl_log_level level); // that this process has written

#define sl_log(component, level, ...)                                                                                  \
    do {                                                                                                               \
        if (sl_log_enabled(component, level)) {                                                                        \
            sl_log_write(component, level, __VA_ARGS__);                                                               \
        }                                                                                                              \
    } while (0)
#define sl_log_error(component, ...) sl_log(component, SL_LOG_ERROR, __VA_ARGS__)
#define sl_log_warn(component, ...)  sl_log(component, SL_LOG_WARN, __VA_ARGS__)
#define sl_log_info(component, ...)  sl_log(component, SL_LOG_INFO, __VA_ARGS__)
#define sl_log_debug(component, ...) sl_log(component, SL_LOG_DEBUG, __VA_ARGS__)
