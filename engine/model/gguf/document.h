// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the JSON documents of a model: the files of a folder, or documents made from the metadata of a GGUF file.
 *          Code that reads models uses these documents and needs no other form.
 *
 * Design: a path that is a file is a GGUF file, and so is a folder without config.json that holds exactly one .gguf.
 *         config.json, generation_config.json, tokenizer.json and tokenizer_config.json are made from its metadata.
 *         Other files that may accompany a model are beside the GGUF file, under its name:
 *         FILE.gguf.sluice_profile.json.
 */
#pragma once

#include <jansson.h>

#include "base/status.h"
#include "engine/model/gguf/gguf.h"

// Loads a document, as sl_json_file_load() does.
enum sl_status sl_model_document_load(const char *model, const char *name, json_t **root_out, struct sl_error *err);
// The same; *root_out NULL: the model has none.
enum sl_status sl_model_document_load_optional(const char *model, const char *name, json_t **root_out,
                                               struct sl_error *err);

// Opens the GGUF file of `model`; *gguf_out NULL: it is a folder.
enum sl_status sl_model_gguf_open(const char *model, struct sl_gguf **gguf_out, struct sl_error *err);

// Renames what an error about config.json or generation_config.json names to the keys of the file.
void sl_gguf_name_keys(const struct sl_gguf *gguf, struct sl_error *err);

// --- the documents (gguf_config.c, gguf_tokenizer.c) -----------------------------------------------------------------
enum sl_status sl_gguf_config(const struct sl_gguf *gguf, json_t **root_out, struct sl_error *err);
enum sl_status sl_gguf_generation(const struct sl_gguf *gguf, json_t **root_out, struct sl_error *err);
enum sl_status sl_gguf_tokenizer(const struct sl_gguf *gguf, json_t **root_out, struct sl_error *err);
enum sl_status sl_gguf_tokenizer_config(const struct sl_gguf *gguf, json_t **root_out, struct sl_error *err);
