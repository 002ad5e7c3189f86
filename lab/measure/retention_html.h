// SPDX-License-Identifier: Apache-2.0
// Purpose: a page that shows, over the text, which share of each token's and each sentence's slots a capsule has kept.
#pragma once

#include "lab/measure/inspected.h"

/*
 * Writes the page, which needs no other file. model_dir: has the tokenizer that read the text. text_path: the text, where
 * the inspected file does not have it; or NULL. SL_ERR_INVALID: there is no text, or it is another than the capsule's.
 * SL_ERR_UNSUPPORTED: the capsule does not say which positions it kept. SL_ERR_IO, SL_ERR_EXHAUSTED.
 */
enum sl_status sl_retention_html_write(const struct sl_inspected *inspected, const char *model_dir,
                                       const char *text_path, const char *path, struct sl_error *err);
