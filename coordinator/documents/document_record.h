// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a document as bytes: a digest (8 bytes), then sluice.v1.KeptDocument, with the text or without it.
 * Trust: the digest finds damage, not malice: the reader checks lengths and names again.
 */
#pragma once

#include "coordinator/documents/document.h"
#include "proto/sluice/v1/state.pb-c.h"

#define SL_DOCUMENT_DIGITS 32
#define SL_DOCUMENT_MAX_BYTES                                                                                          \
    ((long)64 << 20) // of a record with its text: far above the largest message that can add a document

// Called with each document that is read; takes over the reference. Returns false if it has no use for the document.
typedef bool (*sl_document_fn)(void *arg, struct sl_document *document);

// Writes the name of a document's record: a hash of tenant and name.
void sl_document_digits(const struct sl_document *document, char digits_out[SL_DOCUMENT_DIGITS + 1]);
// Packs a document, malloc'd. NULL: no memory.
uint8_t *sl_document_pack(const struct sl_document *document, bool with_text, size_t *n_out);
// Checks the digest, and unpacks the record; the caller frees it. SL_ERR_INVALID: it is damaged.
enum sl_status sl_document_unpack(const uint8_t *bytes, size_t n, Sluice__V1__KeptDocument **kept_out,
                                  struct sl_error *err);
// Makes the document of a record with its text; one reference. SL_ERR_INVALID: the record is damaged. SL_ERR_EXHAUSTED.
enum sl_status sl_document_make(const Sluice__V1__KeptDocument *kept, struct sl_document **document_out,
                                struct sl_error *err);
