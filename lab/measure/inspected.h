// SPDX-License-Identifier: Apache-2.0
// Purpose: a capsule that is inspected, from a capsule's file (engine/kvcache/capsule_file.h) or from a document's
//          (net/document/exported.h).
#pragma once

#include "engine/kvcache/capsule_file.h"
#include "net/document/exported.h"

struct sl_inspected {
    const char *path;
    bool is_document;
    struct sl_exported_head head; // of a document
    char *text;                   // of a document with its text; owned, or NULL
    struct sl_capsule_file file;  // of a document: as if the capsule were a file, labeled with the recipe, and closed
    struct sl_arena *arena;
    struct sl_session *session;
};

// Opens a file and checks all its digests. Close it in any case. SL_ERR_INVALID: it is neither, damaged or cut short; or
// it does not exist. SL_ERR_UNSUPPORTED, SL_ERR_IO, SL_ERR_EXHAUSTED, SL_ERR_PEER_CORRUPT.
enum sl_status sl_inspected_open(const char *path, struct sl_inspected *inspected_out, struct sl_error *err);
void sl_inspected_close(struct sl_inspected *inspected);
