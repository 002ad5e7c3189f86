// SPDX-License-Identifier: Apache-2.0
// Purpose: what `sluice doctor` has found: one line for each check, with what it means for Sluice and the remedy.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum sl_health {
    SL_HEALTH_OK,
    SL_HEALTH_WARNING, // Sluice works, but not as well, or not for long
    SL_HEALTH_FAILED,  // Sluice does not work
};

struct sl_finding {
    const char *check; // "open files": a literal
    enum sl_health health;
    char text[360];   // the state, and what it means for Sluice
    char remedy[240]; // "": none is needed
};

struct sl_findings {
    struct sl_finding *rows; // [n]
    size_t n, n_allocated;
    bool out_of_memory; // sticky
};

// Adds a line. Texts that are too long are cut.
void sl_findings_add(struct sl_findings *findings, const char *check, enum sl_health health, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
// Adds the remedy to the line that was added last, unless it is OK.
void sl_findings_remedy(struct sl_findings *findings, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Returns the first line that failed, or NULL.
const struct sl_finding *sl_findings_failed(const struct sl_findings *findings);
// Prints all lines, as text or as one JSON object a line.
void sl_findings_print(const struct sl_findings *findings, bool as_json, FILE *file);
void sl_findings_cleanup(struct sl_findings *findings);
