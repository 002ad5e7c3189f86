// SPDX-License-Identifier: Apache-2.0
// Purpose: what `sluice doc` prints about one document. See doc_show.c.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"
#include "proto/sluice/v1/documents.pb-c.h"

// Returns the time as text, or "never" for 0.
const char *sl_doc_time_text(int64_t ms, char buf[SL_UTC_BYTES]);
// Lists the stores that have the document; the last ones are left out where the buffer ends. Returns buf.
const char *sl_doc_stores_text(const Sluice__V1__Document *document, char *buf, size_t n_buf);
// Prints all that is known about the document.
void sl_doc_show(const Sluice__V1__Document *document, bool json);
// Prints on standard error what the recipe may lose on so long a text (caution); "": nothing is known.
void sl_doc_warn(const char *name, int64_t n_tokens, const char *caution);
// Prints what was done with the document, with a note on standard error if it is lost when the cluster ends; and frees it.
// is_warned: without the caution, which was printed before. Returns SL_OK.
enum sl_status sl_doc_done(Sluice__V1__Document *document, const char *word, bool json, bool is_warned);
