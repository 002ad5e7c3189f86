// SPDX-License-Identifier: Apache-2.0
// Purpose: shared by the tests of documents' offloaded layers: a store's parts with a disk, its pins, and a document.
#pragma once

#include "tests/unit/kvstore/harness.h"

#include "kvstore/remote_kv/document_layers.h"
#include "tests/unit/slowness.h"
#include "tests/unit/temp_folder.h"

#define ARENA_BYTES ((size_t)4 << 20)
#define N_TOKENS    300 // of the document: segments of 256 and 44
#define N_ASKED     400 // of a prompt that begins with it
#define WAIT_MS     (10000 * SLOWNESS)
#define SEED        7

extern const int64_t cuts[3];           // of the document's segments
extern const struct sl_capsule_id a, b; // documents

struct fixture {
    struct temp_folder folder;
    struct parts parts;
    struct sl_protected *protected;
    struct sl_remote_kv_pins *pins;
    struct sl_disk *disk;
    struct sl_progress_counter progress_counter;
    struct sl_document_layers *layers;
    struct sl_kv_family family;
    const struct sl_ops *ops;
    struct prompt prompt, asked; // of the document, and of a question on it
};

int setup(void **state);
int teardown(void **state);
void open_disk(struct fixture *fixture);
void close_disk(struct fixture *fixture);
void open_pins(struct fixture *fixture, size_t max_bytes, int64_t partial_ms); // and the disk, again
struct sl_document_remote_kv document(const struct fixture *fixture, const struct sl_capsule_id *capsule);
void name(struct fixture *fixture, const struct sl_capsule_id *capsule); // one document; NULL: none
// Reads the document, as a job does: its remote KV is offered to the pins.
void read_document(struct fixture *fixture, const struct sl_capsule_id *capsule);
struct sl_document_layers_copies look(struct fixture *fixture, const struct sl_capsule_id *capsule);
// Looks until the layers are in memory, or on disk, or in neither.
struct sl_document_layers_copies look_until(struct fixture *fixture, const struct sl_capsule_id *capsule,
                                            bool in_memory, bool on_disk);
int64_t n_files(struct fixture *fixture);
int64_t n_segments(struct fixture *fixture);
void leave_on_disk(struct fixture *fixture); // the document alone, as after a restart
// Finds all of the document for a prompt that begins with it, with the bytes that it had when it was read.
void assert_is_found(struct fixture *fixture);
