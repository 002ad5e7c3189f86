// SPDX-License-Identifier: Apache-2.0
#include "base/trace.h"

#include <stdio.h>
#include <string.h>

#include "base/locals.h"
#include "base/log.h"

// Returns the value of a hexadecimal digit; only lower case is valid, by the W3C recommendation. -1: not a digit.
static int digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Parses n bytes of two digits each. False: they are invalid, or all are zero and may_be_zero is false.
static bool parse_bytes(const char *text, uint8_t *bytes_out, size_t n, bool may_be_zero) {
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        bytes_out[i] = (uint8_t)(high << 4 | low);
        any |= bytes_out[i];
    }
    return any || may_be_zero;
}

bool sl_trace_parse(const char *text, size_t n_bytes, struct sl_trace *trace_out) {
    const size_t known = SL_TRACEPARENT_BYTES - 1;
    struct sl_trace trace = {0};
    uint8_t version, flags;
    *trace_out = trace;
    bool is_one = n_bytes >= known && text[2] == '-' && text[35] == '-' && text[52] == '-' &&
                  parse_bytes(text, &version, 1, true) && version != 0xff &&
                  parse_bytes(text + 3, trace.trace_id, sizeof trace.trace_id, false) &&
                  parse_bytes(text + 36, trace.span_id, sizeof trace.span_id, false) &&
                  parse_bytes(text + 53, &flags, 1, true) && (n_bytes == known || (version > 0 && text[known] == '-'));
    if (is_one) {
        trace.sampled = flags & 1;
        *trace_out = trace;
    }
    return is_one;
}

static char *format_bytes(char *text, const uint8_t *bytes, size_t n) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        *text++ = digits[bytes[i] >> 4];
        *text++ = digits[bytes[i] & 15];
    }
    *text = '\0';
    return text;
}

void sl_trace_format(const struct sl_trace *trace, char text_out[SL_TRACEPARENT_BYTES]) {
    char *end = text_out + sprintf(text_out, "00-");
    end = format_bytes(end, trace->trace_id, sizeof trace->trace_id);
    *end++ = '-';
    end = format_bytes(end, trace->span_id, sizeof trace->span_id);
    strcpy(end, trace->sampled ? "-01" : "-00");
}

void sl_trace_set(const struct sl_trace *trace) {
    struct sl_trace *current = &sl_locals()->trace;
    char id[2 * sizeof current->trace_id + 1] = "";
    *current = trace ? *trace : (struct sl_trace){0};
    if (sl_trace_is_set(current)) {
        format_bytes(id, current->trace_id, sizeof current->trace_id);
    }
    sl_log_set_trace(id);
}

struct sl_trace sl_trace_current(void) {
    return sl_locals()->trace;
}
