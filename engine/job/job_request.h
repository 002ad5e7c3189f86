// SPDX-License-Identifier: Apache-2.0
// Purpose: reads the fields that several requests about a job share, the same way in every receiver.
#pragma once

#include "base/salted_hash.h"
#include "engine/model/model.h"
#include "engine/sampling/sampler.h"
#include "proto/sluice/v1/inference.pb-c.h"

// The most tokens that a decode worker reads after a stored prefix: as many as fit one pass of its engine. The reader
// cuts them into several passes far into a document, so that no pass is long. A longer rest would delay running answers
// for many passes, and goes to a prefill worker.
#define SL_JOB_SHORT_REST 512

// Checks token ids. SL_ERR_INVALID names the field, and the id that the model's vocabulary does not have. ids may be
// NULL.
enum sl_status sl_job_check_ids(const struct sl_model_config *model, const char *field, const Sluice__V1__TokenIds *ids,
                                struct sl_error *err);

// Reads the salt of a prompt's prefix hashes; zeros if there is none. SL_ERR_INVALID: the salt has another length.
enum sl_status sl_job_read_salt(const ProtobufCBinaryData *field, struct sl_hash128 *salt_out, struct sl_error *err);

/*
 * Returns the sampling of a message. Absent fields, and an absent message (NULL), get the model's values; values that
 * the model does not have (or if `model` is NULL) get the defaults of inference.proto. An absent seed is 0:
 * sl_job_choose_seed() draws one when a job begins. Does not validate the message.
 */
struct sl_sampling sl_job_sampling(const Sluice__V1__Sampling *message, const struct sl_model_config *model);
// Returns whether the caller named a seed; 0 is one.
bool sl_job_names_seed(const Sluice__V1__Sampling *message);

/*
 * Chooses the seed of a job: the one that the message names, else *known (the seed that an earlier attempt or turn was
 * told; NULL: there is none), else a random one. Random seeds are below 2^53, so that every JSON reader repeats them
 * exactly. SL_ERR_IO: the system has no random numbers.
 */
enum sl_status sl_job_choose_seed(const Sluice__V1__Sampling *message, const uint64_t *known, uint64_t *seed_out,
                                  struct sl_error *err);

// Converts the other way than sl_job_sampling(): all fields are present.
Sluice__V1__Sampling sl_job_sampling_message(const struct sl_sampling *sampling);
// Returns the model's own sampling as a message.
Sluice__V1__Sampling sl_job_model_sampling(const struct sl_model_config *model);
