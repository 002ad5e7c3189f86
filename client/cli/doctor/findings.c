// SPDX-License-Identifier: Apache-2.0
#include "client/cli/doctor/findings.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "client/cli/message_json.h"

static const char *const names[] = {
    [SL_HEALTH_OK] = "ok", [SL_HEALTH_WARNING] = "warning", [SL_HEALTH_FAILED] = "FAILED"};

void sl_findings_add(struct sl_findings *findings, const char *check, enum sl_health health, const char *format, ...) {
    if (!SL_GROW(findings->rows, findings->n, findings->n_allocated)) {
        findings->out_of_memory = true;
        return;
    }
    struct sl_finding *finding = &findings->rows[findings->n++];
    *finding = (struct sl_finding){.check = check, .health = health};
    va_list args;
    va_start(args, format);
    vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
    sl_log_disarm(finding->text, strlen(finding->text)); // names of files and hosts
}

void sl_findings_remedy(struct sl_findings *findings, const char *format, ...) {
    struct sl_finding *finding = findings->n > 0 ? &findings->rows[findings->n - 1] : NULL;
    if (!finding || finding->health == SL_HEALTH_OK) {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(finding->remedy, sizeof finding->remedy, format, args);
    va_end(args);
    sl_log_disarm(finding->remedy, strlen(finding->remedy));
}

const struct sl_finding *sl_findings_failed(const struct sl_findings *findings) {
    for (size_t i = 0; i < findings->n; i++) {
        if (findings->rows[i].health == SL_HEALTH_FAILED) {
            return &findings->rows[i];
        }
    }
    return NULL;
}

void sl_findings_print(const struct sl_findings *findings, bool as_json, FILE *file) {
    for (size_t i = 0; i < findings->n; i++) {
        const struct sl_finding *finding = &findings->rows[i];
        if (as_json) {
            sl_json_print(json_pack("{s:s, s:s, s:o, s:o}", "check", finding->check, "health",
                                    finding->health == SL_HEALTH_FAILED ? "failed" : names[finding->health], "text",
                                    sl_text_json(finding->text), "remedy", sl_text_json(finding->remedy)),
                          JSON_COMPACT, file);
        } else {
            fprintf(file, "%-8s %-13s %s%s%s\n", names[finding->health], finding->check, finding->text,
                    finding->remedy[0] ? ". Remedy: " : "", finding->remedy);
        }
    }
}

void sl_findings_cleanup(struct sl_findings *findings) {
    free(findings->rows);
    *findings = (struct sl_findings){0};
}
